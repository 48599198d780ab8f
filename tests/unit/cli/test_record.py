# SPDX-License-Identifier: Apache-2.0
"""`record`: perf's options become the configuration that `run` would read."""

from __future__ import annotations

import io
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collectord import cli
from collectord.cli import (
    EXIT_FAILURE,
    EXIT_NO_COMMAND,
    EXIT_NOT_EXECUTABLE,
    record,
    record_config,
    record_options,
)
from collectord.codec.aux_pmu import AuxPmuFacts
from collectord.config.call_graph import CallGraph
from collectord.config.event_spec import parse_one
from collectord.config.schema_session import (
    PerfSourceConfig,
    RelaySourceConfig,
    TargetConfig,
    TracefsSourceConfig,
)
from collectord.daemon.recording import RecordResult
from collectord.errors import UsageError
from collectord.facts.kernel_facts import PmuFacts
from collectord.kernel.linux import LinuxKernel
from collectord.model import ScopeKind
from collectord.plan.build import build
from collectord.plan.plan import CorePlan, Plan
from collectord.text.units import Least, RingSize
from tests.support import balances
from tests.support.configs import perf_event, perf_source, trace_event, tracefs_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collectord.config.schema import Config


def config(*arguments: str) -> Config:
    """Return the configuration of a command line."""
    args, command = record_options.parse(arguments)
    return record_config.config_of(args, with_command=bool(command))


def source(*arguments: str) -> PerfSourceConfig:
    """Return its one source, of perf."""
    found = config(*arguments).session[0].source[0]
    assert isinstance(found, PerfSourceConfig)
    return found


def traced(*arguments: str) -> TracefsSourceConfig:
    """Return its one source, of ftrace."""
    found = config(*arguments).session[0].source[0]
    assert isinstance(found, TracefsSourceConfig)
    return found


def target(*arguments: str) -> TargetConfig:
    """Return its target."""
    return config(*arguments).session[0].target


def test_default_is_perfs() -> None:
    """Without options: cycles, else cpu-clock, of the whole system, into ./perf.data."""
    made = config()
    session = made.session[0]
    assert session.source == (perf_source("cycles|cpu-clock"),)
    assert session.target == TargetConfig(scope=ScopeKind.SYSTEM)
    assert session.single_file == str(Path.cwd() / "perf.data")
    assert (made.metrics.listen, made.control.socket) == (None, "")


def test_filter_belongs_to_the_event_before_it() -> None:
    """--filter applies to the preceding -e only; several of one event must all hold."""
    events = source(
        *("-e", "sched:sched_switch", "--filter", "prev_pid > 0", "--filter", "next_pid > 0"),
        *("-e", "page-faults"),
        *("-e", "sched:sched_wakeup", "--filter", "pid == 1"),
    ).events
    assert events == (
        perf_event("sched:sched_switch", filter="(prev_pid > 0) && (next_pid > 0)"),
        perf_event("page-faults"),
        perf_event("sched:sched_wakeup", filter="pid == 1"),
    )


def test_via_ftrace() -> None:
    """Events, filters, transport and ring size reach the tracefs source; the file is trace.dat."""
    words = ("--via", "ftrace", "-e", "sched:*", "--filter", "common_pid > 1", "-e", "a:b|c:d")
    made = config(*words, "--transport", "mmap", "-m", "8M")
    assert made.session[0].source == (
        tracefs_source(
            trace_event("sched:*", filter="common_pid > 1"),
            trace_event("a:b|c:d"),
            transport="mmap",
            ring=RingSize(8 << 20),
        ),
    )
    assert made.session[0].single_file == str(Path.cwd() / "trace.dat")
    assert config(*words, "-o", "x").session[0].single_file == str(Path.cwd() / "x")
    assert traced(*words).transport == "auto"
    assert traced(*words, "-c", "1").events


