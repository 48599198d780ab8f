# SPDX-License-Identifier: Apache-2.0
"""Encodes the headers of the pages of a Parquet file, and its footer.

Structures are laid out as Thrift's compact protocol has them. The numbers of fields and types are
those of `parquet.thrift` of Apache Parquet.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAGIC: Final = b"PAR1"
PLAIN: Final = 0
_RUNS: Final = 3  # of levels
DICTIONARY: Final = 8
_ZSTD: Final = 6
_VERSION: Final = 2
_LIST: Final = "list_"
_LONG_LIST: Final = 15


class _Type(IntEnum):
    """Types of fields in the compact protocol."""

    FALSE = 2
    I32 = 5
    I64 = 6
    BINARY = 8
    LIST = 9
    STRUCT = 12


class _Physical(IntEnum):
    """The way that values are stored."""

    INT32 = 1
    INT64 = 2
    FLOAT = 4
    DOUBLE = 5
    BYTE_ARRAY = 6


class _Repetition(IntEnum):
    """How often a value may occur in a row."""

    OPTIONAL = 1
    REPEATED = 2


class _Converted(IntEnum):
    """Meanings of values."""

    UTF8 = 0
    LIST = 3
    UINT_8 = 11
    UINT_16 = 12
    UINT_32 = 13
    UINT_64 = 14
    INT_8 = 15
    INT_16 = 16
    INT_32 = 17
    INT_64 = 18


_Field = tuple[int, _Type, bytes]

# How each of the decoder's kinds is stored, and what it means.
_KINDS: Final[Mapping[str, tuple[_Physical, _Converted | None]]] = {
    "i8": (_Physical.INT32, _Converted.INT_8),
    "u8": (_Physical.INT32, _Converted.UINT_8),
    "i16": (_Physical.INT32, _Converted.INT_16),
    "u16": (_Physical.INT32, _Converted.UINT_16),
    "i32": (_Physical.INT32, _Converted.INT_32),
    "u32": (_Physical.INT32, _Converted.UINT_32),
    "i64": (_Physical.INT64, _Converted.INT_64),
    "u64": (_Physical.INT64, _Converted.UINT_64),
    "f32": (_Physical.FLOAT, None),
    "f64": (_Physical.DOUBLE, None),
    "time": (_Physical.INT64, None),
    "text": (_Physical.BYTE_ARRAY, _Converted.UTF8),
    "bytes": (_Physical.BYTE_ARRAY, None),
}


class ColumnPages(NamedTuple):
    """The pages of a column in a group of rows.

    Attributes:
        values: with nulls.
        nulls: rows.
        encoding: of the data.
        dictionary_at: where the dictionary begins in the file, None without one.
        data_at: where the data begin.
        plain_bytes: of the pages with their headers, before they were compressed.
        packed_bytes: of the pages in the file.
        least, most: the smallest and the largest value, None if they are not told.
    """

    values: int
    nulls: int
    encoding: int
    dictionary_at: int | None
    data_at: int
    plain_bytes: int
    packed_bytes: int
    least: bytes | None
    most: bytes | None


class Group(NamedTuple):
    """A group of rows with all columns."""

    rows: int
    columns: Sequence[ColumnPages]


def page_header(encoding: int, values: int, plain_bytes: int, packed_bytes: int) -> bytes:
    """Return the header of a page of data."""
    told = _struct(
        [_i32(1, values), _i32(2, encoding), _i32(3, _RUNS), _i32(4, _RUNS)],
    )
    return _page(0, plain_bytes, packed_bytes, (5, _Type.STRUCT, told))


def dictionary_header(entries: int, plain_bytes: int, packed_bytes: int) -> bytes:
    """Return the header of a page with a dictionary."""
    told = _struct([_i32(1, entries), _i32(2, PLAIN)])
    return _page(2, plain_bytes, packed_bytes, (7, _Type.STRUCT, told))


def _page(kind: int, plain_bytes: int, packed_bytes: int, told: _Field) -> bytes:
    return _struct([_i32(1, kind), _i32(2, plain_bytes), _i32(3, packed_bytes), told])


def constant_data(rows: int) -> bytes:
    """Return the data of a column whose rows have the first value of a dictionary."""
    levels = _varint(rows << 1) + b"\1"
    return len(levels).to_bytes(4, "little") + levels + b"\1" + _varint(rows << 1) + b"\0"


def text_entry(text: bytes) -> bytes:
    """Return a text as a dictionary has it."""
    return len(text).to_bytes(4, "little") + text


def footer(columns: Mapping[str, str], groups: Sequence[Group], writer: str) -> bytes:
    """Return the end of a file.

    Args:
        columns: kinds of the decoder by name.
        groups: of rows, in their order.
        writer: the program.
    """
    root = _struct([_binary(4, b"schema"), _i32(5, len(columns))])
    schema = [root, *(one for name, kind in columns.items() for one in _elements(name, kind))]
    ordered = _struct([(1, _Type.STRUCT, _struct([]))])
    told = _struct(
        [
            _i32(1, _VERSION),
            _list(2, _Type.STRUCT, schema),
            _i64(3, sum(group.rows for group in groups)),
            _list(4, _Type.STRUCT, [_group(columns, group) for group in groups]),
            _binary(6, writer.encode()),
            _list(7, _Type.STRUCT, [ordered] * len(columns)),
        ]
    )
    return told + len(told).to_bytes(4, "little") + MAGIC


def _elements(name: str, kind: str) -> Iterable[bytes]:
    """Return the elements of the schema for a column."""
    if kind.startswith(_LIST):
        return (
            _element(name, None, _Repetition.OPTIONAL, _Converted.LIST, children=1),
            _element("list", None, _Repetition.REPEATED, None, children=1),
            *_elements("element", kind.removeprefix(_LIST)),
        )
    physical, converted = _KINDS[kind]
    logical = [] if kind != "time" else [(10, _Type.STRUCT, _NANOSECONDS)]
    return (_element(name, physical, _Repetition.OPTIONAL, converted, more=logical),)


def _element(
    name: str,
    physical: _Physical | None,
    repetition: _Repetition,
    converted: _Converted | None,
    *,
    children: int = 0,
    more: Iterable[_Field] = (),
) -> bytes:
    fields = [] if physical is None else [_i32(1, physical)]
    fields += [_i32(3, repetition), _binary(4, name.encode())]
    fields += [_i32(5, children)] if children else []
    fields += [] if converted is None else [_i32(6, converted)]
    return _struct([*fields, *more])


def _group(columns: Mapping[str, str], group: Group) -> bytes:
    chunks = [
        _chunk(name, kind, pages)
        for (name, kind), pages in zip(columns.items(), group.columns, strict=True)
    ]
    return _struct(
        [
            _list(1, _Type.STRUCT, chunks),
            _i64(2, sum(pages.plain_bytes for pages in group.columns)),
            _i64(3, group.rows),
            _i64(6, sum(pages.packed_bytes for pages in group.columns)),
        ]
    )


def _chunk(name: str, kind: str, pages: ColumnPages) -> bytes:
    is_list = kind.startswith(_LIST)
    physical, _ = _KINDS[kind.removeprefix(_LIST)]
    path = [name, "list", "element"] if is_list else [name]
    encodings = {_RUNS, pages.encoding} | (set() if pages.dictionary_at is None else {PLAIN})
    fields = [
        _i32(1, physical),
        _list(2, _Type.I32, [_zigzag(one) for one in sorted(encodings)]),
        _list(3, _Type.BINARY, [_sized(one.encode()) for one in path]),
        _i32(4, _ZSTD),
        _i64(5, pages.values),
        _i64(6, pages.plain_bytes),
        _i64(7, pages.packed_bytes),
        _i64(9, pages.data_at),
    ]
    start = pages.data_at
    if pages.dictionary_at is not None:
        start = pages.dictionary_at
        fields.append(_i64(11, start))
    if not is_list:  # of which nulls are told by their elements
        told = [_i64(3, pages.nulls)]
        if pages.least is not None and pages.most is not None:
            told += [_binary(5, pages.most), _binary(6, pages.least)]
        fields.append((12, _Type.STRUCT, _struct(told)))
    return _struct([_i64(2, start), (3, _Type.STRUCT, _struct(fields))])


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:  # noqa: PLR2004  # seven bits a byte
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _zigzag(number: int) -> bytes:
    return _varint(number << 1)  # none is negative


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _i32(number: int, value: int) -> _Field:
    return number, _Type.I32, _zigzag(value)


def _i64(number: int, value: int) -> _Field:
    return number, _Type.I64, _zigzag(value)


def _binary(number: int, data: bytes) -> _Field:
    return number, _Type.BINARY, _sized(data)


def _list(number: int, kind: _Type, items: Sequence[bytes]) -> _Field:
    count = len(items)
    head = (
        bytes([count << 4 | kind])
        if count < _LONG_LIST
        else bytes([_LONG_LIST << 4 | kind]) + _varint(count)
    )
    return number, _Type.LIST, head + b"".join(items)


def _struct(fields: Iterable[_Field]) -> bytes:
    """Return a structure, whose fields are in the order of their numbers, less than 16 apart."""
    made = bytearray()
    last = 0
    for number, kind, data in fields:
        made.append((number - last) << 4 | kind)
        made += data
        last = number
    made.append(0)
    return bytes(made)


# A time of UTC that is told without a zone.
_NANOSECONDS: Final = _struct(
    [
        (
            8,
            _Type.STRUCT,
            _struct(
                [
                    (1, _Type.FALSE, b""),
                    (2, _Type.STRUCT, _struct([(3, _Type.STRUCT, _struct([]))])),
                ]
            ),
        )
    ]
)
