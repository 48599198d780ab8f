# SPDX-License-Identifier: Apache-2.0
"""Other tools on the host while a recording runs: each works as without it, and so does ours.

The kernel gives what it tells of mappings, tasks and programs to all listeners, and they must not
notice each other. Each tool is started twice, before and after ours, and both see the same load.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.kernel.host import code_files
from collectord.kernel.linux import LinuxKernel
from collectord.source import bcc_python
from tests.support.generator import MARK
from tests.support.neighbours import Neighbour
from tests.support.recording import check_balance, outputs_of, recording, segments_of
from tests.support.trace_cmds import alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start
    from tests.support.trace_cmds import TraceCmd

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.alone]

CALLS: Final = 1000
GETPPID: Final = 110 if os.uname().machine == "x86_64" else 173
EVENT: Final = "syscalls:sys_enter_getppid"
TRACEFS: Final = Path("/sys/kernel/tracing")
BCC_PEER: Final = Path(__file__).parents[1] / "bench/bcc_peer.py"
PERF_PEER: Final = Path(__file__).parents[1] / "support/bpf_peer.py"
# The events that the shipped syscall_stream submits, of the calls of one number.
STREAM: Final = f"""
struct event {{ u64 arg0, arg1; u32 pid, tid; s32 nr; }} __attribute__((packed, aligned(4)));
BPF_PERF_OUTPUT(events);
RAW_TRACEPOINT_PROBE(sys_enter)
{{
    u64 id = bpf_get_current_pid_tgid();
    struct event event = {{ .pid = id >> 32, .tid = id, .nr = ctx->args[1] }};
    if (event.nr == {MARK})
        events.perf_submit(ctx, &event, sizeof(event));
    return 0;
}}
"""
# A raw tracepoint: whatever the program returns hides nothing from perf.
PROGRAM: Final = f"""
struct event {{ u64 nr; }};
BPF_PERF_OUTPUT(events);
RAW_TRACEPOINT_PROBE(sys_enter)
{{
    struct event event = {{ .nr = ctx->args[1] }};
    char name[16] = {{}};
    bpf_get_current_comm(name, sizeof(name));
    if (event.nr == {GETPPID} && name[0] == 'g' && name[8] == 'r')
        events.perf_submit(ctx, &event, sizeof(event));
    return 0;
}}
"""


def perf_record(perf: Perf, directory: Path, name: str, *words: str) -> Neighbour:
    """Have perf count one system call of everybody."""
    out = directory / f"{name}.data"
    line: list[str | Path] = [perf.path, "record", "-a", "-e", EVENT, *words, "-o", out, "--"]
    return Neighbour(name, tuple(line), out)


def seen_by_perf(perf: Perf, file: Path, pid: int) -> Counter[str]:
    """Samples of a process, by event and by the file and symbol of their code."""
    lines = perf.script(file, "--pid", str(pid), "-F", "comm,pid,event,ip,sym,dso")
    return Counter(" ".join(line.split()) for line in lines)


def build_id_of(library: str) -> str:
    """Return the build-id of a library that this process has mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    with Path(next(line.split()[-1] for line in maps if line.endswith(library))).open(
        "rb"
    ) as file:
        return code_files.file_build_id(file.fileno()).hex()


def perf_trace(perf: Perf, directory: Path, name: str) -> Neighbour:
    """Have perf print one system call of everybody."""
    out = directory / f"{name}.trace"
    return Neighbour(name, (perf.path, "trace", "-a", "-e", "getppid", "-o", out, "--"), out)


def with_bcc(directory: Path, name: str, text: str, peer: Path) -> tuple[str | Path, ...]:
    """Return the first words of a command line that runs `peer` with a BCC program."""
    program = directory / f"{name}.c"
    program.write_text(text)
    interpreter, _ = bcc_python.find_python()
    headers = LinuxKernel().bpf_headers("", str(directory))
    return ("env", f"BCC_KERNEL_SOURCE={headers}", interpreter, peer, program)


def bcc_program(directory: Path, name: str) -> Neighbour:
    """Have a BCC program submit one system call of the generator, and its user count them."""
    line = (*with_bcc(directory, name, PROGRAM, BCC_PEER), "256", "--")
    return Neighbour(name, line, directory / f"{name}.bcc")


@contextmanager
def trace_cmd(directory: Path, name: str) -> Iterator[Neighbour]:
    """Have trace-cmd record one system call of everybody, into an instance of its own."""
    instance = TRACEFS / "instances" / f"neighbour-{os.getpid()}-{name}"
    folder = directory / name / "work"
    folder.mkdir(parents=True)
    instance.mkdir()
    line = (*alone(folder, instance), "trace-cmd", "record", "-o", "trace.dat", "-B")
    words = (*line, instance.name, "-e", EVENT)
    try:
        yield Neighbour(name, words, folder / "trace.dat")
    finally:
        if instance.exists():  # trace-cmd may have removed it
            instance.rmdir()


@contextmanager
def both(
    start_cli: Start, directory: Path, generator: Generator, before: Neighbour, after: Neighbour
) -> Iterator[int]:
    """Have one tool begin before ours and one after it, and all see the calls of a process."""
    with ExitStack() as stack:
        stack.enter_context(before.running(directory))
        ours = stack.enter_context(recording(start_cli, directory, "-a", "-e", EVENT))
        stack.enter_context(after.running(directory))
        running = stack.enter_context(generator.start("count", count=CALLS, nr=GETPPID))
        running.run()
    check_balance(ours.session, ())
    yield running.pid


