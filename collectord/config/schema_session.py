# SPDX-License-Identifier: Apache-2.0
"""Every key of `[[session]]` and its default: what is observed, and the sources that record it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from collectord.codec.blktrace import Action  # noqa: TC001 - decode reads annotations
from collectord.config import call_graph, event_spec, trace_names
from collectord.config.call_graph import CallGraph
from collectord.config.decode import Spelt, optional
from collectord.config.event_filter import Filter
from collectord.config.event_spec import EventChoices, EventSpec
from collectord.config.trace_probe import Probe  # noqa: TC001 - decode reads annotations
from collectord.config.users import user_id
from collectord.model import ScopeKind
from collectord.text import cpu_list
from collectord.text.units import (
    KIB,
    MIB,
    NS_PER_SECOND,
    Bytes,
    Least,
    Nanoseconds,
    RingSize,
    Share,
)

Mode = Literal["stream", "flight-recorder"]
# From the one that matters most to the one that matters least.
LossClass = Literal["must-not-lose", "normal", "spare"]
TransportName = Literal["auto", "mmap", "read", "splice"]
BpfTransportName = Literal["perf", "ringbuf"]
When = Literal["always", "present"]
# From nothing to everything; each has what those before it have.
ShipRule = Literal["none", "ledger", "columns", "raw"]
TraceWhen = Literal["always", "present", "otherwise"]
# Values that a file spells as strings.
Cpus = Annotated[tuple[int, ...], Spelt(cpu_list.parse, spell=cpu_list.render)]
User = Annotated[int | None, Spelt(user_id, short=True)]
Paths = Annotated[tuple[str, ...], Spelt(lambda path: (path,), short=True)]
EventSpelling = Annotated[EventChoices, Spelt(event_spec.parse_choices, spell=event_spec.spell)]
TraceEventSpelling = Annotated[EventChoices, Spelt(trace_names.parse, spell=event_spec.spell)]
OneEvent = Annotated[EventSpec | None, Spelt(optional(event_spec.parse_one))]
FilterSpelling = Annotated[Filter, Spelt(Filter.parse)]
CallGraphSpelling = Annotated[CallGraph | None, Spelt(optional(call_graph.parse))]


class TargetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[session.target]`: the target of observation."""

    scope: ScopeKind = ScopeKind.SYSTEM
    cpus: Cpus = ()
    pids: tuple[int, ...] = ()
    user: User = None
    cgroup: str = ""
    comm: str = ""
    executable: str = ""
    unit: str = ""
    limit: int = 64
    per_thread: bool = False
    inherit: bool = True


class EventConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `events` with settings of its own; the source's apply to omitted ones."""

    event: EventSpelling
    filter: FilterSpelling = Filter()
    frequency: int | None = None
    period: int | None = None

    @classmethod
    def parse_event(cls, text: str) -> EventConfig:
        """Parse an entry that is an event alone. Raises UsageError."""
        return cls(event=event_spec.parse_choices(text))


class PerfSourceConfig(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="perf"):
    """`[[session.source]]` of kind "perf": events of perf_event_open(2), and their rings."""

    kind: ClassVar[Literal["perf"]] = "perf"
    events: tuple[Annotated[EventConfig, Spelt(EventConfig.parse_event, short=True)], ...]
    filter: FilterSpelling = Filter()
    frequency: int | None = None
    period: int | None = None
    call_graph: CallGraphSpelling = None
    max_stack: int = 0
    cgroups: bool = False
    ring: RingSize = RingSize()
    watermark: Share = Share(percent=25.0)
    sideband_ring: RingSize = RingSize(256 * KIB)
    aux: RingSize = RingSize()
    aux_watermark: Share = Share(percent=25.0)
    aux_flush: Nanoseconds | None = None
    include_self: bool | None = None
    when: When = "always"


class TraceEventConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a tracefs source's `events` with settings of its own."""

    event: TraceEventSpelling
    filter: str = ""
    when: When = "always"

    @classmethod
    def parse_event(cls, text: str) -> TraceEventConfig:
        """Parse an entry that is an event alone. Raises UsageError."""
        return cls(event=trace_names.parse(text))


