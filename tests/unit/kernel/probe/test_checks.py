# SPDX-License-Identifier: Apache-2.0
"""The rows of `doctor` about ftrace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.cli import doctor
from collectord.facts.kernel_facts import BpfFacts, Check, FtraceFacts, RelayFacts
from collectord.kernel.host.lockdown import UNKNOWN, deduce, read_lockdown
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.probe import checks, checks_bpf
from collectord.kernel.probe.checks_relay import relay
from tests.support.hosts import host

if TYPE_CHECKING:
    from pathlib import Path


def rows(lockdown: str = "none", **changes: Any) -> dict[str, Check]:  # noqa: ANN401
    """Return the rows of a host, by name."""
    facts = replace(FtraceFacts(), **changes)
    return {check.name: check for check in checks.ftrace(facts, lockdown)}


def test_a_host_that_has_everything() -> None:
    """All rows are ok and none has a remedy; without measurement there are no costs."""
    found = rows()
    assert all(check.ok and not check.remedy for check in found.values())
    assert list(found) == [
        "lockdown",
        "ftrace instances",
        "ftrace mmap",
        "ftrace splice",
        "sub-buffer sizes",
        "ftrace probes",
    ]
    costs = rows(transport_ns={"mmap": 37.2, "read": 9.6})["ftrace transports"]
    assert costs.detail == "ns of CPU per event: read 10, mmap 37"


@pytest.mark.parametrize(
    ("changes", "name", "remedy"),
    [
        ({"mmap": False}, "ftrace mmap", "Linux 6.10"),
        ({"splice": False}, "ftrace splice", "read works without it"),
        ({"subbuf_sizes": False}, "sub-buffer sizes", "Linux 6.8"),
        ({"kprobes": False}, "ftrace probes", "CONFIG_KPROBE_EVENTS"),
        ({"uprobes": False, "eprobes": False}, "ftrace probes", "CONFIG_UPROBE_EVENTS, CONFIG_E"),
    ],
)
def test_what_is_missing_has_its_remedy(changes: dict[str, Any], name: str, remedy: str) -> None:
    """One row is missing, and names the remedy."""
    found = rows(**changes)
    assert [check.name for check in found.values() if not check.ok] == [name]
    assert remedy in found[name].remedy


def test_without_an_instance_nothing_else_is_claimed() -> None:
    """The reason and the privilege are told, and no feature that was not tried."""
    found = rows(instances=False, problem="cannot write x", need="CAP_DAC_OVERRIDE")
    assert list(found) == ["lockdown", "ftrace instances"]
    assert found["ftrace instances"].detail == "cannot write x"
    assert found["ftrace instances"].remedy == "CAP_DAC_OVERRIDE"
    assert "mount tracefs" in rows(instances=False, problem="p")["ftrace instances"].remedy


@pytest.mark.parametrize("level", ["none", "integrity"])
def test_lockdown_that_lets_ftrace_work(level: str) -> None:
    """Only confidentiality closes tracefs."""
    assert rows(level)["lockdown"].ok
    closed = rows("confidentiality")["lockdown"]
    assert (closed.ok, "no capability opens it" in closed.remedy) == (False, True)


def test_what_securityfs_tells(tmp_path: Path) -> None:
    """The chosen level; without lockdown none; and where it is not mounted nothing is known."""
    folder = tmp_path / "kernel/security"
    folder.mkdir(parents=True)
    assert read_lockdown(tmp_path) == UNKNOWN
    (folder / "lsm").write_text("capability")
    assert read_lockdown(tmp_path) == "none"
    (folder / "lockdown").write_text("none [integrity] confidentiality\n")
    assert read_lockdown(tmp_path) == "integrity"
    (folder / "lockdown").write_text("")
    assert read_lockdown(tmp_path) == UNKNOWN


def test_a_level_that_cannot_be_read_is_unknown() -> None:
    """A level that cannot be read is not guessed."""
    told = rows(UNKNOWN, instances=False, problem="tracefs is empty")["lockdown"]
    assert (told.ok, told.unknown) == (False, True)
    assert told.detail.startswith("unknown: ")
    assert "none" not in told.detail
    assert "mount -t securityfs" in told.remedy
    shown = relay(RelayFacts(debugfs="/d"), UNKNOWN)
    assert next(shown).detail == "channels below /d can be read (lockdown unknown)"


@pytest.mark.parametrize(
    ("read", "tracefs_open", "debugfs_closed", "level", "ok"),
    [
        (UNKNOWN, True, False, "integrity or none", True),
        (UNKNOWN, True, True, "integrity", True),
        (UNKNOWN, False, True, UNKNOWN, False),
        (UNKNOWN, False, False, UNKNOWN, False),
        ("none", True, True, "none", True),
        ("confidentiality", True, False, "confidentiality", False),
    ],
)
def test_a_level_is_known_by_what_it_closes(
    read: str, level: str, *, tracefs_open: bool, debugfs_closed: bool, ok: bool
) -> None:
    """The features that work determine the level, and no row contradicts it."""
    deduced = deduce(read, tracefs_open=tracefs_open, debugfs_closed=debugfs_closed)
    assert deduced == level
    row = rows(deduced)["lockdown"]
    assert (row.ok, row.detail.partition(":")[0]) == (ok, level)
    assert row.unknown == (level == UNKNOWN)
    limits = LinuxKernel().limits()
    (beside,) = (r for r in checks_bpf.bpf(BpfFacts(), limits, deduced) if "lockdown" in r.name)
    assert (beside.ok, beside.unknown) == (row.ok, row.unknown)


def test_the_table_has_a_word_for_what_nothing_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table says neither present nor missing."""
    found = (
        Check("a", ok=True),
        Check("b", ok=False),
        Check("c", ok=False, unknown=True),
    )
    monkeypatch.setattr(doctor, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: host(checks=found))
    assert doctor.run([], LinuxKernel()) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split() for line in lines] == [["a", "ok"], ["b", "missing"], ["c", "unknown"]]


def test_the_table_fits_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line has more than 80 columns, and a remedy can be copied as one line."""
    long = "a detail of many words, " * 9
    command = "mount -t securityfs securityfs /sys/kernel/security"
    found = (
        Check("the check with the longest name", ok=True, detail=long),
        Check("b", ok=False, detail="/a/path" * 30, remedy=f"as root: {command}"),
        Check("c", ok=False, detail="escape \x1b[31m", remedy=long),
    )
    monkeypatch.setattr(doctor, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: host(checks=found))
    assert doctor.run([], LinuxKernel()) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert any(command in line for line in shown.splitlines())
    assert "\x1b" not in shown
    words = [word for word in shown.split() if word not in {"missing", "ok", "b", "c", "->"}]
    assert " ".join(words).count(" ".join(long.split())) == 2
