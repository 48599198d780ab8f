# SPDX-License-Identifier: Apache-2.0
"""Fields of records of ftrace, decoded a second time: what the core's decoder is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.codec.ftrace_format import Placement
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collectord.codec.ftrace_format import EventFormat, Field

Value = int | str | bytes | tuple[int, ...]


def decode(record: bytes, layout: EventFormat) -> dict[str, Value]:
    """Return the values of a record's fields, including the common ones.

    Raises:
        CodecError: a field, or the value that it points to, reaches past the record's end.
    """
    return {field.name: decode_field(record, field) for field in (*layout.common, *layout.fields)}


def decode_field(record: bytes, field: Field) -> Value:
    r"""Return the value of one field.

    Text ends at its first NUL; bytes that are not UTF-8 are shown as `\xNN`. Arrays of one-byte
    numbers, and of types of unknown size, are bytes.

    Args:
        record: payload of an event in a sub-buffer or a perf sample.
        field: of its event.

    Raises:
        CodecError: the field, or the value that it points to, reaches past the record's end.
    """
    if field.placement is not Placement.INLINE:
        where = int.from_bytes(_part(record, field.offset, 4), "little")
        start, size = where & 0xFFFF, where >> 16
        if field.placement is Placement.REL_LOC:
            start += field.offset + 4
        return _array(_part(record, start, size), field)
    if not field.element_bytes:
        part = _part(record, field.offset, field.size_bytes)
        return int.from_bytes(part, "little", signed=field.signed)
    size = field.size_bytes
    if not size or field.element_bytes > 1:
        # kernel_stack declares 8 entries, but its records hold only as many as there were.
        rest = max(0, len(record) - field.offset)
        size = min(size or rest, rest)
    return _array(_part(record, field.offset, size), field)


def _part(record: bytes, start: int, size: int) -> bytes:
    if start + size > len(record):
        message = f"{size} bytes reach past the end of a record of {len(record)}"
        raise CodecError(message, offset=start, reason="short")
    return record[start : start + size]


def _array(part: bytes, field: Field) -> Value:
    if field.is_string:
        return part.partition(b"\0")[0].decode(errors="backslashreplace")
    step = field.element_bytes
    if step == 1:
        return part
    whole = len(part) - len(part) % step
    return tuple(
        int.from_bytes(part[at : at + step], "little", signed=field.signed)
        for at in range(0, whole, step)
    )
