# SPDX-License-Identifier: Apache-2.0
"""The commands that a daemon carries out on request: of a signal or of the control API."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from collectord.errors import KernelError, UsageError
from collectord.model import FLIGHT_RECORDER, GapCause
from collectord.session.flight_recorder import SNAPSHOTS_KEPT
from collectord.session.ring_snapshot import Snapshot, Trigger
from collectord.text.foreign import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.daemon.ending_sessions import EndingSessions
    from collectord.daemon.incidents.incident_maker import Incidents
    from collectord.daemon.reloader import Reloader
    from collectord.daemon.session_set import SessionSet
    from collectord.daemon.starting_sessions import StartingSessions
    from collectord.daemon.timed_sessions import TimedSessions
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.plan import Plan
    from collectord.session.pause import Pause
    from collectord.session.session_factory import AnySession
    from collectord.sink.base import SegmentInfo


class DaemonCommands:
    """Carries out requests about the live sessions.

    Args:
        reloader: keeps the plan of all sessions.
        sessions: all of the daemon.
        timed: those that users start.
        starting: those that do not record yet.
        ending: those that are not wanted any more.
        incidents: makes incidents.

    Attributes:
        timed: the same.
        incidents: the same.
        snapshots: the last ones that were requested; after the run also all others.
    """

    def __init__(
        self,
        reloader: Reloader,
        sessions: SessionSet,
        timed: TimedSessions,
        starting: StartingSessions,
        ending: EndingSessions,
        *,
        incidents: Incidents,
    ) -> None:
        self._reloader = reloader
        self.timed = timed
        self.incidents = incidents
        self._sessions = sessions
        self._starting = starting
        self._ending = ending
        self.snapshots: deque[Snapshot] = deque(maxlen=SNAPSHOTS_KEPT)

    @property
    def plan(self) -> Plan:
        """The plan of all sessions."""
        return self._reloader.plan

    async def reload(self) -> dict[str, Any]:
        """Read the configuration anew, and change what differs; see `Reloader.reload`.

        Sessions that are wanted and do not record yet are `beginning`, those that are not wanted
        any more and have not ended yet `ending`.
        """
        done = await self._reloader.reload()
        ending = await self._ending.settled()
        return {
            **plain(done.found),
            "warnings": list(done.warnings),
            "beginning": self._starting.names,
            "ending": ending,
        }

    async def snapshot(
        self, names: Sequence[str] = (), trigger: str = Trigger.REQUEST
    ) -> list[Snapshot]:
        """Store the contents of the flight recorders, all at the same moment.

        Args:
            names: of sessions; empty for all flight recorders.
            trigger: one of `ring_snapshot.Trigger`.

        Raises:
            UsageError: there is no flight recorder of that name, or none at all, or it could not
                be opened.
            SinkError: a segment cannot be written.
            KernelError: rings cannot be stopped, or not started again.
        """
        snapshots, failed = await self._taken(names, trigger)
        for error in failed:
            raise error  # the others are stored
        return snapshots

    async def snapshot_for_incident(self, trigger: str) -> tuple[list[Snapshot], list[str]]:
        """Store the contents of all flight recorders, and say in words which cannot be stored."""
        try:
            snapshots, failed = await self._taken((), trigger)
        except UsageError as error:
            return [], [str(error)]
        return snapshots, [str(error) for error in failed]

    async def _taken(
        self, names: Sequence[str], trigger: str
    ) -> tuple[list[Snapshot], list[BaseException]]:
        """Return the snapshots of recorders, and the errors of others. Raises UsageError."""
        named = self._sessions.named(names)
        recorders = [(s.plan.name, s.recorder) for s in named if s.recorder is not None]
        with_one = {name for name, _ in recorders}
        others = [session for session in named if session.plan.name not in with_one]
        if not recorders or (names and others):
            raise _no_recorder(names, others)
        made = await asyncio.gather(
            *(recorder.snapshot(trigger) for _, recorder in recorders), return_exceptions=True
        )
        snapshots = [one for one in made if isinstance(one, Snapshot)]
        self.snapshots.extend(snapshots)
        return snapshots, [one for one in made if isinstance(one, BaseException)]

    async def mark(self, text: str, session: str | None = None) -> int:
        """Write a marker to the ftrace rings of a session, or of all; return how many took it.

        Raises:
            UsageError: there is no such session, or none records ftrace.
            KernelError: a ring is full and does not overwrite.
        """
        named = self._sessions.named([session] if session else ())
        marked = [instance for s in named for instance in s.abilities.tracing]
        if not marked:
            raise UsageError(
                f"session {session} records no ftrace" if session else "no session records ftrace",
                hint='markers go into sources of kind "tracefs"',
            )
        for instance in marked:
            instance.mark(text)
        return len(marked)

    async def rotate(self, names: Sequence[str] = ()) -> list[SegmentInfo]:
        """Continue in new segments; return those that were sealed, of sessions that had any data.

        Args:
            names: of sessions; empty for all that write segments one after the other.

        Raises:
            UsageError: there is no such session, or it does not write so, or none does.
            SinkError: a segment cannot be created or sealed now.
            ShardSilent: a drain thread does not respond.
        """
        named = self._sessions.named(names)
        made = await asyncio.gather(
            *(session.rotate() for session in named), return_exceptions=True
        )
        results = list(zip(named, made, strict=True))
        done = {session.plan.name for session, one in results if isinstance(one, list)}
        for session, one in results:
            # It need not write so if nobody named it, or if another source of its name does.
            excused = isinstance(one, UsageError) and (
                session.plan.name in done or bool(done and not names)
            )
            if isinstance(one, BaseException) and not excused:
                raise one  # the others are rotated
        return [info for one in made if isinstance(one, list) for info in one]

    async def pause(self, name: str) -> None:
        """Disable a session's events until `resume`, whatever the budget does meanwhile.

        Raises:
            UsageError: there is no such session, or it cannot be paused.
            KernelError: an event cannot be disabled; the session goes on.
        """
        sessions = self._sessions.named([name])
        begun = []
        try:
            for pause in [_pause_of(session) for session in sessions]:
                begun.append(pause)
                pause.begin(GapCause.REQUEST)
        except KernelError:
            for pause in begun:
                pause.end(GapCause.REQUEST)
            raise
        for session in sessions:
            session.note("request", f"paused: `collectord sessions resume {name}` ends it")

    async def resume(self, name: str) -> None:
        """Enable the events of a session that `pause` has disabled.

        Raises:
            UsageError: there is no such session, or the budget pauses it.
            KernelError: an event cannot be enabled; the session stays paused.
        """
        for session in self._sessions.named([name]):
            if session.pause is not None:
                session.pause.end(GapCause.REQUEST)
                session.note("request", "")
                if session.pause.lasts:
                    raise UsageError(
                        f"the budget pauses session {name}",
                        hint="it comes back when there is room, or with a larger [daemon] budget",
                    )

    def keep_all(self) -> None:
        """Add the snapshots that nobody requested, when all sessions have ended."""
        recorders = [s.recorder for s in self._sessions if s.recorder is not None]
        self.snapshots.extend(one for recorder in recorders for one in recorder.snapshots)


def _pause_of(session: AnySession) -> Pause:
    if session.pause is None or not session.pause.possible:
        raise UsageError(
            f"session {session.plan.name} cannot be paused",
            hint="it runs BPF programs, reads relay channels or AUX areas, freezes, or has failed",
        )
    return session.pause


def _no_recorder(names: Sequence[str], sessions: Sequence[AnySession]) -> UsageError:
    """Return why there is no snapshot of these sessions: the named ones, or all of them."""
    shut = [session for session in sessions if session.plan.mode == FLIGHT_RECORDER]
    if shut:
        balances = [session.balance() for session in shut]
        return UsageError("; ".join(f"flight recorder {_shut_text(one)}" for one in balances))
    among = ", ".join(dict.fromkeys(session.plan.name for session in sessions))
    return UsageError(
        f"there is no flight recorder among {among}" if names else "no flight recorder runs",
        hint='flight recorders are sessions with mode = "flight-recorder"',
    )


def _shut_text(balance: SessionBalance) -> str:
    """Return the text about a session that could not be opened: its state and its reasons."""
    why = "is degraded, its hardware is absent" if balance.state == "degraded" else "has failed"
    return f"{balance.name} {why}: {'; '.join(balance.degraded_reasons)}"
