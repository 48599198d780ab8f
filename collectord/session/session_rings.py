# SPDX-License-Identifier: Apache-2.0
"""The rings of one session that the core drains; those of a CPU go and come with it."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

from collectord.errors import CollectordError, KernelError, SinkError
from collectord.session.counter_reader import Drained
from collectord.session.ring_troubles import RingTroubles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.session.accounting import Accounting
    from collectord.session.counter_reader import DrainedArea
    from collectord.session.drain_loop import Drain
    from collectord.session.flight_recorder import FlightRecorder
    from collectord.session.pause import Pause
    from collectord.session.rotation import Rotation
    from collectord.session.session_parts import SessionParts
    from collectord.source.ring import RingHandle


class SessionRings:
    """The rings of one session, by the core's number. It hears what the core says of them.

    Args:
        parts: has the first of them, which the core already drains.
        drain: the drain of the core.
        accounting: counts what comes out of them.
        rotation: has a place for each of them in a segment.
        recorder: the flight recorder; None in streaming mode.
        pause: disables their events for a time.
        stopping: set once the session ends: then none comes or goes any more.
    """

    def __init__(
        self,
        parts: SessionParts,
        drain: Drain,
        *,
        accounting: Accounting,
        rotation: Rotation,
        recorder: FlightRecorder | None,
        pause: Pause,
        stopping: asyncio.Event,
    ) -> None:
        self._rings = {drained.ring.id: drained for drained in parts.rings}
        self._joined: set[int] = set()  # those of them that came with a CPU
        self._directory = parts.plan.sink.directory
        self._hotplug = parts.source.abilities.hotplug
        self._stream = parts.stream
        self._passes = parts.drain
        self._drain = drain
        self._accounting = accounting
        self._rotation = rotation
        self._recorder = recorder
        self._pause = pause
        self._stopping = stopping
        self._troubles = RingTroubles(parts.plan.name, parts.health)
        self._changing = asyncio.Lock()  # only the session's own disk keeps it

    def begin(self) -> None:
        """Begin to drain the rings, those with names first."""
        for drained in sorted(self._rings.values(), key=lambda one: one.handle.label.has_data):
            drained.handle.begin(drained.ring)

    def listen(self) -> None:
        """Begin to receive the core's notices about these rings."""
        self._drain.listen(self._rotation, self._stream, self, (*self._rings, *self.areas))

    async def leave_cpu(self, cpu: int) -> None:
        """Drain the rings of a CPU that went offline to their end, count them, and close them.

        Their events may count still: the CPU was away before they were opened, or they are some
        of those of a CPU that cannot have all. What came behind the last drain would be missing.

        Raises:
            KernelError: events cannot be stopped; all stays as it is.
            ShardSilent: a drain thread may still be reading them; they stay open.
        """
        async with self._changing:
            if not self._stopping.is_set():
                await self._leave_cpu(cpu)

    async def _leave_cpu(self, cpu: int) -> None:
        gone = [drained for drained in self._rings.values() if drained.handle.label.cpu == cpu]
        await self._read_all(area for drained in gone for area in drained.areas)

        def stop() -> None:
            for one in self._hotplug:
                one.stop(cpu)

        recorder = self._recorder
        if recorder is None:
            stop()
        async with nullcontext() if recorder is None else recorder.removing(gone, stop):
            await self._drain.remove([drained.ring for drained in gone])
        for drained in gone:
            self._accounting.retire(drained)
            del self._rings[drained.ring.id]
            self._joined.discard(drained.ring.id)
            self._troubles.forget(drained.ring.id)
        self.listen()
        for one in self._hotplug:
            one.leave(cpu)

    async def join_cpu(self, cpu: int) -> None:
        """Open the rings of a CPU that is back, drain them, and enable their events.

        Raises:
            KernelError: they cannot be opened; the CPU stays without.
            SinkError: no segment has a place for them, or the session ends; likewise.
            ShardSilent: likewise, and a drain thread may still be reading them.
        """
        async with self._changing:
            self._refuse_at_end()
            await self._join_cpu(cpu)

    async def _join_cpu(self, cpu: int) -> None:
        for one in self._hotplug:
            rings = one.join(cpu)
            try:
                for handle in rings:
                    await self._add(handle)
                self._refuse_at_end()
                self.listen()
                one.enable(rings)
                self._pause.renew()
                if self._recorder is not None:
                    self._recorder.renew()
            except CollectordError:
                await self._leave_cpu(cpu)
                raise

    def _refuse_at_end(self) -> None:
        if self._stopping.is_set():
            raise SinkError("the session has ended", path=self._directory)

    async def _add(self, handle: RingHandle) -> None:
        ring = self._drain.add_ring(self._stream, handle)
        try:
            drained = Drained(handle, ring, self._drain.add_areas(ring, handle))
            await self._rotation.take_in(ring.id, handle.label.cpu)
            self._accounting.add(drained)
        except (KernelError, SinkError):
            await self._drain.remove([ring])
            raise
        if self._recorder is not None:
            await self._recorder.add(drained)
        self._rings[ring.id] = drained
        self._joined.add(ring.id)
        handle.begin(ring)

    @property
    def areas(self) -> dict[int, DrainedArea]:
        """The AUX areas behind the rings, by the core's number."""
        rings = self._rings.values()
        return {area.ring.id: area for drained in rings for area in drained.areas}

    @property
    def go_on(self) -> bool:
        """Whether a ring of the session outlives this process."""
        return any(one.handle.goes_on() for one in self._rings.values())

    def handles(self) -> list[RingHandle]:
        """Return the handles of the present rings."""
        return [drained.handle for drained in self._rings.values()]

    def poll(self) -> None:
        """Take back troubles that have passed."""
        self._troubles.poll()

    # The end: settle, read_areas, end or hold, remove_joined.

    async def settle(self) -> None:
        """Wait for a CPU that comes or goes; none does once the session ends."""
        async with self._changing:
            pass

    async def read_areas(self) -> None:
        """Have those AUX areas read to their end that end with this process.

        Raises:
            ShardSilent: a drain thread does not answer.
        """
        await self._read_all(area for area in self.areas.values() if not area.handle.goes_on())

    async def _read_all(self, areas: Iterable[DrainedArea]) -> None:
        """Make passes read areas to their end from now on, and not start them again."""
        rings = [area.ring for area in areas]
        for ring in rings:
            ring.read_all()
        await self._passes.answered(rings)

    def end(self) -> None:
        """Tell the rings that their source has stopped."""
        for drained in self._rings.values():
            drained.handle.end(drained.ring)

    def hold(self) -> None:
        """Stop draining rings that outlive this process; nobody drains them from now on."""
        for drained in self._rings.values():
            if not drained.handle.goes_on():  # its end holds it
                drained.ring.hold(True)  # noqa: FBT003 - the binding's

    async def remove_joined(self) -> None:
        """Remove the rings that came with CPUs, before they are closed. Raises ShardSilent."""
        await self._drain.remove([self._rings[number].ring for number in self._joined])

    # Notices of the core (drain_loop.RingListener).

    def ring_faulty(self, ring: int, reason: str, position: int, *, quarantined: bool) -> None:
        """Report the fault, of a ring or of an AUX area."""
        one = self._rings[ring] if ring in self._rings else self.areas[ring]
        label = str(one.handle.label)
        self._troubles.fault(ring, label, reason, position, quarantined=quarantined)

    def ring_hung_up(self, ring: int) -> None:
        """Report what the end of a ring means, unless the session is being stopped."""
        handle = self._rings[ring].handle
        meaning = handle.hung_up()
        if meaning and not self._stopping.is_set():
            self._troubles.hang_up(ring, str(handle.label), meaning)