@pytest.mark.parametrize(
    ("arguments", "by_ftrace"),
    [
        (("-e", "sched:*"), True),
        (("-e", "a:b,c:d", "--transport", "read"), True),
        (("-e", "a:b", "-p", "1", "-i"), True),
        ((), False),
        (("-e", "a:b", "-e", "cycles"), False),
        (("-e", "a:b", "-F", "99"), False),
        (("-e", "a:b", "-g"), False),
        (("-e", "a:b", "-c", "2"), False),
        (("-e", "a:b", "-t", "1"), False),
        (("-e", "a:b", "-u", "0"), False),
        (("-e", "a:b", "-G", "x"), False),
    ],
)
def test_auto_uses_ftrace_where_no_option_needs_perf(
    arguments: tuple[str, ...], by_ftrace: bool
) -> None:
    """Tracepoints alone, unsampled, of processes or CPUs go through ftrace."""
    found = config("--via", "auto", *arguments).session[0].source[0]
    assert isinstance(found, TracefsSourceConfig) is by_ftrace


def test_programs_of_another_folder() -> None:
    """They are looked up there, wherever the work goes on."""
    assert config("--bpf", "a").bpf.programs == "/etc/collectord/bpf"
    assert config("--bpf", "a", "--program-dir", "p").bpf.programs == str(Path("p").absolute())


def test_filter_without_event() -> None:
    """--filter with no -e before it is an error, as with perf."""
    with pytest.raises(UsageError, match="--filter applies to the preceding -e"):
        config("--filter", "pid == 1", "-e", "sched:sched_switch")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), TargetConfig(scope=ScopeKind.SYSTEM)),
        (("-a",), TargetConfig(scope=ScopeKind.SYSTEM)),
        (("--", "true"), TargetConfig(scope=ScopeKind.COMMAND)),
        (("-a", "--", "true"), TargetConfig(scope=ScopeKind.SYSTEM)),
        (("-C", "0", "--", "true"), TargetConfig(scope=ScopeKind.CPUS, cpus=(0,))),
        (("-a", "-C", "1,0-0"), TargetConfig(scope=ScopeKind.CPUS, cpus=(0, 1))),
        (("-p", "1,2,1"), TargetConfig(scope=ScopeKind.PROCESS, pids=(1, 2))),
        (
            ("-t", "7", "--per-thread"),
            TargetConfig(scope=ScopeKind.THREAD, pids=(7,), per_thread=True),
        ),
        (("-p", "1", "-i"), TargetConfig(scope=ScopeKind.PROCESS, pids=(1,), inherit=False)),
        (("-p", "1", "--", "true"), TargetConfig(scope=ScopeKind.PROCESS, pids=(1,))),
        (("-p", "1", "-C", "0"), TargetConfig(scope=ScopeKind.PROCESS, pids=(1,), cpus=(0,))),
        (("-u", "root"), TargetConfig(scope=ScopeKind.USER, user=pwd.getpwnam("root").pw_uid)),
        (("-u", "1234"), TargetConfig(scope=ScopeKind.USER, user=1234)),
        (("-G", "/a"), TargetConfig(scope=ScopeKind.CGROUP, cgroup="/a")),
        (("-p", "work-*"), TargetConfig(scope=ScopeKind.COMM, comm="work-*")),
        (("-p", "nginx", "--", "true"), TargetConfig(scope=ScopeKind.COMM, comm="nginx")),
        (("--exe", "/a/*"), TargetConfig(scope=ScopeKind.EXECUTABLE, executable="/a/*")),
        (("--unit", "nginx"), TargetConfig(scope=ScopeKind.UNIT, unit="nginx")),
    ],
)
def test_scopes(arguments: tuple[str, ...], expected: TargetConfig) -> None:
    """Each scope option gives its scope; COMMAND alone is observed by itself."""
    assert target(*arguments) == expected


@pytest.mark.parametrize(
    ("text", "size"),
    [("128", RingSize(pages=128)), ("8M", RingSize(8 << 20)), ("512KiB", RingSize(512 << 10))],
)
def test_ring_size_is_pages_unless_it_has_a_unit(text: str, size: RingSize) -> None:
    """-m takes pages like perf, or a size with a unit."""
    assert source("-m", text).ring == size


def test_aux_size_stands_behind_a_comma() -> None:
    """-m DATA,AUX: either may be left out, in pages or with a unit."""
    both = source("-e", "intel_pt//", "-m", "64,16M")
    assert (both.ring, both.aux) == (RingSize(pages=64), RingSize(16 << 20))
    area = source("-e", "intel_pt//", "-m", ",128")
    assert (area.ring, area.aux) == (RingSize(), RingSize(pages=128))
    assert source("-m", "8M").aux == RingSize()


