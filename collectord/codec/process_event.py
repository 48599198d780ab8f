# SPDX-License-Identifier: Apache-2.0
"""Messages of the process connector: processes that begin, execute a program, get a name, or end.

Laid out by include/uapi/linux/cn_proc.h, in a connector message (linux/connector.h) in a message
of netlink; one in each datagram. Pids are those of the initial namespace.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

# The numbers of the connector, of its processes, and of their group.
NETLINK_CONNECTOR: Final = 11
CN_IDX_PROC: Final = 1
MESSAGE_BYTES: Final = 4096

_NETLINK: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_CONNECTOR: Final = struct.Struct("=IIIIHH")  # idx, val, seq, ack, length, flags
_HEAD: Final = struct.Struct("=IIQ")  # what, cpu, timestamp_ns of CLOCK_MONOTONIC
_PIDS: Final = struct.Struct("=II")  # of the task, and of its process
_FORK: Final = struct.Struct("=IIII")  # of the parent, and of the child
_HEAD_AT: Final = _NETLINK.size + _CONNECTOR.size
_BODY_AT: Final = _HEAD_AT + _HEAD.size
_NLMSG_DONE: Final = 3
_CN_VAL_PROC: Final = 1
_MCAST_LISTEN: Final = 1
_WHAT_FORK: Final = 0x1
_WHAT_EXEC: Final = 0x2
_WHAT_COMM: Final = 0x200
_WHAT_EXIT: Final = 0x80000000


@dataclass(frozen=True, slots=True)
class Forked:
    """A process has begun; `time_ns` is that of the message, when it has inherited all events."""

    pid: int
    parent: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """A process has executed a program, or has given itself another name."""

    pid: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The first thread of a process has exited."""

    pid: int


ProcessEvent = Forked | Renamed | Exited


def listen_message() -> bytes:
    """Return the message that asks for all events."""
    body = struct.pack("=I", _MCAST_LISTEN)
    connector = _CONNECTOR.pack(CN_IDX_PROC, _CN_VAL_PROC, 0, 0, len(body), 0)
    length = _NETLINK.size + len(connector) + len(body)
    return _NETLINK.pack(length, _NLMSG_DONE, 0, 0, 0) + connector + body


def decode(message: bytes) -> ProcessEvent | None:
    """Return the event of a datagram; None if it is about a thread alone, or not needed."""
    if len(message) < _BODY_AT + _FORK.size:
        return None
    idx, val, *_ = _CONNECTOR.unpack_from(message, _NETLINK.size)
    if (idx, val) != (CN_IDX_PROC, _CN_VAL_PROC):
        return None
    what, _cpu, time_ns = _HEAD.unpack_from(message, _HEAD_AT)
    if what == _WHAT_FORK:
        _, parent, tid, pid = _FORK.unpack_from(message, _BODY_AT)
        return Forked(pid, parent, time_ns) if tid == pid else None
    tid, pid = _PIDS.unpack_from(message, _BODY_AT)
    if tid != pid:
        return None
    if what in (_WHAT_EXEC, _WHAT_COMM):
        return Renamed(pid)
    return Exited(pid) if what == _WHAT_EXIT else None
