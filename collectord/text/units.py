# SPDX-License-Identifier: Apache-2.0
"""Values with units, as configuration and command line spell them: "64MiB", "10s", "25%"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Self

from collectord.errors import UsageError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000
NS_DIGITS: Final = 9
SIZE_UNITS: Final = {
    "B": 1,
    "K": KIB,
    "KiB": KIB,
    "M": MIB,
    "MiB": MIB,
    "G": 1 << 30,
    "GiB": 1 << 30,
    "T": 1 << 40,
    "TiB": 1 << 40,
}
TIME_UNITS_NS: Final = {
    "ns": 1,
    "us": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_SECOND,
    "m": 60 * NS_PER_SECOND,
    "h": 3_600 * NS_PER_SECOND,
    "d": 86_400 * NS_PER_SECOND,
}
PERCENT: Final = "%"
PAGES: Final = "pages"

_SIZE_HINT: Final = 'a number and B, KiB, MiB, GiB or TiB, e.g. "64MiB"'
_TIME_HINT: Final = 'a number and ns, us, ms, s, m, h or d, e.g. "10s"'
_QUANTITY: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]+|%)?", re.ASCII)
# The most that an off_t and a timespec hold.
_MAX: Final = (1 << 63) - 1


def _scale(text: object, units: dict[str, int], hint: str) -> int:
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise UsageError(f"{text!r} is not {hint}")
    unit = match[2] or ""
    if not unit and match[1].strip("0."):
        raise UsageError(f"{text!r} has no unit", hint=hint)
    if unit and unit not in units:
        raise UsageError(f"unit {unit!r} is unknown", hint=hint)
    value = int(Decimal(match[1]) * units.get(unit, 1))
    if value > _MAX:
        raise UsageError(f"{text!r} is larger than 63 bits")
    return value


class Bytes(int):
    """A size in bytes, spelt as a string; "0" needs no unit."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse "64MiB". Raises UsageError."""
        return cls(_scale(text, SIZE_UNITS, _SIZE_HINT))


class Nanoseconds(int):
    """A duration in ns, spelt as a string; "0" needs no unit."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse "10s". Raises UsageError."""
        return cls(_scale(text, TIME_UNITS_NS, _TIME_HINT))


@dataclass(frozen=True, slots=True, repr=False)
class Share:
    """A size in bytes, or a share in percent of something that is known later."""

    bytes: int = 0
    percent: float = 0.0

    def __repr__(self) -> str:
        return f"Share({show_share(self)})"

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse "25%", above 0 and up to 100, or a size. Raises UsageError."""
        if isinstance(text, str) and text.strip().endswith(PERCENT):
            match = _QUANTITY.fullmatch(text.strip())
            percent = float(match[1]) if match else 0.0
            if not 0 < percent <= 100:  # noqa: PLR2004 - percent
                raise UsageError(f"{text!r} is not between 0% and 100%")
            return cls(percent=percent)
        hint = f'{_SIZE_HINT}, or a share, e.g. "25%"'
        return cls(_scale(text, SIZE_UNITS, hint))


@dataclass(frozen=True, slots=True, repr=False)
class Least:
    """A limit: a size, a share in percent of what is known later, or the smaller of both."""

    bytes: int = 0
    percent: float = 0.0

    def __repr__(self) -> str:
        return f"Least({show_least(self)})"

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse "2GiB", "5%", "2GiB, 5%", or "0" for no limit. Raises UsageError."""
        parts = text.split(",") if isinstance(text, str) else []
        shares = [Share.parse(part) for part in parts] or [Share.parse(text)]
        if len({bool(one.percent) for one in shares}) < len(shares):
            hint = f'{_SIZE_HINT}, a share, or one of each, e.g. "2GiB, 5%"'
            raise UsageError(f"{text!r} is not a limit", hint=hint)
        return cls(max(one.bytes for one in shares), max(one.percent for one in shares))

    def of(self, whole_bytes: int) -> int:
        """Return the limit where the whole is known, 0 for none; a whole of 0 is not known."""
        share = int(whole_bytes * self.percent / 100)
        return min(filter(None, (self.bytes, share)), default=0)


@dataclass(frozen=True, slots=True, repr=False)
class RingSize:
    """Data bytes of a ring, a number of pages, or (both 0) a size for the plan to choose."""

    bytes: int = 0
    pages: int = 0

    def __repr__(self) -> str:
        return f"RingSize({self.bytes}B, {self.pages} pages)"

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse "2MiB", "128pages" or "auto". Raises UsageError."""
        if isinstance(text, str) and text.strip() == "auto":
            return cls()
        hint = f'{_SIZE_HINT}, or pages, e.g. "128pages", or "auto"'
        match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is not None and match[2] == PAGES and match[1].isdigit():
            pages = int(match[1])
            if 0 < pages <= _MAX >> 12:
                return cls(pages=pages)
            raise UsageError(f"{text!r} is not a ring size", hint=hint)
        size = _scale(text, SIZE_UNITS, hint)
        if size == 0:
            raise UsageError(f"{text!r} is not a ring size", hint=hint)
        return cls(size)

    def in_bytes(self, page_size: int, default_bytes: int) -> int:
        """Return the requested size, not yet rounded."""
        return self.bytes or self.pages * page_size or default_bytes


def show_bytes(size: int) -> str:
    """Return a size in the largest unit that leaves it whole, e.g. "512KiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % SIZE_UNITS[unit] == 0:
            return f"{size // SIZE_UNITS[unit]}{unit}"
    return f"{size}B"


def show_share(share: Share) -> str:
    """Return a share as it is spelt, e.g. "25%" or "64KiB"."""
    return f"{share.percent:g}%" if share.percent else show_bytes(share.bytes)


def show_least(limit: Least) -> str:
    """Return a limit as it is spelt, e.g. "2GiB, 5%"."""
    size = show_bytes(limit.bytes) if limit.bytes or not limit.percent else ""
    share = f"{limit.percent:g}%" if limit.percent else ""
    return ", ".join(filter(None, (size, share)))


def show_ns(duration_ns: int) -> str:
    """Return a duration in the largest unit that leaves it whole, e.g. "10m"."""
    for unit in ("d", "h", "m", "s", "ms", "us"):
        if duration_ns and duration_ns % TIME_UNITS_NS[unit] == 0:
            return f"{duration_ns // TIME_UNITS_NS[unit]}{unit}"
    return f"{duration_ns}ns"
