# SPDX-License-Identifier: Apache-2.0
"""The plan of a tracefs source: the settings of its ftrace instance, frozen and printable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from collectord.codec.tracepoint import Tracepoint
from collectord.plan.payload import Payload
from collectord.text.foreign import plain
from collectord.text.units import show_bytes, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.config.trace_probe import Probe
    from collectord.model import Transport


@dataclass(frozen=True, slots=True)
class FtraceEvent:
    """One tracepoint to enable in the instance.

    Attributes:
        system, name: as in `events/SYSTEM/NAME`.
        filter: in the kernel's language, "" for none.
        exclude_self: the daemon's own threads are to be filtered out.
    """

    system: str
    name: str
    filter: str = ""
    exclude_self: bool = False

    def __str__(self) -> str:
        return f"{self.system}:{self.name}"


@dataclass(frozen=True, slots=True)
class FtracePlan(Payload):
    """The plan of an ftrace instance.

    Attributes:
        events: events to enable, each once.
        probes: probes to make in the session's own group, and to enable.
        exclude_self: the daemon's own threads are to be filtered out of the probes.
        lasts: the instance records on after the daemon's end, for the next one.
        buffer_bytes: requested size of each CPU's ring; a flight recorder begins with it.
        subbuf_bytes: a sub-buffer with its header, a power of two of pages.
        overwrite: a full ring gives up its oldest events, else it refuses the newest.
        buffer_percent: fill at which the kernel wakes the drain, 1 to 100.
        transport: how sub-buffers are taken out of the kernel.
        transport_reason: why this transport.
        keep_ns: time that a flight recorder is to hold, 0 in a stream.
        max_bytes: the most that a flight recorder's rings may use together, 0 in a stream.
        freeze: one of `events` that stops the rings when it happens, None for none.
    """

    events: tuple[FtraceEvent, ...]
    probes: tuple[Probe, ...]
    buffer_bytes: int
    subbuf_bytes: int
    overwrite: bool
    buffer_percent: int
    transport: Transport
    transport_reason: str
    keep_ns: int = 0
    max_bytes: int = 0
    freeze: FtraceEvent | None = None
    exclude_self: bool = False
    lasts: bool = False

    has_instance: ClassVar[bool] = True
    follows_threads: ClassVar[bool] = False
    leaves_with_cpu: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """See `Payload`."""
        return (*map(str, self.events), *(probe.name for probe in self.probes))

    @property
    def is_exclusive(self) -> bool:
        """See `Payload`: the session's name is in that of its probes."""
        return bool(self.probes)

    @property
    def window_ns(self) -> int:
        """See `Payload`."""
        return self.keep_ns

    @property
    def grown_bytes(self) -> int:
        """See `Payload`."""
        return self.max_bytes

    @property
    def piece_bytes(self) -> int:
        """See `Payload`."""
        return self.subbuf_bytes

    @property
    def is_filtered(self) -> bool:
        """See `Payload`."""
        filtered = [event.filter or event.exclude_self for event in self.events]
        filtered += [probe.filter or self.exclude_self for probe in self.probes]
        return any(filtered)

    @property
    def tracepoint_filters(self) -> tuple[tuple[Tracepoint, str], ...]:
        """See `Payload`."""
        freeze = (self.freeze,) if self.freeze is not None else ()
        events = (one for one in (*self.events, *freeze) if one.filter)
        return tuple((Tracepoint(one.system, one.name), one.filter) for one in events)

    def describe(self) -> Iterator[str]:
        """Yield the lines that `check` prints."""
        for event in self.events:
            yield f"event {event}{_filter_words(event.filter, without_self=event.exclude_self)}"
        for probe in self.probes:
            words = f" {probe.arguments}" if probe.arguments else ""
            words += _filter_words(probe.filter, without_self=self.exclude_self)
            yield f"probe {probe.kind} {probe.name} at {probe.place}{words}"
        if self.freeze is not None:
            words = _filter_words(self.freeze.filter, without_self=self.freeze.exclude_self)
            yield f"freeze at {self.freeze}{words}"
        full = "overwrites the oldest" if self.overwrite else "refuses the newest"
        yield f"pages {show_bytes(self.subbuf_bytes)} sub-buffers, a full ring {full}"
        yield f"drain {self.transport}: {self.transport_reason}"
        if self.lasts:
            yield "records on while the daemon restarts"
        if self.keep_ns:
            yield f"keeps {show_ns(self.keep_ns)} in at most {show_bytes(self.max_bytes)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for `check --json`."""
        found = plain(self, "exclude_self")
        plan = {
            **found,
            "events": [{"name": str(e), **plain(e, "system", "name")} for e in self.events],
            "probes": [{**probe, "exclude_self": self.exclude_self} for probe in found["probes"]],
            "freeze": str(self.freeze) if self.freeze is not None else None,
        }
        return {"ftrace": plan}


def _filter_words(text: str, *, without_self: bool) -> str:
    words = f", filter {text!r}" if text else ""
    return words + (", without collectord's own threads" if without_self else "")
