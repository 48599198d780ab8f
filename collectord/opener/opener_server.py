# SPDX-License-Identifier: Apache-2.0
"""The opener's socket: sessions are asked for by name; their rings and programs are handed out.

What is opened follows from the configuration, which the opener reads and plans by itself. A
request can name a session of it and nothing else; the digest that it carries shows that the daemon
has planned the same, with the opener's privileges, for which it asks first. One process at a time
drains a session: until its connection ends. The same holds for staging memory, whose size follows
from the configuration.

Sessions are opened in a thread, one after the other, since a program may take long to compile.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from collectord.errors import CollectordError
from collectord.kernel.values.kept_pressure import AskPressure, PressureAnswer
from collectord.kernel.values.kept_rings import (
    ASK_BYTES,
    Answer,
    Ask,
    AskEnd,
    AskFacts,
    AskHiding,
    CpuAnswer,
    FactsAnswer,
    question_of,
    request_of,
)
from collectord.kernel.values.kept_staging import (
    CHUNK_MAX_BYTES,
    AskLeft,
    AskStaging,
    StagingAnswer,
)
from collectord.opener.held_session import HeldSession, Priors
from collectord.opener.held_staging import HeldStaging, make_staging
from collectord.source.perf_kept import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Self

    from collectord.kernel.port import Kernel
    from collectord.plan.plan import Plan
    from collectord.plan.session_plan import SessionPlan

_LOG: Final = structlog.get_logger()
_CONNECTIONS_MAX: Final = 128
# A daemon whose reload fails takes up again what it had drained before.
_BEFORE_S: Final = 60.0
# A daemon that does not read what it asked for holds up the others no longer.
_SEND_S: Final = 5.0
_CREDENTIALS: Final = struct.Struct("iII")


class Refused(Exception):
    """A request that is not granted, with the reason."""


class Planned(NamedTuple):
    """A plan of all that the opener does for a daemon, as its configuration says.

    Attributes:
        plan: of the sessions.
        facts: what a daemon needs for the same plan, in JSON.
        limits: of pressure, those of the triggers as they are spelt.
    """

    plan: Plan
    facts: bytes
    limits: frozenset[str] = frozenset()


class Opener:
    """The process that holds rings; they are closed when its context ends.

    Args:
        kernel: opens them.
        plan: reads the configuration, looks at the host, and plans.
        is_changed: whether the configuration or the CPUs are others than at the last `plan`.
        left_cpus: CPUs that went offline since the last call, back or not.
        users: who may ask.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        plan: Callable[[], Planned],
        is_changed: Callable[[], bool],
        left_cpus: Callable[[], Collection[int]],
        users: Collection[int],
    ) -> None:
        self._kernel = kernel
        self._plan = plan
        self._is_changed = is_changed
        self._left_cpus = left_cpus
        self._users = users
        self._planned, self._facts, self._limits = plan()
        self._before = self._planned  # until then:
        self._before_ends_s = 0.0
        self._held: dict[str, HeldSession] = {}
        self._prior: dict[str, Priors] = {}  # of sessions that could not be opened again
        self._connections: dict[socket.socket, str] = {}  # with the session that it drains
        self._staging: HeldStaging | None = None
        self._staging_user: socket.socket | None = None
        self._asked: set[asyncio.Task[None]] = set()  # requests that are being answered
        self._turn = asyncio.Lock()
        self._opening = ThreadPoolExecutor(1, "open")  # makes all changes of what is held
        self._abort = os.eventfd(0, os.EFD_CLOEXEC)
        self._watching = threading.Lock()  # of the CPUs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in tuple(self._connections):
            one.close()
        for name in tuple(self._held):
            self._opening.submit(self._end, name).result()
        self._opening.shutdown()
        if self._staging is not None:
            os.close(self._staging.memory)
        os.close(self._abort)

    async def serve(self, listening: socket.socket, stop: asyncio.Event) -> None:
        """Answer requests until `stop`."""
        loop = asyncio.get_running_loop()
        listening.settimeout(0)
        loop.add_reader(listening, self._accept, listening)
        try:
            await stop.wait()
        finally:
            loop.remove_reader(listening)
            for one in self._connections:
                loop.remove_reader(one)
            os.eventfd_write(self._abort, 1)
            await asyncio.gather(*self._asked)

    def _accept(self, listening: socket.socket) -> None:
        with ExitStack() as undo:
            try:
                one = undo.enter_context(listening.accept()[0])
            except OSError:  # the peer is gone, or no descriptor is free
                return
            raw = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, uid, _ = _CREDENTIALS.unpack(raw)
            if uid not in self._users or len(self._connections) >= _CONNECTIONS_MAX:
                _LOG.warning("request_refused", pid=pid, uid=uid)
                return
            one.settimeout(_SEND_S)
            self._connections[one] = ""
            asyncio.get_running_loop().add_reader(one, self._read, one)
            undo.pop_all()

    def _read(self, one: socket.socket) -> None:
        """Answer a request, or a question of whoever drains a session, or end a connection."""
        try:
            data = one.recv(ASK_BYTES, socket.MSG_DONTWAIT)
        except OSError as error:
            _LOG.warning("connection_lost", error=str(error))
            data = b""
        if data and self._connections[one] and self._answers_on(one, data):
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(one)
        if data and not self._connections[one] and one is not self._staging_user:
            task = loop.create_task(self._answer(one, data))
            self._asked.add(task)
            task.add_done_callback(self._asked.discard)
        else:
            self._leave(one)

    def _answers_on(self, one: socket.socket, data: bytes) -> bool:
        """Answer a question; return whether it is one, and the peer takes the answer."""
        held = self._held[self._connections[one]]
        try:
            ask = question_of(data)
            if isinstance(ask, AskHiding):
                one.send(msgspec.json.encode(held.hiding(ask)), socket.MSG_DONTWAIT)
            elif isinstance(ask, AskEnd):
                held.is_over = True
            else:
                self._reopen(one, held, ask.cpu)
        except (msgspec.MsgspecError, OSError) as error:
            _LOG.warning("connection_lost", error=str(error))
            return False
        return True

    def _reopen(self, one: socket.socket, held: HeldSession, cpu: int) -> None:
        """Hand out new rings on a CPU. Raises OSError."""
        try:
            self._note_left()
            parts = held.reopen(cpu)
        except CollectordError as error:
            _LOG.warning("request_refused", error=str(error))
            one.send(msgspec.json.encode(CpuAnswer(refused=str(error))))
            return
        one.send(msgspec.json.encode(CpuAnswer(messages=len(parts))))
        for part, fds in parts:
            socket.send_fds(one, [msgspec.json.encode(part)], fds)
        _LOG.info("rings_reopened", session=self._connections[one], cpu=cpu)

    def _note_left(self) -> None:
        with self._watching:
            left = self._left_cpus()
            for other in tuple(self._held.values()):
                other.leave(left)

    def _leave(self, one: socket.socket) -> None:
        """End a connection; what it drained may be handed out again."""
        name = self._connections.pop(one)
        one.close()
        if name:
            held = self._held[name]
            _LOG.info("session_left", session=name)
            if held.is_over:
                self._opening.submit(self._end, name)
            else:
                held.is_drained = False
        if one is self._staging_user:
            self._staging_user = None

    async def _answer(self, one: socket.socket, data: bytes) -> None:
        """Answer a request, and listen to the connection again."""
        answered = False
        try:
            await self._carry_out(one, data)
            answered = True
        except OSError as error:
            _LOG.warning("connection_lost", error=str(error))
        finally:
            if answered:
                asyncio.get_running_loop().add_reader(one, self._read, one)
            else:
                self._leave(one)

    async def _carry_out(self, one: socket.socket, data: bytes) -> None:
        try:
            ask = request_of(data)
            if isinstance(ask, AskFacts):
                one.send(msgspec.json.encode(FactsAnswer(msgspec.Raw(self._facts))))
                return
            loop = asyncio.get_running_loop()
            if isinstance(ask, AskLeft):
                await loop.run_in_executor(self._opening, self._send_left, one)
                return
            if isinstance(ask, AskPressure):
                fd = await loop.run_in_executor(self._opening, self._pressure, ask)
                try:
                    socket.send_fds(one, [msgspec.json.encode(PressureAnswer())], [fd])
                finally:
                    os.close(fd)
                _LOG.info("pressure_watched", limit=ask.limit)
                return
            if isinstance(ask, AskStaging):
                made = await loop.run_in_executor(self._opening, self._make_staging, one, ask)
                told = StagingAnswer("", made.chunks, made.chunk_bytes)
                socket.send_fds(one, [msgspec.json.encode(told)], [made.memory])
                _LOG.info("staging_handed_out", chunks=made.chunks, chunk_bytes=made.chunk_bytes)
                return
            await self._hand_out(one, ask)
        except (Refused, CollectordError, msgspec.MsgspecError) as error:
            _LOG.warning("request_refused", error=str(error))
            one.send(msgspec.json.encode(Answer(refused=str(error))))

    async def _hand_out(self, one: socket.socket, ask: Ask) -> None:
        """Hand out the rings of a session.

        One after the other: a peer may have left while its rings were opened, which is noticed
        when they are sent.
        """
        async with self._turn:
            self._catch_up(ask.session)
            loop = asyncio.get_running_loop()
            held = await loop.run_in_executor(self._opening, self._session, ask)
            self._connections[one] = ask.session
            parts = list(held.parts())
            answer = Answer(
                "",
                held.ring_count,
                len(parts),
                held.program_count,
                held.prior.events,
                dict(held.lost),
                held.trace,
            )
            socket.send_fds(one, [msgspec.json.encode(answer)], [held.memory])
            for part, fds in parts:
                socket.send_fds(one, [msgspec.json.encode(part)], fds)
        _LOG.info(
            "session_handed_out",
            session=ask.session,
            rings=held.ring_count,
            programs=held.program_count,
        )

    def _catch_up(self, session: str) -> None:
        """Read what whoever drains a session has sent: it may have left."""
        for other in [one for one, name in self._connections.items() if name == session]:
            while other in self._connections and _has_news(other):
                self._read(other)

    def _send_left(self, one: socket.socket) -> None:
        """Send the memory that the last daemon has left, and the notes. Raises Refused."""
        self._check_staging()
        left = self._staging
        if left is None:
            one.send(msgspec.json.encode(StagingAnswer()))
            return
        notes = [held.memory for held in self._held.values() if not held.is_drained]
        answer = StagingAnswer("", left.chunks, left.chunk_bytes, len(notes))
        socket.send_fds(one, [msgspec.json.encode(answer)], [left.memory])
        for fd in notes:
            socket.send_fds(one, [msgspec.json.encode(StagingAnswer())], [fd])

    def _make_staging(self, one: socket.socket, ask: AskStaging) -> HeldStaging:
        """Make new memory for a peer, who has written what was left, or never will.

        Raises Refused, or as `_look_again`.
        """
        self._check_staging()
        if self._staging is not None:
            os.close(self._staging.memory)
            self._staging = None
        if not self._plans(ask) and self._is_changed():
            self._look_again()
        if not self._plans(ask) or ask.chunk_bytes > CHUNK_MAX_BYTES:
            raise Refused("staging memory is not planned so by the opener's configuration")
        try:
            made = make_staging(ask.chunks, ask.chunk_bytes)
        except OSError as error:
            raise Refused(f"there is no staging memory: {error}") from error
        self._staging, self._staging_user = made, one
        return made

    def _pressure(self, ask: AskPressure) -> int:
        """Have the kernel watch a limit; return the descriptor.

        Raises:
            Refused: no trigger of the configuration has it.
            CollectordError: the kernel does not; or as `_look_again`.
        """
        if ask.limit not in self._limits and self._is_changed():
            self._look_again()
        if ask.limit not in self._limits:
            raise Refused("no trigger of the opener's configuration has this limit of pressure")
        return self._kernel.open_pressure(ask.parsed)

    def _check_staging(self) -> None:
        if self._staging_user is not None:
            raise Refused("another process uses the staging memory")

    def _plans(self, ask: AskStaging) -> bool:
        core = self._planned.core
        return (core.chunks, core.chunk_bytes) == (ask.chunks, ask.chunk_bytes)

    def _session(self, ask: Ask) -> HeldSession:
        """Return the session for the peer to drain, opened anew if it is another than planned.

        Raises:
            Refused: they may not be handed out.
            CollectordError: they cannot be opened, or the configuration not be read.
        """
        held = self._held.get(ask.session)
        if held is not None and held.is_drained:
            raise Refused("another process drains them")
        plan = self._find(ask)
        self._note_left()
        if held is not None and held.digest == ask.digest and held.is_whole:
            held.is_drained = True
            return held
        if held is not None:
            self._end(ask.session)
        prior = self._prior.get(ask.session, Priors())
        try:
            made = HeldSession(self._kernel, plan, prior, abort=self._abort)
        except CollectordError:  # a compiler may have tried for long
            self._before_ends_s = time.monotonic() + _BEFORE_S
            raise
        made.is_drained = True
        self._prior.pop(ask.session, None)
        self._held[ask.session] = made
        return made

    def _find(self, ask: Ask) -> SessionPlan:
        """Return the plan of a session, of which the daemon has the same."""
        if self._matching(ask) is None and self._is_changed():
            self._look_again()
        found = self._matching(ask)
        if found is None:
            raise Refused("they are not planned so by the opener's configuration, on this host")
        return found

    def _look_again(self) -> None:
        """Plan anew, and close the rings of sessions that are no more. Raises CollectordError."""
        planned, self._facts, self._limits = self._plan()
        self._before, self._planned = self._planned, planned
        self._before_ends_s = time.monotonic() + _BEFORE_S
        names = {plan.name for plan in self._planned.sessions if plan.opener}
        for name in [name for name in self._held if name not in names]:
            if not self._held[name].is_drained:
                self._end(name)

    def _matching(self, ask: Ask) -> SessionPlan | None:
        plans = self._planned.sessions
        if time.monotonic() < self._before_ends_s:
            plans += self._before.sessions
        named = (one for one in plans if one.opener and one.name == ask.session)
        return next((one for one in named if digest_of(self._kernel, one) == ask.digest), None)

    def _end(self, name: str) -> None:
        """Close the rings of a session, and keep in mind what was in them."""
        held = self._held.pop(name, None)
        if held is None:  # whoever drained it has ended it
            return
        self._prior[name] = prior = held.end()
        _LOG.info(
            "session_closed", session=name, unread=prior.events.left, unread_aux=prior.trace.left
        )


def _has_news(one: socket.socket) -> bool:
    """Whether a peer has sent something, or has left."""
    waiting = select.poll()
    waiting.register(one, select.POLLIN)
    return bool(waiting.poll(0))
