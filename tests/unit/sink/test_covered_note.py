# SPDX-License-Identifier: Apache-2.0
"""The note of until when a session's rings were open."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from collectord.errors import SinkError
from collectord.folders.walk import open_folder
from collectord.model import ClockReading, GapCause
from collectord.sink import covered_note
from collectord.sink.covered_note import Covered
from collectord.sink.segment import group_files

if TYPE_CHECKING:
    from pathlib import Path

NOTE: Final = Covered(
    boot_id="b" * 36,
    process="a" * 32,
    until=ClockReading(
        monotonic_ns=(1 << 63) - 1, realtime_ns=(1 << 63) - 1, perf_ns=(1 << 63) - 1, bracket_ns=9
    ),
    stopped=False,
    gaps_ns=dict.fromkeys(GapCause, 1 << 60),
)


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_noted_is_read(tmp_path: Path, durable: bool) -> None:
    """The last note counts, and that of another source does not."""
    assert covered_note.read(tmp_path, "perf") is None
    later = msgspec.structs.replace(NOTE, stopped=True, gaps_ns={})
    for note in (NOTE, later, NOTE):
        covered_note.write(tmp_path, "perf", note, durable=durable)
        assert covered_note.read(tmp_path, "perf") == note
    assert covered_note.read(tmp_path, "tracefs") is None


def test_notes_have_one_length(tmp_path: Path) -> None:
    """A shorter one covers a longer one whole; nobody but the owner's group reads it."""
    sizes = set()
    for note in (NOTE, msgspec.structs.replace(NOTE, gaps_ns={})):
        covered_note.write(tmp_path, "perf", note)
        (path,) = tmp_path.iterdir()
        sizes.add(path.stat().st_size)
    assert len(sizes) == 1
    assert not stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXO


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 512, b"{}", b'{"boot_id": 1}', b"x" * 4096], ids=range(5)
)
def test_a_damaged_note_is_none(tmp_path: Path, data: bytes) -> None:
    """The time is unknown then, and the next note replaces it."""
    covered_note.write(tmp_path, "perf", NOTE)
    (path,) = tmp_path.iterdir()
    path.write_bytes(data)
    assert covered_note.read(tmp_path, "perf") is None
    covered_note.write(tmp_path, "perf", NOTE, durable=True)
    assert covered_note.read(tmp_path, "perf") == NOTE


def test_a_note_is_no_segment(tmp_path: Path) -> None:
    """Verbs and repairs that list a folder do not see it."""
    covered_note.write(tmp_path, "perf", NOTE)
    with open_folder(tmp_path) as folder:
        assert group_files(folder) == []


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    """It is an error that names the place."""
    gone = tmp_path / "gone"
    with pytest.raises(SinkError, match=str(gone)):
        covered_note.read(gone, "perf")
    with pytest.raises(SinkError, match="cannot note until when"):
        covered_note.write(gone, "perf", NOTE)