@pytest.mark.parametrize(
    ("size", "staging"), [("8M", 64), (",8M", 64), (",16M", 128), (",33M", 512), (",512M", 4096)]
)
def test_room_for_aux(size: str, staging: int) -> None:
    """Staging holds what the plan wants for areas of that size: no option sets it."""
    made = config("-e", "intel_pt//", "-m", size)
    assert made.daemon.staging == staging << 20
    pmus = {"intel_pt": PmuFacts(type=10, aux=True)}
    build(made, host(pmus=pmus, aux_pmus={"intel_pt": AuxPmuFacts("intel_pt")}))


def test_snapshots_of_aux() -> None:
    """-S makes a flight recorder of the session, of whichever of its events has an AUX area."""
    assert config("-S", "-e", "intel_pt//").session[0].mode == "flight-recorder"
    assert config("-S", "-e", "cs", "-e", "{x//,y//}").session[0].mode == "flight-recorder"
    assert config("-e", "intel_pt//").session[0].mode == "stream"
    frozen = config("-S", "-e", "intel_pt//", "--freeze-on", "cs").session[0]
    assert (frozen.mode, frozen.freeze_on) == ("flight-recorder", parse_one("cs"))


def test_rates_and_call_graphs() -> None:
    """-F, -c, -g, --call-graph and --all-cgroups reach the source."""
    assert (source().cgroups, source("--all-cgroups").cgroups) == (False, True)
    assert source("-F", "99").frequency == 99
    assert source("-c", "1000").period == 1000
    assert source("-g").call_graph == CallGraph("fp")
    assert source("--call-graph", "dwarf,4096").call_graph == CallGraph("dwarf", 4096)


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("10s", 10_000_000_000),
        ("500ms", 500_000_000),
        ("2", 2_000_000_000),
        ("1.5", 1_500_000_000),
    ],
)
def test_duration(text: str, duration_ns: int) -> None:
    """--duration takes a unit; a bare number is seconds."""
    assert record_options.parse(["--duration", text])[0].duration == duration_ns


def test_output_directory() -> None:
    """--output-dir gives rotated segments in that directory, which nothing evicts."""
    made = config("--output-dir", "out")
    assert made.session[0].directory == str(Path.cwd() / "out")
    assert made.session[0].single_file == ""
    assert (made.retention.bytes, made.retention.age) == (Least(), 0)
    assert (made.retention.free.bytes, made.retention.free.percent) == (0, 0)


