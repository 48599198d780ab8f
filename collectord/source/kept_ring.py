# SPDX-License-Identifier: Apache-2.0
"""Rings that another process holds, and earlier ones may have drained."""

from __future__ import annotations

import select
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from collectord.kernel.values.kept_rings import Prior
from collectord.ledger.aux_ledger import TRUNCATED
from collectord.model import loss_name
from collectord.source.perf_ring import OverwritableRing, PerfRing
from collectord.source.ring import AuxHandle, RingHandle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord._native._core import AuxRing, Core, Ring, RingNote, Stream
    from collectord.kernel.values.kept_rings import KeptRings
    from collectord.ledger.aux_ledger import AuxReading
    from collectord.model import LossKey, Produced
    from collectord.source.kept_memory import KeptMemory, KeptText

TRUNCATED_NAME: Final = loss_name(TRUNCATED)


@dataclass(frozen=True, slots=True)
class Before:
    """The part of a ring that earlier processes have had.

    Attributes:
        taken: samples that they took out of it, of those that its counters count.
        lost: events that were lost by then, by stage and reason.
        by_event: those of them that the kernel tells by event, by its id.
        overwritten: events that had been overwritten at the last snapshot.
    """

    taken: int = 0
    lost: Mapping[LossKey, int] = field(default_factory=dict)
    by_event: Mapping[int, int] = field(default_factory=dict)
    overwritten: int = 0

    def remainder(self, reading: Produced) -> Produced:
        """Return a reading of the kernel's counters without it."""
        lost = sum(self.lost.values())
        gone = self.taken + lost + self.overwritten
        return replace(
            reading,
            value=None if reading.value is None else reading.value - gone,
            lost=None if reading.lost is None else reading.lost - lost,
            losses={key: n - self.lost.get(key, 0) for key, n in reading.losses.items()},
            per_event=tuple(
                (event_id, value, count - self.by_event.get(event_id, 0))
                for event_id, value, count in reading.per_event
            ),
        )


@dataclass(slots=True)
class Use:
    """The use that a process makes of a session's rings.

    Attributes:
        ended: it has disabled their events: its end is that of their recording.
    """

    ended: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """The part of a ring's handle that says who holds it, and since when this process has it.

    Attributes:
        note: how far it was read.
        connection: to its holder.
        before: see `Before`.
        use: see `Use`.
        counted: as its note had it at first, of all rings in its place.
    """

    note: RingNote
    connection: int
    before: Before = field(default_factory=Before)
    use: Use = field(default_factory=Use)
    counted: int = 0

    @property
    def lasts(self) -> bool:
        """Whether it goes on for the next process: the holder lives."""
        return not self.use.ended and holds(self.connection)


def holds(connection: int) -> bool:
    """Whether the opener at the other end of a connection lives."""
    poll = select.poll()
    poll.register(connection, 0)  # a hang-up is reported in any case
    return not poll.poll(0)


