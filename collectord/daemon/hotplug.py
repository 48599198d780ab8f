# SPDX-License-Identifier: Apache-2.0
"""CPUs that go offline and come back: their rings are closed, and opened anew, in each session.

The kernel reports both by uevents. A ring of a CPU that is gone is drained to its end, counted for
the last time and closed; a CPU that is back gets new rings as soon as it can have events. A CPU
that was away for a moment gets new rings too.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import CollectordError, KernelError
from collectord.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.daemon.coverage import Coverage
    from collectord.daemon.cpu_watch import CpuWatch
    from collectord.session.session_factory import AnySession

_LOG: Final = structlog.get_logger()
# A CPU that has just come online may refuse events for a moment.
_TRIES: Final = 5
_PAUSE_S: Final = 0.1
# Uevents of other devices may come in thousands.
_LOOK_S: Final = 0.1


class Hotplug:
    """Keeps the rings of all sessions in step with the CPUs, in each one CPU after the other.

    No session waits for another one, whose disk may hang.

    Args:
        sessions: all of the daemon; those whose source cannot do it are left alone.
        coverage: knows which CPUs are online, and which of them were offline.
        watch: finds the present CPUs.
    """

    def __init__(
        self,
        sessions: Iterable[AnySession],
        coverage: Coverage,
        watch: CpuWatch,
    ) -> None:
        self._sessions = sessions
        self._coverage = coverage
        self._watch = watch
        self._due: set[Session] = set()
        self._tasks: dict[Session, asyncio.Task[None]] = {}
        self._runs = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Follow the CPUs from now on, and look when there is news, but not too often."""
        self._runs = True
        if self._watch.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._watch.fileno(), self._on_news)
        self.follow()  # CPUs may have come while the sessions were opened

    def _on_news(self) -> None:
        loop, fd = asyncio.get_running_loop(), self._watch.fileno()
        loop.remove_reader(fd)
        self._timer = loop.call_later(_LOOK_S, loop.add_reader, fd, self._on_news)
        self.poll()

    def poll(self) -> None:
        """Find the present CPUs, and act if they have changed."""
        if self._coverage.poll(self._watch):
            self.notify()
            self.follow()

    def notify(self) -> None:
        """Notify the sessions of the CPUs that they lack."""
        for session in self._sessions:
            session.note("cpus", self._coverage.trouble(session.plan))

    def follow(self) -> None:
        """Begin to open and close rings as the online CPUs demand.

        A change that is under way is completed first.
        """
        for session in self._sessions if self._runs else ():
            if isinstance(session, Session) and session.abilities.hotplug:
                self._due.add(session)
                if session not in self._tasks:
                    self._tasks[session] = asyncio.create_task(self._run(session))

    def end(self) -> None:
        """Begin nothing more. What is under way ends with its session."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watch.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._watch.fileno())
        self._runs = False

    async def settled(self) -> None:
        """Wait until the sessions have rings on all online CPUs, or have failed to open them."""
        while self._tasks:
            await asyncio.wait([*self._tasks.values()])

    async def _run(self, session: Session) -> None:
        try:
            while session in self._due:
                self._due.remove(session)
                for cpu in sorted(self._coverage.away(session.plan)):
                    if self._is_live(session):
                        await self._replace(session, cpu)
        finally:
            del self._tasks[session]

    def _is_live(self, session: Session) -> bool:
        """Whether a session is to follow the CPUs; another one may have taken its place."""
        return self._runs and session in self._sessions

    async def _replace(self, session: Session, cpu: int) -> None:
        """Close the rings of a CPU that was offline; open new ones if it is back."""
        name = session.plan.name
        try:
            await session.rings.leave_cpu(cpu)
            joined = await self._join(session, cpu)
        except CollectordError as error:
            if cpu in self._coverage.online and self._is_live(session):
                _LOG.error("cpu_not_joined", session=name, cpu=cpu, error=str(error))
        else:
            if joined:
                _LOG.info("cpu_joined", session=name, cpu=cpu)
        self.notify()

    async def _join(self, session: Session, cpu: int) -> bool:
        """Open new rings on a CPU; return whether it is there to have them."""
        for tries_left in reversed(range(_TRIES)):
            # An absence that ended before is not one of the new rings, so it is noted first.
            self.poll()
            if not self._is_live(session):
                return False
            absences = self._coverage.absences(session.plan, cpu)
            if cpu not in self._coverage.online:
                return False
            try:
                await session.rings.join_cpu(cpu)
            except KernelError as error:
                if error.errno != errno.ENODEV or not tries_left:
                    raise
                await asyncio.sleep(_PAUSE_S)
            else:
                if not self._is_live(session):
                    return False
                # If it went offline meanwhile, it is still away, and these rings are replaced.
                self._coverage.joined(session.plan, cpu, absences)
                return True
        return False
