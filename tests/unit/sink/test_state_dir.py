# SPDX-License-Identifier: Apache-2.0
"""The state directory as a whole, and what a single file must not replace."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from collectord.errors import SinkError
from collectord.folders.walk import open_folder
from collectord.sink.output_dir import single_paths
from collectord.sink.state_dir import count_unclean_stops

if TYPE_CHECKING:
    from pathlib import Path


def test_unclean_stops_are_counted_over_processes(tmp_path: Path) -> None:
    """Each process finds what those before it counted, and a clean start adds nothing."""
    assert count_unclean_stops(tmp_path, add=False) == 0
    assert not list(tmp_path.iterdir())
    assert count_unclean_stops(tmp_path, add=True) == 1
    assert count_unclean_stops(tmp_path, add=True) == 2
    assert count_unclean_stops(tmp_path, add=False) == 2


def test_damaged_count_begins_anew(tmp_path: Path) -> None:
    """A count that is not a number costs nothing but itself."""
    (tmp_path / ".unclean_stops").write_text("many\n")
    assert count_unclean_stops(tmp_path, add=True) == 1


def test_manifest_replaces_no_file_of_others(tmp_path: Path) -> None:
    """`-o result` beside somebody's result.json is refused."""
    (tmp_path / "result.json").write_text('{"mine": true}\n')
    with pytest.raises(SinkError, match=r"result\.json") as refused, open_folder(tmp_path) as at:
        single_paths(at, "result")
    assert refused.value.errno == errno.EEXIST


@pytest.mark.parametrize("suffix", [".json.new", ".json.partial"])
def test_running_manifest_replaces_no_file_of_others(tmp_path: Path, suffix: str) -> None:
    """A recording keeps its manifest there while it is written: whose file that is, is asked."""
    other = tmp_path / f"result{suffix}"
    other.write_bytes(b"PERFILE2")
    with open_folder(tmp_path) as at:
        with pytest.raises(SinkError, match="not a manifest of collectord") as refused:
            single_paths(at, "result")
        other.write_bytes(bytes(4096))  # room that was claimed and not used
        assert single_paths(at, "result").name == "result"
    assert refused.value.errno == errno.EEXIST


def test_a_folder_is_no_name_of_a_file(tmp_path: Path) -> None:
    """`-o /` has no name at all."""
    with open_folder(tmp_path) as at, pytest.raises(SinkError, match="is a directory") as refused:
        single_paths(at, "")
    assert refused.value.errno == errno.EISDIR


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_only_regular_files_are_replaced(tmp_path: Path, kind: str) -> None:
    """The seal renames onto the name, so anything but a regular file is refused."""
    path = tmp_path / "perf.data"
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    with pytest.raises(SinkError, match="not a regular file"), open_folder(tmp_path) as folder:
        single_paths(folder, path.name)
