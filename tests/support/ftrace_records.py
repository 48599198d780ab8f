# SPDX-License-Identifier: Apache-2.0
"""All fields of a record of ftrace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.codec.ftrace_format import decode_field

if TYPE_CHECKING:
    from collectord.codec.ftrace_format import EventFormat, Value


def decode(record: bytes, layout: EventFormat) -> dict[str, Value]:
    """Return the values of a record's fields, including the common ones.

    Raises:
        CodecError: a field, or the value that it points to, reaches past the record's end.
    """
    return {field.name: decode_field(record, field) for field in (*layout.common, *layout.fields)}
