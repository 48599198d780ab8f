# SPDX-License-Identifier: Apache-2.0
"""The probe of relay without debugfs, depending on what is known of lockdown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from collectord.kernel.linux import LinuxKernel
from collectord.kernel.probe.checks import relay
from collectord.kernel.probe.relay_probe import probe_relay
from collectord.kernel.relay import debugfs

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.facts.kernel_facts import RelayFacts


def probed(root: Path, lockdown: str) -> RelayFacts:
    """Return a host without debugfs, whose securityfs has this; "" for one without securityfs."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("1 0 0:1 / / rw - ext4 /dev/vda rw\n")
    security = root / "sys/kernel/security"
    security.mkdir(parents=True)
    if lockdown:
        (security / "lockdown").write_text(lockdown)
    return probe_relay(LinuxKernel(proc=root / "proc", sys=root / "sys"), ())


def test_a_mount_helps(tmp_path: Path) -> None:
    """Without lockdown the mount is all that it takes."""
    facts = probed(tmp_path, "[none] integrity confidentiality")
    assert (facts.problem, facts.remedy) == ("debugfs is not mounted", debugfs.MOUNT_REMEDY)


@pytest.mark.parametrize("level", ["none [integrity] confidentiality", "none [confidentiality]"])
def test_a_mount_would_not_help(tmp_path: Path, level: str) -> None:
    """Lockdown closes what would be mounted, and no mount is advised."""
    facts = probed(tmp_path, level)
    assert facts.problem == "kernel lockdown closes relay files"
    assert facts.need == "a kernel without lockdown"
    assert "mount" not in facts.remedy


def test_nobody_knows_whether_a_mount_helps(tmp_path: Path) -> None:
    """It is advised, and not promised to be enough."""
    facts = probed(tmp_path, "")
    assert facts.problem == "debugfs is not mounted"
    assert facts.remedy == f"{debugfs.MOUNT_REMEDY}; {debugfs.STILL_CLOSED}"


def test_a_closed_debugfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission for root to read it promises nothing either."""
    monkeypatch.setattr(debugfs, "find", lambda _proc: tmp_path / "absent")
    facts = probed(tmp_path, "")
    assert facts.remedy == f"needs {debugfs.NEED}; {debugfs.STILL_CLOSED}"


def test_devices_that_are_hidden(tmp_path: Path) -> None:
    """A device in sysfs but not in /dev is distinguished from a missing one."""
    (tmp_path / "sys/class/block/a-disk-without-a-node").mkdir(parents=True)
    facts = probed(tmp_path, "[none] integrity confidentiality")
    assert facts.hidden == facts.devices == ("/dev/a-disk-without-a-node",)
    row = {
        check.name: check
        for check in relay(replace(facts, problem="", remedy="", blktrace=True), "none")
    }
    assert not row["blktrace"].ok
    assert row["blktrace"].detail == "1 block devices are hidden from this process"
    assert "PrivateDevices=no" in row["blktrace"].remedy
