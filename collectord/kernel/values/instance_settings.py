# SPDX-License-Identifier: Apache-2.0
"""Settings of a tracefs instance, planned and effective, its name, and its events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.config.trace_probe import Probe

PREFIX: Final = "collectord-"
# Separates parts of names: "record~1234" is session "record" in process 1234.
OWNER_MARK: Final = "~"
# Ends the name of an instance that a changed session has beside its present one.
ASIDE_MARK: Final = "+"
_MASK_WORD_DIGITS: Final = 8


class InstanceName(NamedTuple):
    """The parts of an instance's name: its session, and whether a process has its id in it."""

    session: str
    is_owned: bool

    @classmethod
    def parse(cls, name: str) -> InstanceName:
        """Read the name of an instance's directory."""
        session, mark, _ = name.removeprefix(PREFIX).partition(OWNER_MARK)
        return cls(session.removesuffix(ASIDE_MARK), bool(mark))


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """The planned settings of an instance.

    Attributes:
        session: the instance is `collectord-SESSION`, its probes' group `collectord_SESSION`.
        buffer_bytes: size of each CPU's ring; the kernel rounds up to whole sub-buffers.
        subbuf_bytes: size of a sub-buffer; the kernel rounds up to a power of two of pages.
        overwrite: a full ring gives up its oldest events (`overrun`), else the newest (`dropped`).
        buffer_percent: a reader is woken when so much of the ring is full; at 0 by every event.
        cpus: CPUs to trace, empty for all.
        pids: threads to trace, empty for all; `Kernel.follow_threads` adds more.
        follow_forks: children of `pids` are traced too, and those that exit are forgotten.
        probes: probes to make, in the order given.
    """

    session: str
    buffer_bytes: int
    subbuf_bytes: int
    overwrite: bool = True
    buffer_percent: int = 50
    cpus: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    follow_forks: bool = True
    probes: tuple[Probe, ...] = ()


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings as the kernel applied them.

    Attributes:
        subbuf_bytes: a sub-buffer with its header, which is what one read(2) must ask for.
        subbufs: sub-buffers of each CPU's ring, without the reader's own; of the largest ring once
            they differ.
        overwrite: see `InstanceSettings`.
        buffer_percent: see `InstanceSettings`.
        clock: the trace clock.
    """

    subbuf_bytes: int
    subbufs: int
    overwrite: bool
    buffer_percent: int
    clock: str

    @property
    def buffer_bytes(self) -> int:
        """Size of each CPU's ring in whole sub-buffers."""
        return self.subbufs * self.subbuf_bytes


@dataclass(frozen=True, slots=True)
class OpenedInstance:
    """An instance that was made for a session.

    Attributes:
        id: its number at the port, of no other instance before or after it.
        name: its directory below `instances`.
        effective: its settings as the kernel applied them.
        cpus: CPUs that have a ring, or may get one, and are traced.
        probe_events: the events of its probes.
    """

    id: int
    name: str
    effective: Effective
    cpus: tuple[int, ...]
    probe_events: tuple[TraceEvent, ...]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event to record.

    Attributes:
        system, name: as in `events/SYSTEM/NAME`.
        filter: in the kernel's language, "" for none.
        exclude_tids: threads in which it is not recorded.
    """

    system: str
    name: str
    filter: str = ""
    exclude_tids: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.system}:{self.name}"

    def leaf(self, name: str) -> str:
        """Return the path of one of the event's files, below its instance."""
        return f"events/{self.system}/{self.name}/{name}"


def cpu_mask(cpus: Iterable[int]) -> str:
    """Return CPUs as tracing_cpumask takes them: "3", "1,00000000" (words of 32 bits).

    There are no leading zeros: beyond the number of CPUs the kernel would refuse them.
    """
    digits = f"{sum(1 << cpu for cpu in set(cpus)):x}"
    first = len(digits) % _MASK_WORD_DIGITS
    words = [digits[:first]] if first else []
    words += [
        digits[at : at + _MASK_WORD_DIGITS] for at in range(first, len(digits), _MASK_WORD_DIGITS)
    ]
    return ",".join(words)
