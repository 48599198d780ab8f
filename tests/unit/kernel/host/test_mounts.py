# SPDX-License-Identifier: Apache-2.0
"""Mounts as the kernel tells of them, whatever their paths are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collectord.kernel.host.mounts import mounts
from collectord.kernel.relay import debugfs


@pytest.mark.parametrize(
    ("escaped", "path"),
    [
        (b"/mnt/a\\040b\\134c", b"/mnt/a b\\c"),
        ("/mnt/m\u00fcll".encode(), "/mnt/m\u00fcll".encode()),
        ("/mnt/a\u2028b\x0bc\rd".encode(), "/mnt/a\u2028b\x0bc\rd".encode()),
        (b"/mnt/\xff", b"/mnt/\xff"),
    ],
    ids=["escaped", "not ASCII", "what ends a line elsewhere", "not UTF-8"],
)
def test_a_place_is_the_path_that_it_was_mounted_at(
    escaped: bytes, path: bytes, tmp_path: Path
) -> None:
    """Its bytes are kept, but for the kernel's own escapes; debugfs is found there too."""
    lines = b"31 23 0:7 / " + escaped + b" rw shared:13 - debugfs debugfs rw,mode=700\n"
    (one,) = mounts(lines)
    assert (one.root, one.kind, one.options) == (Path("/"), b"debugfs", (b"rw", b"mode=700"))
    assert os.fsencode(one.place) == path
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_bytes(lines)
    assert debugfs.find(tmp_path) == one.place


def test_a_folder_of_debugfs_is_not_debugfs(tmp_path: Path) -> None:
    """A bind mount of a part of it does not count; the usual place is preferred."""
    part = "30 23 0:7 /tracing /part rw - debugfs none rw\n"
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(part)
    assert debugfs.find(tmp_path) is None
    whole = [f"31 23 0:7 / {place} rw - debugfs  rw\n" for place in ("/d", "/sys/kernel/debug")]
    (tmp_path / "self/mountinfo").write_text(part + "".join(whole))
    assert debugfs.find(tmp_path) == Path("/sys/kernel/debug")
