# SPDX-License-Identifier: Apache-2.0
"""Values of BPF programs in readable form: durations, addresses, names of numbers.

A value of an unsuitable type is shown in the form of its own type. The result may hold text of the
traced system: the caller escapes it when printing.
"""

from __future__ import annotations

import errno
import signal
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.codec.bpf_struct import Scalar, Value

    Shower = Callable[[int, "Names"], str]

DECIMAL: Final = "decimal"
TEXT: Final = "text"
_HEX: Final = "hex"
_IP: Final = "ip"
_WORDS: Final = (32, 64)
_MAX_ERRNO: Final = 4095  # of the kernel's ERR_PTR
_IPV4_BYTES: Final = 4
_IPV6_BYTES: Final = 16
_REALTIME_SIGNALS: Final = range(34, 65)  # as glibc numbers them
_TIME_UNITS: Final = (("ns", 1_000), ("us", 1_000), ("ms", 1_000), ("s", 0))
_BYTE_UNITS: Final = (("B", 1024), ("KiB", 1024), ("MiB", 1024), ("GiB", 1024), ("TiB", 0))
# include/net/tcp_states.h, from 1 on.
_TCP_STATES: Final = (
    *("ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE"),
    *("CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV", "BOUND_INACTIVE"),
)

# include/linux/interrupt.h.
_SOFTIRQS: Final = (
    *("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK"),
    *("IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"),
)


class Names(Protocol):
    """Names that this host has for numbers."""

    def interface(self, ifindex: int) -> str:
        """Return the name of a network interface, its number if there is none."""

    def device(self, dev: int) -> str:
        """Return a block device's name by the kernel's `dev_t`, MAJOR:MINOR if it has none."""


def show(value: Value, how: str, names: Names) -> str:
    """Return a value in readable form.

    Args:
        value: as returned by `bpf_struct.decoder`.
        how: one of SHOWS.
        names: of interfaces and devices.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and how == _IP:
        value = _words(value) or value
    if isinstance(value, bytes):
        if how == TEXT:
            return value.partition(b"\0")[0].decode(errors="backslashreplace")
        return _address(value) if how == _IP else value.hex()
    if isinstance(value, list):
        return f"[{','.join(_scalar(one, how, names) for one in value)}]"
    return _scalar(value, how, names)


def _scalar(value: Scalar, how: str, names: Names) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return _SHOWERS.get(how, _SHOWERS[DECIMAL])(int(value), names)


def _errno(value: int, _names: Names) -> str:
    """Format a result: negative values, also of unsigned fields, are errors."""
    for bits in _WORDS:
        if (1 << bits) - _MAX_ERRNO <= value < 1 << bits:
            value -= 1 << bits
    return errno.errorcode.get(-value, str(value)) if value < 0 else str(value)


def _with_unit(value: int, units: tuple[tuple[str, int], ...], gap: str) -> str:
    """Format four digits and the matching unit, or more digits of the largest unit."""
    unit, more = units[0]
    if abs(value) < more:
        return f"{value}{gap}{unit}"
    shown = float(value)
    for unit, more in units:  # noqa: B007 - the last unit is used
        if not more or abs(shown) < more:
            break
        shown /= more
    digits = f"{shown:.4g}"
    return f"{f'{shown:.0f}' if 'e' in digits else digits}{gap}{unit}"


def _ip(value: int, _names: Names) -> str:
    """Format an address in memory, read as a number of 4 or 16 bytes."""
    is_short = 0 <= value < 1 << 8 * _IPV4_BYTES
    size = _IPV4_BYTES if is_short else _IPV6_BYTES
    return _address((value % (1 << 8 * size)).to_bytes(size, "little"))


def _address(raw: bytes) -> str:
    """Format an address in network byte order; IPv4 inside of IPv6 is shown as IPv4."""
    if len(raw) == _IPV4_BYTES:
        return str(IPv4Address(raw))
    if len(raw) != _IPV6_BYTES:
        return raw.hex()
    address = IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def _words(value: list[int] | list[float] | list[bool]) -> bytes:
    """Return an address declared as numbers of 32 bits; b"" if it is not one."""
    try:
        return struct.pack(f"<{_IPV6_BYTES // 4}I", *value)
    except struct.error:
        return b""


def _signal(value: int, _names: Names) -> str:
    if value in _REALTIME_SIGNALS:
        rest = value - _REALTIME_SIGNALS[0]
        return f"SIGRTMIN+{rest}" if rest else "SIGRTMIN"
    try:
        return signal.Signals(value).name
    except ValueError:
        return str(value)


def _tcp_state(value: int, _names: Names) -> str:
    return _TCP_STATES[value - 1] if 0 < value <= len(_TCP_STATES) else str(value)


_SHOWERS: Final[dict[str, Shower]] = {
    DECIMAL: lambda value, _: str(value),
    _HEX: lambda value, _: f"{value:#x}",
    "errno": _errno,
    "duration": lambda value, _: _with_unit(value, _TIME_UNITS, ""),
    "bytes": lambda value, _: _with_unit(value, _BYTE_UNITS, " "),
    TEXT: lambda value, _: str(value),
    _IP: _ip,
    "port_be": lambda value, _: str((value & 0xFF) << 8 | value >> 8 & 0xFF),
    "ifindex": lambda value, names: names.interface(value),
    "device": lambda value, names: names.device(value),
    "signal": _signal,
    "softirq": lambda value, _: _SOFTIRQS[value] if 0 <= value < len(_SOFTIRQS) else str(value),
    "tcp_state": _tcp_state,
}
# The values for `show` of a column: decimal; hex; errno, for a result where negative values are
# errors; duration, in ns; bytes, a size; text; ip, 4 or 16 bytes in network order; port_be, a port
# in network order; ifindex; device, a dev_t; signal; softirq; tcp_state.
SHOWS: Final = tuple(_SHOWERS)
