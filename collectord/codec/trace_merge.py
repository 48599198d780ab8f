# SPDX-License-Identifier: Apache-2.0
"""A trace.dat of version 7 that is made of parts of others, as trace-cmd lays it out.

    0    magic, version, page size, no compression, offset of the OPTIONS section: right behind
         sections OPTIONS, those that describe events and tasks, STRINGS
         a BUFFER section for each instance: the pages of its CPUs, one after the other

Unlike in `codec.trace_dat`, all is known when the head is written, so there is no room in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.cursor import U32, U64, Cursor
from collectord.codec.trace_dat import (
    CPU_EXTENT,
    OPTION,
    SECTION,
    UNCOMPRESSED,
    VERSION,
    OptionId,
    strings,
)
from collectord.codec.tracing_data import (
    MAGIC,
    build_formats,
    build_systems,
    merge_formats,
    merge_systems,
    read_formats,
    read_systems,
)
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.codec.trace_cmd_dat import Parts

# Options that are of the layout, or say how many records the whole file had.
_OF_THE_FILE: Final = (
    *(OptionId.DONE, OptionId.CPUSTAT, OptionId.BUFFER, OptionId.CPUCOUNT, OptionId.BUFFER_TEXT),
)
_TEXTS: Final = {OptionId.KALLSYMS: U32, OptionId.PRINTK: U32, OptionId.CMDLINES: U64}
_FTRACE: Final = "ftrace"


class NewBuffer(NamedTuple):
    """The pages of an instance in a new file.

    Attributes:
        name: of the instance, "" for the top one.
        clock: of its stamps.
        page_bytes: size of a sub-buffer.
        at: offset of its section.
        end: where the section ends.
        rows: {CPU, offset, size} of each CPU's pages.
    """

    name: str
    clock: str
    page_bytes: int
    at: int = 0
    end: int = 0
    rows: Sequence[tuple[int, int, int]] = ()

    @property
    def header(self) -> bytes:
        """The bytes that the section begins with."""
        size = self.end - self.at - SECTION.size
        return SECTION.pack(OptionId.BUFFER, 0, strings()[1][OptionId.BUFFER], size)


def merge(files: Sequence[Parts]) -> Mapping[int, bytes]:
    """Return the sections of files together.

    Raises:
        CodecError: they do not fit together.
    """
    first = files[0].sections
    if len(files) == 1:
        return first
    if len({(one.sections[OptionId.HEADER_INFO], one.long_size_bytes) for one in files}) > 1:
        raise CodecError("other layouts of pages", offset=0, reason="formats")
    systems = [read_systems(_cursor(one, OptionId.EVENT_FORMATS)) for one in files]
    ftrace = [read_formats(_cursor(one, OptionId.FTRACE_EVENTS)) for one in files]
    merged = {
        **first,
        OptionId.EVENT_FORMATS: build_systems(merge_systems(systems)),
        OptionId.FTRACE_EVENTS: build_formats(_FTRACE, merge_formats(_FTRACE, ftrace)),
    }
    for kind, size in _TEXTS.items():
        texts = [_text(one, kind) for one in files]
        lines = dict.fromkeys(line for text in texts for line in text.splitlines(keepends=True))
        if kind == OptionId.CMDLINES:  # a thread has one name, its last
            names = {line.partition(b" ")[0]: line for line in lines if line.strip()}
            lines = dict.fromkeys(names.values())
        # One kernel has one list of its functions.
        text = max(texts, key=len) if kind == OptionId.KALLSYMS else b"".join(lines)
        merged[kind] = size.pack(len(text)) + text
    return merged


def build(parts: Parts, sections: Mapping[int, bytes], buffers: Sequence[NewBuffer]) -> bytes:
    """Return all that is before the first BUFFER section; its size depends on names and rows only.

    Args:
        parts: of a file, for what is the same in all of them.
        sections: of the new file.
        buffers: one at least, with the same clock.
    """
    contents, described = strings()
    first = MAGIC + VERSION + bytes((0, parts.long_size_bytes))
    first += U32.pack(buffers[0].page_bytes) + UNCOMPRESSED
    first += U64.pack(len(first) + U64.size)
    all_of = {**sections, OptionId.STRINGS: contents}
    at = len(first) + SECTION.size + len(_options(parts, dict.fromkeys(all_of, 0), buffers))
    starts, written = {}, []
    for kind, body in all_of.items():
        starts[kind] = at
        written.append(SECTION.pack(kind, 0, described[OptionId(kind)], len(body)) + body)
        at += len(written[-1])
    options = _options(parts, starts, buffers)
    head = SECTION.pack(OptionId.DONE, 0, described[OptionId.DONE], len(options))
    return b"".join((first, head, options, *written))


def _options(parts: Parts, starts: Mapping[int, int], buffers: Sequence[NewBuffer]) -> bytes:
    """Return the contents of the OPTIONS section."""
    cpus = 1 + max((cpu for one in buffers for cpu, *_ in one.rows), default=-1)
    options = [
        *((kind, value) for kind, value in parts.options if kind not in _OF_THE_FILE),
        *((OptionId.BUFFER, _buffer(one)) for one in buffers),
        (OptionId.CPUCOUNT, U32.pack(cpus)),
        *((kind, U64.pack(start)) for kind, start in starts.items()),
        (OptionId.DONE, U64.pack(0)),
    ]
    return b"".join(OPTION.pack(kind, len(value)) + value for kind, value in options)


def _buffer(one: NewBuffer) -> bytes:
    names = (one.name, one.clock)
    texts = b"".join(text.encode(errors="surrogateescape") + b"\0" for text in names)
    sizes = U32.pack(one.page_bytes) + U32.pack(len(one.rows))
    return U64.pack(one.at) + texts + sizes + b"".join(CPU_EXTENT.pack(*row) for row in one.rows)


def _cursor(parts: Parts, kind: OptionId) -> Cursor:
    return Cursor(parts.sections[kind])


def _text(parts: Parts, kind: OptionId) -> bytes:
    """Return the text of a section that has its size before it."""
    if kind not in parts.sections:
        return b""
    cursor = _cursor(parts, kind)
    return cursor.take(cursor.number(_TEXTS[kind]))
