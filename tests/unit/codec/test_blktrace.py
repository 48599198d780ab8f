# SPDX-License-Identifier: Apache-2.0
"""blktrace's setup, and the kinds of its records."""

from __future__ import annotations

from collectord._native import _core
from collectord.codec.blktrace import (
    ALL_ACTIONS,
    MAGIC,
    RECORD,
    Action,
    Kind,
    Setup,
    action_mask,
    action_names,
    kinds,
    setup_name,
)
from tests.support.relay_records import note, record


def test_setup_is_the_kernels_struct() -> None:
    """It has 72 bytes on 64-bit machines."""
    setup = Setup(0x80, 4096, 2, start_lba=5, end_lba=9, pid=77)
    data = bytearray(setup.encode())
    assert len(data) == 72
    assert data[32:34] == b"\x80\0"
    assert (int.from_bytes(data[36:40], "little"), data[40]) == (4096, 2)
    assert (data[48], data[56], data[64]) == (5, 9, 77)
    data[:5] = b"vdb\0x"
    data[4] = 0
    assert setup_name(data) == "vdb"


def test_actions_have_names() -> None:
    """The kernel's own, in the order of its bits."""
    assert action_mask(()) == ALL_ACTIONS == 0xFFFF
    assert action_mask((Action.ISSUE, Action.COMPLETE)) == 1 << 6 | 1 << 7
    assert action_names(1 << 1 | 1 << 15) == ("write", "fua")
    assert all(action_names(action_mask((one,))) == (one,) for one in Action)


def test_kinds_are_told_by_their_keys() -> None:
    """Notes are behind the others; unknown ones have names too."""
    assert (kinds()[7], kinds()[32]) == (Kind("issue", "D"), Kind("process", "m"))
    assert (kinds()[31], kinds()[63]) == (Kind("action_31", "?"), Kind("note_31", "m"))


def test_the_native_walk_agrees() -> None:
    """It has the same numbers, notes and gaps."""
    data = note("x") + record(3, time_ns=7) + record(6, time_ns=9)
    found = _core.scan_blktrace(data)
    assert (found.events, found.notes, found.numbered, found.missing) == (2, 1, 4, 2)
    assert (found.end, found.first_ns, found.last_ns, found.fault) == (len(data), 7, 9, "ok")
    stale = _core.scan_blktrace(record(3) + record(3))
    assert (stale.end, stale.fault) == (48, "stale_blktrace_record")
    assert RECORD.size == 48
    assert data[:4] == MAGIC.to_bytes(4, "little")
