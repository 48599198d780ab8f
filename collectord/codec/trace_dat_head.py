# SPDX-License-Identifier: Apache-2.0
"""The part before the data of a trace.dat file, and patches of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.cursor import U32, U64
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Offset of a size in its row {u32 CPU, u64 offset, u64 size} of the BUFFER option.
CPU_SIZE_AT: Final = 12
# Offset of the size in a section's header, and of the section's contents.
_SECTION_SIZE_AT: Final = 8
SECTION_BYTES: Final = 16
PID_DIGITS: Final = 10
_NO_COMM: Final = b"<...>"


class Patch(NamedTuple):
    """Bytes that replace those at `offset` of the file."""

    offset: int
    data: bytes


class Place(NamedTuple):
    """The place of a CPU's sub-buffers: `bytes` of them from `offset` of the file on."""

    offset: int
    bytes: int


class Room(NamedTuple):
    """A part of the head that is rewritten in place."""

    offset: int
    size_bytes: int


class Extent(NamedTuple):
    """The room for the sub-buffers of one CPU.

    Attributes:
        offset: of the first one, in bytes from the file's start.
        capacity_bytes: size of the room.
        size_bytes: size claimed when the head was built or read, which readers see.
        size_at: offset of that size; a multiple of 4, so that a copy taken during the write has
            the old or the new one, below 4 GiB.
        stat: room for the CPU's statistics.
    """

    offset: int
    capacity_bytes: int
    size_bytes: int
    size_at: int
    stat: Room


@dataclass(frozen=True, slots=True)
class Metadata:
    """The facts in a file beside its events; the texts are those of the files in tracefs.

    Attributes:
        header_page: `events/header_page` of the instance; has the size of a sub-buffer.
        header_event: `events/header_event`.
        events: system to the `format` texts of its events; for events without one, readers show
            only the bytes.
        ftrace_events: `format` texts of `events/ftrace`, which marks need (`print`).
        clock: the instance's `trace_clock`.
        uname: system and machine, for people.
        version: program that wrote the file, for people.
        printk_formats: `printk_formats`; names the strings that some events point to.
        kallsyms: `/proc/kallsyms`, for addresses in events.
        long_size_bytes: of the kernel.
    """

    header_page: bytes
    header_event: bytes
    events: Mapping[str, Sequence[bytes]]
    ftrace_events: Sequence[bytes] = ()
    clock: str = "mono"
    uname: str = ""
    version: str = ""
    printk_formats: bytes = b""
    kallsyms: bytes = b""
    long_size_bytes: int = 8


@dataclass(frozen=True, slots=True)
class Head:
    """Everything before the data.

    Attributes:
        image: the bytes from offset 0 to the end of the BUFFER section's header, or further.
        metadata: as it is in `image`.
        sub_buffer_bytes: size of the pages in the extents.
        extents: by CPU.
        cmdlines: room for the names of tasks.
        file_bytes: the length that the file must have before anything claims data in it.
        buffer_at: offset of the BUFFER section, whose contents end with the file.
    """

    image: bytes = field(repr=False)
    metadata: Metadata
    sub_buffer_bytes: int
    extents: Mapping[int, Extent]
    cmdlines: Room
    file_bytes: int
    buffer_at: int

    def size_patch(self, cpu: int, size_bytes: int) -> Patch:
        """Claim the first bytes of a CPU's extent, which now hold whole sub-buffers.

        Raises:
            CodecError: they are more than the extent has.
        """
        extent = self.extents[cpu]
        if not 0 <= size_bytes <= extent.capacity_bytes:
            message = f"{size_bytes} bytes of CPU {cpu} in {extent.capacity_bytes}"
            raise CodecError(message, offset=extent.size_at, reason="size")
        return Patch(extent.size_at, U64.pack(size_bytes))

    def sizes_patch(self, sizes: Mapping[int, int]) -> Patch:
        """Claim bytes of every CPU's extent in one write; a CPU that is not in `sizes` has none.

        Raises:
            CodecError: they are more than an extent has.
        """
        for cpu, size in sizes.items():
            self.size_patch(cpu, size)
        return self.places_patch(
            {cpu: Place(e.offset, sizes.get(cpu, 0)) for cpu, e in self.extents.items()}
        )

    def places_patch(self, places: Mapping[int, Place]) -> Patch:
        """Claim the sub-buffers of every CPU at their places, in one write."""
        rows = (
            U32.pack(cpu) + U64.pack(places[cpu].offset) + U64.pack(places[cpu].bytes)
            for cpu in self.extents
        )
        return Patch(min(e.size_at for e in self.extents.values()) - CPU_SIZE_AT, b"".join(rows))

    def end_patch(self, end: int) -> Patch:
        """Set the end of the BUFFER section, the last one; all extents begin before that."""
        size = U64.pack(end - self.buffer_at - SECTION_BYTES)
        return Patch(self.buffer_at + _SECTION_SIZE_AT, size)

    def cpustat_patch(self, cpu: int, text: str) -> Patch:
        """Set the text of `trace-cmd report --stat` for a CPU, without lines that do not fit."""
        return stat_patch(self.extents[cpu].stat, text)

    def cmdlines_patch(self, comms: Iterable[tuple[int, bytes]]) -> Patch:
        """Set the names of tasks, by pid; those that do not fit are left out."""
        lines: list[bytes] = []
        left = self.cmdlines.size_bytes
        for pid, comm in comms:
            line = b"%d %b\n" % (pid, _printable(comm))
            if len(line) > left:
                break
            left -= len(line)
            lines.append(line)
        # readers skip empty lines
        return Patch(self.cmdlines.offset, b"".join(lines).ljust(self.cmdlines.size_bytes, b"\n"))

    def comms(self) -> dict[int, bytes]:
        """Return the names of tasks in the head when it was built or read, by pid."""
        found = {}
        for line in filter(None, _room(self.image, self.cmdlines).splitlines()):
            pid, _, comm = line.partition(b" ")
            if pid.isdigit() and len(pid) <= PID_DIGITS:
                found[int(pid)] = comm
        return found


def stat_patch(room: Room, text: str) -> Patch:
    """Return the patch that fills the whole room: readers print it up to its last byte, a NUL."""
    raw = text.replace("\0", "?").encode()
    if len(raw) >= room.size_bytes:
        raw = raw[: raw.rfind(b"\n", 0, room.size_bytes - 1) + 1]
    return Patch(room.offset, raw.ljust(room.size_bytes - 1, b" ") + b"\0")


def _printable(comm: bytes) -> bytes:
    """Return a name that readers accept: they stop for good at a line without one."""
    return bytes(ord("?") if byte < ord(" ") else byte for byte in comm).strip() or _NO_COMM


def _room(image: bytes, room: Room) -> bytes:
    return image[room.offset : room.offset + room.size_bytes]
