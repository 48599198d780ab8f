# SPDX-License-Identifier: Apache-2.0
"""The probe of ftrace on the running kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.cli import check
from collectord.facts.kernel_facts import FtraceFacts
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.probe.ftrace_probe import probe_ftrace
from collectord.kernel.tracefs.control_files import NEED
from collectord.kernel.values.facts_wanted import FactsWanted
from collectord.model import Transport
from collectord.plan.facts_document import read_facts

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parents[2]
NOBODY: Final = 65_534


def own_instances(tracefs: Path) -> list[str]:
    """Instances that a probe in this process has made and left."""
    return [path.name for path in (tracefs / "instances").glob(f"collectord-probe*{os.getpid()}")]


def test_facts_of_this_kernel(tracefs: Path, require: Callable[[str], None]) -> None:
    """The facts agree with what tracefs shows, and the instance is gone."""
    require("mapped ftrace rings")
    require("sub-buffer sizes")
    facts = probe_ftrace(LinuxKernel(), measure=False)
    assert facts == FtraceFacts(
        kprobes=(tracefs / "kprobe_events").exists(),
        uprobes=(tracefs / "uprobe_events").exists(),
        eprobes="<attached-group>" in (tracefs / "README").read_text(),
    )
    assert own_instances(tracefs) == []


def test_costs_are_measured(tracefs: Path, require: Callable[[str], None]) -> None:
    """Each transport has a cost, and the calling thread its CPUs again."""
    require("mapped ftrace rings")
    before = os.sched_getaffinity(0)
    costs = probe_ftrace(LinuxKernel(), measure=True).transport_ns
    assert costs.keys() == set(Transport)
    # None of them takes an event out of a ring for nothing, or in microseconds.
    assert all(0.1 < ns < 10_000 for ns in costs.values()), costs
    assert os.sched_getaffinity(0) == before
    assert own_instances(tracefs) == []


def test_top_level_is_left_alone(tracefs: Path) -> None:
    """Neither the top level's rings nor its settings change."""
    names = ("buffer_size_kb", "buffer_subbuf_size_kb", "trace_clock", "tracing_on", "set_event")
    before = [(tracefs / name).read_text() for name in names]
    probe_ftrace(LinuxKernel(), measure=True)
    assert [(tracefs / name).read_text() for name in names] == before


@pytest.mark.usefixtures("tracefs")
def test_facts_and_rows_are_there_when_asked_for() -> None:
    """Otherwise nothing is tried and nothing is known to be missing."""
    asked = LinuxKernel().facts(FactsWanted((), ftrace=True))
    assert {"ftrace instances", "ftrace mmap", "lockdown"} <= {c.name for c in asked.checks}
    assert all(c.ok for c in asked.checks if c.name in {"lockdown", "ftrace instances"})
    plain = LinuxKernel().facts(FactsWanted(()))
    assert plain.ftrace == FtraceFacts()
    assert not any("ftrace" in c.name for c in plain.checks)


def test_without_tracefs(tmp_path: Path) -> None:
    """Its absence is the problem, and no privilege would solve it."""
    facts = probe_ftrace(LinuxKernel(sys=tmp_path), measure=True)
    assert (facts.instances, facts.need) == (False, "")
    assert "no tracefs" in facts.problem


def test_under_lockdown(tmp_path: Path) -> None:
    """Confidentiality closes tracefs whatever its files say."""
    (tmp_path / "kernel/tracing/events").mkdir(parents=True)
    (tmp_path / "kernel/security").mkdir()
    (tmp_path / "kernel/security/lockdown").write_text("none integrity [confidentiality]\n")
    facts = probe_ftrace(LinuxKernel(sys=tmp_path), measure=True)
    assert (facts.instances, facts.need) == (False, "a kernel without lockdown")
    assert "lockdown" in facts.problem


def test_without_privilege(tracefs: Path) -> None:
    """The capability that would let an instance be made is named, and with it one is made."""
    script = (
        "import sys\n"
        "from collectord.kernel.linux import LinuxKernel\n"
        "from collectord.kernel.values.facts_wanted import FactsWanted\n"
        "facts = LinuxKernel().facts(FactsWanted((), ftrace=True))\n"
        "sys.stdout.buffer.write(facts.to_json())\n"
    )
    found = []
    for capabilities in ("-all,+dac_read_search", "-all,+dac_override"):
        done = subprocess.run(
            [
                *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
                *(f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"),
                *(sys.executable, "-c", script),
            ],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        found.append(read_facts(done.stdout))
    without, with_it = found
    assert not without.ftrace.instances
    assert without.ftrace.need == NEED
    (row,) = [c for c in without.checks if c.name == "ftrace instances"]
    assert (row.ok, row.remedy) == (False, NEED)
    assert with_it.ftrace.instances
    assert not list((tracefs / "instances").glob("collectord-probe*"))


def test_check_says_what_the_measurement_chose(
    tracefs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` on this host prints the transport, with figures that were measured here."""
    config = tmp_path / "c.toml"
    config.write_text(
        '[[session]]\nname = "a"\n[[session.source]]\nkind = "tracefs"\n'
        'events = ["sched:sched_switch"]\n'
    )
    assert check.run([str(config)], LinuxKernel()) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("  drain ")]
    assert "(measured)" in line
    assert own_instances(tracefs) == []
