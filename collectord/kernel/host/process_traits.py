# SPDX-License-Identifier: Apache-2.0
"""Processes as scopes match them: by name, executable or unit; and news of those that begin."""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from collectord.codec.process_event import CN_IDX_PROC, NETLINK_CONNECTOR, listen_message
from collectord.errors import KernelError, NoSuchTarget
from collectord.kernel.host import errno_mapping
from collectord.kernel.values.host import Origin
from collectord.model import ScopeKind
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_RECEIVE_BYTES: Final = 4 << 20  # some 5,000 events, of which each takes 768 bytes
_SO_RCVBUFFORCE: Final = 33  # include/uapi/asm-generic/socket.h
_PARENT, _START = 1, 19  # fields of `stat` behind the name


def running(proc: Path) -> tuple[int, ...]:
    """See `Kernel.processes`."""
    return tuple(sorted(int(one.name) for one in proc.iterdir() if one.name.isdigit()))


def traits_of(pid: int, kind: ScopeKind, proc: Path) -> tuple[str, ...]:
    """See `Kernel.traits_of`."""
    try:
        return _READERS[kind](proc / str(pid))
    except (FileNotFoundError, ProcessLookupError) as error:
        raise _gone(pid) from error
    except OSError as error:
        raise KernelError(
            f"cannot read the {kind} of pid {pid}",
            syscall="read",
            errno=error.errno or 0,
            hint="CAP_SYS_PTRACE is needed for processes of others",
        ) from error


def origin_of(pid: int, proc: Path) -> Origin:
    """See `Kernel.origin_of`."""
    try:
        line = (proc / str(pid) / "stat").read_bytes()
    except OSError as error:
        raise _gone(pid) from error
    booted_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    ticks_ns = int(_stat_fields(line)[_START]) * NS_PER_SECOND // os.sysconf("SC_CLK_TCK")
    return Origin(parent=parent_of(line), started_ns=ticks_ns - booted_ns)


def parent_of(line: bytes) -> int:
    """Return the parent in a `stat` line."""
    return int(_stat_fields(line)[_PARENT])


def name_and_fields(line: bytes) -> tuple[str, list[bytes]]:
    """Return the name in a `stat` line, which may hold any but the last `)`, and what follows."""
    head, _, rest = line.rpartition(b")")
    return _text(head.partition(b"(")[2]), rest.split()


def _stat_fields(line: bytes) -> list[bytes]:
    return name_and_fields(line)[1]


def open_news() -> int:
    """See `Kernel.open_process_news`."""
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    try:
        with socket.socket(socket.AF_NETLINK, kind, NETLINK_CONNECTOR) as news:
            with suppress(OSError):  # without CAP_NET_ADMIN the buffer stays the default's
                news.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
            news.bind((0, CN_IDX_PROC))
            news.send(listen_message())
            return news.detach()
    except OSError as error:
        raise errno_mapping.refused(
            error.errno or 0,
            "cannot listen to the process connector",
            "bind",
            errno_mapping.Meaning(
                errno_mapping.DENIED,
                need="CAP_NET_ADMIN",
                hint="it is not needed from Linux 6.6 on",
            ),
            errno_mapping.Meaning(
                (errno.EPROTONOSUPPORT, errno.ECONNREFUSED),
                feature="the process connector",
                hint="CONFIG_PROC_EVENTS, and the host's network namespace",
            ),
        ) from error


def _comm(process: Path) -> tuple[str, ...]:
    return (_text((process / "comm").read_bytes().removesuffix(b"\n")),)


def _executable(process: Path) -> tuple[str, ...]:
    return (_text(os.fsencode((process / "exe").readlink())),)


def _cgroups(process: Path) -> tuple[str, ...]:
    """Return the folders on the paths of the process's cgroups: systemd names them by units."""
    paths = (line.split(b":", 2)[2] for line in (process / "cgroup").read_bytes().splitlines())
    return tuple({_text(part): None for path in paths for part in path.split(b"/") if part})


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


_READERS: Final[Mapping[ScopeKind, Callable[[Path], tuple[str, ...]]]] = {
    ScopeKind.COMM: _comm,
    ScopeKind.EXECUTABLE: _executable,
    ScopeKind.UNIT: _cgroups,
}


def _gone(pid: int) -> NoSuchTarget:
    return NoSuchTarget(f"pid {pid} does not exist")
