# SPDX-License-Identifier: Apache-2.0
"""A daemon's side of the opener's socket: rings and programs that outlive it."""

from __future__ import annotations

import errno
import itertools
import os
import select
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from collectord.errors import KernelError
from collectord.facts.kernel_facts import OpenerFacts
from collectord.kernel.values.kept_pressure import AskPressure, PressureAnswer
from collectord.kernel.values.kept_rings import (
    DESCRIBED_BYTES,
    EVENTS_MAX,
    MESSAGE_BYTES,
    Answer,
    Ask,
    AskCpu,
    AskEnd,
    AskFacts,
    AskHiding,
    CpuAnswer,
    FactsAnswer,
    GivenRing,
    HidingAnswer,
    KeptPart,
    KeptProgram,
    KeptRing,
    KeptRings,
)
from collectord.kernel.values.kept_staging import (
    AskLeft,
    AskStaging,
    KeptStaging,
    LeftStaging,
    StagingAnswer,
)
from collectord.text.foreign import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord.config.pressure_limit import PressureLimit

_Message = TypeVar("_Message")
_PART: Final[Any] = KeptRing | KeptPart
# The opener may look at the host, or open a session for somebody else.
_WAIT_S: Final = 60.0
# It answers these at once, and the daemon's loop waits.
_TELL_S: Final = 1.0
_REOPEN_S: Final = 5.0
_TOLD: Final[Any] = HidingAnswer | CpuAnswer
_SERIALS: Final = itertools.count(1)
NEVER: Final = -1  # in place of a descriptor that tells of an abort


def opener_facts(place: str) -> OpenerFacts:
    """See `Kernel.opener_facts`."""
    with ExitStack() as undo, _asked(place, AskFacts(), undo) as one:
        answer, _ = _receive(one, FactsAnswer, undo)
        return decode_json(answer.facts, OpenerFacts)


