# SPDX-License-Identifier: Apache-2.0
"""The windows of a flight recorder's rings: how they are taken, and what resulted."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from collectord.model import Reason, RingRole, Stage, loss_name
from collectord.sink.manifest import SnapshotNote
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord._native._core import AuxCounters
    from collectord.session.counter_reader import Drained
    from collectord.session.session_parts import SessionParts
    from collectord.sink.base import SegmentInfo

# A virtual CPU may be descheduled for some time while it writes the last record.
LAST_PAUSE_S: Final = 0.01
_DISK_FULL: Final = loss_name((Stage.SINK, Reason.DISK_FULL))
_DROPPED: Final = loss_name((Stage.SINK, Reason.DROPPED))


class Trigger(StrEnum):
    """Why a snapshot is made."""

    REQUEST = "request"  # `collectord snapshot`, the control API
    SIGNAL = "signal"  # SIGUSR2
    FREEZE = "freeze"  # the event of `freeze_on`
    INCIDENT = "incident"  # a trigger of the configuration, `collectord incident trigger`
    END = "end"  # of the session, which stores what its rings hold


@dataclass(frozen=True, slots=True)
class Lost:
    """Events and bytes that left the rings and reached no file, by `<stage>/<reason>`.

    Attributes:
        events: events of the rings.
        aux_bytes: bytes of trace in AUX areas.
    """

    events: Mapping[str, int]
    aux_bytes: Mapping[str, int]

    def since(self, before: Lost) -> Lost:
        """Return the difference from an earlier reading."""
        return Lost(
            {name: count - before.events[name] for name, count in self.events.items()},
            {name: count - before.aux_bytes[name] for name, count in self.aux_bytes.items()},
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of a flight recorder, in segments of their own.

    Attributes:
        segments: paths; several if the window is larger than a segment, none if there was nothing
            to store.
        samples: events in the segments.
        bytes: of the records that came out of the rings, and of the trace in their AUX areas.
        first_ns, last_ns: times of the oldest and the newest event, 0 if no event has a time: only
            decoders can read the times in AUX trace.
        repeated: events that were left out because the snapshot before took them; those of them
            that it lost are lost.
        repeated_bytes: bytes of these events, and of other repeated records.
        paused_ns: time during which the rings were stopped.
        lost: events and bytes taken out of the rings for it that are in no file.
    """

    session: str
    source: str
    trigger: str
    segments: tuple[str, ...]
    samples: int
    bytes: int
    first_ns: int
    last_ns: int
    repeated: int
    repeated_bytes: int
    paused_ns: int
    lost: Lost

    @property
    def seconds(self) -> float | None:
        """The time between the oldest and the newest event; None if no event has a time."""
        if not self.last_ns:
            return None
        return (self.last_ns - self.first_ns) / NS_PER_SECOND

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as in `--json` and in the answer of `/v1/snapshot`."""
        return {
            "session": self.session,
            "source": self.source,
            "trigger": self.trigger,
            "segments": list(self.segments),
            "samples": self.samples,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "repeated": self.repeated,
            "repeated_bytes": self.repeated_bytes,
            "paused_ns": self.paused_ns,
            "lost": dict(self.lost.events),
            "lost_aux_bytes": dict(self.lost.aux_bytes),
        }


def summarise(
    session: str, source: str, note: SnapshotNote, infos: Sequence[SegmentInfo], lost: Lost
) -> Snapshot:
    """Return a snapshot from the segments that it went into, and the losses."""
    manifests = [info.manifest for info in infos]
    dated = [manifest for manifest in manifests if manifest.last_ns]
    return Snapshot(
        session=session,
        source=source,
        trigger=note.trigger,
        segments=tuple(str(info.path) for info in infos),
        samples=sum(manifest.samples for manifest in manifests),
        bytes=sum(r.bytes for m in manifests for r in m.rings if r.role != RingRole.SIDEBAND),
        first_ns=min((manifest.first_ns for manifest in dated), default=0),
        last_ns=max((manifest.last_ns for manifest in dated), default=0),
        repeated=note.repeated,
        repeated_bytes=note.repeated_bytes,
        paused_ns=note.paused_ns,
        lost=lost,
    )


class RingSnapshot:
    """Takes the windows of the rings that are held, of any kind.

    Overwritable perf rings are copied in one go while they are stopped, into memory reserved for
    that, once the current pass of their shard is over: the time depends neither on the disk nor on
    AUX areas, which are stopped until the drain has copied them. Pages of ftrace are taken while
    the ring goes on.
    """

    def __init__(self, parts: SessionParts) -> None:
        (self._recording,) = parts.source.abilities.recording
        self._rings = [drained for drained in parts.rings if drained.handle.held]
        self._counter_reader = parts.counter_reader
        self._drain = parts.drain
        self._kernel = parts.kernel
        self._lasting = parts.lasting
        self._repeated = (0, 0)
        self._given = 0  # of rings that are gone
        self._ended = False
        self.paused_ns = 0

    @property
    def _copied(self) -> list[Drained]:
        return [one for one in self._rings if one.handle.has_window]

    @property
    def _drained(self) -> list[Drained]:
        return [one for one in self._rings if not one.handle.has_window]

    def add(self, drained: Drained) -> None:
        """Take the windows of this ring too, if it is held."""
        if drained.handle.held:
            self._rings.append(drained)

    async def take_of(self, rings: Sequence[Drained]) -> None:
        """Take the windows of rings whose events are off, to be removed. Raises ShardSilent."""
        held = [one for one in rings if one.handle.held]
        if held:
            await asyncio.sleep(LAST_PAUSE_S)
            await self._hold(held, held=False)

    def remove(self, rings: Sequence[Drained]) -> None:
        """Forget rings that the core has removed; what they gave is in the running segment."""
        gone = [one for one in self._rings if one in rings]
        self._given += _given(gone)
        self._rings = [one for one in self._rings if one not in gone]
        self._repeated = self._sum_repeated()

    async def hold(self) -> None:
        """Stop draining the rings, except at the end, which drains all. Raises ShardSilent."""
        await self._hold(self._rings, held=True)

    async def _hold(self, drained: Sequence[Drained], *, held: bool) -> None:
        rings = [one.ring for one in drained]
        await self._drain.answered(rings)
        for ring in rings if not (held and self._ended) else ():
            ring.hold(held)
        await self._drain.answered(rings)

    async def take(self, trigger: str) -> SnapshotNote:
        """Take the windows into our memory, and let the rings go on.

        Copied windows come with the next full pass, the rest is in staging.

        Raises:
            KernelError: the rings cannot be stopped, or not started again.
            ShardSilent: a drain thread does not respond.
        """
        before = self._counter_reader.before_windows()
        for drained in self._rings:
            drained.ring.warm()
        refused = sum(reading.lost or 0 for reading in before.values())
        for account in self._lasting:
            account.pausing(time.monotonic_ns(), refused)
        begun_ns = time.monotonic_ns()
        try:
            self._recording.pause()
            await self._hold(self._copied, held=False)
            if self._drained:
                self._let_copied_go_on()
                await self._hold(self._drained, held=False)
                await self._drain.full_pass()
                # Hold them before they go on: later records belong to the next window.
                await self._hold(self._drained, held=True)
        finally:
            if not self._ended:
                self._recording.resume()
                for account in self._lasting:
                    account.going_on()
        paused_ns = time.monotonic_ns() - begun_ns if self._recording.stands_still else 0
        self.paused_ns += paused_ns
        self._counter_reader.count_overwritten(before)
        return self._note(trigger, begun_ns, paused_ns)

    def _let_copied_go_on(self) -> None:
        """Resume copied rings early: paused ones lose events, and AUX areas take long to drain.

        `Recording.resume` resumes them once more, which changes nothing.
        """
        for drained in self._copied if not self._ended else ():
            self._kernel.pause_output(drained.handle.fd, paused=False)

    def end(self) -> None:
        """Prepare for the final stop of the source: stopped rings are not started again."""
        self._ended = True

    async def take_last(self) -> SnapshotNote:
        """Take the windows as `take` does, when no more records arrive. Raises ShardSilent."""
        await self._hold(self._rings, held=False)
        return self._note(Trigger.END, time.monotonic_ns(), 0)

    def given(self) -> int:
        """Return the records, plus the bytes of AUX areas, that the rings have given so far.

        Those of ftrace are not counted: the stream counts their bytes.
        """
        return self._given + _given(self._rings)

    def lost(self) -> Lost:
        """Return what the rings have given so far and reached no file."""
        rings = [drained.ring.counters() for drained in self._rings]
        areas = _areas(self._rings)
        return Lost(
            {
                _DISK_FULL: sum(ring.lost_disk_full for ring in rings),
                _DROPPED: sum(ring.lost_dropped for ring in rings),
            },
            {
                _DISK_FULL: sum(area.lost_disk_full_bytes for area in areas),
                _DROPPED: sum(area.lost_dropped_bytes for area in areas),
            },
        )

    def _note(self, trigger: str, taken_ns: int, paused_ns: int) -> SnapshotNote:
        before, self._repeated = self._repeated, self._sum_repeated()
        return SnapshotNote(
            trigger=trigger,
            taken_ns=taken_ns,
            paused_ns=paused_ns,
            repeated=self._repeated[0] - before[0],
            repeated_bytes=self._repeated[1] - before[1],
        )

    def _sum_repeated(self) -> tuple[int, int]:
        counters = [drained.ring.counters() for drained in self._rings]
        return (
            sum(ring.window_repeated for ring in counters),
            sum(ring.window_repeated_bytes for ring in counters),
        )


def _given(rings: Sequence[Drained]) -> int:
    records = sum(one.handle.given(one.ring.counters()) for one in rings)
    return records + sum(area.taken_bytes for area in _areas(rings))


def _areas(rings: Sequence[Drained]) -> list[AuxCounters]:
    return [area.ring.counters() for drained in rings for area in drained.areas]
