# SPDX-License-Identifier: Apache-2.0
"""Fields of blktrace's records: as columns, as ftrace_columns has them, and pushed for lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.blktrace import NOTE
from collectord.codec.ftrace_columns import COMMON_COLUMNS, MISSING, FieldColumn
from collectord.codec.line_ops import Pushed, op, tail_text

if TYPE_CHECKING:
    from collectord.codec.line_ops import Ops, Words

_SECTOR_SHIFT: Final = 9


class _Number(NamedTuple):
    """A number of the record's header."""

    name: str
    kind: str
    offset: int


_DEVICE_AT: Final = 36
_NUMBERS: Final = (
    _Number("sector", "u64", 16),
    _Number("bytes", "u32", 24),
    _Number("error", "i16", 44),
    _Number("sequence", "u32", 4),
)


def _column(number: _Number, *, is_there: bool) -> FieldColumn:
    size = int(number.kind[1:]) // 8
    where = ("inline", number.offset, size, size, number.kind.startswith("i"))
    return FieldColumn(number.name, number.kind, where if is_there else MISSING)


def blk_columns(*, of_notes: bool) -> tuple[FieldColumn, ...]:
    """Return the columns of records of requests, or of notes, which have no numbers."""
    return (
        *COMMON_COLUMNS,
        FieldColumn("action", "text", ("label", 0, 0, 0, False)),
        FieldColumn("rwbs", "text", MISSING if of_notes else ("rwbs", 0, 0, 0, False)),
        FieldColumn("device", "text", ("device", _DEVICE_AT, 0, 0, False)),
        *(_column(number, is_there=not of_notes) for number in _NUMBERS),
        FieldColumn("text", "text", ("tail", 0, 0, 1, False) if of_notes else MISSING),
        FieldColumn("payload", "bytes", ("tail", 0, 0, 1, False)),
    )


def _pushed(number: _Number) -> Pushed:
    signed = number.kind.startswith("i")
    push = op("inline", int(number.kind[1:]) // 8, int(signed), number.offset)
    return Pushed(number.name, push, "number", signed)


def blk_fields(*, of_notes: bool) -> tuple[Pushed, ...]:
    """Return the fields of records of requests, or of notes, for lines of them."""
    common = (
        Pushed("cpu", op("cpu"), "number", signed=True, common=True),
        Pushed("pid", op("tid"), "number", signed=True, common=True),
        Pushed("comm", op("comm"), "text", common=True),
        Pushed("device", op("device", c=_DEVICE_AT), "text"),
    )
    if of_notes:
        return (*common, tail_text("text"))
    return (*common, Pushed("rwbs", op("rwbs"), "text"), *map(_pushed, _NUMBERS))


def note_ops(words: Words) -> Ops:
    """Return what makes a JSON list of a process's note: {thread, stamp, name}."""
    return [
        words.literal("["), op("tid"), op("quoted"),
        words.literal(","), op("stamp"), op("quoted"),
        words.literal(","), *tail_text("name").quoted, words.literal("]\n"),
    ]  # fmt: skip


def blk_text(name: str, letter: str, words: Words) -> Ops:
    """Return what makes the text of a record with this name and letter, as blkparse shows it."""
    device = [
        op("mark"), op("device", c=_DEVICE_AT), op("plain"), op("pad", 1, c=7),
        words.literal(f" {letter:>2} "),
    ]  # fmt: skip
    if letter == NOTE:
        text = tail_text("text").plain
        return [*device, words.literal(f"{name} "), *text, op("trim"), words.literal("\n")]
    sector, size, error, _ = (_pushed(number).op for number in _NUMBERS)
    return [
        *device, op("mark"), op("rwbs"), op("plain"), op("pad", c=4),
        words.literal(" "), sector, op("plain"),
        size, op("jump_zero", c=5),
        words.literal(" + "), size, op("number", d=_SECTOR_SHIFT), op(">>"), op("plain"),
        error, op("jump_zero", c=3), words.literal(" error "), error, op("plain"),
        words.literal("\n"),
    ]  # fmt: skip
