# SPDX-License-Identifier: Apache-2.0
"""Rules for combinations of a relay source's keys, beyond their types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.config.problems import PID_MAX, Problem
from collectord.model import FLIGHT_RECORDER, ScopeKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.config.schema_session import RelaySourceConfig, SessionConfig

_U32_MAX: Final = (1 << 32) - 1
# A record of blktrace has a header of 48 bytes, and a message has up to 128 more.
_SUBBUF_MIN_BYTES: Final = 256
_OF_DEVICES: Final = ("actions", "start_lba", "end_lba", "pid")


def check(source: RelaySourceConfig) -> Iterator[Problem]:
    """Yield problems of a relay source on its own."""
    devices, paths = source.device, source.path
    if bool(devices) == bool(paths):
        yield Problem(
            "device",
            "there are both device and path" if devices else "there is neither device nor path",
            'device = "/dev/sda" for blktrace, or path = "/sys/kernel/debug/DIR/NAME"',
        )
    for key, given in (("device", devices), ("path", paths)):
        for name in dict.fromkeys(given):
            if not name.startswith("/"):
                yield Problem(key, f"{name!r} is not an absolute path")
            elif given.count(name) > 1:
                yield Problem(key, f"{name} is named twice")
    if source.transport == "mmap":
        yield Problem(
            "transport",
            "a relay file cannot be read by mmap",
            "the counts of sub-buffers produced and consumed are not exported to user space, so "
            'that a reader could not know which bytes are new: "read"',
        )
    elif source.transport not in ("read", "auto"):
        hint = 'relay files are read: "read"; kernels of today cannot splice them'
        yield Problem("transport", f"relay files have no {source.transport}", hint)
    yield from _selection(source, blktrace=bool(devices))
    yield from _buffers(source)


def _selection(source: RelaySourceConfig, *, blktrace: bool) -> Iterator[Problem]:
    """Yield problems of the keys that limit what blktrace records."""
    for key in _OF_DEVICES:
        value = getattr(source, key)
        if value and not blktrace:
            yield Problem(key, "only blktrace has this key", "name a device, not a path")
        elif isinstance(value, int) and value < 0:
            yield Problem(key, f"{value} is below 0")
    if source.end_lba and source.end_lba <= source.start_lba:
        yield Problem("end_lba", f"{source.end_lba} is not above start_lba")
    if source.pid > PID_MAX:
        yield Problem("pid", f"{source.pid} is not a process id")


def _buffers(source: RelaySourceConfig) -> Iterator[Problem]:
    """Yield problems of sizes, which blktrace makes or a client has made."""
    if source.subbuf and not (_SUBBUF_MIN_BYTES <= source.subbuf <= _U32_MAX):
        yield Problem("subbuf", f"{source.subbuf} bytes", f"{_SUBBUF_MIN_BYTES}B to 4GiB")
    if source.subbufs < 0 or source.subbufs == 1:
        yield Problem("subbufs", f"{source.subbufs} sub-buffers", "2 or more")


def check_session(session: SessionConfig) -> Iterator[Problem]:
    """Yield problems of a relay source in its session."""
    if session.mode == FLIGHT_RECORDER:
        yield Problem("mode", "relay channels cannot be a flight recorder", 'mode = "stream"')
    if session.target.scope is not ScopeKind.SYSTEM:
        yield Problem(
            "kind",
            f"a relay channel covers all CPUs, not scope '{session.target.scope}'",
            'scope = "system"; blktrace can be narrowed by pid, actions and sectors',
        )
