# SPDX-License-Identifier: Apache-2.0
"""The compiled programs of the tests: made in a run's own folder, or there already in a guest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import aux_words, compiled_programs, generator, mutant

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("aux_words", "generator", "mutant")


def test_a_program_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler runs for it, as there may be none."""
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("PATH", "")
    for name in ("aux_words", "generator", "_core.so"):
        (tmp_path / name).touch()
    assert aux_words.build(tmp_path).program == tmp_path / "aux_words"
    assert generator.build(tmp_path) == tmp_path / "generator"
    assert mutant.build(tmp_path) == tmp_path / "_core.so"


@pytest.mark.parametrize("name", NAMES)
def test_only_a_guest_has_them(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Elsewhere each run has a new folder; in a guest it is always the same."""
    monkeypatch.setattr(compiled_programs, "IN_GUEST", False)
    first, second = (compiled_programs.folder(name, tmp_path_factory) for _ in range(2))
    assert first != second
    assert not any(first.iterdir())
    monkeypatch.setattr(compiled_programs, "IN_GUEST", True)
    assert compiled_programs.folder(name, tmp_path_factory) == compiled_programs.folder(
        name, tmp_path_factory
    )


def test_a_guest_has_what_is_compiled_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each is compiled into the folder in which the guest looks for it."""
    made: list[Path] = []
    monkeypatch.setattr(compiled_programs, "_COMPILED", tmp_path)
    monkeypatch.setattr(compiled_programs, "_BUILDS", dict.fromkeys(NAMES, made.append))
    compiled_programs.main()
    monkeypatch.setattr(compiled_programs, "IN_GUEST", True)
    assert made == [compiled_programs.folder(name, tmp_path_factory) for name in NAMES]
    assert all(folder.is_dir() for folder in made)
