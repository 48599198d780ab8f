# SPDX-License-Identifier: Apache-2.0
"""Layout of a perf.data file in file mode: the parts before and behind the data section.

    0                header: magic, sizes, {attrs, data, event_types}, feature bitmap
    104              directory: write_offset, and the features that stand in the head (ours,
                     readers pass it by)
                     attrs, each with {offset, size} of its ids; ids; sections of the head
    data_offset      data section: records; those known at open first, then padding
    write_offset     the others
    + data_size      feature table: {offset, size} for each set bit, ascending
                     sections of the tail

The layout is that of tools/perf/Documentation/perf.data-file-format.txt. While a file is written,
its header has the features of the head, bit 0, and the size of the data that are shown
(perf_table). Everything known at open is in the head, where its directory finds it: a file that
was left open is completed from its own bytes. Older versions left data size 0 and no features.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.cursor import U32, U64, Cursor
from collectord.codec.perf_attr import FILE_ATTR_BYTES, PerfEventAttr, RecordType, SampleType
from collectord.codec.perf_features import Features, encode_features
from collectord.codec.perf_record import frame
from collectord.codec.perf_section import MAGIC, Feature, encode_string
from collectord.codec.perf_table import DATA_SIZE_AT, feature_table, padding, running_table
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HEADER_BYTES: Final = 104
# Enough to know the size of a head.
FIRST_BYTES: Final = HEADER_BYTES + 16
DATA_ALIGN_BYTES: Final = 4096

# magic, size, attr_size, {offset, size} of attrs, data and event_types, bitmap.
_HEADER: Final = struct.Struct("<8sQQQQQQQQ32s")
_SECTION: Final = struct.Struct("<QQ")
_DIRECTORY_MAGIC: Final = b"cltrdir2"
# Without the write offset: the head ended at the first page behind data_offset.
_OLD_DIRECTORY_MAGIC: Final = b"cltrdir1"
NO_RECORDS: Final = frame(RecordType.FINISHED_ROUND, 0, b"")
_DIRECTORY_ENTRY: Final = struct.Struct("<QQQ")
_FEATURE_BITS: Final = 256
_NOTHING: Final = Features()
_NO_SECTIONS: Final[Mapping[int, bytes]] = {}
# A head holds formats of tracepoints at most: a large kernel has about 4 MiB of them.
_HEAD_MAX_BYTES: Final = 64 << 20


class Section(NamedTuple):
    """A part of a file, in bytes from its start."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class AttrSection:
    """An event of the file: its attr, the kernel's ids for it, and the name tools print."""

    attr: PerfEventAttr
    ids: tuple[int, ...]
    name: str = ""


