# SPDX-License-Identifier: Apache-2.0
"""blktrace's setup and its records (include/uapi/linux/blktrace_api.h), in native byte order."""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# struct blk_user_trace_setup: name, act_mask, buf_size, buf_nr, start_lba, end_lba, pid.
_SETUP: Final = struct.Struct("@32sHIIQQI0Q")

# Classes of records by their names; the bit of one in act_mask is its position here.
Action = StrEnum(
    "Action",
    "READ WRITE FLUSH SYNC QUEUE REQUEUE ISSUE COMPLETE "
    "FS PC NOTIFY AHEAD META DISCARD DRV_DATA FUA",
)
_BITS: Final = {action: 1 << bit for bit, action in enumerate(Action)}
ALL_ACTIONS: Final = sum(_BITS.values())

RECORD: Final = struct.Struct("@IIQQIIIIIHH")
MAGIC: Final = 0x65617407
MAGIC_BYTES: Final = MAGIC.to_bytes(4, "little" if struct.pack("@H", 1)[0] else "big")
_CLASS_SHIFT: Final = 16
_WHAT: Final = 0xFFFF
# The record has a cgroup's id before its data.
_CGROUP: Final = 1 << 8
_CGROUP_BYTES: Final = 8

# Events by the low half of `action`: the letter that blkparse prints, and a name.
_EVENTS: Final = {
    1: ("Q", "queue"),
    2: ("M", "back_merge"),
    3: ("F", "front_merge"),
    4: ("G", "get_request"),
    5: ("S", "sleep_request"),
    6: ("R", "requeue"),
    7: ("D", "issue"),
    8: ("C", "complete"),
    9: ("P", "plug"),
    10: ("U", "unplug"),
    11: ("UT", "unplug_timer"),
    12: ("I", "insert"),
    13: ("X", "split"),
    14: ("B", "bounce"),
    15: ("A", "remap"),
    16: ("ABORT", "abort"),
    17: ("DRV", "drv_data"),
}
_NOTES: Final = {0: "process", 1: "timestamp", 2: "message"}
_MESSAGE: Final = _BITS[Action.NOTIFY] << _CLASS_SHIFT | 2


def event_names() -> dict[str, str]:
    """Return the names of events of a request, with blkparse's letters."""
    return {name: letter for letter, name in _EVENTS.values()}


def note_names() -> tuple[str, ...]:
    """Return the kinds of notes."""
    return tuple(_NOTES.values())


def action_mask(actions: Iterable[Action]) -> int:
    """Return the mask of these classes, or of all if there are none."""
    return sum(_BITS[action] for action in set(actions)) or ALL_ACTIONS


def action_names(mask: int) -> tuple[str, ...]:
    """Return the names of the classes of a mask."""
    return tuple(str(action) for action, bit in _BITS.items() if mask & bit)


class Setup(NamedTuple):
    """The parameters of BLKTRACESETUP.

    Attributes:
        actions: mask of classes, 0 for all.
        subbuf_bytes: size of a sub-buffer.
        subbufs: number of sub-buffers per CPU.
        start_lba, end_lba: traced sectors of the device; 0 and 0 for all.
        pid: process whose requests are traced, 0 for all.
    """

    actions: int
    subbuf_bytes: int
    subbufs: int
    start_lba: int = 0
    end_lba: int = 0
    pid: int = 0

    def encode(self) -> bytes:
        """Return the struct, with room for the name that the kernel sets."""
        return _SETUP.pack(
            b"",
            self.actions,
            self.subbuf_bytes,
            self.subbufs,
            self.start_lba,
            self.end_lba,
            self.pid,
        )


def setup_name(data: bytes | bytearray) -> str:
    """Return the device's directory below debugfs's `block`, as the kernel set it."""
    name: bytes = _SETUP.unpack(data)[0]
    return name.rstrip(b"\0").decode()


class BlkRecord(NamedTuple):
    """One record.

    Attributes:
        sequence: its number on its CPU; undefined for a note.
        classes: mask of the bits of `Action`.
        what: low half of the action, without the cgroup's flag.
        data: the data behind the header, without a cgroup's id.
        cgroup: that id, 0 without one.
    """

    sequence: int
    time_ns: int
    sector: int
    size_bytes: int
    classes: int
    what: int
    pid: int
    device: int
    cpu: int
    error: int
    data: bytes
    cgroup: int

    @property
    def is_note(self) -> bool:
        """Whether it is a name, a time or a message, and not an event."""
        return bool(self.classes & _BITS[Action.NOTIFY])

    @property
    def name(self) -> str:
        """The name of the event or note."""
        if self.is_note:
            return _NOTES.get(self.what, f"note_{self.what}")
        return _EVENTS.get(self.what, ("", f"action_{self.what}"))[1]

    @property
    def letter(self) -> str:
        """The event's letter, as blkparse prints it."""
        if self.is_note:
            return "m"
        return _EVENTS.get(self.what, ("?", ""))[0]

    @property
    def rwbs(self) -> str:
        """The kind of request, in blkparse's letters."""
        has = set(action_names(self.classes))
        kind = "R" if self.size_bytes else "N"
        if "discard" in has:
            kind = "D"
        elif "write" in has:
            kind = "W"
        letters = (("ahead", "A"), ("sync", "S"), ("meta", "M"))
        return (
            ("F" if "flush" in has else "")
            + kind
            + ("F" if "fua" in has else "")
            + "".join(letter for name, letter in letters if name in has)
        )

    @property
    def sectors(self) -> int:
        """The length of the request in sectors of 512 bytes."""
        return self.size_bytes >> 9

    @property
    def text(self) -> str:
        """The text of a note up to its first NUL: a process's name, or a message."""
        return self.data.partition(b"\0")[0].decode(errors="backslashreplace")


def message(like: memoryview, text: bytes, size_bytes: int) -> bytes:
    """Return the start of a message of this size: the text, with a record's time and place."""
    _, _, time_ns, _, _, _, _, device, cpu, _, _ = RECORD.unpack_from(like)
    extra = size_bytes - RECORD.size
    head = RECORD.pack(MAGIC, 0, time_ns, 0, 0, _MESSAGE, 0, device, cpu, 0, extra)
    return head + text[:extra]


def read_records(data: memoryview) -> Iterator[BlkRecord]:
    """Yield the whole records from the beginning of `data` on.

    Raises:
        CodecError: something is not a record; the offset is included.
    """
    at = 0
    while len(data) - at >= RECORD.size:
        magic, sequence, time_ns, sector, size, action, pid, device, cpu, error, extra = (
            RECORD.unpack_from(data, at)
        )
        if magic != MAGIC:
            raise CodecError("no record of blktrace", offset=at, reason=f"magic {magic:#x}")
        end = at + RECORD.size + extra
        if end > len(data):
            break
        body = bytes(data[at + RECORD.size : end])
        cgroup = 0
        if action & _CGROUP and len(body) >= _CGROUP_BYTES:
            (cgroup,) = struct.unpack_from("@Q", body)
            body = body[_CGROUP_BYTES:]
        yield BlkRecord(
            sequence,
            time_ns,
            sector,
            size,
            action >> _CLASS_SHIFT,
            action & _WHAT & ~_CGROUP,
            pid,
            device,
            cpu,
            error,
            body,
            cgroup,
        )
        at = end
