# SPDX-License-Identifier: Apache-2.0
"""Notes in the run directory: what is planted there is neither written through nor waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collectord.errors import KernelError, UnsafePath
from collectord.folders.folder import opened
from collectord.kernel.relay.block_trace_note import LockedNote, TraceNote, numbers
from collectord.kernel.tracefs.instance_note import read_note, remove_note, write_note
from collectord.kernel.values.left_instance import InstanceNote
from collectord.kernel.values.ring_stats import CpuStats

DEVICE = os.makedev(8, 1)


def test_instance_note(tmp_path: Path) -> None:
    """It says where segments go and what was taken, until it is removed; rubbish is none."""
    notes = tmp_path / "run" / "instances"
    assert read_note("x", notes) is None
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))  # any bytes
    write_note("x", InstanceNote(path), notes)
    assert read_note("x", notes) == InstanceNote(path)
    taken = {3: CpuStats(0, 1, 2, 0, None, 5, 6, 7), 12: CpuStats(0, 0, 0, 0, None, 5, 0, 1 << 40)}
    whole = InstanceNote(path, 1_700_000_000_000_000_000, taken, "digest")
    write_note("x", whole, notes)
    assert read_note("x", notes) == whole
    assert [path.name for path in notes.iterdir()] == ["x"]
    remove_note("x", notes)
    remove_note("x", notes)
    assert read_note("x", notes) is None
    for rubbish in (bytes(5000), b"/var/lib/collectord/calls", b'{"directory": "!"}', b"{}"):
        (notes / "x").write_bytes(rubbish)
        assert read_note("x", notes) is None


@pytest.mark.parametrize("name", ["x", ".x.new"])
def test_instance_note_in_the_place_of_others(tmp_path: Path, name: str) -> None:
    """A link or a FIFO where a note goes is no note, and no file is made through it."""
    victim = tmp_path / "victim"
    notes = tmp_path / "instances"
    notes.mkdir()
    (notes / name).symlink_to(victim)
    if name == "x":
        # The link's name goes, what it led to is not made.
        write_note("x", InstanceNote(tmp_path), notes)
        assert read_note("x", notes) == InstanceNote(tmp_path)
    else:
        with pytest.raises(UnsafePath, match="is not a regular file"):
            write_note("x", InstanceNote(tmp_path), notes)
    assert not victim.exists()
    os.mkfifo(notes / "fifo")
    assert read_note("fifo", notes) is None


def test_trace_note(tmp_path: Path) -> None:
    """It is locked by one process at a time, and tells the next what the last one wrote."""
    notes = tmp_path / "traces"
    assert [*numbers(notes)] == []
    note = LockedNote(DEVICE, notes=notes)
    assert note.left is None
    note.write(TraceNote(device="/dev/sda1", session="io"))
    with pytest.raises(KernelError, match=r"/dev/sda1 is already being traced.*session io"):
        LockedNote(DEVICE, notes=notes)
    note.release()
    assert [*numbers(notes)] == [DEVICE]
    note = LockedNote(DEVICE, notes=notes)
    assert note.left is not None
    assert (note.left.device, note.left.session) == ("/dev/sda1", "io")
    note.remove()
    assert [*numbers(notes)] == []


def test_the_memory_beside_a_trace_note(tmp_path: Path) -> None:
    """The next process finds what the last one wrote, and a new one is of zeros."""
    notes = tmp_path / "traces"
    note = LockedNote(DEVICE, notes=notes)
    note.write(TraceNote(device="/dev/sda1", session="io", digest="d"))
    with opened(note.make_memory(4096)) as memory:
        os.pwrite(memory, b"read up to here", 0)
    note.release()
    assert [*numbers(notes)] == [DEVICE]
    note = LockedNote(DEVICE, notes=notes)
    with opened(note.memory()) as memory:
        assert os.pread(memory, 15, 0) == b"read up to here"
    with opened(note.make_memory(8192)) as memory:
        assert os.pread(memory, 1 << 16, 0) == bytes(8192)
    note.remove()
    assert [*notes.iterdir()] == []


@pytest.mark.parametrize("kind", ["link", "fifo", "hard_link"])
def test_trace_note_in_the_place_of_others(tmp_path: Path, kind: str) -> None:
    """The device cannot be traced then, and the reason is said; the file elsewhere stays."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"not yours")
    notes = tmp_path / "traces"
    notes.mkdir()
    path = notes / "8:1"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(victim) if kind == "link" else path.hardlink_to(victim)
    with pytest.raises(KernelError, match=r"cannot write a note in .*8:1"):
        LockedNote(DEVICE, notes=notes)
    assert victim.read_bytes() == b"not yours"
