# SPDX-License-Identifier: Apache-2.0
"""The header of an event in a sub-buffer, according to tracefs."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from collectord.errors import CodecError

_HEADER_EVENT: Final = re.compile(
    r"#[^\n]*\n"
    r"\s*type_len\s*:\s*(?P<type>\d+) bits\s+time_delta\s*:\s*(?P<delta>\d+) bits\s+"
    r"array\s*:\s*(?P<array>\d+) bits\s+padding\s*: type == (?P<padding>\d+)\s+"
    r"time_extend\s*: type == (?P<extend>\d+)\s+"
    r"(?:time_stamp\s*: type == (?P<stamp>\d+)\s+)?"
    r"data max type_len\s*== (?P<data_max>\d+)\s*"
)


class HeaderEvent(NamedTuple):
    """Layout of an event's header in a sub-buffer: widths in bits, then values of `type_len`."""

    type_len_bits: int
    time_delta_bits: int
    array_bits: int
    padding: int
    time_extend: int
    time_stamp: int | None
    data_max: int


def parse_header_event(text: bytes) -> HeaderEvent:
    """Read `events/header_event`; `time_stamp` is missing before kernel 4.16.

    Raises:
        CodecError: a line is missing or of an unknown kind.
    """
    found = _HEADER_EVENT.fullmatch(text.decode(errors="backslashreplace"))
    if found is None:
        raise CodecError("no event header", offset=0, reason="format")
    type_len, delta, array, padding, extend, stamp, data_max = found.group(
        "type", "delta", "array", "padding", "extend", "stamp", "data_max"
    )
    return HeaderEvent(
        type_len_bits=int(type_len),
        time_delta_bits=int(delta),
        array_bits=int(array),
        padding=int(padding),
        time_extend=int(extend),
        time_stamp=None if stamp is None else int(stamp),
        data_max=int(data_max),
    )
