# SPDX-License-Identifier: Apache-2.0
"""blktrace's setup and its records (include/uapi/linux/blktrace_api.h), in native byte order."""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

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
# The bit of an action that tells notes, which have no number.
IS_NOTE: Final = _BITS[Action.NOTIFY] << _CLASS_SHIFT
_MESSAGE: Final = IS_NOTE | 2


# The keys of records in the core (`_native/columns/blktrace.h`).
_NOTE_KEY: Final = 32
KEYS: Final = 64
# The letter of notes.
NOTE: Final = "m"


class Kind(NamedTuple):
    """A kind of records.

    Attributes:
        name: of the event or note.
        letter: as blkparse prints it; NOTE for names, times and messages.
    """

    name: str
    letter: str


def kinds() -> tuple[Kind, ...]:
    """Return the kinds of records by key."""
    events = (_EVENTS.get(what, ("?", f"action_{what}")) for what in range(_NOTE_KEY))
    notes = (_NOTES.get(what, f"note_{what}") for what in range(KEYS - _NOTE_KEY))
    return (
        *(Kind(name, letter) for letter, name in events),
        *(Kind(name, NOTE) for name in notes),
    )


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


def message(like: memoryview, text: bytes, size_bytes: int) -> bytes:
    """Return the start of a message of this size: the text, with a record's time and place."""
    _, _, time_ns, _, _, _, _, device, cpu, _, _ = RECORD.unpack_from(like)
    extra = size_bytes - RECORD.size
    head = RECORD.pack(MAGIC, 0, time_ns, 0, 0, _MESSAGE, 0, device, cpu, 0, extra)
    return head + text[:extra]
