# SPDX-License-Identifier: Apache-2.0
"""Rings of a CPU that was offline: closed alone, opened anew, and the same to files."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.config.event_spec import parse_one
from collectord.config.schema import Config
from collectord.config.schema_session import SessionConfig, TargetConfig
from collectord.errors import KernelError
from collectord.kernel.values.counter_reading import CounterReading
from collectord.model import RingRole, ScopeKind
from collectord.plan.build import build
from collectord.source import perf, perf_new_ring
from collectord.source.perf_reopening import can_reopen
from tests.support.configs import perf_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.config.event_spec import EventSpec
    from collectord.config.schema_session import Mode
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.open_perf import OpenPerf


class Events:
    """A kernel whose events are descriptors, each on a CPU, with an id of its own."""

    page_bytes = 4096
    limits: Any = None

    def __init__(self) -> None:
        self.cpu_of: dict[int, int] = {}  # of open events
        self.opened = 0
        self.enabled: list[int] = []
        self.disabled: list[int] = []
        self.refused = -1  # the CPU on which no event can be opened
        self.values: dict[int, int] = {}  # of events that have happened
        self.refreshed: list[int] = []

    def perf_event_open(self, attr: PerfEventAttr, *, cpu: int, group_fd: int, **_: object) -> int:
        """Open it, disabled, or in a group that is."""
        if cpu == self.refused:
            raise KernelError("cannot open an event")
        assert attr.disabled or attr.enable_on_exec or group_fd in self.cpu_of
        self.opened += 1
        self.cpu_of[self.opened] = cpu
        return self.opened

    def close(self, fd: int) -> None:
        """Close it, once."""
        del self.cpu_of[fd]

    def event_id(self, fd: int) -> int:
        """No id is given twice."""
        return 1000 + fd

    def enable(self, fd: int) -> None:
        """Note it."""
        assert fd in self.cpu_of
        self.enabled.append(fd)

    def disable(self, fd: int) -> None:
        """Note it."""
        assert fd in self.cpu_of
        self.disabled.append(fd)

    def refresh(self, fd: int) -> None:
        """Note it."""
        assert fd in self.cpu_of
        self.refreshed.append(fd)

    def read_counter(self, fd: int, _read_format: int) -> CounterReading:
        """Return how often it has happened."""
        assert fd in self.cpu_of
        return CounterReading(self.values.get(fd, 0), 5, 5, fd, 0)

    def pause_output(self, fd: int, *, paused: bool) -> None:
        """Do nothing to the ring of an open event."""
        assert fd in self.cpu_of
        assert not paused

    def set_output(self, fd: int, ring_fd: int) -> None:
        """They are on the same CPU."""
        assert self.cpu_of[fd] == self.cpu_of[ring_fd]

    def reserve_files(self, count: int) -> None:
        """There are as many as wanted."""

    def set_filter(self, fd: int, text: str) -> None:
        """Any filter is good."""


def planned(
    *events: str,
    mode: Mode = "stream",
    freeze_on: EventSpec | None = None,
    **target: Any,  # noqa: ANN401 - of any type
) -> SessionPlan:
    """Return the plan of a session of these events, on two CPUs."""
    session = SessionConfig(
        name="s",
        mode=mode,
        freeze_on=freeze_on,
        target=TargetConfig(**(target or {"scope": ScopeKind.CPUS, "cpus": (1, 2)})),
        source=(perf_source(*events),),
    )
    (plan,) = build(Config(session=(session,)), host()).sessions
    return plan


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Return a kernel without events, whose rings are no memory."""
    monkeypatch.setattr(
        perf_new_ring, "map_ring", lambda *_, **__: SimpleNamespace(close=lambda: None)
    )
    return Events()


@pytest.fixture
def opened(kernel: Events) -> Iterator[OpenPerf]:
    """Provide an open session of two events, on two CPUs."""
    standing: Any = kernel
    with ExitStack() as stack:
        yield perf.open_session(standing, planned("cs", "page-faults"), stack)
    assert kernel.cpu_of == {}


def test_rings_of_a_cpu_are_closed_alone(kernel: Events, opened: OpenPerf) -> None:
    """All of its events go, those of others stay, and nobody asks for it again."""
    (hotplug,) = opened.abilities.hotplug
    before = [fd for fd, cpu in kernel.cpu_of.items() if cpu != 1]
    hotplug.leave(1)
    hotplug.leave(1)
    assert list(kernel.cpu_of) == before
    assert 1 not in {ring.label.cpu for ring in opened.rings}
    opened.enable_sideband()
    opened.enable()
    opened.disable()
    assert {kernel.cpu_of[fd] for fd in kernel.enabled} == {0, 2, 3}


def test_events_of_a_cpu_are_stopped_alone(kernel: Events, opened: OpenPerf) -> None:
    """Those that name tasks come last, and those of other CPUs go on."""
    (hotplug,) = opened.abilities.hotplug
    hotplug.stop(1)
    in_order = [c.fd for role in (RingRole.DATA, RingRole.SIDEBAND)
                for ring in opened.rings if ring.label.cpu == 1 and ring.label.role is role
                for c in ring.counters]  # fmt: skip
    assert kernel.disabled == in_order


