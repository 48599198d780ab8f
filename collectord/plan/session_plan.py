# SPDX-License-Identifier: Apache-2.0
"""The plan of one session: its rings, events and files. Frozen, printable, final."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from collectord.codec.perf_attr import SampleType
from collectord.config.schema_session import LossClass
from collectord.errors import MissingFeature
from collectord.model import TASK_SCOPES, Basis, RingRole, Scope, source_kind
from collectord.plan.payload import Payload
from collectord.plan.plan_text import event_dict, event_words, ring_words, sink_words
from collectord.plan.probe_cost import expected_probe_cost

if TYPE_CHECKING:
    from collectord.codec.tracepoint import Tracepoint
    from collectord.errors import CollectordError
    from collectord.plan.event_attrs import EventPlan
    from collectord.plan.probe_cost import ProbeCost
    from collectord.plan.ring_plan import RingPlan
    from collectord.plan.sink_plan import SinkPlan

P = TypeVar("P", bound="Payload")

_DATA: Final = RingRole.DATA
_CLASSES: Final[tuple[str, ...]] = get_args(LossClass)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One session, ready to be opened.

    Attributes:
        name: names its folder, labels and metrics; unique but for sources of two kinds in one
            configured session, which become two plans of its name.
        source: source in labels: its kind, "perf", "tracefs", "bpf" or "relay", and from the
            second device or channel on its number, "relay-2".
        scope: what is observed. Threads of pids and of users are looked up at open.
        mode: "stream" or "flight-recorder".
        rings: all rings, data before sideband.
        sink: destination of its records.
        files: file descriptors at open; in a task scope for one thread.
        notes: decisions of the plan that were not asked for literally.
        degraded: a reason for each part that was asked for and will be missing.
        payload: the rest of its kind of source: an ftrace instance, BPF programs, which without
            events have no rings, or one device or channel of relay.
        freezes: an event of the kernel stops its rings, to be stored.
        may_fail: what it lacks, or fails with when it is opened, leaves the other sessions alone:
            all its sources are `when = "present"`.
        optional: labels of its perf sources that are `when = "present"`.
        loss_class: the weight of its losses, for alerts, and while staging is short.
        ends_ns: Unix time at which it ends by itself, 0 for one that the daemon ends.
        opener: socket of the opener that holds its rings; "" if the daemon opens them.
    """

    name: str
    source: str
    scope: Scope
    mode: str
    rings: tuple[RingPlan, ...]
    sink: SinkPlan
    files: int
    notes: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    payload: Payload = field(default_factory=Payload)
    freezes: bool = False
    may_fail: bool = False
    optional: tuple[str, ...] = ()
    loss_class: str = "normal"
    ends_ns: int = 0
    opener: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Its name and source, which no other has."""
        return self.name, self.source

    def contains(self, error: CollectordError) -> bool:
        """Whether such an error fails it alone; for perf's and ftrace's rings only absence."""
        absent = isinstance(error, MissingFeature)
        return self.may_fail and (absent or self.payload.fails_alone)

    def payload_of(self, kind: type[P]) -> P:
        """Return its payload of this kind, for the source that opens it."""
        if not isinstance(self.payload, kind):
            raise TypeError(self.source)
        return self.payload

    def without(self, source: str, reason: str) -> SessionPlan:
        """Return the session without the rings of a source that the host turned out to lack."""
        rest = [ring for ring in self.rings if ring.source != source or ring.role is not _DATA]
        left = [ring for ring in rest if ring.role is _DATA]
        numbers = sorted({event.index for ring in rest for event in ring.events})
        rings = [
            replace(
                ring,
                # The sideband belongs to the first source that is left.
                source=ring.source if ring.role is _DATA else left[0].source,
                events=tuple(
                    replace(event, index=numbers.index(event.index)) for event in ring.events
                ),
            )
            for ring in (rest if left else ())
        ]
        return replace(
            self,
            rings=tuple(rings),
            optional=tuple(name for name in self.optional if name != source),
            degraded=(*self.degraded, f"{source}: {reason}"),
        )

    @property
    def rank(self) -> int:
        """How much it matters while staging is short, as the core has it: 0 most."""
        return _CLASSES.index(self.loss_class)

    @property
    def kind(self) -> str:
        """The kind of its sources."""
        return source_kind(self.source)

    @property
    def memory_bytes(self) -> int:
        """The memory of the kernel that its rings and AUX areas may take."""
        areas = (ring.aux.data_bytes for ring in self.rings if ring.aux is not None)
        rings = sum(ring.data_bytes for ring in self.rings) + sum(areas)
        return max(rings, self.payload.grown_bytes)

    @property
    def is_exclusive(self) -> bool:
        """Whether it cannot be open twice: drivers of AUX areas refuse a second one, too.

        An opener holds one set of rings for a session.
        """
        has_aux = any(ring.aux is not None for ring in self.rings)
        return self.payload.is_exclusive or has_aux or bool(self.opener)

    @property
    def is_absent(self) -> bool:
        """Whether the host has none of it: then nothing is opened, and `degraded` says why."""
        return not self.rings and not self.payload.programs_run

    @property
    def events(self) -> tuple[EventPlan, ...]:
        """Every perf event once, by `EventPlan.index`; the sideband event is the last one."""
        by_index = {event.index: event for ring in self.rings for event in ring.events}
        return tuple(by_index[index] for index in sorted(by_index))

    @property
    def tracepoint_filters(self) -> tuple[tuple[Tracepoint, str], ...]:
        """The filter of each tracepoint that has one."""
        found = [
            (event.tracepoint, event.filter)
            for event in self.events
            if event.tracepoint is not None and event.filter
        ]
        return (*found, *self.payload.tracepoint_filters)

    @property
    def imposed(self) -> ProbeCost | None:
        """The expected cost of its events in the traced programs; None if only a client knows."""
        return expected_probe_cost(self.kind, self.rings, self.payload)

    @property
    def basis(self) -> Basis:
        """The basis of the session's balance: the weakest of its data rings."""
        return Basis.weakest([r.basis for r in self.rings if r.role is RingRole.DATA])

    def describe(self) -> list[str]:
        """Return the session as `check` prints it, a line each."""
        where = f"{self.source}, {self.scope.describe()}, {self.mode}"
        if self.is_absent:
            lines = [f"session {self.name}: {where}, nothing to record"]
            return [*lines, *(f"  lacks {reason}" for reason in self.degraded)]
        lines = [f"session {self.name}: {where}, ledger {self.basis}"]
        lines += [f"  event {event_words(event)}" for event in self.events]
        lines += [f"  {line}" for line in self.payload.describe()]
        lines += [f"  rings {words}" for words in ring_words(self.rings)]
        cost = self.imposed
        if cost is not None:
            lines.append(f"  cost  {cost.words()}")
        lines.append(f"  files {self.files} descriptors" + (" a thread" if self.per_task else ""))
        lines.append(f"  sink  {sink_words(self.sink)}")
        if self.rank == 0:
            lines.append(f"  class {self.loss_class}: staging is kept for it while that is short")
        elif self.rank == len(_CLASSES) - 1:
            lines.append(f"  class {self.loss_class}: the first that lacks staging")
        if self.opener:
            lines.append(f"  rings outlive the daemon: the opener at {self.opener} holds them")
        lines += [f"  note  {note}" for note in self.notes]
        lines += [f"  lacks {reason}" for reason in self.degraded]
        return lines

    @property
    def has_chains(self) -> bool:
        """Whether samples of its events have call chains."""
        return any(event.attr.sample_type & SampleType.CALLCHAIN for event in self.events)

    @property
    def perf_clock(self) -> bool:
        """Whether records are stamped with perf's own clock, not with CLOCK_MONOTONIC."""
        return bool(self.events) and not self.events[0].attr.use_clockid

    @property
    def per_task(self) -> bool:
        """Whether events are opened for each observed thread, not once per CPU."""
        return self.payload.follows_threads and self.scope.kind in TASK_SCOPES

    def to_dict(self) -> dict[str, Any]:
        """Return the session for `check --json`."""
        cost = self.imposed
        return {
            "name": self.name,
            "source": self.source,
            "scope": self.scope.describe(),
            "mode": self.mode,
            "class": self.loss_class,
            "ledger_basis": str(self.basis),
            "events": [event_dict(event) for event in self.events],
            "ftrace": None,
            "bpf": None,
            "relay": None,
            **self.payload.to_dict(),
            "rings": [ring.to_dict() for ring in self.rings],
            "imposed": cost.to_dict() if cost is not None else None,
            "opener": self.opener or None,
            "freezes": self.freezes,
            "may_fail": self.may_fail,
            "optional": list(self.optional),
            "sink": self.sink.to_dict(),
            "files": self.files,
            "notes": list(self.notes),
            "degraded": list(self.degraded),
        }
