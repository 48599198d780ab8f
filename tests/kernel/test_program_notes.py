# SPDX-License-Identifier: Apache-2.0
"""Recognition of collectord's BPF programs: notes that prove it, and notes that do not."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from collectord.kernel.bpf.bpf_calls import program_info
from collectord.kernel.bpf.program_notes import ProgramNotes
from tests.support import bpf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from collectord.kernel.values.bpf_objects import ProgramInfo


pytestmark = pytest.mark.beside


@pytest.fixture
def program(require: Callable[[str], None]) -> Iterator[ProgramInfo]:
    """Provide a program that somebody loaded."""
    require("BPF")
    with bpf.program(1, b"somebodys") as fd:
        yield program_info(fd)


@contextmanager
def loading(notes: ProgramNotes, stack: ExitStack) -> Iterator[int]:
    """A batch that is loaded in the block, and unloaded when the stack unwinds."""
    batch = notes.begin()
    stack.callback(notes.forget, batch)
    try:
        yield batch
    finally:
        notes.end(batch)


def test_a_note_is_known_to_others_while_its_programs_are_there(
    tmp_path: Path, program: ProgramInfo
) -> None:
    """Not yet while they are loaded, and not any more once they are gone."""
    ours, theirs = ProgramNotes(tmp_path / "run"), ProgramNotes(tmp_path / "run")
    assert theirs.passes(program.id) is False
    with ExitStack() as stack:
        with loading(ours, stack) as batch:
            assert theirs.passes(program.id) is None
            ours.add(batch, [program])
            assert theirs.passes(program.id) is True
        assert theirs.passes(program.id) is True
    assert theirs.passes(program.id) is False
    assert list((tmp_path / "run/programs").iterdir()) == []


@pytest.mark.parametrize("field", ["id", "tag", "loaded_ns", "user"])
def test_a_note_of_another_program_proves_nothing(
    tmp_path: Path, program: ProgramInfo, field: str
) -> None:
    """An id may be another's by now: tag, time and user are those of the one that was noted."""
    told = {key: getattr(program, key) for key in ("id", "tag", "loaded_ns", "user")}
    folder = tmp_path / "run/programs"
    folder.mkdir(parents=True)
    note = folder / "1-1"
    other = "0" * 16 if field == "tag" else told[field] + 1
    for value, passes in ((told[field], True), (other, False)):
        note.write_text(json.dumps({"programs": [told | {field: value}]}))
        assert ProgramNotes(tmp_path / "run").passes(program.id) is passes


def test_a_note_that_others_may_write_proves_nothing(tmp_path: Path, program: ProgramInfo) -> None:
    """Nor one behind a link, nor one that is no note."""
    ours, theirs = ProgramNotes(tmp_path / "run"), ProgramNotes(tmp_path / "run")
    folder = tmp_path / "run/programs"
    with ExitStack() as stack:
        with loading(ours, stack) as batch:
            ours.add(batch, [program])
        folder.chmod(0o777)
        assert theirs.passes(program.id) is False
        folder.chmod(0o755)
        (note,) = folder.iterdir()
        note.rename(tmp_path / "elsewhere")
        note.symlink_to(tmp_path / "elsewhere")
        assert theirs.passes(program.id) is False
        note.unlink()
        note.write_bytes(b"[" * 100_000)
        (folder / "2-2").write_bytes(b"\xff")
        assert theirs.passes(program.id) is False


def test_what_a_killed_process_left_is_removed(tmp_path: Path, program: ProgramInfo) -> None:
    """By the next one that notes something; the note of a live one stays."""
    ours, theirs = ProgramNotes(tmp_path / "run"), ProgramNotes(tmp_path / "run")
    folder = tmp_path / "run/programs"
    with ExitStack() as stack:
        with loading(ours, stack) as batch:
            ours.add(batch, [program])
        (own,) = folder.iterdir()
        (folder / "1-1").write_text("{}")
        with loading(theirs, stack):
            assert len(set(folder.iterdir()) - {own}) == 1
            assert own.exists()
            assert not (folder / "1-1").exists()
