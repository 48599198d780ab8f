# SPDX-License-Identifier: Apache-2.0
"""Incidents of a daemon: triggers fire, or somebody asks, and a folder is made of it.

An incident has a snapshot of every flight recorder, all of one moment, and the state of the host
then. Answers are made behind it by processes of the lowest priority.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from collectord.daemon.incidents.host_state import host_state
from collectord.daemon.incidents.incident_answers import IncidentAnswers, answers_for
from collectord.daemon.incidents.pending_incident import SHOWN, PendingIncident
from collectord.daemon.incidents.triggers import MANUAL, REQUEST, SIGNAL, Fired, Triggers
from collectord.errors import CollectordError, SinkError, UsageError
from collectord.session.incident_status import IncidentLine, IncidentsStatus, Suppression
from collectord.session.lone_call import lone_call
from collectord.session.ring_snapshot import Trigger
from collectord.sink.incident_folder import IncidentFolder, IncidentNote
from collectord.text.foreign import visible
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from pathlib import Path

    from collectord.config.schema import Config, IncidentsConfig
    from collectord.daemon.session_set import SessionSet
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.host import Host
    from collectord.session.cost_meter import CostMeter
    from collectord.session.ring_snapshot import Snapshot
    from collectord.sink.alert import Alert
    from collectord.sink.incident_folder import Kept

    # Takes the snapshots of all flight recorders; what is missing is told in words.
    Take = Callable[[str], Awaitable[tuple[list[Snapshot], list[str]]]]

_LOG: Final = structlog.get_logger()
_REASON_CHARS: Final = 500
# Between the two readings of the host, for the processor time of processes.
_INTERVAL_S: Final = 0.25
# A killed process ends, and a disk reads or writes some hundred bytes, in far less time.
_ANSWER_S: Final = 2.0
_FILE_BYTES: Final = 4 << 20  # no answer is larger
_NOT_NOW: Final = "the daemon makes no incident before it records, or while it ends"


class Incidents:
    """Makes incidents, and keeps no more of them than the limits say.

    Args:
        kernel: tells the state of the host, and watches pressure.
        config: has the triggers and the limits.
        root: the state directory.
        sessions: all of the daemon.
        host: goes into the notes.
        meter: leaves the time of the answers out.
    """

    def __init__(
        self,
        kernel: Kernel,
        config: Config,
        root: Path,
        sessions: SessionSet,
        *,
        host: Host,
        meter: CostMeter,
    ) -> None:
        self._kernel = kernel
        self._limits = config.incidents
        self._host = host
        self._meter = meter
        self._sessions = sessions
        self._folder = IncidentFolder(root)
        self._triggers = Triggers(kernel, sessions, self._on_fired, config.daemon.opener)
        self._configured = config.trigger
        self._take: Take | None = None  # from `begin` on
        self._one = asyncio.Lock()
        self._asking = asyncio.Lock()  # one answer at a time
        self._making: PendingIncident | None = None
        self._answers: IncidentAnswers | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._kept: list[Kept] = []
        self._kept_by: IncidentsConfig | None = None  # the limits that hold for these
        self._evicted = 0
        self._failed = 0

    # Life: begin, poll .. poll, end.

    async def begin(self, take: Take) -> None:
        """Watch the triggers from now on.

        Args:
            take: takes the snapshots.
        """
        try:
            await asyncio.wait_for(lone_call(self._load), _ANSWER_S)
        except (SinkError, TimeoutError) as error:
            _LOG.error("incidents_not_read", error=str(error) or "the disk does not answer")
        self._take = take
        self._triggers.watch(self._configured)

    def _load(self) -> None:
        self._triggers.restore(self._folder.read_counts())
        self._kept = self._folder.kept()

    def apply(self, config: Config) -> None:
        """Take over triggers and limits of a configuration that was loaded anew."""
        self._limits = config.incidents
        self._configured = config.trigger
        if self._take is not None:
            self._triggers.watch(self._configured)

    def poll(self) -> None:
        """Look at the conditions that nobody reports."""
        if self._take is not None:
            self._triggers.poll()
            if self._triggers.are_due:
                self._start(self._save(), self._tasks)

    async def end(self) -> None:
        """Watch no more, and give up what is not made yet."""
        self._take = None
        self._triggers.close()
        if self._answers is not None:
            self._answers.stop()
        for task in self._tasks:
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering, timeout=_ANSWER_S)
        for task in self._answering:
            task.cancel()
        if self._tasks or self._answering:
            await asyncio.wait([*self._tasks, *self._answering])
        if self._triggers.have_changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._save(), _ANSWER_S)

    def status(self) -> IncidentsStatus:
        """Return the triggers, and the incidents that are kept."""
        noted = [one.note for one in reversed(self._kept) if one.note is not None]
        return IncidentsStatus(
            triggers=self._triggers.status(),
            last=tuple(
                IncidentLine(one.id, one.trigger, one.fired_ns, one.reason)
                for one in noted[:SHOWN]
            ),
            kept=len(self._kept),
            bytes=sum(one.bytes for one in self._kept),
            evicted=self._evicted,
            failed=self._failed,
        )

    @property
    def kept(self) -> Sequence[Kept]:
        """The incidents on the disk, the oldest first, as they were when the last one was made."""
        return self._kept

    async def file(self, name: str, file: str) -> bytes:
        """Return the text or the picture of an incident that is kept.

        Raises:
            UsageError: there is none.
            SinkError: it cannot be read, or the disk does not answer.
        """
        if name not in {one.id for one in self._kept}:
            raise UsageError(f"no incident {name!r}")
        read = partial(self._folder.read, name, file, _FILE_BYTES)
        try:
            return await asyncio.wait_for(lone_call(read), _ANSWER_S)
        except TimeoutError as error:
            raise SinkError(
                "the disk of the incidents does not answer", path=str(self._folder.path)
            ) from error

    async def keep_limits(self, *, short: bool) -> None:
        """Delete the oldest incidents, as far as limits or a full disk want it."""
        if self._take is None or not (short or self._is_due()):
            return
        try:
            await lone_call(partial(self._evict, short=short))
        except CollectordError as error:
            _LOG.error("incidents_not_deleted", error=str(error))

    def _is_due(self) -> bool:
        """Whether limits may want an incident deleted; number and space change with a new one."""
        note = self._kept[0].note if self._kept else None
        age_ns = self._limits.age
        is_old = note is not None and age_ns and time.time_ns() - note.fired_ns > age_ns
        return bool(is_old) or self._kept_by is not self._limits

    # These make an incident.

    async def request(self, reason: str) -> IncidentNote:
        """Make an incident because a user asks for it: no limit applies.

        Raises:
            UsageError: the daemon does not record yet, or ends.
            SinkError: it cannot be written.
        """
        return await self._make(_by_hand(MANUAL, reason or "somebody asked for it"))

    async def by_signal(self) -> None:
        """Make an incident because of SIGUSR2. Raises as `request`."""
        await self._make(_by_hand(SIGNAL, "SIGUSR2"), Trigger.SIGNAL)

    async def unit_failed(self, unit: str) -> IncidentNote | Suppression:
        """Make an incident of a unit that has failed, if its trigger may.

        Returns:
            why it does not, if it does not.

        Raises:
            UsageError: no trigger is for this unit; or as `request`.
            SinkError: it cannot be written.
        """
        fired = self._triggers.unit_failed(unit, is_busy=self._making is not None)
        if not isinstance(fired, Fired):
            return fired
        return await self._make(fired)

    def alerted(self, alerts: Sequence[Alert]) -> dict[str, str]:
        """Make incidents of the alerts that fire, are new, and have a trigger that may fire.

        Returns:
            what becomes of each by its fingerprint, as `Triggers.alerted` tells it.

        Raises:
            UsageError: the daemon does not record yet, or ends.
        """
        if self._take is None:
            raise UsageError(_NOT_NOW)
        return self._triggers.alerted(alerts)

    def _on_fired(self, fired: Fired) -> Suppression | None:
        """Make an incident of a trigger whose condition is met; return why it may not now."""
        if self._take is None:
            return Suppression.BUSY
        making = self._making
        is_busy = making is not None and not making.misses(fired)
        cause = self._triggers.refusal(fired, is_busy=is_busy)
        if cause is None:
            # At once: the next trigger of this poll sees it.
            self._making = own = PendingIncident()
            self._start(self._make_logged(fired, own), self._tasks)
        elif making is not None:
            making.add(fired)
        return cause

    async def _make_logged(self, fired: Fired, own: PendingIncident) -> None:
        with suppress(CollectordError):  # it is in the log
            await self._make(fired, own=own)

    def _start(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _make(
        self, fired: Fired, why: str = Trigger.INCIDENT, own: PendingIncident | None = None
    ) -> IncidentNote:
        """Make an incident. Raises UsageError, SinkError."""
        own = own or PendingIncident()
        if self._making is None:
            self._making = own
        try:
            if fired.delay_ns:
                await asyncio.sleep(fired.delay_ns / NS_PER_SECOND)
            async with self._one:
                note = await self._store(fired, why, own)
        except SinkError as error:
            self._failed += 1
            _LOG.error("incident_not_made", trigger=fired.name, error=str(error))
            raise
        finally:
            if self._making is own:
                self._making = None
        _LOG.info(
            "incident_made", incident=note.id, trigger=note.trigger, reason=visible(note.reason)
        )
        if fired.config is None:
            self._triggers.note_request(fired.name, fired.at_ns)
        self._triggers.note_alerts(fired)
        if self._take is not None:
            self._start(self._save(), self._tasks)
            self._start(self._answer((fired, *own.also), note), self._answering)
        return note

    async def _store(self, fired: Fired, why: str, own: PendingIncident) -> IncidentNote:
        if self._take is None:
            raise UsageError(_NOT_NOW)
        taken_ns = time.time_ns()
        first = await lone_call(self._kernel.moment)
        self._triggers.poll()  # what has happened by now is in the snapshots, so that it is named
        own.is_taking = True
        (snapshots, problems), _ = await asyncio.gather(
            self._take(why), asyncio.sleep(_INTERVAL_S)
        )
        moment = host_state(first, await lone_call(self._kernel.moment))
        note = IncidentNote(
            id="",
            trigger=fired.name,
            kind=fired.kind,
            reason=fired.reason[:_REASON_CHARS],
            hostname=self._host.hostname,
            boot_id=self._host.boot_id,
            release=self._host.release,
            fired_ns=fired.at_ns,
            taken_ns=taken_ns,
            alerts=fired.alerts,
            suppressed=fired.suppressed,
            snapshots=tuple(one.to_json() for one in (*fired.stored, *snapshots)),
            problems=tuple(problems),
            moment=moment,
        )
        also = tuple(f"{one.name}: {one.reason}" for one in own.also)
        own.is_noted = True
        return await lone_call(partial(self._write, note, also))

    def _write(self, note: IncidentNote, also: Sequence[str]) -> IncidentNote:
        """Write an incident and delete old ones; in a thread. Raises SinkError."""
        name = self._folder.begin(note.fired_ns, note.trigger, note.alerts)
        linked = [
            self._folder.link(name, one["session"], one["segments"]) for one in note.snapshots
        ]
        note = msgspec.structs.replace(
            note,
            id=name,
            also=tuple(also),
            files=tuple(dict.fromkeys(file for one in linked for file in one.files)),
            problems=(*note.problems, *(told for one in linked for told in one.problems)),
        )
        self._folder.put(note)
        self._evict()
        return note

    def _evict(self, *, short: bool = False) -> None:
        limits = self._kept_by = self._limits
        gone, self._kept = self._folder.evict(
            keep=limits.keep,
            most_bytes=limits.bytes,
            age_ns=limits.age,
            now_ns=time.time_ns(),
            short=short,
        )
        self._evicted += len(gone)
        for name in gone:
            _LOG.info("incident_deleted", incident=name)

    async def _answer(self, fired: Sequence[Fired], note: IncidentNote) -> None:
        """Give the answers of the fired triggers; write the summary before and after them."""
        async with self._asking:
            if self._take is None:
                return
            answers = self._answers = IncidentAnswers(self._folder, note, self._meter.excuse)
            fitting = partial(
                answers_for,
                has_records=any(one["samples"] for one in note.snapshots),
                has_chains=any(plan.has_chains for plan in self._sessions.plans),
            )
            names = [*dict.fromkeys(name for one in fired for name in fitting(one.config))]
            try:
                await lone_call(partial(self._give, answers, note, names))
            except (CollectordError, OSError) as error:
                _LOG.error("incident_not_answered", incident=note.id, error=str(error))
            finally:
                answers.stop()
                self._answers = None

    def _give(self, answers: IncidentAnswers, note: IncidentNote, names: Sequence[str]) -> None:
        problem = answers.summarise()
        for name in names:
            note = msgspec.structs.replace(note, answers=(*note.answers, answers.answer(name)))
            self._folder.put(note)
        if names:
            problem = answers.summarise()
        self._kept = self._folder.kept()
        if problem and not answers.is_stopped:
            _LOG.error("incident_not_summarised", incident=note.id, error=problem)

    async def _save(self) -> None:
        """Keep the histories of the triggers for the next daemon."""
        try:
            await lone_call(partial(self._folder.put_counts, self._triggers.histories()))
        except CollectordError as error:
            _LOG.error("trigger_counts_not_kept", error=str(error))


def _by_hand(name: str, reason: str) -> Fired:
    return Fired(name=name, kind=REQUEST, reason=reason, at_ns=time.time_ns())