def test_perf_trace_beside_a_recording(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perf: Perf
) -> None:
    """Both print every call of the process, by the name that perf knows for it at that moment.

    perf reads one CPU's ring after the other's: of a call that changed the CPU it prints the entry
    and the end apart. Once in some hundred runs it has no end of a call, alone on a host too: it
    prints the entry then.
    """
    tools = [perf_trace(perf, tmp_path, name) for name in ("before", "after")]
    with both(start_cli, tmp_path, generator, *tools) as pid:
        for tool in tools:
            text = tool.out.read_text()
            assert "LOST" not in text, tool.name
            calls = [
                line for line in text.splitlines() if f"/{pid} " in line and "getppid()" in line
            ]
            entries = sum("[continued]" not in line for line in calls)
            ends = sum(" = " in line for line in calls)
            assert max(entries, ends) == CALLS, (tool.name, entries, ends)


@pytest.mark.usefixtures("bcc")
def test_bcc_beside_a_recording(start_cli: Start, tmp_path: Path, *, generator: Generator) -> None:
    """Both callbacks get every call, and none is lost."""
    tools = [bcc_program(tmp_path, name) for name in ("before", "after")]
    with both(start_cli, tmp_path, generator, *tools):
        for tool in tools:
            assert json.loads(tool.printed.read_text()) == {"seen": CALLS, "lost": 0}, tool.name


@pytest.mark.usefixtures("bcc")
def test_perf_shows_the_same_of_its_own_file_of_a_program(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """For two BPF programs' events, perf shows the same from perf's file as from ours."""
    theirs = tmp_path / "theirs.data"
    perf = ("record", "-a", "-e", "bpf-output/no-inherit=1,name=syscall_stream/", "-o", theirs)
    line = (*with_bcc(tmp_path, "theirs", STREAM, PERF_PEER), perfs[0].path, *perf, "--")
    arguments = ("--bpf-arg", f"nr={MARK}", "--bpf-arg", "arguments=false")
    with ExitStack() as stack:
        stack.enter_context(Neighbour("theirs", line, theirs).running(tmp_path))
        ours = stack.enter_context(
            recording(start_cli, tmp_path, "--bpf", "syscall_stream", *arguments)
        )
        running = stack.enter_context(generator.start("count", count=CALLS, nr=MARK))
        running.run()
    check_balance(ours.session, perfs)
    (segment,) = segments_of(ours.session)
    for reader in perfs:
        shown, expected = (outputs_of(reader, file) for file in (segment, theirs))
        assert shown == expected
        assert sum("BPF output: " in line for line in shown) == CALLS


def test_trace_cmd_beside_a_recording(
    start_cli: Start, tmp_path: Path, *, generator: Generator, trace_cmds: tuple[TraceCmd, ...]
) -> None:
    """Both files hold every call, in every trace-cmd's report."""
    with ExitStack() as stack:
        tools = [stack.enter_context(trace_cmd(tmp_path, name)) for name in ("before", "after")]
        with both(start_cli, tmp_path, generator, *tools) as pid:
            for tool in tools:
                lines = trace_cmds[0].report(tool.out)
                assert sum(f"-{pid} " in line for line in lines) == CALLS, tool.name


def test_a_second_recording_beside_a_recording(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perf: Perf
) -> None:
    """Both hold every call, at the same times, under the same names."""
    places = [tmp_path / name for name in ("first", "second")]
    with ExitStack() as stack:
        recordings = []
        for place in places:
            place.mkdir()
            recordings.append(stack.enter_context(recording(start_cli, place, "-a", "-e", EVENT)))
        running = stack.enter_context(generator.start("count", count=CALLS, nr=GETPPID))
        running.run()
    first, second = (segments_of(one.session)[0] for one in recordings)
    fields = ("--pid", str(running.pid), "-F", "comm,pid,tid,event,ip,sym,dso")
    for one in recordings:
        check_balance(one.session, ())
    lines = perf.script(first, *fields)
    assert len(lines) == CALLS
    assert perf.script(second, *fields) == lines


@pytest.mark.parametrize("words", [(), ("--buildid-mmap",)], ids=["plain", "buildid-mmap"])
def test_perf_record_beside_a_recording(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: tuple[Perf, ...],
    words: tuple[str, ...],
) -> None:
    """Every perf ends well, its files hold every call, and have the build-ids of what ran."""
    beside = {
        when: [perf_record(perf, tmp_path, f"{when}-{perf.version}", *words) for perf in perfs]
        for when in ("before", "after")
    }
    with ExitStack() as stack:
        for neighbour in beside["before"]:
            stack.enter_context(neighbour.running(tmp_path))
        ours = stack.enter_context(recording(start_cli, tmp_path, "-a", "-e", EVENT))
        for neighbour in beside["after"]:
            stack.enter_context(neighbour.running(tmp_path))
        running = stack.enter_context(generator.start("count", count=CALLS, nr=GETPPID))
        running.run()
    check_balance(ours.session, perfs)
    (segment,) = segments_of(ours.session)
    libc = re.compile(rf"^{build_id_of('libc.so.6')} .*/libc", re.MULTILINE)
    for number, perf in enumerate(perfs):  # an older one reads no file of a newer one
        files = [beside[when][number].out for when in ("before", "after")]
        expected, *found = (seen_by_perf(perf, file, running.pid) for file in (segment, *files))
        assert expected.total() == CALLS
        assert found == [expected] * len(files)
        for file in (segment, *files):
            assert libc.search(perf.run("buildid-list", "-i", file).stdout), file
