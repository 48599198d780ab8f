# SPDX-License-Identifier: Apache-2.0
"""The plan: the rings to open, their events and files. Frozen, printable, final."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, get_args

from collectord.codec.perf_attr import SampleType
from collectord.config.schema_session import LossClass
from collectord.errors import MissingFeature
from collectord.model import TASK_SCOPES, Basis, RingRole, Scope
from collectord.plan.drain_threads import DrainThreads
from collectord.plan.imposed import imposed_by
from collectord.plan.show import event_dict, event_words, ring_words, sink_words
from collectord.text.foreign import plain
from collectord.text.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord.errors import CollectordError
    from collectord.plan.aux_areas import AuxPlan
    from collectord.plan.bpf_plan import ProgramPlan
    from collectord.plan.event_attrs import EventPlan

P = TypeVar("P", bound="Payload")

_DATA: Final = RingRole.DATA
_CLASSES: Final[tuple[str, ...]] = get_args(LossClass)


@dataclass(frozen=True, slots=True)
class RingPlan:
    """One ring to map.

    Attributes:
        source: the session's source it belongs to, as in labels: "perf", "perf-2", "tracefs".
        role: data, or the sideband of the dummy event.
        cpu: the CPU, or -1 for one ring per thread: then this ring is the pattern of them all.
        requested_bytes: requested size, rounded up to a power of two of pages; for an ftrace ring
            to whole sub-buffers.
        data_bytes: size that fits the mlock budget; never more than `requested_bytes`.
        watermark_bytes: fill at which the kernel wakes the drain; 0 for a flight recorder's ring.
        events: events that write into it. The first one owns the ring (it is mapped and polled),
            the others are sent there by SET_OUTPUT. Under a task scope each is opened per thread.
            None for an ftrace ring: its instance enables them for all rings.
        aux: its AUX area, None without. The area's event is the first of `events`.
        overwrite: a perf ring that overwrites its oldest records, and is read for snapshots only.
        own_basis: basis of the balance of a ring without events.
    """

    source: str
    role: RingRole
    cpu: int
    requested_bytes: int
    data_bytes: int
    watermark_bytes: int
    events: tuple[EventPlan, ...]
    aux: AuxPlan | None = None
    overwrite: bool = False
    own_basis: Basis = Basis.EXACT  # an ftrace ring counts all that is written into it

    @property
    def basis(self) -> Basis:
        """The basis of the ring's balance: the weakest of its events that make samples.

        Nobody counts records that are overwritten.
        """
        if not self.events:
            return self.own_basis
        bases = [event.basis for event in self.events if not event.aux]
        gives_up = self.overwrite or (self.aux is not None and self.aux.snapshot)
        return Basis.weakest([*bases, Basis.LOST_ONLY] if gives_up or not bases else bases)

    def to_dict(self) -> dict[str, Any]:
        """Return the ring for `check --json`; its events by index."""
        return {
            **plain(self, "events", "aux", "own_basis"),
            "events": [event.index for event in self.events],
            "ledger_basis": str(self.basis),
            "aux": self.aux.to_dict() if self.aux is not None else None,
        }


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Limits of the state directory over all sessions; 0 for no limit.

    Attributes:
        bytes: allocated bytes of all segments.
        age_ns: age of a segment's last record.
        free_bytes: floor of free bytes on the file system.
        free_percent: the same as a share of the file system's size.
    """

    bytes: int = 0
    age_ns: int = 0
    free_bytes: int = 0
    free_percent: float = 0.0


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """The destination of a session's records.

    Attributes:
        format: "perf.data", "trace.dat", "blktrace" or "relay"; the last two are sets of files,
            one for each CPU, with its number after the format.
        directory: folder of the session's segments; of `single_file` its parent.
        single_file: the one file to write, None for rotated segments.
        segment_bytes: a segment is closed when it reaches it; 0 for no limit.
        segment_age_ns: a segment is closed when this old; 0 for no limit.
        retention: limits that remove old segments; none for a single file.
        compress_after_ns: a sealed segment is compressed when it is this old; 0 for never.
        keeps_maps: names of code that processes made are copied beside segments.
    """

    format: str
    directory: str
    single_file: str | None = None
    segment_bytes: int = 0
    segment_age_ns: int = 0
    retention: RetentionPlan = field(default_factory=RetentionPlan)
    compress_after_ns: int = 0
    keeps_maps: bool = False


