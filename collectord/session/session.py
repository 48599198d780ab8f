# SPDX-License-Identifier: Apache-2.0
"""A running session: its rings in the core, from the first reading to the last one.

The core drains and writes without this module. The work here is slow or rare: a reading once per
flush interval, and the order in which things begin and end. `rotation` handles files,
`session_rings` rings that come and go with their CPUs, `flight_recorder` the windows of a flight
recorder, `accounting` the counters.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import CollectordError, KernelError, SinkError, UsageError
from collectord.model import FLIGHT_RECORDER
from collectord.session.accounting import Accounting
from collectord.session.aux_flush import AuxFlush
from collectord.session.build_ids import BuildIds
from collectord.session.flight_recorder import FlightRecorder
from collectord.session.heartbeat import Heart
from collectord.session.lasting_account import NOT_HELD
from collectord.session.loss_watch import LossWatch
from collectord.session.pause import Pause
from collectord.session.ring_snapshot import LAST_PAUSE_S
from collectord.session.rotation import Rotation
from collectord.session.session_rings import SessionRings
from collectord.session.takeover import Takeover
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.codec.perf_features import Features
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.model import ClockReading
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.drain_loop import Drain
    from collectord.session.follower import Follower
    from collectord.session.maps.map_watch import FirstReading
    from collectord.session.program_watch import ListPrograms, ProgramWatch
    from collectord.session.session_parts import SessionParts
    from collectord.sink.base import SegmentInfo

_LOG: Final = structlog.get_logger()
_LAST_PASSES: Final = 5


class Session:
    """One opened plan.

    Args:
        parts: the plan, its rings, and what they work with.
        drain: the drain of the core.
        programs: reports BPF programs to the stream; None for a stream without sideband.
        followers: of the processes that come and go, none in other scopes.

    Attributes:
        recorder: the flight recorder; None in streaming mode.
        rings: its rings in the core.
        heart: its part of the heartbeat.
        pause: disables its events for a time.
        readers: of its BPF programs.
    """

    def __init__(
        self,
        parts: SessionParts,
        drain: Drain,
        programs: ProgramWatch | None = None,
        followers: tuple[Follower, ...] = (),
    ) -> None:
        plan = parts.plan
        self.plan = plan
        self.source = parts.source
        self.abilities = parts.source.abilities
        self._stream = parts.stream
        self._counter_reader = parts.counter_reader
        self._passes = parts.drain
        self._log = _LOG.bind(session=plan.name)
        self._tasks = parts.tasks
        self._health = parts.health
        self._covered = parts.covered
        self._lasting = parts.lasting
        self._begun = False
        self._accounting = Accounting(parts)
        self._lost = parts.counter_reader.lost  # as of the last tick
        self._losses = LossWatch(plan.name, parts.counter_reader.losses, self._health)
        mapping = next((event.attr for event in plan.events if event.attr.mmap2), None)
        self._build_ids = BuildIds(parts.kernel, parts.stream, mapping)
        self._programs = programs
        self.followers = followers
        self._rotation = Rotation(parts, self._accounting, self._describe)
        self._takeover = Takeover(parts, self._rotation)
        self.recorder = None
        if plan.mode == FLIGHT_RECORDER:
            self.recorder = FlightRecorder(parts, self._rotation, self._accounting)
        self.heart = Heart(plan, self.abilities.tracing, self._accounting.balance)
        self.pause = Pause(plan, self.abilities, parts.counter_reader.pauses, parts.covered)
        self.readers: tuple[FirstReading, ...] = ()
        self._outlives = False
        self._stopping = asyncio.Event()
        self.rings = SessionRings(
            parts,
            drain,
            accounting=self._accounting,
            rotation=self._rotation,
            recorder=self.recorder,
            pause=self.pause,
            stopping=self._stopping,
        )
        self._aux_flush = AuxFlush(parts.kernel, self.rings.handles, parts.health)

    # Life: take_over, begin, tick .. tick, close.

    async def take_over(self) -> None:
        """Drain rings that an earlier process has drained, from now on, into staging memory.

        They would fill up while `begin` seals and reads what that process has left.
        """
        if self.recorder is None and self._takeover.is_due:
            await self._find_gap()
            if await self._takeover.reserve():
                self.rings.begin()

    async def abandon(self) -> None:
        """Begin and end, if it has taken over rings and does nothing else: so all is written."""
        if self._begun or not self._takeover.is_done:
            return
        with suppress(CollectordError):
            await self.begin()
        await self.close()

    async def begin(self) -> None:
        """Start: learn what already runs, create the first segment, and then enable the events.

        Raises:
            SinkError: the first segment cannot be created, or what was left cannot be read.
        """
        self._begun = True
        self.rings.listen()
        await self._takeover.settle()
        for sideband in self.abilities.sideband:
            sideband.enable_sideband()
            self._stream.load_sideband(await self._tasks.in_worker(sideband.running_state))
        if self._programs is not None:
            self._stream.load_sideband(await self._tasks.in_worker(self._programs.running))
        if self.recorder is None:
            await self._takeover.load_names()
        if not self._takeover.is_done:
            await self._find_gap()
        await self._rotation.begin()
        self.source.enable()
        if not self._takeover.is_done:
            self.rings.begin()
        if self.recorder is not None:
            self.recorder.begin()
        self._covered.begin()
        self._tasks.start(self._aux_flush.run(self._stopping))

    async def _find_gap(self) -> None:
        """Find the time before in which no ring was open, and log it."""
        await self._note_covered(self._covered.find_gap)
        gap = self._covered.gap
        if gap is not None:
            seconds = (gap.until_ns - gap.from_ns) / NS_PER_SECOND
            self._log.info("gap_before", cause=gap.cause, seconds=round(seconds, 3))

    async def _note_covered(self, call: Callable[[], None]) -> None:
        """Read or write the note of the covered time; the session goes on without it."""
        try:
            await self._tasks.in_short_call(call)
        except SinkError as error:
            if self._health.note("covered", str(error)):
                self._log.error("covered_time_not_noted", error=str(error))
        else:
            self._health.note("covered", "")

    def tick(self, clocks: Callable[[], ClockReading], programs: ListPrograms) -> bool:
        """After a full pass, if one was done: count, rotate, check.

        If nothing is new, only the checks are done.

        Args:
            clocks: reads them, once for all sessions.
            programs: lists BPF programs beyond an id, once for all sessions.

        Returns:
            whether the session is quiet: the next tick may come a flush interval later.
        """
        new = self._accounting.measure()
        if new:
            self._accounting.read_clocks(clocks)
            self._look_at_reading()
        lost, self._lost = self._lost, self._counter_reader.lost
        self._losses.poll(new=self._lost != lost)
        self._health.look_at_disk(self._stream.waits_ns())
        self._health.look_for_suppression()
        self.rings.poll()
        if self._lasting:
            self._health.note("opener", "" if self.rings.go_on else NOT_HELD)
        if self.recorder is not None:
            self.recorder.poll()
        self._rotation.tick()
        self.pause.poll()
        for follower in self.followers:
            follower.tick()
        self._build_ids.poll(self._tasks)
        if self._covered.take_turn():
            self._tasks.start(self._note_covered(self._covered.go_on))
        if self._programs is not None and not self._programs.pass_over(programs):
            self._tasks.start(self._tasks.in_worker(self._programs.poll))
        return self._is_quiet()

    def _is_quiet(self) -> bool:
        """Whether little arrives, nothing is wrong, and nothing is due that only ticks see."""
        if self.recorder is None:
            unseen = bool(self.abilities.tracing)  # a tick shows what has been written
        else:
            unseen = self.recorder.looks_for_freeze
        return (
            self._counter_reader.is_quiet
            and self._rotation.is_quiet
            and self._health.is_well
            and not self.rings.areas
            and not unseen
        )

    def _look_at_reading(self) -> None:
        self._health.poll()
        for instance in self.abilities.tracing:
            self._health.note("window", instance.keep_window(self._counter_reader.held()))
            if self.recorder is not None:
                instance.learn_comms()  # the kernel forgets them before a snapshot is taken

    def _describe(self) -> Features:
        """Return the features of the code that ran in an ending segment; called in a thread."""
        features = self._build_ids.features()
        if self._programs is None:
            return features
        self._programs.poll()
        return replace(features, bpf=self._programs.images())

    def note(self, about: str, trouble: str) -> None:
        """Set the trouble about a subject, "" for none."""
        self._health.note(about, trouble)
        if about == "cpus":
            self._accounting.lacks_cpus(trouble)

    async def note_covered(self) -> None:
        """Note the time that the rings were open, for a session that takes this one's place."""
        await self._note_covered(self._covered.go_on)

    def hand_over(self, plan: SessionPlan) -> None:
        """Leave the notes to a session that records in this one's place, if it has its folder."""
        if plan.sink.directory == self.plan.sink.directory:
            self._covered.hand_over()

    async def rotate(self) -> list[SegmentInfo]:
        """Continue in a new segment, and return what was sealed. Raises as `Rotation.rotate_now`.

        Raises:
            UsageError: the session is a flight recorder, or writes one file.
        """
        if self.recorder is not None:
            raise UsageError(
                f"flight recorder {self.plan.name} writes only on request",
                hint=f"collectord snapshot {self.plan.name}",
            )
        if self.plan.sink.single_file is not None:
            raise UsageError(f"session {self.plan.name} writes one file, which cannot be rotated")
        return await self._rotation.rotate_now()

    def outlive(self) -> None:
        """Leave rings that can recording after this process; nobody drains them from now on."""
        for one in self.abilities.outliving:
            if one.outlive():
                self._outlives = True
                self.rings.hold()

    async def close(self) -> None:
        """Stop, drain, write, count, seal. Afterwards the balance is final."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._rotation.end()
        await self.rings.settle()
        recorder = None if self._outlives else self.recorder
        if self.recorder is not None and self._outlives:
            await self.recorder.stop()
        for follower in self.followers:
            follower.end()
        if recorder is not None:
            recorder.end()
        self.pause.close()
        await self._stop_source()
        self._covered.stop()
        if recorder is not None:
            await self._health.heard(recorder.take_last())
        self._health.look_for_suppression()
        if self._programs is not None:
            await self._tasks.in_worker(self._programs.poll)
        await self._rotation.use_reserved()
        await self._drain_to_the_end()
        self._losses.end()
        self._health.look_for_suppression()
        self._health.poll()
        await self._rotation.finish()
        await self._tasks.join()
        if recorder is not None:
            recorder.notify_last()
        if self._rotation.seals.are_done:
            self._accounting.settle()
        await self._rotation.add_last(self._accounting.take_late)
        await self._rotation.close()
        await self._note_covered(self._covered.end)

    async def _stop_source(self) -> None:
        """Stop the source; what it has written is still to be read."""
        await self._health.heard(self.rings.read_areas())
        try:
            self.source.disable()
        except KernelError as error:  # what it has written is stored nevertheless
            self._health.note("stop", f"not stopped: {error}")
            self._log.error("source_not_stopped", error=str(error))
        self.rings.end()

    async def _drain_to_the_end(self) -> None:
        """Drain until the balance is even, no more records can come, or a drain thread is silent.

        DISABLE interrupts the CPU that runs the event, perhaps in the middle of a record that is
        already counted: it becomes visible when that CPU goes on, after DISABLE has returned.
        """
        watch = asyncio.create_task(self._watch_disk())
        try:
            for _ in range(_LAST_PASSES):
                heard = await self._health.heard(self._passes.written_pass())
                self._accounting.measure(last=True)
                if not heard or self._accounting.are_even():
                    return
                await asyncio.sleep(LAST_PAUSE_S)
        finally:
            watch.cancel()

    async def _watch_disk(self) -> None:
        """Check the disk until cancelled, as ticks do, which end before the session."""
        while True:
            await asyncio.sleep(1)
            self._health.look_at_disk(self._stream.waits_ns())

    @property
    def state(self) -> str:
        """The state that `/v1/status` shows."""
        if self._stopping.is_set():
            return "stopped"
        return "degraded" if self._health.reasons else "running"

    @property
    def is_losing(self) -> bool:
        """Whether records are being lost now."""
        return bool(self._losses.losing)

    def events(self) -> int:
        """Return how many events were to be recorded so far; may read kernel counters."""
        return self._counter_reader.events()

    def balance(self) -> SessionBalance:
        """The balance as of the last reading; touches neither rings nor kernel counters."""
        recorder = self.recorder
        return replace(
            self._accounting.balance(),
            state=self.state,
            directory=self.plan.sink.directory,
            segments=self._rotation.kept.sealed,
            degraded_reasons=self._health.reasons,
            losing=self._losses.losing,
            sink=self._rotation.kept.stats,
            snapshots=recorder.stored if recorder is not None else 0,
            snapshots_failed=recorder.failed if recorder is not None else 0,
            paused_ns=recorder.paused_ns if recorder is not None else 0,
            sideband=self._stream.sideband_counters(),
            keep_ns=self.plan.payload.window_ns,
            heard_ns=0 if self.pause.lasts else self.heart.heard_ns,
            paused=self.pause.causes,
            loss_class=self.plan.loss_class,
            ends_ns=self.plan.ends_ns,
            gaps_ns=self._covered.gaps_ns,
            followed=tuple(follower.counts for follower in self.followers),
        )