class Header(NamedTuple):
    """The first 104 bytes. `features`: bit n for feature n."""

    attr_size_bytes: int
    attrs: Section
    data: Section
    features: int

    @property
    def sealed(self) -> bool:
        """Whether the file is complete, and not shown in part while it is written."""
        return self.data.size > 0 and not self.features >> Feature.RESERVED & 1

    def encode(self) -> bytes:
        """Return the bytes at offset 0."""
        bitmap = self.features.to_bytes(_FEATURE_BITS // 8, "little")
        sections = (*self.attrs, *self.data, 0, 0)
        return _HEADER.pack(MAGIC, HEADER_BYTES, self.attr_size_bytes, *sections, bitmap)


@dataclass(frozen=True, slots=True)
class Head:
    """Everything before the data section.

    Attributes:
        image: the bytes from offset 0 to `write_offset`.
        header: as it is in `image`.
        attrs: the events, in the order of their indices.
        sections: features in the head; empty for a file by another program.
    """

    image: bytes
    header: Header
    attrs: tuple[AttrSection, ...]
    sections: Mapping[int, Section]

    @property
    def data_offset(self) -> int:
        """The offset of the data section."""
        return self.header.data.offset

    @property
    def write_offset(self) -> int:
        """The offset of its first record that is not in the head."""
        return len(self.image)

    @property
    def first_records(self) -> bytes:
        """The records of the data section that are in the head, with the padding behind them."""
        return self.image[self.data_offset :]

    @property
    def table(self) -> bytes:
        """The bytes that each padding of a running file begins with (perf_table)."""
        return running_table(self.sections)

    @property
    def size_word(self) -> tuple[int, int]:
        """The offset of the word with the data section's size, and the offset it counts from."""
        return DATA_SIZE_AT, self.data_offset

    @property
    def tracing_data(self) -> bytes | None:
        """The contents of the TRACING_DATA section, None if the head has none."""
        section = self.sections.get(Feature.TRACING_DATA)
        return None if section is None else _slice(self.image, section)


class Tail(NamedTuple):
    """The parts that complete a file: `tail` goes right behind the data, `header` to offset 0."""

    tail: bytes
    header: bytes


def build_head(
    attrs: Sequence[AttrSection],
    tracing_data: bytes | None = None,
    *,
    features: Features = _NOTHING,
    first_records: bytes = b"",
) -> Head:
    """Lay out the head of a new file, which readers take for a whole one without other records.

    Args:
        attrs: the events; `config3` is left out, since it lies beyond the fields that perf 6.1
            reads.
        tracing_data: the TRACING_DATA section, which tracepoint events need.
        features: features known at open. EVENT_DESC is always added.
        first_records: whole records that the data section begins with; without any it begins
            with the end of a round, since readers warn of data of size 0.

    Raises:
        CodecError: readers would refuse the file for its attrs.
    """
    _check_attrs(attrs)
    attrs = tuple(replace(a, attr=replace(a.attr, config3=0)) for a in attrs)
    contents: dict[int, bytes] = {
        Feature.EVENT_DESC: _encode_event_desc(attrs),
        **encode_features(features),
    }
    if tracing_data is not None:
        contents[Feature.TRACING_DATA] = tracing_data
    entry_bytes = FILE_ATTR_BYTES + _SECTION.size
    directory_bytes = FIRST_BYTES - HEADER_BYTES + U64.size + _DIRECTORY_ENTRY.size * len(contents)
    attrs_at = HEADER_BYTES + directory_bytes
    at = attrs_at + entry_bytes * len(attrs)
    entries: list[bytes] = []
    for a in attrs:
        ids = Section(at, U64.size * len(a.ids))
        entries.append(a.attr.encode(FILE_ATTR_BYTES) + _SECTION.pack(*ids))
        at += ids.size
    sections, blob = _place(contents, at)
    data_offset = _align(at + len(blob), U64.size)
    records = first_records or NO_RECORDS
    end = data_offset + len(records)
    rest = padding(running_table(sections), end, DATA_ALIGN_BYTES)
    header = Header(
        attr_size_bytes=entry_bytes,
        attrs=Section(attrs_at, entry_bytes * len(attrs)),
        data=Section(data_offset, len(records)),
        features=_bitmap((Feature.RESERVED, *sections)),
    )
    write_offset = U64.pack(end + len(rest))
    rows = (_DIRECTORY_ENTRY.pack(feature, *s) for feature, s in sections.items())
    tables = (U64.pack(i) for a in attrs for i in a.ids)
    directory = (_DIRECTORY_MAGIC, write_offset, U64.pack(len(sections)), *rows)
    parts = (header.encode(), *directory, *entries, *tables, blob)
    image = b"".join(parts).ljust(data_offset, b"\0") + records + rest
    return Head(image=image, header=header, attrs=attrs, sections=sections)


def build_tail(
    head: Head,
    data_size: int,
    features: Features = _NOTHING,
    encoded: Mapping[int, bytes] = _NO_SECTIONS,
) -> Tail:
    """Return the parts that complete a file with `data_size` bytes of records.

    Args:
        head: from build_head(), or from parse_head() of a file that was left open.
        data_size: bytes of whole records in the data section, including those in the head.
        features: features that became known since; they replace the head's.
        encoded: sections of others, as another file has them.
    """
    contents = {**encoded, **encode_features(features)}
    table_at = head.data_offset + data_size
    bits = sorted({*head.sections, *contents})
    placed, blob = _place(contents, table_at + _SECTION.size * len(bits))
    sections = {**head.sections, **placed}
    header = head.header._replace(
        data=Section(head.data_offset, data_size), features=_bitmap(bits)
    )
    return Tail(tail=feature_table(sections) + blob, header=header.encode())


def parse_header(data: bytes) -> Header:
    """Read the first 104 bytes of a file.

    Raises:
        CodecError: it is not perf.data in file mode, of this byte order, or its sizes contradict
            each other.
    """
    if len(data) < HEADER_BYTES:
        raise CodecError("header cut short", offset=len(data), reason="short")
    magic, size, attr_size, *places, bitmap = _HEADER.unpack_from(data)
    if magic == MAGIC[::-1]:
        raise CodecError("big-endian file", offset=0, reason="byte_order")
    if magic != MAGIC:
        raise CodecError("no perf.data", offset=0, reason="magic")
    if size != HEADER_BYTES:
        raise CodecError(f"header of {size} bytes (pipe mode?)", offset=8, reason="version")
    attrs, body = Section(*places[0:2]), Section(*places[2:4])
    if attr_size <= _SECTION.size or attrs.size % attr_size or not attrs.size:
        raise CodecError(f"attr size {attr_size}", offset=16, reason="attr_size")
    if body.offset < HEADER_BYTES or body.offset > _HEAD_MAX_BYTES:
        raise CodecError(f"data offset {body.offset}", offset=40, reason="data_offset")
    return Header(attr_size, attrs, body, int.from_bytes(bitmap, "little"))


def head_bytes(data: bytes) -> int:
    """Return the size of a head (`write_offset`) from its first FIRST_BYTES.

    Only files of this program have records of the data section in their head.

    Raises:
        CodecError: as parse_header(), or the head cannot be so long.
    """
    data_offset = parse_header(data).data.offset
    if data.startswith(_DIRECTORY_MAGIC, HEADER_BYTES):
        end = Cursor(data, FIRST_BYTES - U64.size).number(U64)
        if not data_offset <= end <= _HEAD_MAX_BYTES:
            place = FIRST_BYTES - U64.size
            raise CodecError(f"head of {end} bytes", offset=place, reason="head_bytes")
        return end
    if data.startswith(_OLD_DIRECTORY_MAGIC, HEADER_BYTES) and data_offset % U64.size == 0:
        return _align(data_offset, DATA_ALIGN_BYTES)
    return data_offset


def parse_head(data: bytes) -> Head:
    """Read the head of a file that is sealed, running, or was left open.

    Args:
        data: the file's bytes from 0 to at least `head_bytes(data)`.

    Raises:
        CodecError: as parse_header(), or a section reaches out of the head.
    """
    header = parse_header(data)
    end = head_bytes(data)
    if len(data) < end:
        raise CodecError("head cut short", offset=len(data), reason="short")
    image = data[:end]
    sections = _parse_directory(image)
    names: tuple[str, ...] = ()
    if Feature.EVENT_DESC in sections:
        described = decode_event_desc(_slice(image, sections[Feature.EVENT_DESC]))
        names = tuple(event.name for event in described)
    table = _slice(image, header.attrs)
    attrs: list[AttrSection] = []
    for index, at in enumerate(range(0, len(table), header.attr_size_bytes)):
        entry = table[at : at + header.attr_size_bytes]
        place = Section(*_SECTION.unpack_from(entry, len(entry) - _SECTION.size))
        ids = _slice(image, place)
        if len(ids) % U64.size:
            raise CodecError(f"ids of {len(ids)} bytes", offset=place.offset, reason="ids")
        attrs.append(
            AttrSection(
                attr=PerfEventAttr.decode(entry[: -_SECTION.size]),
                ids=struct.unpack(f"<{len(ids) // U64.size}Q", ids),
                name=names[index] if index < len(names) else "",
            )
        )
    return Head(image=image, header=header, attrs=tuple(attrs), sections=sections)


def parse_feature_table(
    table: bytes, header: Header, file_size_bytes: int
) -> Mapping[int, Section]:
    """Read the feature table: the bytes of a file from the end of its data on.

    Raises:
        CodecError: the table is short, or a section reaches past the end of the file.
    """
    cursor = Cursor(table)
    sections: dict[int, Section] = {}
    for bit in range(_FEATURE_BITS):
        if not header.features >> bit & 1:
            continue
        at = cursor.at
        section = Section(cursor.number(U64), cursor.number(U64))
        if bit == Feature.RESERVED:
            continue
        if section.offset + section.size > file_size_bytes:
            raise CodecError(f"feature {bit} past the end", offset=at, reason="short")
        sections[bit] = section
    return sections


def decode_event_desc(section: bytes) -> tuple[AttrSection, ...]:
    """Read an EVENT_DESC section: the names of the file's events, and their attrs and ids."""
    cursor = Cursor(section)
    count, attr_bytes = cursor.number(U32), cursor.number(U32)
    events: list[AttrSection] = []
    for _ in range(count):
        attr = PerfEventAttr.decode(cursor.take(attr_bytes))
        id_count = cursor.number(U32)
        name = cursor.take(cursor.number(U32)).split(b"\0", 1)[0]
        ids = struct.unpack(f"<{id_count}Q", cursor.take(U64.size * id_count))
        events.append(AttrSection(attr, ids, name.decode(errors="surrogateescape")))
    return tuple(events)


def _encode_event_desc(attrs: Sequence[AttrSection]) -> bytes:
    parts = [U32.pack(len(attrs)), U32.pack(FILE_ATTR_BYTES)]
    for a in attrs:
        parts += [a.attr.encode(FILE_ATTR_BYTES), U32.pack(len(a.ids)), encode_string(a.name)]
        parts += map(U64.pack, a.ids)
    return b"".join(parts)


def _check_attrs(attrs: Sequence[AttrSection]) -> None:
    """Refuse attrs for which readers would refuse the file or stop in its middle."""
    ids = [i for a in attrs for i in a.ids]
    same_layout = len({a.attr.sample_type for a in attrs}) <= 1
    problem = ""
    if not attrs:
        problem = "a file needs an event"
    elif len(attrs) > 1 and not all(a.ids for a in attrs):
        problem = "an event without ids among several"
    elif len(set(ids)) < len(ids):
        problem = "an id of two events"
    elif len({a.attr.sample_id_all for a in attrs}) > 1:
        problem = "events with and without sample_id_all"
    elif not same_layout and not all(a.attr.sample_type & SampleType.IDENTIFIER for a in attrs):
        problem = "several sample_types without IDENTIFIER"
    if problem:
        raise CodecError(problem, offset=HEADER_BYTES, reason="attrs")


def _parse_directory(image: bytes) -> Mapping[int, Section]:
    starts = {_DIRECTORY_MAGIC: FIRST_BYTES, _OLD_DIRECTORY_MAGIC: FIRST_BYTES - U64.size}
    start = starts.get(image[HEADER_BYTES : HEADER_BYTES + len(_DIRECTORY_MAGIC)])
    if start is None:
        return {}
    cursor = Cursor(image, start)
    sections: dict[int, Section] = {}
    for _ in range(cursor.number(U64)):
        at = cursor.at
        feature, *place = _DIRECTORY_ENTRY.unpack(cursor.take(_DIRECTORY_ENTRY.size))
        if not Feature.RESERVED < feature < _FEATURE_BITS:
            raise CodecError(f"feature {feature}", offset=at, reason="feature")
        sections[feature] = Section(*place)
        _slice(image, sections[feature])
    return sections


def _bitmap(bits: Iterable[int]) -> int:
    return sum(1 << bit for bit in bits)


def _place(contents: Mapping[int, bytes], at: int) -> tuple[dict[int, Section], bytes]:
    """Lay sections one after the other from offset `at`, each at a multiple of 8."""
    sections: dict[int, Section] = {}
    parts: list[bytes] = []
    for feature in sorted(contents):
        content = contents[feature]
        padding = -at % 8
        sections[int(feature)] = Section(at + padding, len(content))
        parts += [bytes(padding), content]
        at += padding + len(content)
    return sections, b"".join(parts)


def _slice(image: bytes, section: Section) -> bytes:
    end = section.offset + section.size
    if end > len(image):
        raise CodecError("section reaches out of the head", offset=section.offset, reason="short")
    return image[section.offset : end]


def _align(value: int, step: int) -> int:
    return -(-value // step) * step