@dataclass(frozen=True, slots=True)
class Payload:
    """Parts of a plan beside rings and events that a kind of source has; perf has none."""

    # It has an ftrace instance, whose rings count against no limit and outlive this program.
    has_instance: ClassVar[bool] = False
    # It runs programs that are compiled: a missing feature may be the program's own fault.
    has_programs: ClassVar[bool] = False
    # Any failure at its opening affects it alone.
    fails_alone: ClassVar[bool] = False
    # In a task scope its events are opened for each thread.
    follows_threads: ClassVar[bool] = True
    # The kernel takes its parts on a CPU away with the CPU, and does not bring them back.
    leaves_with_cpu: ClassVar[bool] = True

    @property
    def is_exclusive(self) -> bool:
        """Whether nothing else can have what it opens, not even for a moment."""
        return False

    @property
    def watches_cpus(self) -> bool:
        """Whether it has to follow each CPU."""
        return True

    @property
    def is_blktrace(self) -> bool:
        """Whether its records are the kernel's own, of the requests of a block device."""
        return False

    @property
    def window_ns(self) -> int:
        """The time that its rings are to reach back, 0 without such a promise."""
        return 0

    @property
    def grown_bytes(self) -> int:
        """The most that its rings may grow to together, 0 if they do not grow."""
        return 0

    @property
    def programs_run(self) -> tuple[ProgramPlan, ...]:
        """BPF programs, which run with or without rings."""
        return ()

    @property
    def compile_limit_ns(self) -> int:
        """The time that the compiler of each may take."""
        return 0

    @property
    def program_cpus(self) -> tuple[int, ...]:
        """CPUs on which those programs count and submit events."""
        return ()

    @property
    def counts_costs(self) -> bool:
        """Whether the kernel is to count what they cost."""
        return False

    @property
    def piece_bytes(self) -> int:
        """The largest piece that a ring gives, 0 where any chunk holds it."""
        return 0

    @property
    def is_filtered(self) -> bool:
        """Whether the kernel filters events that the plan's `events` do not show."""
        return False

    def describe(self) -> Iterable[str]:
        """Yield the lines that `check` prints."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return the payload for `check --json`, under its name there."""
        return {}


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
        return self.source.partition("-")[0]

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
        cost = imposed_by(self)
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
        cost = imposed_by(self)
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
            "sink": {
                "format": self.sink.format,
                "directory": self.sink.directory,
                "file": self.sink.single_file,
                "segment_bytes": self.sink.segment_bytes,
                "segment_age_ns": self.sink.segment_age_ns,
                "retention": plain(self.sink.retention),
                "compress_after_ns": self.sink.compress_after_ns,
                "keeps_maps": self.sink.keeps_maps,
            },
            "files": self.files,
            "notes": list(self.notes),
            "degraded": list(self.degraded),
        }


@dataclass(frozen=True, slots=True)
class CorePlan:
    """Sizes of the native core for `_core.Core`, and its drain threads.

    Attributes:
        drain: the threads, each with a shard of the rings.
    """

    chunks: int
    chunk_bytes: int
    flush_ns: int
    floor_bytes: int
    drain: DrainThreads = field(default_factory=DrainThreads)

    def to_dict(self) -> dict[str, Any]:
        """Return the core for `check --json`."""
        sizes = plain(self, "drain")
        return {"shards": self.shards, **sizes, "drain": self.drain.to_dict()}

    @property
    def shards(self) -> int:
        """Number of drain threads, one for each shard."""
        return len(self.drain.threads)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of everything that will be opened.

    Attributes:
        sessions: in the order of the configuration.
        core: sizes of the native core.
        warnings: what will probably fail or shrink, each with its remedy.
        files: file descriptors that the sessions need, one thread per task scope; the soft
            RLIMIT_NOFILE must be raised to hold them.
        reserved_files: descriptors that are kept free for segments, whoever else asks for one.
        pinned_bytes: memory of perf rings as it counts against the mlock budget.
        settings: those of the configuration that are not a session's, by their dotted keys.
    """

    sessions: tuple[SessionPlan, ...]
    core: CorePlan
    warnings: tuple[str, ...] = ()
    files: int = 0
    reserved_files: int = 0
    pinned_bytes: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def retention(self) -> RetentionPlan:
        """The limits of the state directory; none for single files, which are never deleted."""
        rotated = (s.sink.retention for s in self.sessions if s.sink.single_file is None)
        return next(rotated, RetentionPlan())

    @property
    def ftrace_bytes(self) -> int:
        """Memory of ftrace rings, which no limit counts; the initial size for flight recorders."""
        return sum(
            ring.data_bytes
            for session in self.sessions
            if session.payload.has_instance
            for ring in session.rings
        )

    def describe(self) -> list[str]:
        """Return the plan as `check` prints it, a line each."""
        lines = [line for session in self.sessions for line in session.describe()]
        staging = show_bytes(self.core.chunks * self.core.chunk_bytes)
        lines.append(
            f"total {show_bytes(self.pinned_bytes + self.ftrace_bytes)} of rings, "
            f"{self.files} descriptors, "
            f"{staging} of staging, {self.core.drain.describe()}"
        )
        lines += [f"warning: {warning}" for warning in self.warnings]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for `check --json`."""
        return {
            "sessions": [session.to_dict() for session in self.sessions],
            "core": self.core.to_dict(),
            "pinned_bytes": self.pinned_bytes,
            "ftrace_bytes": self.ftrace_bytes,
            "files": self.files,
            "settings": dict(self.settings),
            "warnings": list(self.warnings),
        }
