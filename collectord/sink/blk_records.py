# SPDX-License-Identifier: Apache-2.0
"""Sink stage: what is sound of one CPU's records of blktrace, and how damage is cut out of them.

Records follow each other without alignment, each with its length. Behind damage they go on where
one begins that another one follows, with numbers above that of the last one that is kept. What
lies between becomes a message, in its place: blkparse lists it and goes on. Where no checksum says
how far damage reaches, the record before it goes too: its end may be damaged without showing.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord._native import _core
from collectord.codec.blktrace import MAGIC_BYTES, RECORD, message
from collectord.sink.stored_file import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord._native._core import BlktraceScan

_OK: Final = "ok"
_MAGIC: Final = re.compile(re.escape(MAGIC_BYTES))
# What a message says that a repair has made, and how one is found.
_CUT: Final = b"CUT OUT\0"
_CUT_BEFORE: Final = re.compile(
    re.escape(MAGIC_BYTES) + b".{%d}" % (RECORD.size - len(MAGIC_BYTES)) + re.escape(_CUT),
    re.DOTALL,
)
_MESSAGE_MIN_BYTES: Final = RECORD.size + len(_CUT)
_MESSAGE_MAX_BYTES: Final = RECORD.size + 0xFFFF
# So many in a row are taken for records.
_ROW: Final = 2


class Kept(NamedTuple):
    """What can be kept of a file; places are in it.

    Attributes:
        end: what is behind it is given up.
        cuts: damage before it, to be made into messages.
        events: those that are kept.
        first_ns, last_ns: time of the first and the last one, 0 where there is none.
        fault: why records are not kept, "" if at most the last one is cut short.
    """

    end: int
    cuts: tuple[Part, ...]
    events: int
    first_ns: int
    last_ns: int
    fault: str


class _Damage:
    """What is known to be damaged. It is asked for places that only go on."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = deque(sorted(parts))

    def behind(self, at: int) -> int:
        """The first place from here on that is not in it."""
        while self._parts and self._parts[0].offset <= at:
            at = max(at, self._parts.popleft().end)
        return at

    def next(self, size: int) -> int:
        """Where more of it begins in a file of this size, or the end."""
        return min(self._parts[0].offset, size) if self._parts else size


def examine(view: memoryview, unsound: Iterable[Part] = ()) -> Kept:
    """Find what is sound; `unsound` is what does not match its checksum."""
    damage = _Damage([*unsound, *_cut_before(view)])
    cuts: list[Part] = []
    times: list[int] = []
    end = events = 0
    fault, number = "", None
    at: int | None = damage.behind(0)
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
        # Also the length of a record may be damaged, and so seem to reach over others or the end.
        behind = past if short and past < len(view) else at + found.end + RECORD.size
        at = _resume(view, behind, damage, number)
    return Kept(end, tuple(cuts), events, min(times, default=0), max(times, default=0), fault)


def _walk(view: memoryview, at: int, past: int, number: int | None) -> BlktraceScan:
    with view[at:past] as data:
        return _core.scan_blktrace(data, number)


def _cut_before(view: memoryview) -> Iterator[Part]:
    """Messages that an earlier repair has made."""
    for found in _CUT_BEFORE.finditer(view):
        *_, extra = RECORD.unpack_from(view, found.start())
        yield Part(found.start(), RECORD.size + extra)


def _resume(view: memoryview, at: int, damage: _Damage, number: int | None) -> int | None:
    """Find where records go on, from a place on."""
    while True:
        at = damage.behind(at)
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
    """Give what to write where, so that readers go on: of the time of the record behind."""
    at = cut.offset
    while at < cut.end:
        size = min(cut.end - at, _MESSAGE_MAX_BYTES)
        if 0 < cut.end - at - size < _MESSAGE_MIN_BYTES:
            size -= _MESSAGE_MIN_BYTES
        yield at, message(view[cut.end :], _CUT, size)
        at += size
