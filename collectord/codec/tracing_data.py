# SPDX-License-Identifier: Apache-2.0
r"""The TRACING_DATA section of perf.data: the formats of the tracepoints in the file.

    magic 17 08 44 "tracing", version "0.6\0", u8 big-endian?, u8 long size, u32 page size
    "header_page\0",  u64 size, data
    "header_event\0", u64 size, data
    u32 ftrace events, each {u64 size, format}
    u32 systems, each {name "\0", u32 events, each {u64 size, format}}
    u32 size, kallsyms          always 0: perf skips it, and resolves symbols on its own
    u32 size, printk formats
    u64 size, saved cmdlines    since version 0.6

As tools/perf/util/trace-event-info.c writes and trace-event-read.c reads it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.codec.cursor import U32, U64, Cursor
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAGIC: Final = b"\x17\x08\x44tracing"
_VERSION: Final = b"0.6\0"
_FTRACE: Final = "ftrace"
_HEADER_PAGE: Final = b"header_page\0"
_HEADER_EVENT: Final = b"header_event\0"
_ID: Final = re.compile(rb"^ID: (\d{1,9})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TracingData:
    """The contents of the section; the texts are those of the files in tracefs.

    Attributes:
        header_page: `events/header_page`.
        header_event: `events/header_event`.
        page_size_bytes: of the kernel.
        events: system to the `format` texts of its events.
        ftrace_events: `format` texts of `events/ftrace`; perf leaves them out.
        long_size_bytes: of the kernel.
        printk_formats: `printk_formats`; names the strings that some events point to.
        saved_cmdlines: `saved_cmdlines`; perf leaves it out unless it records everything.
    """

    header_page: bytes
    header_event: bytes
    page_size_bytes: int
    events: Mapping[str, Sequence[bytes]]
    ftrace_events: Sequence[bytes] = ()
    long_size_bytes: int = 8
    printk_formats: bytes = b""
    saved_cmdlines: bytes = b""


def build(tracing: TracingData) -> bytes:
    """Return the section.

    Raises:
        CodecError: a system's name is empty or holds a NUL, or a format is empty.
    """
    parts = [MAGIC, _VERSION, bytes((0, tracing.long_size_bytes))]
    parts.append(U32.pack(tracing.page_size_bytes))
    parts.append(build_header_files(tracing.header_page, tracing.header_event))
    parts.append(build_formats(_FTRACE, tracing.ftrace_events))
    parts.append(build_systems(tracing.events))
    parts.append(U32.pack(0))
    parts += [U32.pack(len(tracing.printk_formats)), tracing.printk_formats]
    parts += [U64.pack(len(tracing.saved_cmdlines)), tracing.saved_cmdlines]
    return b"".join(parts)


def parse_events(data: bytes) -> dict[str, Sequence[bytes]]:
    """Read the formats in a section: system to the texts of its events.

    Raises:
        CodecError: it is not such a section, the data end too early, or they are big-endian.
    """
    found = _parse_formats(Cursor(data))[0]
    return {**found.events, _FTRACE: found.ftrace_events}


def parse(data: bytes) -> TracingData:
    """Read a whole section. Raises CodecError as `parse_events`."""
    cursor = Cursor(data)
    formats, version = _parse_formats(cursor)
    cursor.take(cursor.number(U32))
    printk_formats = cursor.take(cursor.number(U32))
    has_cmdlines = version >= _VERSION.rstrip(b"\0")
    cmdlines = cursor.take(cursor.number(U64)) if has_cmdlines else b""
    return replace(formats, printk_formats=printk_formats, saved_cmdlines=cmdlines)


def _parse_formats(cursor: Cursor) -> tuple[TracingData, bytes]:
    """Return the formats at the beginning of a section, and its version."""
    cursor.expect(MAGIC)
    version = cursor.string()
    if any(cursor.take(1)):
        raise CodecError("big-endian formats", offset=cursor.at, reason="byte_order")
    (long_size_bytes,) = cursor.take(1)
    page_size_bytes = cursor.number(U32)
    header_page, header_event = read_header_files(cursor)
    ftrace_events = read_formats(cursor)
    found = TracingData(
        header_page=header_page,
        header_event=header_event,
        page_size_bytes=page_size_bytes,
        events=read_systems(cursor),
        ftrace_events=ftrace_events,
        long_size_bytes=long_size_bytes,
    )
    return found, version


def merge(sections: Sequence[bytes]) -> bytes:
    """Return a section with the formats of all of these.

    Raises:
        CodecError: as `parse_events`, or they do not fit together.
    """
    if len({*sections}) == 1:
        return sections[0]
    found = [parse(section) for section in sections]
    if len({(t.header_page, t.page_size_bytes, t.long_size_bytes) for t in found}) > 1:
        raise CodecError("other layouts of pages", offset=0, reason="formats")
    lines = [line for t in found for line in t.printk_formats.splitlines(keepends=True)]
    names = [line for t in found for line in t.saved_cmdlines.splitlines(keepends=True)]
    return build(
        replace(
            found[0],
            events=merge_systems([t.events for t in found]),
            ftrace_events=merge_formats(_FTRACE, [t.ftrace_events for t in found]),
            printk_formats=b"".join(dict.fromkeys(lines)),
            saved_cmdlines=b"".join(dict.fromkeys(names)),
        )
    )


def merge_systems(several: Sequence[Mapping[str, Sequence[bytes]]]) -> dict[str, Sequence[bytes]]:
    """Return the formats of each system together. Raises CodecError as `merge`."""
    systems = dict.fromkeys(system for events in several for system in events)
    merged: dict[str, Sequence[bytes]] = {
        system: merge_formats(system, [events.get(system, ()) for events in several])
        for system in systems
    }
    _check([text for texts in merged.values() for text in texts])
    return merged


def merge_formats(system: str, several: Sequence[Sequence[bytes]]) -> tuple[bytes, ...]:
    """Return the formats of one system together. Raises CodecError as `merge`."""
    texts = tuple(dict.fromkeys(text for one in several for text in one))
    names = [text.partition(b"\n")[0] for text in texts]
    for name in names:
        if names.count(name) > 1:
            told = name.decode(errors="backslashreplace").removeprefix("name: ")
            raise CodecError(f"two layouts of {system}:{told}", offset=0, reason="formats")
    _check(texts)
    return texts


def _check(texts: Sequence[bytes]) -> None:
    numbers = Counter(found[1] for text in texts if (found := _ID.search(text)))
    for number, count in numbers.items():
        if count > 1:
            raise CodecError(f"two events with id {int(number)}", offset=0, reason="formats")


def build_header_files(header_page: bytes, header_event: bytes) -> bytes:
    """Return both files under their names."""
    page, event = U64.pack(len(header_page)), U64.pack(len(header_event))
    return b"".join((_HEADER_PAGE, page, header_page, _HEADER_EVENT, event, header_event))


def build_systems(events: Mapping[str, Sequence[bytes]]) -> bytes:
    """Return the formats of each system, with their number.

    Raises:
        CodecError: a system's name is empty or holds a NUL, or a format is empty.
    """
    parts = [U32.pack(len(events))]
    for system, formats in events.items():
        name = system.encode()
        if not name or b"\0" in name:
            raise CodecError(f"system name {system!r}", offset=0, reason="string")
        parts += [name, b"\0", build_formats(system, formats)]
    return b"".join(parts)


def build_formats(system: str, formats: Sequence[bytes]) -> bytes:
    """Return the formats of one system, with their number.

    Raises:
        CodecError: a format is empty.
    """
    if not all(formats):
        raise CodecError(f"empty format in {system}", offset=0, reason="format")
    parts = [U32.pack(len(formats))]
    for text in formats:
        parts += [U64.pack(len(text)), text]
    return b"".join(parts)


def read_header_files(cursor: Cursor) -> tuple[bytes, bytes]:
    """Read the output of `build_header_files`.

    Raises:
        CodecError: the names are wrong, or the data end too early.
    """
    cursor.expect(_HEADER_PAGE)
    header_page = cursor.take(cursor.number(U64))
    cursor.expect(_HEADER_EVENT)
    return header_page, cursor.take(cursor.number(U64))


def read_systems(cursor: Cursor) -> dict[str, Sequence[bytes]]:
    """Read the output of `build_systems`.

    Raises:
        CodecError: the data end too early.
    """
    events: dict[str, Sequence[bytes]] = {}
    for _ in range(cursor.number(U32)):
        name = cursor.string().decode(errors="surrogateescape")
        events[name] = read_formats(cursor)
    return events


def read_formats(cursor: Cursor) -> tuple[bytes, ...]:
    """Read the output of `build_formats`.

    Raises:
        CodecError: the data end too early.
    """
    count = cursor.number(U32)
    return tuple(cursor.take(cursor.number(U64)) for _ in range(count))
