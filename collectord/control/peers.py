# SPDX-License-Identifier: Apache-2.0
"""Peers of the control socket: who they are, and which of them may change something.

The kernel notes a peer's ids when it connects, so that no peer can claim to be somebody else.
Whoever can connect may read: the permissions of the socket decide.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import CollectordError, NotAllowed, UsageError

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Iterator, Sequence

    from aiohttp import web

_LOG: Final = structlog.get_logger()
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid
_SO_PEERGROUPS: Final = 59  # of asm-generic/socket.h; the socket module lacks it
_GROUP: Final = struct.Struct("I")
_GROUPS_BYTES: Final = 1024  # the longest value that the socket module reads
_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that has connected to a Unix socket, as it was at that moment.

    Attributes:
        pid: 0 if it is in a pid namespace that this process does not see.
        uid: its effective user.
        groups: its effective group and its supplementary ones; the first alone if it has more than
            256 of the others.
    """

    pid: int
    uid: int
    groups: frozenset[int]

    @classmethod
    def of(cls, connection: socket.socket | TransportSocket) -> Peer:
        """Return the peer of a connection. Raises OSError if the connection is closed."""
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(data)
        return cls(pid, uid, frozenset((gid, *_supplementary(connection))))

    @property
    def trusted(self) -> bool:
        """Whether it is root or this process's own user, who can do everything to it anyway."""
        return self.uid in {_ROOT, os.geteuid()}


def _supplementary(connection: socket.socket | TransportSocket) -> Iterator[int]:
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:  # more groups than fit
        return
    for (gid,) in _GROUP.iter_unpack(data):
        yield gid


@dataclass(frozen=True, slots=True)
class Admins:
    """Users who may change what the daemon does: root, its own user, and members of a group.

    Attributes:
        group: the gid, None for no group.
    """

    group: int | None = None

    def include(self, peer: Peer) -> bool:
        """Whether a peer may change something."""
        return peer.trusted or self.group in peer.groups

    @contextmanager
    def change(self, request: web.Request, sessions: Sequence[str] = ()) -> Iterator[None]:
        """Make a change that a request asks for, in a block; log who asked and what became of it.

        Args:
            request: its connection tells the peer.
            sessions: names of the sessions that it is about; empty for all.

        Raises:
            NotAllowed: the peer may not change anything.
            UsageError: the peer has left.
            CollectordError: the block's own.
        """
        connection = request.get_extra_info("socket")
        if connection is None:
            raise UsageError("the connection has ended: nothing was changed")
        peer = Peer.of(connection)
        about = {"uid": peer.uid, "pid": peer.pid, "path": request.path}
        if not self.include(peer):
            _LOG.warning("control_refused", **about, limit_by=str(peer.uid))
            raise NotAllowed(
                f"user {peer.uid} may not change what the daemon does", hint=self._who()
            )
        result = "interrupted"
        try:
            yield
            result = "done"
        except UsageError:
            result = "refused"
            raise
        except CollectordError:
            result = "failed"
            raise
        finally:
            _LOG.info("control_request", **about, sessions=list(sessions), result=result)

    def _who(self) -> str:
        group = "" if self.group is None else f" and members of group {self.group}"
        return f"root, the daemon's own user{group} may"
