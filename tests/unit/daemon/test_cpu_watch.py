# SPDX-License-Identifier: Apache-2.0
"""CPUs that come and go, below an injected root of sysfs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.daemon.cpu_watch import CpuChange, CpuWatch
from collectord.errors import KernelError
from collectord.kernel.linux import LinuxKernel

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cpu_folder(tmp_path: Path) -> Path:
    """Sysfs's folder of CPUs, three of four online."""
    folder = tmp_path / "devices/system/cpu"
    folder.mkdir(parents=True)
    (folder / "online").write_text("0-1,3\n")
    return folder


def test_watch_sees_what_left(cpu_folder: Path) -> None:
    """Each look gives the CPUs that are online, and those that went since the last one."""
    with CpuWatch(LinuxKernel(sys=cpu_folder.parents[2])) as watch:
        assert watch.poll() == CpuChange(frozenset({0, 1, 3}), frozenset())
        (cpu_folder / "online").write_text("0-3\n")
        assert watch.poll() == CpuChange(frozenset(range(4)), frozenset())
        (cpu_folder / "online").write_text("0\n")
        assert watch.poll() == CpuChange(frozenset({0}), frozenset({1, 2, 3}))
        assert watch.poll() == CpuChange(frozenset({0}), frozenset())


def test_without_sysfs_no_watch_begins(cpu_folder: Path) -> None:
    """The error says what to do."""
    (cpu_folder / "online").unlink()
    with pytest.raises(KernelError, match="mount sysfs"):
        CpuWatch(LinuxKernel(sys=cpu_folder.parents[2]))