def test_new_rings_are_the_same_to_files(kernel: Events, opened: OpenPerf) -> None:
    """They have the labels and ids of those before, in the same places, however often."""
    (hotplug,) = opened.abilities.hotplug
    places = [ring.label for ring in opened.rings]
    ids = opened.event_ids
    known = {ring.label: [c.event_id for c in ring.counters] for ring in opened.rings}
    for _ in range(3):
        hotplug.leave(1)
        first = kernel.opened + 1
        joined = hotplug.join(1)
        assert {ring.label.cpu for ring in joined} == {1}
        assert [ring.label for ring in opened.rings] == places
        assert opened.event_ids == ids
        for ring in joined:
            assert [c.event_id for c in ring.counters] == known[ring.label]
            assert all(c.kernel_id == 1000 + c.fd >= 1000 + first for c in ring.counters)


def test_a_cpu_that_was_offline_at_the_start_has_rings_like_the_others(
    kernel: Events, opened: OpenPerf
) -> None:
    """Files name its events, as those of another CPU; they come and go as others do."""
    (hotplug,) = opened.abilities.hotplug
    known = {ring.label: [c.event_id for c in ring.counters] for ring in opened.rings}
    for _ in range(2):
        joined = hotplug.join(4)
        assert {kernel.cpu_of[c.fd] for ring in joined for c in ring.counters} == {4}
        for ring in joined:
            assert ring.label.cpu == 4
            ids = [c.event_id for c in ring.counters]
            assert ids == known[replace(ring.label, cpu=opened.rings[0].label.cpu)]
        assert len(opened.rings) == len(known) + len(joined)
        hotplug.leave(4)
        assert [ring.label for ring in opened.rings] == list(known)


def test_events_of_certain_cpus_have_no_place_on_a_late_one(kernel: Events) -> None:
    """Which CPUs they are for is known of those that were online at the start."""
    plan = planned("cs")
    rings = tuple(
        replace(ring, events=tuple(replace(event, cpus=(1, 2)) for event in ring.events))
        for ring in plan.rings
    )
    standing: Any = kernel
    with ExitStack() as stack:
        opened = perf.open_session(standing, replace(plan, rings=rings), stack)
        (hotplug,) = opened.abilities.hotplug
        before = dict(kernel.cpu_of)
        with pytest.raises(KernelError, match="CPU 4 was offline at the start"):
            hotplug.join(4)
        assert kernel.cpu_of == before


def test_new_events_are_enabled_and_no_others(kernel: Events, opened: OpenPerf) -> None:
    """Those that name tasks come first; the others run already."""
    (hotplug,) = opened.abilities.hotplug
    hotplug.leave(2)
    joined = hotplug.join(2)
    assert kernel.enabled == []
    hotplug.enable(joined)
    in_order = [c.fd for role in (RingRole.SIDEBAND, RingRole.DATA)
                for ring in joined if ring.label.role is role for c in ring.counters]  # fmt: skip
    assert kernel.enabled == in_order


def test_what_cannot_be_opened_leaves_nothing(kernel: Events, opened: OpenPerf) -> None:
    """The CPU may be tried again."""
    (hotplug,) = opened.abilities.hotplug
    hotplug.leave(1)
    before, rings = dict(kernel.cpu_of), opened.rings
    kernel.refused = 1
    with pytest.raises(KernelError):
        hotplug.join(1)
    assert (kernel.cpu_of, opened.rings) == (before, rings)
    kernel.refused = -1
    assert hotplug.join(1)


def test_events_of_tasks_are_left_alone() -> None:
    """The kernel keeps them."""
    assert can_reopen(planned("cs"))
    assert not can_reopen(planned("cs", scope=ScopeKind.THREAD, pids=(7,)))


def test_the_events_that_freeze_rings_come_and_go(kernel: Events) -> None:
    """Those of a CPU that left are not looked at, and a descriptor of theirs may be another's."""
    standing: Any = kernel
    plan = planned("cs", mode="flight-recorder", freeze_on=parse_one("page-faults"))
    with ExitStack() as stack:
        opened = perf.open_session(standing, plan, stack)
        (hotplug,) = opened.abilities.hotplug
        opened.enable()
        (first, second) = sorted(opened.freeze_fds, key=kernel.cpu_of.__getitem__)
        kernel.values[first] = 1
        assert opened.frozen()
        hotplug.leave(1)
        assert (opened.freeze_fds, opened.frozen()) == ((second,), False)
        opened.resume()
        assert kernel.refreshed == [first, second]
        joined = hotplug.join(1)
        hotplug.enable(joined)
        (new,) = set(opened.freeze_fds) - {second}
        assert (kernel.cpu_of[new], kernel.refreshed[2:]) == (1, [new])
        kernel.values[new] = 1
        assert opened.frozen()
        opened.resume()
        assert kernel.refreshed[3:] == [new]
