# SPDX-License-Identifier: Apache-2.0
"""The resources that count as left behind by a test."""

from __future__ import annotations

import fcntl
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.support import leaks

if TYPE_CHECKING:
    from pathlib import Path

MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
36 22 0:31 / /sys/kernel/tracing rw,nosuid - tracefs nodev rw
41 22 0:40 / /run/user/0 rw,nosuid shared:9 - tmpfs tmpfs rw
42 22 0:41 / /run/credentials/systemd-tmpfiles-clean.service ro - ramfs none rw
43 22 0:42 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw
"""


def test_mounts_of_a_service_manager_are_no_leak() -> None:
    """They come and go by themselves; what a test can forget is seen."""
    assert leaks.mounts(MOUNTINFO) == {"mount on /", "mount on /sys/kernel/tracing"}


def test_a_child_that_lives_is_left_behind() -> None:
    """It is named until it has ended, also while another child lives."""
    with subprocess.Popen(["sleep", "60"]) as other:
        before = leaks.Holdings.now(instances=False)
        with subprocess.Popen(["sleep", "60"]) as child:
            found = leaks.Holdings.now(instances=False).beyond(before)
            child.kill()
        after = leaks.Holdings.now(instances=False)
        other.kill()
    assert any(left.startswith(f"process {child.pid} (") for left in found)
    assert after.processes == before.processes


def test_a_child_that_was_just_started_is_no_leak() -> None:
    """It was there before, and has the name of its program by now."""
    with subprocess.Popen(["sleep", "60"]) as child:
        now = leaks.Holdings.now(instances=False)
        child.kill()
    assert now.beyond(replace(now, processes={**now.processes, child.pid: "pytest"})) == []


def test_an_instance_that_nobody_holds_is_left_behind(tmp_path: Path) -> None:
    """One whose lock a process has is that process's; it is left when the process has ended."""

    def now() -> leaks.Holdings:
        return leaks.Holdings.now(roots=[tmp_path])

    instance = tmp_path / "instances" / "made"
    instance.parent.mkdir()
    before = now()
    instance.mkdir()
    fd = os.open(instance, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    held = now()
    os.close(fd)
    assert f"fd {fd} -> {instance}" in held.beyond(before)
    assert "tracefs instance made" not in held.beyond(before)
    assert now().beyond(before) == ["tracefs instance made"]
    assert now().beyond(held) == []
