# SPDX-License-Identifier: Apache-2.0
"""`check` and `doctor`: facts, plan, and nothing touched."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from collectord import cli
from collectord.cli import check, doctor
from collectord.codec.tracepoint import Tracepoint
from collectord.errors import ConfigError, NoDaemon, UsageError
from collectord.facts.kernel_facts import Check, KernelFacts
from collectord.kernel.linux import LinuxKernel
from collectord.plan.facts_document import read_facts
from tests.support.commands import Commands, served
from tests.support.hosts import WITHOUT_BCC, host

SHIPPED: Final = Path(__file__).resolve().parents[3] / "config/collectord.toml"

FACTS: Final = KernelFacts(
    release="6.12.0",
    arch="x86_64",
    page_size=4096,
    cpus_online=(0, 1, 2, 3),
    cpus_possible=(0, 1, 2, 3),
    capabilities=frozenset({"CAP_PERFMON", "CAP_IPC_LOCK"}),
    tracepoints={
        Tracepoint("sched", "sched_process_exec"): 1,
        Tracepoint("sched", "sched_process_fork"): 2,
        Tracepoint("sched", "sched_process_exit"): 3,
    },
    tracefs_path="/sys/kernel/tracing",
    bpf=WITHOUT_BCC,
    checks=(
        Check("perf events", ok=True, detail="can be opened"),
        Check("tracepoints", ok=False, detail="not readable", remedy="CAP_DAC_READ_SEARCH"),
    ),
)


@pytest.fixture
def facts_file(tmp_path: Path) -> Path:
    """Return a file with FACTS as `doctor --json` writes them."""
    path = tmp_path / "facts.json"
    path.write_bytes(FACTS.to_json())
    return path


def test_plan_for_another_host(facts_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped configuration plans for the CPUs of the facts, not for those of this host."""
    assert check.run([str(SHIPPED), "--facts", str(facts_file)], LinuxKernel()) == 0
    out = capsys.readouterr().out
    assert "session profile:" in out
    assert "session exec:" in out
    assert "CPUs 0-3" in out


CONFIG: Final = '[[session]]\nname = "exec"\n[[session.source]]\nkind = "perf"\n'
EXEC: Final = f'{CONFIG}events = ["sched:sched_process_exec"]\n'


def compare(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    *words: str,
    cpus_online: tuple[int, ...] | None = None,
) -> tuple[int, Path]:
    """Compare a configuration with the plan of a daemon that records process starts.

    Args:
        folder: for files.
        monkeypatch: replaces the host.
        text: the configuration.
        words: more of the command line.
        cpus_online: now; None: those of the daemon's start.
    """
    now = host() if cpus_online is None else replace(host(), cpus_online=cpus_online)
    monkeypatch.setattr(check, "daemon_facts", lambda *_, **__: now)
    config, path = folder / "c.toml", folder / "s"
    config.write_text(text)
    with served(Commands(), path):
        return cli.main(
            LinuxKernel, ["check", str(config), "--diff", "--socket", str(path), *words]
        ), path


def test_difference_of_the_same_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan that has gone over the socket is the same plan."""
    assert compare(tmp_path, monkeypatch, EXEC) == (0, tmp_path / "s")
    assert capsys.readouterr().out == "the daemon runs this plan\n"


def test_a_cpu_that_is_offline_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon's sessions have its rings again when it is back; a reload changes none."""
    assert len(host().cpus_online) > 1
    compare(tmp_path, monkeypatch, EXEC, cpus_online=host().cpus_online[:1])
    assert capsys.readouterr().out == "the daemon runs this plan\n"


def test_difference_in_words_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sessions that differ say where; those of one plan are added or removed."""
    text = f'{EXEC}filter = "pid > 1"\n{CONFIG.replace("exec", "more")}events = ["cpu-clock"]\n'
    compare(tmp_path, monkeypatch, text)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "session exec (perf): changed",
        '  events[0].filter: "" -> "pid > 1"',
        "session more (perf): added",
    ]
    compare(tmp_path, monkeypatch, text, "--json")
    shown = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["kind"]) for one in shown["sessions"]] == [
        ("exec", "changed"),
        ("more", "added"),
    ]
    assert shown["sessions"][0]["changes"] == [
        {"path": "events[0].filter", "old": "", "new": "pid > 1"}
    ]


def test_difference_of_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed limit of the state directory is a difference, though no ring changes."""
    compare(tmp_path, monkeypatch, f'[retention]\nage = "1h"\n{EXEC}')
    assert capsys.readouterr().out.splitlines() == [
        "session exec (perf): unchanged",
        "settings: changed",
        "  retention.age: 604800000000000 -> 3600000000000",
    ]