class TracefsSourceConfig(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="tracefs"
):
    """`[[session.source]]` of kind "tracefs": tracepoints in the rings of an ftrace instance."""

    kind: ClassVar[Literal["tracefs"]] = "tracefs"
    events: tuple[
        Annotated[TraceEventConfig, Spelt(TraceEventConfig.parse_event, short=True)], ...
    ] = ()
    probes: tuple[Probe, ...] = ()
    filter: str = ""
    transport: TransportName = "auto"
    ring: RingSize = RingSize()
    subbuf: Bytes = Bytes(0)
    overwrite: bool = True
    watermark: Share = Share(percent=25.0)
    keep: Nanoseconds | None = None
    max: Least | None = None
    include_self: bool | None = None
    when: TraceWhen = "always"


class BpfSourceConfig(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="bpf"):
    """`[[session.source]]` of kind "bpf": one program of the catalogue, its events and maps."""

    kind: ClassVar[Literal["bpf"]] = "bpf"
    program: str
    arguments: dict[str, str | int | bool] = {}
    transport: BpfTransportName = "perf"
    ring: RingSize = RingSize()
    watermark: Share = Share(percent=25.0)
    sideband_ring: RingSize = RingSize(256 * KIB)
    keep: Nanoseconds | None = None
    when: When = "present"


class RelaySourceConfig(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="relay"):
    """`[[session.source]]` of kind "relay": blktrace of devices, or channels by path."""

    kind: ClassVar[Literal["relay"]] = "relay"
    device: Paths = ()
    path: Paths = ()
    actions: tuple[Action, ...] = ()
    start_lba: int = 0
    end_lba: int = 0
    pid: int = 0
    subbuf: Bytes = Bytes(0)
    subbufs: int = 0
    transport: TransportName = "read"
    when: When = "always"


SourceConfig = PerfSourceConfig | TracefsSourceConfig | BpfSourceConfig | RelaySourceConfig


class RedactConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[[session.redact]]`: columns that do not leave the host as they are."""

    column: str
    table: str = "*"
    how: Literal["drop", "hash", "prefix"] = "drop"
    keep: int = 1


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[[session]]`: one recording.

    Attributes:
        loss_class: the key `class`, a word that Python keeps for itself.
        single_file: record into this one file instead of rotated segments.
        origin: file that the session was read from, "" if built in code.
        ends_ns: Unix time at which it ends by itself, 0 for a session that the daemon ends.
    """

    code_only: ClassVar[frozenset[str]] = frozenset({"single_file", "origin", "ends_ns"})

    name: str
    mode: Mode = "stream"
    loss_class: LossClass = msgspec.field(default="normal", name="class")
    freeze_on: OneEvent = None
    freeze_filter: FilterSpelling = Filter()
    segment_bytes: Bytes = Bytes(256 * MIB)
    segment_age: Nanoseconds = Nanoseconds(3600 * NS_PER_SECOND)
    directory: str = ""
    compress: bool = True
    perf_maps: bool = True
    ship: ShipRule = "none"
    ship_sample: Literal["all", "incidents"] = "all"
    redact: tuple[RedactConfig, ...] = ()
    target: TargetConfig = TargetConfig()
    source: tuple[SourceConfig, ...]
    single_file: str = ""
    origin: str = ""
    ends_ns: int = 0


class TimedSessionConfig(SessionConfig, frozen=True, kw_only=True):
    """A session that is started on request, and ends after `duration`.

    Its place, class and mode are not its user's to choose.
    """

    code_only: ClassVar[frozenset[str]] = SessionConfig.code_only | {
        "mode",
        "loss_class",
        "freeze_on",
        "freeze_filter",
        "directory",
        "ship",
        "ship_sample",
        "redact",
    }

    name: str = ""
    loss_class: LossClass = "spare"
    duration: Nanoseconds