class Lasting(RingHandle):
    """The part of a kind of ring that another process holds."""

    __slots__ = ()

    if TYPE_CHECKING:
        hold: Hold

        def _register(
            self,
            core: Core,
            shard: int,
            stream: Stream,
            *,
            held: bool,
            note: RingNote | None = None,
        ) -> Ring: ...

    def goes_on(self) -> bool:
        """See `RingHandle`: as long as its holder lives."""
        return self.hold.lasts

    def register(self, core: Core, shard: int, stream: Stream) -> Ring:
        """See `RingHandle`."""
        return self._register(core, shard, stream, held=True, note=self.hold.note)

    def begin(self, ring: Ring) -> None:
        """See `RingHandle`: the first segment begins with the names of what is unread in it."""
        ring.hold(False)  # noqa: FBT003 - the binding's

    def end(self, ring: Ring) -> None:
        """See `RingHandle`: what comes from now on is left in it, if it lasts."""
        if self.hold.lasts:
            ring.hold(True)  # noqa: FBT003 - the binding's

    def own(self, reading: Produced) -> Produced:
        """See `RingHandle`: without what earlier processes took and what was lost by then."""
        return self.hold.before.remainder(reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingRing(Lasting, PerfRing):
    """A perf ring that another process holds.

    Attributes:
        hold: see `Hold`.
    """

    hold: Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingWindow(Lasting, OverwritableRing):
    """An overwritable perf ring that another process holds.

    Attributes:
        hold: see `Hold`.
    """

    hold: Hold

    def begin(self, ring: Ring) -> None:
        """See `RingHandle`: nothing is taken before the first snapshot."""

    def note_overwritten(self, count: int) -> None:
        """See `RingHandle`."""
        self.hold.note.counted = self.hold.counted + count


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingArea(AuxHandle):
    """The AUX area of a ring that another process holds; it is read as a stream.

    Attributes:
        hold: as of its ring, with a note of its own.
        before: the kernel's counters of what earlier processes have had.
    """

    hold: Hold
    before: AuxReading

    def register(self, core: Core, ring: Ring) -> AuxRing:
        """See `AuxHandle`."""
        return self._register(core, ring, self.hold.note)

    def goes_on(self) -> bool:
        """See `AuxHandle`: as long as its holder lives."""
        return self.hold.lasts

    def own(self, reading: AuxReading) -> AuxReading:
        """See `AuxHandle`."""
        return reading.since(self.before)

    def note_truncated(self, count: int) -> None:
        """See `AuxHandle`."""
        self.hold.note.counted = self.hold.counted + count


class Legacy:
    """The account that earlier processes leave to this one. See `source.base.Lasting`.

    Args:
        text: what they have written about it.
        prior: what is known of rings, or of AUX areas, that these replace.
        found: what these know, if they are not new.
        in_bytes, names: see `source.base.Lasting`.
    """

    def __init__(
        self,
        text: KeptText,
        prior: Prior,
        found: Prior,
        *,
        in_bytes: bool = False,
        names: bool = True,
    ) -> None:
        self._text = text
        self.names = names
        self._lost: Mapping[LossKey, int] = {}
        self.in_bytes = in_bytes
        # The text is written before anything is drained: without it the rings are new.
        state = text.state
        self.resumed = bool(state)
        self.prior = structs.replace(found, state=state) if state else prior

    def note(self, state: str) -> None:
        """See `source.base.Lasting`."""
        self._text.write(state)

    def count_lost(self, losses: Mapping[LossKey, int]) -> None:
        """See `source.base.Lasting`."""
        self._lost = losses

    def shared_losses(self) -> Mapping[LossKey, int]:
        """See `source.base.SharedLosses`."""
        return self._lost


def legacies(
    memory: KeptMemory, given: KeptRings, rings: Iterable[RingHandle]
) -> tuple[Legacy, ...]:
    """Return what earlier processes leave of the events of a session, and of its AUX areas.

    Args:
        memory: has the texts.
        given: what is known of rings that these replace.
        rings: of the session.
    """
    held = [one for one in rings if isinstance(one, Lasting)]
    data = [one.hold for one in held if one.label.has_data]
    lost = Counter(given.lost)
    for one in data:
        lost.update({loss_name(key): n for key, n in one.before.lost.items()})
    found = Prior(
        taken=sum(one.note.taken for one in data),
        lost=dict(lost),
        overwritten=sum(one.counted for one in data),
    )
    events = Legacy(memory.text, given.prior, found)
    areas = [area.hold for one in held for area in one.areas if isinstance(area, LastingArea)]
    if not areas:
        return (events,)
    lost = Counter(given.trace.lost)
    lost[TRUNCATED_NAME] += sum(one.counted for one in areas)
    found = Prior(
        taken=given.trace.taken + sum(one.note.position for one in areas), lost=dict(lost)
    )
    return events, Legacy(memory.trace_text, given.trace, found, in_bytes=True, names=False)
