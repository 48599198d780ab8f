# SPDX-License-Identifier: Apache-2.0
"""`doctor` as text: what needs attention is first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.cli import doctor
from collectord.facts.kernel_facts import Check, KernelFacts
from collectord.kernel.linux import LinuxKernel

if TYPE_CHECKING:
    import pytest


def test_what_is_missing_comes_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Missing, unknown, then ok; each group in the order of the checks; the numbers on top."""
    checks = (
        Check("a", ok=True, detail="fine"),
        Check("b", ok=False, detail="absent", remedy="install b"),
        Check("c", ok=False, detail="who knows", unknown=True),
        Check("d", ok=True, detail="fine"),
        Check("e", ok=False, detail="absent"),
    )
    facts = KernelFacts(
        release="6.12.0",
        arch="x86_64",
        page_size=4096,
        cpus_online=(0,),
        cpus_possible=(0,),
        checks=checks,
    )
    monkeypatch.setattr(doctor, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: facts)
    assert doctor.run([], LinuxKernel()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "2 missing, 1 unknown, 2 ok"
    assert [line.split()[0] for line in lines[3:]] == ["b", "->", "e", "c", "a", "d"]
    assert lines[4].strip() == "-> install b"
    assert max(map(len, lines)) <= 80