def test_difference_needs_a_daemon_and_this_host(
    tmp_path: Path,
    facts_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a daemon it is said, with a status of its own; facts of another host are refused."""
    monkeypatch.setattr(check, "daemon_facts", lambda *_, **__: host())
    config = tmp_path / "c.toml"
    config.write_text(EXEC)
    words = ["check", str(config), "--diff"]
    missing = ["--socket", str(tmp_path / "s")]
    assert cli.main(LinuxKernel, [*words, *missing]) == NoDaemon.exit_code
    assert "no daemon is listening" in capsys.readouterr().err
    assert cli.main(LinuxKernel, [*words, "--facts", str(facts_file)]) == UsageError.exit_code


def test_plan_as_json(facts_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints the plan as one document, with sessions that the host cannot have."""
    assert check.run([str(SHIPPED), "--json", "--facts", str(facts_file)], LinuxKernel()) == 0
    sessions = json.loads(capsys.readouterr().out)["sessions"]
    assert [session["name"] for session in sessions] == ["profile", "exec", "blackbox"]
    assert [bool(session["rings"]) for session in sessions] == [True, True, False]
    assert sessions[2]["degraded"]


def test_check_touches_nothing(facts_file: Path, tmp_path: Path) -> None:
    """A state directory that does not exist is not made."""
    config = tmp_path / "c.toml"
    state = tmp_path / "state"
    config.write_text(f'[daemon]\nstate_dir = "{state}"\n')
    assert check.run([str(config), "--facts", str(facts_file)], LinuxKernel()) == 0
    assert not state.exists()


def test_unknown_key(tmp_path: Path, facts_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown key is one line with file, key and nearest spelling, and status 6."""
    config = tmp_path / "c.toml"
    config.write_text('[daemon]\nstate_dri = "/x"\n')
    status = cli.main(LinuxKernel, ["check", str(config), "--facts", str(facts_file)])
    err = capsys.readouterr().err
    assert status == ConfigError.exit_code
    assert err.count("\n") == 1
    assert str(config) in err
    assert 'did you mean "state_dir"?' in err


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b"\xff", b"[" * 100_000])
def test_facts_that_are_none(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A facts file that is absent or no such thing is a configuration error."""
    path = tmp_path / "facts.json"
    if content is not None:
        path.write_bytes(content)
    status = cli.main(LinuxKernel, ["check", str(SHIPPED), "--facts", str(path)])
    captured = capsys.readouterr()
    assert status == ConfigError.exit_code
    assert str(path) in captured.err
    assert captured.out == ""


def test_facts_that_never_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe and a device are refused, and not read for ever."""
    pipe = tmp_path / "facts.json"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        status = cli.main(LinuxKernel, ["check", str(SHIPPED), "--facts", str(path)])
        captured = capsys.readouterr()
        assert (status, captured.out) == (ConfigError.exit_code, "")
        assert f"{path}: cannot be read: it is not a regular file" in captured.err


def test_doctor_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each check is a line with its state; below what is missing is its remedy."""
    monkeypatch.setattr(doctor, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: FACTS)
    assert doctor.run([], LinuxKernel()) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["perf", "events", "ok", "can", "be", "opened"] in lines
    row = lines.index(["tracepoints", "missing", "not", "readable"])
    assert lines[row + 1] == ["->", "CAP_DAC_READ_SEARCH"]


def test_doctor_json_feeds_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output of `doctor --json` is the input of `check --facts`, unchanged."""
    facts = replace(FACTS, cpus_online=(0, 5))
    monkeypatch.setattr(doctor, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: facts)
    assert doctor.run(["--json"], LinuxKernel()) == 0
    printed = capsys.readouterr().out
    assert read_facts(printed) == facts
    path = tmp_path / "facts.json"
    path.write_text(printed)
    assert check.run([str(SHIPPED), "--facts", str(path)], LinuxKernel()) == 0
    assert "CPUs 0,5" in capsys.readouterr().out


def test_doctor_on_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    """Probing the running kernel gives facts that can be planned with, privileged or not."""
    assert doctor.run(["--json"], LinuxKernel()) == 0
    facts = read_facts(capsys.readouterr().out)
    assert facts.cpus_online
    assert facts.checks
