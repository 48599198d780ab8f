# SPDX-License-Identifier: Apache-2.0
"""Sink stage: find the sound records of blktrace of one CPU, and cut damage out of them.

Records follow each other without alignment, each with its length. Behind damage they resume where
a record begins that another one follows, with numbers above that of the last record kept. The part
between becomes a message, in its place: blkparse lists it and goes on. If no checksum shows how
far damage reaches, the record before it is cut out too: its end may be damaged invisibly.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord._native import _core
from collectord.codec.blktrace import MAGIC_BYTES, RECORD, message
from collectord.sink.stored_file import CUT, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord._native._core import BlktraceScan

_OK: Final = "ok"
_MAGIC: Final = re.compile(re.escape(MAGIC_BYTES))
# Finds messages that a repair has made.
_CUT_BEFORE: Final = re.compile(
    re.escape(MAGIC_BYTES) + b".{%d}" % (RECORD.size - len(MAGIC_BYTES)) + re.escape(CUT),
    re.DOTALL,
)
_MESSAGE_MIN_BYTES: Final = RECORD.size + len(CUT)
_MESSAGE_MAX_BYTES: Final = RECORD.size + 0xFFFF
# This many in a row count as records.
_ROW: Final = 2


class Kept(NamedTuple):
    """The records of a file that can be kept; offsets are those of the file.

    Attributes:
        end: the data behind it are given up.
        cuts: damage before it, to be made into messages.
        events: events that are kept.
        first_ns, last_ns: times of the first and the last event, 0 if there is none.
        fault: why records are not kept, "" if at most the last one is cut short.
    """

    end: int
    cuts: tuple[Part, ...]
    events: int
    first_ns: int
    last_ns: int
    fault: str


class _Damage:
    """The damaged parts of a file. Offsets must be queried in ascending order."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = deque(sorted(parts))

    def next_sound(self, at: int) -> int:
        """Return the first offset from `at` on that is not damaged."""
        while self._parts and self._parts[0].offset <= at:
            at = max(at, self._parts.popleft().end)
        return at

    def next(self, size: int) -> int:
        """Return where the next damage begins in a file of this size, or the end."""
        return min(self._parts[0].offset, size) if self._parts else size


def examine(view: memoryview, unsound: Iterable[Part] = ()) -> Kept:
    """Find the sound records; `unsound` are the parts that do not match their checksums."""
    damage = _Damage([*unsound, *_cut_before(view)])
    cuts: list[Part] = []
    times: list[int] = []
    end = events = 0
    fault, number = "", None
    at: int | None = damage.next_sound(0)
    while at is not None and at < len(view):
        past = damage.next(len(view))
        found = _walk(view, at, past, number)
        short = found.fault == _OK
        if not short:
            fault = fault or found.fault
            found = _walk(view, at, at + found.last, number)
        if found.end:
            cuts += [Part(end, at - end)] if at > end else []
            times += [found.first_ns, found.last_ns] if found.events else []
            end, events, number = at + found.end, events + found.events, found.sequence
        # The length of a record may be damaged too, so that it seems to reach over others or the
        # end.
        behind = past if short and past < len(view) else at + found.end + RECORD.size
        at = _resume(view, behind, damage, number)
    return Kept(end, tuple(cuts), events, min(times, default=0), max(times, default=0), fault)


def _walk(view: memoryview, at: int, past: int, number: int | None) -> BlktraceScan:
    with view[at:past] as data:
        return _core.scan_blktrace(data, number)


def _cut_before(view: memoryview) -> Iterator[Part]:
    """Yield the messages that an earlier repair has made."""
    for found in _CUT_BEFORE.finditer(view):
        *_, extra = RECORD.unpack_from(view, found.start())
        yield Part(found.start(), RECORD.size + extra)


def _resume(view: memoryview, at: int, damage: _Damage, number: int | None) -> int | None:
    """Find where records resume, from an offset on."""
    while True:
        at = damage.next_sound(at)
        found = _MAGIC.search(view, at)
        if found is None:
            return None
        if found.start() > at:
            at = found.start()
            continue
        past = damage.next(len(view))
        row = _walk(view, at, past, number)
        if row.events + row.notes >= _ROW or (row.end and at + row.end == past):
            return at
        at += 1


def messages(view: memoryview, cut: Part) -> Iterator[tuple[int, bytes]]:
    """Yield offsets and bytes of messages for readers, with the time of the record behind."""
    at = cut.offset
    while at < cut.end:
        size = min(cut.end - at, _MESSAGE_MAX_BYTES)
        if 0 < cut.end - at - size < _MESSAGE_MIN_BYTES:
            size -= _MESSAGE_MIN_BYTES
        yield at, message(view[cut.end :], CUT, size)
        at += size
