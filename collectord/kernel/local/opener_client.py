# SPDX-License-Identifier: Apache-2.0
"""A daemon's side of the opener's socket: rings that outlive it, with their descriptors."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from collectord.errors import KernelError
from collectord.facts.kernel_facts import OpenerFacts
from collectord.kernel.values.kept_rings import (
    EVENTS_MAX,
    MESSAGE_BYTES,
    Answer,
    Ask,
    AskFacts,
    FactsAnswer,
    KeptRing,
    KeptRings,
)
from collectord.text.foreign import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_Message = TypeVar("_Message", Answer, FactsAnswer, KeptRing)
# The opener may look at the host, and then open thousands of events.
_WAIT_S: Final = 60.0


def opener_facts(place: str) -> OpenerFacts:
    """See `Kernel.opener_facts`."""
    with ExitStack() as undo, _asked(place, AskFacts(), undo) as one:
        answer, _ = _receive(one, FactsAnswer, undo)
        return decode_json(answer.facts, OpenerFacts)


def kept_rings(place: str, session: str, digest: str) -> KeptRings:
    """See `Kernel.kept_rings`."""
    with ExitStack() as undo:
        with _asked(place, Ask(session, digest), undo) as one:
            answer, fds = _receive(one, Answer, undo)
            if answer.refused:
                raise KernelError(
                    f"the opener refuses the rings of session {session}: {answer.refused}",
                    hint="journalctl -u collectord-opener",
                )
            (memory,) = fds
            rings: dict[int, tuple[KeptRing, tuple[int, ...]]] = {}
            for _ in range(answer.messages):
                ring, fds = _receive(one, KeptRing, undo)
                before, known = rings.get(ring.number, (ring, ()))
                if known:
                    events = (*before.events, *ring.events)
                    ring = msgspec.structs.replace(ring, events=events)
                rings[ring.number] = ring, (*known, *fds)
        one.settimeout(None)
        undo.pop_all()
    ordered = tuple(rings[number] for number in sorted(rings))
    return KeptRings(one.detach(), memory, answer.prior, ordered)


@contextmanager
def _asked(place: str, request: Ask | AskFacts, undo: ExitStack) -> Iterator[socket.socket]:
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
