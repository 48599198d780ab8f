# SPDX-License-Identifier: Apache-2.0
"""The choice among the mounted cgroup hierarchies of the one that perf events use."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectord.errors import MissingFeature, NoSuchTarget
from collectord.kernel.host import cgroups
from collectord.kernel.host.cgroups import cgroup_root, existing, place
from collectord.kernel.linux import LinuxKernel

TMPFS = "23 22 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755"
MEMORY = "24 23 0:22 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
PERF_EVENT = "25 23 0:23 / /sys/fs/cgroup/pe rw shared:9 - cgroup cgroup rw,cpu,perf_event"
UNIFIED = r"26 23 0:24 / /sys/fs/cgroup/uni\040fied rw,relatime shared:4 - cgroup2 cgroup2 rw"


@pytest.mark.parametrize(
    ("mounts", "root"),
    [
        ((TMPFS,), None),
        ((TMPFS, MEMORY), None),
        ((TMPFS, MEMORY, UNIFIED), Path("/sys/fs/cgroup/uni fied")),
        ((TMPFS, UNIFIED, PERF_EVENT), Path("/sys/fs/cgroup/pe")),
    ],
    ids=["none", "another controller", "cgroup2", "cgroup1 with the controller"],
)
def test_the_hierarchy_of_perf_event(mounts: tuple[str, ...], root: Path | None) -> None:
    """The hierarchy that has perf_event: of cgroup1 if it is mounted with it, else cgroup2."""
    assert cgroup_root("\n".join(mounts).encode()) == root


def test_of_too_many_cgroups_the_outer_ones_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However deep somebody nests his own; without the hierarchy there are none."""
    (tmp_path / "deep/deep/deep/deep").mkdir(parents=True)
    for name in "abc":
        (tmp_path / name).mkdir()
    monkeypatch.setattr(cgroups, "CGROUPS_MAX", 5)
    assert {path for _, path in existing(tmp_path)} == {b"/", b"/a", b"/b", b"/c", b"/deep"}
    assert not [*existing(tmp_path / "nothing")]


@pytest.mark.parametrize("path", ["a/b", "/a/b", "//a/b"])
def test_a_path_is_below_the_root(path: str, tmp_path: Path) -> None:
    """With or without a slash a path starts at the hierarchy's root, as with perf."""
    assert place(tmp_path, path) == tmp_path / "a/b"


def test_the_root_itself(tmp_path: Path) -> None:
    """`/` is the root of the hierarchy, not of the file system."""
    assert place(Path("/proc"), "/") == Path("/proc")
    assert place(tmp_path, str(tmp_path)) == tmp_path


def kernel_with(mounts: str, tmp_path: Path) -> LinuxKernel:
    """Return a kernel whose mounts are these."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(mounts)
    return LinuxKernel(proc=tmp_path)


@pytest.mark.parametrize("path", ["nothing", "/", "../tmp"])
def test_what_is_not_in_the_hierarchy(path: str, tmp_path: Path) -> None:
    """A directory that is absent, or of another file system, is no cgroup."""
    root = Path("/proc/nothing" if path == "/" else "/proc")
    kernel = kernel_with(f"26 23 0:24 / {root} rw - cgroup2 cgroup2 rw", tmp_path)
    with pytest.raises(NoSuchTarget, match=f"no cgroup {path}.* below {root}"):
        kernel.open_cgroup(path)


def test_no_hierarchy(tmp_path: Path) -> None:
    """Without a hierarchy there are no cgroups, and the message says how to have one."""
    with pytest.raises(MissingFeature, match="mount -t cgroup2"):
        kernel_with(TMPFS, tmp_path).open_cgroup("a")
