# SPDX-License-Identifier: Apache-2.0
"""AUX areas that an event freezes, without one: what is opened and asked for, in which order."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.codec.perf_attr import AuxAction, PerfEventAttr
from collectord.config.event_spec import parse_one
from collectord.config.schema import Config
from collectord.config.schema_session import SessionConfig, TargetConfig
from collectord.facts.kernel_facts import PmuFacts
from collectord.kernel.values.counter_reading import CounterReading
from collectord.model import ScopeKind
from collectord.plan.build import build
from collectord.source import perf, perf_new_ring
from tests.support.configs import perf_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.source.open_perf import OpenPerf

SWITCH = "sched:sched_switch"
TRACE = 20  # type of the PMU


@dataclass
class Opened:
    """One event, with the arguments of its opening."""

    fd: int
    attr: PerfEventAttr
    group_fd: int

    @property
    def name(self) -> str:
        """Its role in this test."""
        if self.attr.type == TRACE:
            return "trace"
        if self.attr.aux_action == AuxAction.RESUME:
            return "resumer"
        return "freezing" if not self.attr.watermark and self.attr.wakeup else "other"


@dataclass
class Events:
    """Stands for the kernel's events: those that were opened, and what was asked of them."""

    page_bytes: int = 4096
    opened: list[Opened] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)

    def name(self, fd: int) -> str:
        """Return the event's name."""
        return next(one.name for one in self.opened if one.fd == fd)

    def perf_event_open(self, attr: PerfEventAttr, *, group_fd: int = -1, **_where: object) -> int:
        """Note it."""
        self.opened.append(Opened(100 + len(self.opened), attr, group_fd))
        return self.opened[-1].fd

    def map_ring(self, fd: int, *_size: object, overwrite: bool) -> Any:  # noqa: ANN401
        """Note whose it is."""
        assert not overwrite
        self.asked.append(("map", self.name(fd)))
        return SimpleNamespace(close=lambda: None)

    def map_aux(
        self, fd: int, _ring: object, size: int, _limits: object, *, snapshot: bool
    ) -> Any:  # noqa: ANN401
        """Note whose it is."""
        assert snapshot
        self.asked.append(("map aux", self.name(fd)))
        return SimpleNamespace(close=lambda: None, data_bytes=size)

    def read_counter(self, fd: int, _read_format: int) -> CounterReading:
        """Return its value; its time stands still."""
        return CounterReading(self.values.get(self.name(fd), 0), 5, 5, fd, 0)

    def event_id(self, fd: int) -> int:
        """Return any id."""
        return fd

    def set_output(self, fd: int, ring_fd: int) -> None:
        """Note it."""
        self.asked.append((f"to {self.name(ring_fd)}'s", self.name(fd)))

    def __getattr__(self, verb: str) -> Any:  # noqa: ANN401 - a call
        """Note whatever else is asked of an event."""

        def ask(fd: int, *_rest: object) -> None:
            if verb not in ("close", "reserve_files"):
                self.asked.append((verb, self.name(fd)))

        return ask


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Return a kernel without events, whose rings are no memory."""
    events = Events()
    monkeypatch.setattr(perf_new_ring, "map_ring", events.map_ring)
    monkeypatch.setattr(perf_new_ring, "map_aux", events.map_aux)
    return events


@pytest.fixture
def opened(kernel: Events, request: pytest.FixtureRequest) -> Iterator[OpenPerf]:
    """Provide a flight recorder of one CPU's AUX area that a context switch freezes."""
    pmu = PmuFacts(type=TRACE, aux=True, aux_pause=request.param)
    facts = replace(host(), pmus={**host().pmus, "plain": pmu})
    session = SessionConfig(
        name="s",
        mode="flight-recorder",
        freeze_on=parse_one(SWITCH),
        target=TargetConfig(scope=ScopeKind.CPUS, cpus=(1,)),
        source=(perf_source("cs", "plain//"),),
    )
    (plan,) = build(Config(session=(session,)), facts).sessions
    rings = tuple(ring for ring in plan.rings if ring.aux is not None)
    with ExitStack() as stack:
        standing: Any = kernel
        yield perf.open_session(standing, replace(plan, rings=rings), stack)


@pytest.mark.parametrize("opened", [True], indirect=True)
def test_an_area_that_is_paused(kernel: Events, opened: OpenPerf) -> None:
    """The AUX event leads; what resumes it is off, in no ring, armed before the next freeze."""
    trace = kernel.opened[0].fd
    assert [(one.name, one.group_fd) for one in kernel.opened] == [
        ("trace", -1),
        ("freezing", trace),
        ("resumer", trace),
        ("other", -1),
    ]
    assert kernel.opened[2].attr.disabled
    assert [what for what in kernel.asked if what[0] != "set_filter"] == [
        ("map", "trace"),
        ("map aux", "trace"),
        ("to trace's", "freezing"),
        ("to trace's", "other"),
    ]
    kernel.asked.clear()
    opened.enable()
    assert kernel.asked == [("refresh", "freezing"), ("enable", "trace"), ("enable", "other")]
    assert not opened.frozen()
    kernel.values["freezing"] = 1
    assert opened.frozen()
    kernel.asked.clear()
    opened.pause()
    opened.resume()
    assert kernel.asked == [
        ("disable", "trace"),
        ("refresh", "resumer"),
        ("refresh", "freezing"),
        ("enable", "trace"),
    ]
    assert not opened.frozen()
    kernel.asked.clear()
    opened.pause()
    opened.resume()
    assert kernel.asked == [("disable", "trace"), ("enable", "trace")]
    kernel.asked.clear()
    opened.disable()
    assert ("disable", "resumer") not in kernel.asked


@pytest.mark.parametrize("opened", [False], indirect=True)
def test_an_area_that_is_disabled(kernel: Events, opened: OpenPerf) -> None:
    """The freezing event leads, and is sent to the ring of the AUX event once that is there."""
    freezing = kernel.opened[0].fd
    assert [(one.name, one.group_fd) for one in kernel.opened] == [
        ("freezing", -1),
        ("trace", freezing),
        ("other", freezing),
    ]
    assert [what for what in kernel.asked if what[0] != "set_filter"] == [
        ("map", "trace"),
        ("map aux", "trace"),
        ("to trace's", "freezing"),
        ("to trace's", "other"),
    ]
    (ring,) = opened.rings
    assert [kernel.name(counter.fd) for counter in ring.counters] == ["freezing", "trace", "other"]
    assert kernel.name(ring.fd) == "trace"
    opened.enable()
    kernel.values["freezing"] = 1
    assert opened.frozen()
    kernel.asked.clear()
    opened.pause()
    opened.resume()
    assert kernel.asked == [("disable", "freezing"), ("refresh", "freezing")]
    kernel.asked.clear()
    opened.pause()
    opened.resume()
    assert kernel.asked == [("disable", "freezing"), ("enable", "freezing")]
