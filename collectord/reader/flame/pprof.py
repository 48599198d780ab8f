# SPDX-License-Identifier: Apache-2.0
"""Stacks as pprof reads them: profile.proto of its own repository, in gzip."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Final

from collectord.reader.flame.numbering import Numbering

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.reader.flame.picture import Picture
    from collectord.reader.symbols.frame import Frame

# Numbers of fields, by message.
_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING = 1, 2, 3, 4, 5, 6
_VALUE_TYPE, _VALUE_UNIT = 1, 2
_SAMPLE_LOCATIONS, _SAMPLE_VALUES = 1, 2
_MAPPING_ID, _MAPPING_FILE, _MAPPING_HAS_FUNCTIONS = 1, 5, 7
_LOCATION_ID, _LOCATION_MAPPING, _LOCATION_LINE = 1, 2, 4
_LINE_FUNCTION: Final = 1
_FUNCTION_ID, _FUNCTION_NAME, _FUNCTION_SYSTEM_NAME, _FUNCTION_FILE = 1, 2, 3, 4
_BYTES: Final = 2  # the wire type of what has a length
_UNITS: Final = {"us": "microseconds", "ns": "nanoseconds"}


def encode(picture: Picture) -> Iterator[bytes]:
    """Yield the file."""
    frames: Numbering[Frame] = Numbering()
    strings = Numbering("")  # the first is empty
    parts = [_message(_SAMPLE_TYPE, _value_type(picture.unit, strings))]
    for stack, count in picture.sorted():
        # The innermost is first.
        places = (frames.number(frame) + 1 for frame in reversed(stack))
        sample = _packed(_SAMPLE_LOCATIONS, places) + _packed(_SAMPLE_VALUES, (count,))
        parts.append(_message(_SAMPLE, sample))
    modules = {module: at for at, module in enumerate(dict.fromkeys(f.module for f in frames), 1)}
    for module, at in modules.items():
        mapping = _number(_MAPPING_ID, at) + _number(_MAPPING_FILE, strings.number(module))
        parts.append(_message(_MAPPING, mapping + _number(_MAPPING_HAS_FUNCTIONS, 1)))
    for at, frame in enumerate(frames, 1):
        line = _message(_LOCATION_LINE, _number(_LINE_FUNCTION, at))
        place = _number(_LOCATION_ID, at) + _number(_LOCATION_MAPPING, modules[frame.module])
        parts.append(_message(_LOCATION, place + line))
        name = strings.number(frame.text)
        function = (
            _number(_FUNCTION_ID, at)
            + _number(_FUNCTION_NAME, name)
            + _number(_FUNCTION_SYSTEM_NAME, name)
            + _number(_FUNCTION_FILE, strings.number(frame.module))
        )
        parts.append(_message(_FUNCTION, function))
    parts += (_message(_STRING, text.encode()) for text in strings)
    yield gzip.compress(b"".join(parts), mtime=0)


def _value_type(unit: str, strings: Numbering[str]) -> bytes:
    kind, its_unit = ("time", _UNITS[unit]) if unit in _UNITS else (unit, "count")
    return _number(_VALUE_TYPE, strings.number(kind)) + _number(
        _VALUE_UNIT, strings.number(its_unit)
    )


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:  # noqa: PLR2004  # seven bits a byte
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, values)))
