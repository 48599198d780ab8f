# SPDX-License-Identifier: Apache-2.0
"""Which of the mounted cgroup hierarchies perf events know."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectord.kernel.cgroups import cgroup_root

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
    assert cgroup_root("\n".join(mounts)) == root