def test_everything_behind_the_dashes_is_the_command() -> None:
    """COMMAND's own options, and its own --, stay its own."""
    args, command = record_options.parse(["-a", "--", "perf", "-e", "x", "--", "y"])
    assert command == ["perf", "-e", "x", "--", "y"]
    assert args.events == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sleep", "1"], "put -- before COMMAND"),
        (["-a", "--"], "no COMMAND after --"),
        (["-F", "0"], "not a whole number above 0"),
        (["-F", "99Hz"], "not a whole number above 0"),
        (["-p", "0"], "not a whole number above 0"),
        (["-p", "1", "-t", "2"], "not allowed with"),
        (["-g", "--call-graph", "lbr"], "not allowed with"),
        (["--call-graph", "magic"], "unknown call graph 'magic'"),
        (["-C", "3-1"], "runs backwards"),
        (["-m", "8X"], "unit 'X' is unknown"),
        (["-m", "0"], "'0pages' is not a ring size"),
        (["-m", "8M,"], "no AUX size after the comma"),
        (["--via", "ftrace", "-e", "a:b", "-m", "8M,8M"], "-m DATA,AUX cannot be combined with"),
        (["--via", "ftrace", "-e", "a:b", "-S"], "-S cannot be combined with --via ftrace"),
        (["--bpf", "x", "-m", ",8M"], "-m DATA,AUX cannot be combined with --bpf"),
        (["--duration", "0"], "'0' is not above 0"),
        (["--duration", "0.0s"], "'0.0s' is not above 0"),
        (["--duration", "1y"], "unit 'y' is unknown"),
        (["--duration", "soon"], "is not a number and"),
        (["-o", "a", "--output-dir", "b"], "not allowed with"),
        (["-u", "no-such-user-here"], "no user 'no-such-user-here'"),
        (["-a", "--per-thread"], "per-thread: cannot be combined with scope 'system'"),
        (["-e", "cycles:q"], "modifier"),
        (["-e", "{cycles"], "unbalanced brace"),
        (["--via", "bpf"], "invalid choice: 'bpf'"),
        (["--transport", "raed"], "invalid choice: 'raed'"),
        (["--transport", "read", "-e", "a:b"], "add --via ftrace"),
        (["--via", "auto", "--transport", "read"], "add --via ftrace"),
        (["--transport", "ringbuf", "-e", "a:b"], "add --bpf NAME"),
        (["--transport", "read", "--bpf", "a"], "perf or ringbuf"),
        (["--program-dir", "p"], "add --bpf NAME"),
        (["--via", "ftrace"], "add -e SYSTEM:NAME"),
        (["--via", "ftrace", "-e", "cycles"], "'cycles' is not a tracepoint"),
        (["--via", "ftrace", "-e", "a:b:u"], "takes no modifiers"),
        (["--via", "ftrace", "-e", "a:b", "-F", "9"], "-F cannot be combined with --via ftrace"),
        (["--via", "ftrace", "-e", "a:b", "-c", "2"], "-c cannot be combined with --via ftrace"),
        (["--via", "ftrace", "-e", "a:b", "--all-cgroups"], "--all-cgroups cannot be combined"),
        (["--via", "ftrace", "-e", "a:b", "-g"], "-g, --call-graph cannot be combined with"),
        (["--via", "ftrace", "-e", "a:b", "-t", "1"], "-t cannot be combined with --via ftrace"),
        (["--via", "ftrace", "-e", "a:b", "-u", "0"], "-u cannot be combined with --via ftrace"),
        (["--via", "ftrace", "-e", "a:b", "-G", "x"], "-G cannot be combined with --via ftrace"),
        (["--overwritten"], "unrecognized arguments: --overwritten"),
        (["-S"], "-S is for AUX areas, and no -e has one"),
        (["-S", "-e", "cycles|cpu-clock"], "-S is for AUX areas, and no -e has one"),
        (["--overwrite", "-S"], "-S is for AUX areas, and no -e has one"),
        (["--overwrite", "-S", "-e", "cs"], "-S is for AUX areas, and no -e has one"),
        (["-S", "-e", "intel_pt//", "-e", "{cycles"], "unbalanced brace"),
        (["--freeze-on", "cs"], "--freeze-on needs a flight recorder"),
        (
            ["--overwrite", "--freeze-on", "cs", "-p", "1"],
            "an event of one task cannot stop a ring",
        ),
    ],
)
def test_what_does_not_go(arguments: list[str], message: str) -> None:
    """Wrong values and combinations are usage errors that say what is wrong."""
    with pytest.raises(UsageError) as caught:
        config(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("words", [["-S"], ["--overwrite", "-S"]])
def test_a_snapshot_of_a_pmu_that_does_not_trace(words: list[str]) -> None:
    """An event in slashes may have an area; this host's has none, and that is the same mistake."""
    plain = host(pmus={**host().pmus, "x": PmuFacts(type=9), "y": PmuFacts(type=10, aux=True)})
    record_config.check_snapshot(build(config(*words, "-e", "y//"), plain))
    with pytest.raises(UsageError, match="-S is for AUX areas, and no -e has one"):
        record_config.check_snapshot(build(config(*words, "-e", "x//"), plain))


def test_an_aux_size_without_an_area() -> None:
    """It is a usage error, as with --via ftrace, whatever else the host has."""
    with pytest.raises(UsageError, match="no event of the source has an AUX area") as caught:
        build(config("-m", "4M,4M", "-e", "cs"), host())
    assert caught.value.exit_code == 2


def test_absent_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A COMMAND that does not exist is 127 before anything is opened or written."""
    output = tmp_path / "perf.data"
    status = record.run(["-o", str(output), "--", "no-such-command-here"], LinuxKernel())
    assert status == EXIT_NO_COMMAND
    assert "no-such-command-here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_command_that_is_not_executable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A COMMAND that is a plain file or a directory is 126, its odd bytes visible."""
    script = tmp_path / os.fsdecode(b"script\xff")
    script.write_text("#!/bin/sh\n")
    for command in (script, tmp_path):
        assert (
            record.run(["-o", str(tmp_path / "out"), "--", str(command)], LinuxKernel())
            == EXIT_NOT_EXECUTABLE
        )
    assert "/script\\xff' is not an executable file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.parametrize(
    ("command_status", "status"), [(None, 0), (0, 0), (7, 7), (125, 125), (-9, 137), (-15, 143)]
)
def test_status_is_the_commands(command_status: int | None, status: int) -> None:
    """COMMAND's status is given on; 128 + N where signal N ended it, as a shell says it."""
    assert record.status_of(command_status) == status