def opener_listens(place: str) -> bool:
    """See `Kernel.opener_listens`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as one:
        return one.connect_ex(place) == 0


def kept_rings(
    place: str, session: str, digest: str, *, wait_s: float, abort: int = NEVER
) -> KeptRings:
    """See `Kernel.kept_rings`."""
    with ExitStack() as undo:
        with _asked(place, Ask(session, digest), undo) as one:
            _await(one, wait_s, abort)
            answer, fds = _receive(one, Answer, undo)
            if answer.refused:
                raise KernelError(
                    f"the opener refuses the rings of session {session}: {answer.refused}",
                    hint="journalctl -u collectord-opener",
                )
            (memory,) = fds
            rings, parts = _parts(one, answer.messages, undo)
            programs = tuple(_program(parts.get(n, ())) for n in range(answer.programs))
        one.settimeout(None)
        undo.pop_all()
    for program in parts.values():
        os.close(program[0])
    ordered = tuple(rings[number] for number in sorted(rings))
    return KeptRings(
        one.detach(), memory, answer.prior, ordered, programs, answer.lost, answer.trace
    )


def reopened_rings(connection: int, cpu: int) -> tuple[GivenRing, ...]:
    """See `Kernel.reopened_rings`."""
    asking = f"cannot ask the opener for rings on CPU {cpu}"
    with ExitStack() as undo, socket.socket(fileno=os.dup(connection)) as one:
        try:
            one.send(msgspec.json.encode(AskCpu(cpu)), socket.MSG_DONTWAIT)
            answer: HidingAnswer | CpuAnswer = HidingAnswer(0)
            while isinstance(answer, HidingAnswer):  # one that came too late
                _await(one, _REOPEN_S, NEVER)
                answer, _ = _receive(one, _TOLD, undo)
            if answer.refused:
                raise KernelError(
                    f"the opener refuses rings on CPU {cpu}: {answer.refused}",
                    hint="journalctl -u collectord-opener",
                )
            rings, _ = _parts(one, answer.messages, undo)
        except OSError as error:
            raise KernelError(asking, syscall="recv", errno=error.errno or 0) from error
        except (msgspec.MsgspecError, ValueError) as error:
            raise KernelError(f"{asking}: {error}", hint="systemctl restart collectord") from error
        undo.pop_all()
    return tuple(rings[number] for number in sorted(rings))


def end_kept(connection: int) -> None:
    """See `Kernel.end_kept`."""
    with socket.socket(fileno=os.dup(connection)) as one:
        try:
            one.send(msgspec.json.encode(AskEnd()), socket.MSG_DONTWAIT)
        except OSError as error:
            raise KernelError(
                "cannot tell the opener of a session's end", syscall="send", errno=error.errno or 0
            ) from error


def hiding_programs(connection: int) -> Mapping[int, tuple[int, ...] | None]:
    """See `Kernel.hiding_programs`."""
    serial = next(_SERIALS)
    asking = "cannot ask the opener for BPF programs"
    with socket.socket(fileno=os.dup(connection)) as one:
        try:
            one.send(msgspec.json.encode(AskHiding(serial)), socket.MSG_DONTWAIT)
            while True:
                _await(one, _TELL_S, NEVER)
                data = one.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
                answer = decode_json(data, HidingAnswer)
                if answer.serial == serial:  # otherwise one that came too late
                    break
        except OSError as error:
            raise KernelError(asking, syscall="recv", errno=error.errno or 0) from error
        except msgspec.MsgspecError as error:
            raise KernelError(f"{asking}: {error}", hint="systemctl restart collectord") from error
    if answer.refused:
        raise KernelError(f"{asking}: {answer.refused}", hint="journalctl -u collectord-opener")
    return answer.programs


def _parts(
    one: socket.socket, messages: int, undo: ExitStack
) -> tuple[dict[int, GivenRing], dict[int, tuple[int, ...]]]:
    """Receive rings with their descriptors, and the descriptors of programs, by their numbers."""
    rings: dict[int, GivenRing] = {}
    programs: dict[int, tuple[int, ...]] = {}
    for _ in range(messages):
        part, fds = _receive(one, _PART, undo)
        if isinstance(part, KeptPart):
            programs[part.number] = (*programs.get(part.number, ()), *fds)
            continue
        before, known = rings.get(part.number, GivenRing(part, ()))
        if known:
            events = (*before.events, *part.events)
            part = msgspec.structs.replace(part, events=events, keeper=before.keeper)
        rings[part.number] = GivenRing(part, (*known, *fds))
    return rings, programs


def _program(fds: tuple[int, ...]) -> KeptProgram:
    """Return a program by its descriptors. Raises ValueError."""
    if not fds:
        raise ValueError("a program is missing")
    size = os.fstat(fds[0]).st_size
    if size > DESCRIBED_BYTES:
        raise ValueError("the description of a program is too long")
    return KeptProgram(os.pread(fds[0], size, 0), fds[1:])


def _await(one: socket.socket, wait_s: float, abort: int) -> None:
    """Wait for an answer. Raises OSError if it does not come, or nobody needs it any more."""
    poll = select.poll()
    poll.register(one, select.POLLIN)
    if abort != NEVER:
        poll.register(abort, select.POLLIN)
    found = dict(poll.poll(wait_s * 1000))
    if abort in found:
        raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
    if not found:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


def left_staging(place: str) -> LeftStaging | None:
    """See `Kernel.left_staging`."""
    with ExitStack() as undo:
        with _asked(place, AskLeft(), undo) as one:
            answer, fds = _staging(one, undo)
            notes = [_staging(one, undo)[1] for _ in range(answer.notes)]
        if not fds:
            return None
        undo.pop_all()
    one.close()
    return LeftStaging(fds[0], answer.chunks, answer.chunk_bytes, tuple(fd for (fd,) in notes))


def kept_staging(place: str, chunks: int, chunk_bytes: int) -> KeptStaging:
    """See `Kernel.kept_staging`."""
    with ExitStack() as undo:
        # The size may be of a kind that JSON has not.
        with _asked(place, AskStaging(chunks, int(chunk_bytes)), undo) as one:
            _, (memory,) = _staging(one, undo)
        one.settimeout(None)
        undo.pop_all()
    return KeptStaging(memory, one.detach())


def kept_pressure(place: str, limit: PressureLimit) -> int:
    """See `Kernel.kept_pressure`."""
    with ExitStack() as undo:
        with _asked(place, AskPressure(str(limit)), undo) as one:
            _await(one, _TELL_S, NEVER)
            answer, fds = _receive(one, PressureAnswer, undo)
            if answer.refused:
                raise KernelError(
                    f"the opener does not have {limit} watched: {answer.refused}",
                    hint="journalctl -u collectord-opener",
                )
            (fd,) = fds
        undo.pop_all()
    one.close()
    return fd


def _staging(one: socket.socket, undo: ExitStack) -> tuple[StagingAnswer, tuple[int, ...]]:
    answer, fds = _receive(one, StagingAnswer, undo)
    if answer.refused:
        raise KernelError(
            f"the opener refuses staging memory: {answer.refused}",
            hint="journalctl -u collectord-opener",
        )
    return answer, fds


@contextmanager
def _asked(
    place: str, request: Ask | AskFacts | AskLeft | AskStaging | AskPressure, undo: ExitStack
) -> Iterator[socket.socket]:
    """Yield a connection on which this was asked. Raises KernelError for what goes wrong then."""
    try:
        one = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        one.settimeout(_WAIT_S)
        one.connect(place)
        one.send(msgspec.json.encode(request))
        yield one
    except (BrokenPipeError, ConnectionResetError, PermissionError) as error:
        raise KernelError(
            f"the opener at {place} does not answer this user, or has ended",
            hint="journalctl -u collectord-opener; its --user names who may ask beside root",
        ) from error
    except OSError as error:
        raise KernelError(
            f"no opener answers at {place}",
            syscall="connect",
            errno=error.errno or 0,
            hint="systemctl start collectord-opener",
        ) from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise KernelError(
            f"the opener at {place} is of another version: {error}",
            hint="systemctl restart collectord-opener",
        ) from error


def _receive(
    one: socket.socket, kind: type[_Message], undo: ExitStack
) -> tuple[_Message, tuple[int, ...]]:
    """Receive a message with its descriptors, which are closed on a failure."""
    data, fds, flags, _ = socket.recv_fds(one, MESSAGE_BYTES, EVENTS_MAX)
    for fd in fds:
        os.set_inheritable(fd, False)  # noqa: FBT003 - a number as others
        undo.callback(os.close, fd)
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        raise ValueError("a message is cut short")
    if not data:
        raise ConnectionResetError("it has ended")
    return decode_json(data, kind), tuple(fds)
