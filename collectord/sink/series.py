# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the balances of a segment at flush intervals, few bytes each, in its manifest.

A window of a minute inside a segment is answered from them. A balance is a row of whole numbers:
the time, whether the basis was exact since the row before, the counters, and each loss that the
segment has. Rows are stored as differences from the row before, in zigzag varints: some ten bytes
of a quiet session. Beyond `ROWS_MAX` every other row is left out, and from then on every other
flush has none; while little comes, only one flush in some seconds has. What a row says of the
time since the one before it is true in any case.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROWS_MAX: Final = 512
# The most bytes that the text of rows may have; with larger numbers there are fewer rows.
TEXT_BYTES: Final = 24 << 10
# A balance costs as much as reading the counters of the rings does.
_QUIET_NS: Final = 5_000_000_000
_FIXED: Final = ("us", "exact", "produced", "stored", "in_flight", "overwritten", "unaccounted")
_UNKNOWN: Final = -1
_LIMIT_BITS: Final = 63
_BYTE: Final = 7
_MORE: Final = 1 << _BYTE
_COLUMNS_MAX: Final = 64

Name = Annotated[str, msgspec.Meta(max_length=64)]


class Balance(NamedTuple):
    """The balance of a session at a flush.

    Attributes:
        at_ns: CLOCK_MONOTONIC.
        exact: every event since the balance before was counted.
        produced: None if the kernel does not count.
        lost: by `<stage>/<reason>`, all of them.
        overwritten, unaccounted: None if unknown.
    """

    at_ns: int
    exact: bool
    produced: int | None
    stored: int
    in_flight: int
    overwritten: int | None
    unaccounted: int | None
    lost: Mapping[str, int]


class SeriesText(msgspec.Struct, frozen=True, kw_only=True):
    """Balances in a manifest.

    Attributes:
        columns: the numbers of a row; behind the fixed ones the losses that any row has.
        rows: their differences in base64; the first row stands alone. `us` are microseconds of
            CLOCK_MONOTONIC, and -1 is what is unknown.
    """

    columns: Annotated[tuple[Name, ...], msgspec.Meta(max_length=_COLUMNS_MAX)]
    rows: Annotated[str, msgspec.Meta(max_length=TEXT_BYTES)]


class Series:
    """The balances of one segment while it is written."""

    def __init__(self) -> None:
        self._rows: list[Balance] = []
        self._stride = 1
        self._count = 0

    @property
    def last_ns(self) -> int:
        """The time of the last balance that was added; 0 for none."""
        return self._rows[-1].at_ns if self._rows else 0

    def is_due(self, now_ns: int, *, quiet: bool) -> bool:
        """Count a flush, and return whether its balance is to be added.

        Args:
            now_ns: CLOCK_MONOTONIC.
            quiet: little came since the last flush, and nothing was lost.
        """
        self._count += 1
        if quiet and now_ns - self.last_ns < _QUIET_NS:
            return False
        return self._count % self._stride == 0

    def add(self, balance: Balance) -> None:
        """Add a balance that is newer than the last one, and whose basis is since that one."""
        self._rows.append(balance)
        if len(self._rows) >= ROWS_MAX:
            self._rows = [*_halved(self._rows)]
            self._stride *= 2

    def take(self, last: Balance) -> SeriesText:
        """Return what a manifest gets, and begin anew with its last row.

        Args:
            last: the balance at the seal.
        """
        rows = [*self._rows, last]
        self._rows = [last]
        self._count, self._stride = 0, 1
        return encode(rows)


def _halved(rows: Sequence[Balance]) -> Iterator[Balance]:
    """Yield the first row and every other one, each with what those left out say."""
    yield rows[0]
    for index in range(2, len(rows), 2):
        yield rows[index]._replace(exact=rows[index].exact and rows[index - 1].exact)
    if len(rows) % 2 == 0:
        yield rows[-1]


def encode(rows: Sequence[Balance]) -> SeriesText:
    """Return rows as a manifest keeps them, half of them if they take too much room."""
    losses = sorted({name for row in rows for name, count in row.lost.items() if count})
    before = [0] * (len(_FIXED) + len(losses))
    out = bytearray()
    for row in rows:
        numbers = [_number(row, name) for name in _FIXED] + [row.lost.get(n, 0) for n in losses]
        for one, earlier in zip(numbers, before, strict=True):
            _put(out, one - earlier)
        before = numbers
    text = b64encode(out).decode()
    if len(text) > TEXT_BYTES:
        return encode([*_halved(rows)])
    return SeriesText(columns=(*_FIXED, *losses), rows=text)


def _number(row: Balance, name: str) -> int:
    if name == "us":
        return row.at_ns // 1000
    number = getattr(row, name)
    return _UNKNOWN if number is None else int(number)


def _put(out: bytearray, number: int) -> None:
    word = number << 1 if number >= 0 else (-number << 1) - 1
    while word >= _MORE:
        out.append(word % _MORE | _MORE)
        word >>= _BYTE
    out.append(word)


def decode(text: SeriesText) -> list[Balance]:
    """Return the rows of a manifest, which anybody may have written. Raises CodecError."""
    names = text.columns
    if names[: len(_FIXED)] != _FIXED or len({*names}) != len(names):
        raise _bad("they have other columns")
    try:
        numbers = [*_numbers(b64decode(text.rows, validate=True))]
    except (BadBase64, ValueError) as error:
        raise _bad("they are not base64") from error
    if len(numbers) % len(names):
        raise _bad("they end in the middle of a row")
    rows: list[Balance] = []
    row = [0] * len(names)
    for start in range(0, len(numbers), len(names)):
        row = [
            one + delta
            for one, delta in zip(row, numbers[start : start + len(names)], strict=True)
        ]
        told = dict(zip(names, row, strict=True))
        if rows and told["us"] * 1000 < rows[-1].at_ns:
            raise _bad("they go back in time")
        rows.append(
            Balance(
                at_ns=told["us"] * 1000,
                exact=bool(told["exact"]),
                produced=_known(told["produced"]),
                stored=told["stored"],
                in_flight=told["in_flight"],
                overwritten=_known(told["overwritten"]),
                unaccounted=_known(told["unaccounted"]),
                lost={name: count for name, count in told.items() if name not in _FIXED},
            )
        )
    return rows


def _bad(how: str) -> CodecError:
    return CodecError("the balances in the manifest", offset=0, reason=how)


def _known(number: int) -> int | None:
    return None if number == _UNKNOWN else number


def _numbers(data: Iterable[int]) -> Iterator[int]:
    word = shift = 0
    for byte in data:
        word |= byte % _MORE << shift
        shift += _BYTE
        if shift > _LIMIT_BITS + _BYTE:
            raise _bad("a number is beyond 64 bits")
        if byte < _MORE:
            yield -(word + 1 >> 1) if word & 1 else word >> 1
            word = shift = 0
    if shift:
        raise _bad("they end in the middle of a number")