@pytest.mark.parametrize(
    ("stderr", "stdout", "command", "drawn"),
    [
        (True, True, [], True),
        (True, False, ["make"], True),
        (True, True, ["make"], False),
        (False, True, [], False),
        (False, False, ["make"], False),
    ],
)
def test_live_line_keeps_out_of_commands_terminal(
    stderr: bool,  # parametrized
    stdout: bool,  # parametrized
    command: list[str],
    drawn: bool,  # parametrized
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line is drawn on a terminal only, and not where COMMAND writes its own output.

    Where it is not drawn nobody asks for a status.
    """
    streams = {"stderr": io.StringIO(), "stdout": io.StringIO()}
    for name, is_terminal in (("stderr", stderr), ("stdout", stdout)):
        monkeypatch.setattr(streams[name], "isatty", lambda answer=is_terminal: answer)
        monkeypatch.setattr(sys, name, streams[name])
    monkeypatch.setenv("TERM", "xterm")
    with record.live_line(command) as on_tick:
        assert (on_tick is not None) is drawn
        if on_tick is not None:
            on_tick(balances.status())
    assert bool(streams["stderr"].getvalue()) is drawn
    assert streams["stdout"].getvalue() == ""


@pytest.mark.parametrize("only", [True, False])
def test_json_keeps_commands_output_out_of_stdout(
    only: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """With --json COMMAND's output goes to stderr, so that stdout is one JSON document."""
    with record.stdout_for_result(only=only):
        subprocess.run(["echo", "noise"], check=True)
    subprocess.run(["echo", "result"], check=True)
    captured = capfd.readouterr()
    assert captured.out == ("result\n" if only else "noise\nresult\n")
    assert captured.err == ("noise\n" if only else "")


@pytest.mark.parametrize(("command", "status"), [(["--", "false"], 3), ([], EXIT_FAILURE)])
def test_reader_that_leaves_keeps_the_commands_status(
    command: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If nobody reads the result, COMMAND's status is still returned, and nothing is printed."""

    async def recorded(*_arguments: object, **_named: object) -> RecordResult:
        plan = Plan((), CorePlan(1, 1, 1, 1))
        return RecordResult((balances.session("record"),), 3 if command else None, plan)

    monkeypatch.setattr(record, "_record", recorded)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stdout, monkeypatch.context() as context:
        context.setattr(sys, "stdout", stdout)
        assert cli.main(LinuxKernel, ["record", *command]) == status
    assert capsys.readouterr().err == ""


def test_relay_goes_into_files_of_its_own_name() -> None:
    """Without -o the files are named after the device or channel, like blktrace's."""
    made = config("--relay", "/dev/null").session[0]
    assert [type(one) for one in made.source] == [RelaySourceConfig]
    assert Path(made.single_file) == Path("null").absolute()
    named = config("--relay", "/dev/null", "-o", "x").session[0]
    assert Path(named.single_file) == Path("x").absolute()


@pytest.mark.parametrize(
    ("words", "wrong"),
    [(["-m", "64K"], "-m"), (["--overwrite"], "--overwrite"), (["-e", "cs"], "-e")],
)
def test_what_does_not_go_with_relay(words: list[str], wrong: str) -> None:
    """Options of rings and events are refused by their names."""
    with pytest.raises(UsageError, match=f"^{wrong} cannot be combined with --relay"):
        config("--relay", "/dev/null", *words)


@pytest.mark.parametrize("output", ["-", "/dev/stdout", "/dev/stderr", "/dev/fd/1"])
def test_output_that_is_a_stream(output: str) -> None:
    """It is refused with what to do; a file called `-` has a path."""
    with pytest.raises(UsageError, match="not to a stream; name a file"):
        config("-e", "cpu-clock", "-o", output)
    assert config("-e", "cpu-clock", "-o", "./-").session[0].single_file.endswith("/-")
