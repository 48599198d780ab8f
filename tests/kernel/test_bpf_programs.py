# SPDX-License-Identifier: Apache-2.0
"""Programs that tell of execs, opens and system calls find exactly those that were made."""

from __future__ import annotations

import errno
import os
import platform
import re
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import bpf_load
from tests.support.bpf_load import AT_FDCWD, check_found, events_of, own_comm, table_of, tool
from tests.support.daemons import NUMBER
from tests.support.recording import check_balance, recording, result_of, segments_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Fields = dict[str, Any]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.beside]

TIMES: Final = 20
ROOM: Final = 384
PRIVATE: Final = "--password=open-sesame"
PATH_BYTES: Final = 255
X86: Final = platform.machine() == "x86_64"
OPEN_CALL: Final = 2  # of x86
CREAT_CALL: Final = 85


def _below(directory: Path, events: Iterable[Fields], field: str = "filename") -> list[Fields]:
    """Return the events of files in a directory, which only this test has."""
    return [event for event in events if event[field].startswith(f"{directory}/")]


def test_programs_that_are_executed(
    start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf
) -> None:
    """Each successful exec has its task and file, scripts included, without arguments."""
    program, script = tool(tmp_path / "a-tool"), tmp_path / "a-script"
    script.write_text("#!/bin/true\n")
    script.chmod(0o755)
    with recording(start_cli, tmp_path, "--bpf", "execsnoop") as running:
        caused = [
            (path.name, str(path), pid, pid)
            for path in (program, script)
            for pid in (bpf_load.execute(path, PRIVATE) for _ in range(TIMES))
        ]
        pid, tid = bpf_load.execute_in_thread(program)
        caused.append((program.name, str(program), pid, tid))
        assert pid != tid
        assert bpf_load.fail_to_execute(tmp_path / "absent") == errno.ENOENT
    check_balance(running.session, (perf,))
    found = _below(tmp_path, events_of(run_cli, running.session))
    names = ("comm", "filename", "pid", "tid")
    check_found(running.session, [tuple(event[n] for n in names) for event in found], caused)
    told = {(event["uid"], event["result"], event["args"], event["arg_count"]) for event in found}
    assert told == {(os.getuid(), 0, "", 0)}
    for segment in segments_of(running.session):
        assert PRIVATE.encode() not in segment.read_bytes()


def test_failed_execs(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """With `failed` they have task, file, and error, without arguments."""
    program, absent, plain = tool(tmp_path / "a-tool"), tmp_path / "absent", tmp_path / "plain"
    plain.touch(mode=0o644)
    words = ("--bpf", "execsnoop", "--bpf-arg", "failed=true")
    with recording(start_cli, tmp_path, *words) as running:
        caused = [(program.name, str(program), 0, bpf_load.execute(program), PRIVATE)]
        for path, reason in ((absent, errno.ENOENT), (plain, errno.EACCES)):
            for at in (False, True):
                for _ in range(TIMES):
                    assert bpf_load.fail_to_execute(path, PRIVATE, at=at) == reason
                    caused.append((own_comm(), str(path), -reason, os.getpid(), PRIVATE))
    check_balance(running.session, (perf,))
    found = _below(tmp_path, events_of(run_cli, running.session))
    names = ("comm", "filename", "result", "pid")
    told = [(*(event[n] for n in names), event["args"] or PRIVATE) for event in found]
    check_found(running.session, told, caused)
    assert "EACCES" in table_of(run_cli, running.session)
    for segment in segments_of(running.session):
        assert PRIVATE.encode() not in segment.read_bytes()


def test_arguments_on_demand(
    start_cli: Start,
    run_cli: Run,
    tmp_path: Path,
    *,
    perf: Perf,
    require: Callable[[str], None],
) -> None:
    """With `args`, up to 64 and as far as there is room; of a script its interpreter's."""
    require("BTF")
    program, script = tool(tmp_path / "a-tool"), tmp_path / "a-script"
    script.write_text("#!/bin/true -q\n")
    script.chmod(0o755)
    many = ["x"] * 100
    words = ("--bpf", "execsnoop", *("--bpf-arg", "args=true", "--bpf-arg", "failed=true"))
    with recording(start_cli, tmp_path, *words, "--bpf-arg", f"args_bytes={ROOM}B") as running:
        for _ in range(TIMES):
            bpf_load.execute(program, "one two", "", PRIVATE)
            bpf_load.execute(script, "three")
            bpf_load.execute(program, *many)
            bpf_load.execute(program, "y" * 1000)
            assert bpf_load.fail_to_execute(tmp_path / "absent", "four") == errno.ENOENT
    check_balance(running.session, (perf,))
    caused = [
        (f"{program} one two  {PRIVATE}", 4, 0),
        (f"/bin/true -q {script} three", 4, 0),
        (f"{program} {' '.join(many[:63])}", 64, 1),
        (f"{program} {'y' * 1000}"[: ROOM - 1], 2, 1),
        (f"{tmp_path / 'absent'} four", 2, 0),
    ]
    found = _below(tmp_path, events_of(run_cli, running.session))
    told = [(event["args"], event["arg_count"], event["args_cut"]) for event in found]
    check_found(running.session, told, caused * TIMES)


def test_a_recorded_command_ends_the_recording(run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """It is seen itself, with all that it executes."""
    program = tool(tmp_path / "a-tool")
    script = tmp_path / "a-script"
    script.write_text("#!/bin/sh\n" + f"{program}\n" * TIMES)
    script.chmod(0o755)
    words = ("--bpf", "execsnoop", "--output-dir", tmp_path / "out", "--json")
    done = run_cli("record", *words, "--", script)
    assert (done.returncode, done.stderr) == (0, "")
    session = result_of(done.stdout)
    check_balance(session, (perf,))
    found = _below(tmp_path, events_of(run_cli, session))
    caused = [str(script), *[str(program)] * TIMES]
    check_found(session, [event["filename"] for event in found], caused)


def test_files_that_are_opened(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """Each call has task, path, flags, and descriptor; of the path the first 255 bytes."""
    folder = tmp_path / "opened"
    folder.mkdir()
    path, long = str(folder / "file"), f"{folder}{'/.' * PATH_BYTES}/file"
    caused = []
    names = ("path", "flags", "mode", "directory", "result")
    create = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    with recording(start_cli, tmp_path, "--bpf", "opensnoop") as running:
        for _ in range(TIMES):
            fds = [bpf_load.open_at(AT_FDCWD, path.encode(), os.O_CREAT | os.O_RDWR, 0o640)]
            caused.append((path, os.O_CREAT | os.O_RDWR, 0o640, AT_FDCWD, fds[-1]))
            fds.append(bpf_load.open_at2(AT_FDCWD, path.encode(), os.O_CREAT | os.O_RDWR, 0o600))
            caused.append((path, os.O_CREAT | os.O_RDWR, 0o600, AT_FDCWD, fds[-1]))
            fds.append(bpf_load.open_at(fds[0], path.encode(), os.O_APPEND))
            caused.append((path, os.O_APPEND, 0, fds[0], fds[-1]))
            fds.append(bpf_load.open_at(AT_FDCWD, long.encode(), 0))
            caused.append((long[:PATH_BYTES], 0, 0, AT_FDCWD, fds[-1]))
            if X86:
                fds.append(bpf_load.opened(OPEN_CALL, path.encode(), os.O_WRONLY, 0))
                caused.append((path, os.O_WRONLY, 0, AT_FDCWD, fds[-1]))
                fds.append(bpf_load.opened(CREAT_CALL, path.encode(), 0o644))
                caused.append((path, create, 0o644, AT_FDCWD, fds[-1]))
            for fd in fds:
                os.close(fd)
    check_balance(running.session, (perf,))
    found = _below(folder, events_of(run_cli, running.session), "path")
    check_found(running.session, [tuple(event[n] for n in names) for event in found], caused)
    told = {(event["pid"], event["tid"], event["uid"], event["comm"]) for event in found}
    assert told == {(os.getpid(), threading.get_native_id(), os.getuid(), own_comm())}


def test_opens_that_fail(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """With `failed`, only these are reported, each with its error."""
    folder = tmp_path / "opened"
    folder.mkdir()
    there, absent = folder / "there", folder / "absent"
    there.touch()
    words = ("--bpf", "opensnoop", "--bpf-arg", "failed=true")
    with recording(start_cli, tmp_path, *words) as running:
        for _ in range(TIMES):
            os.close(os.open(there, os.O_RDONLY))
            with pytest.raises(FileNotFoundError):
                os.open(absent, os.O_RDONLY)
            with pytest.raises(NotADirectoryError):
                os.open(there / "below", os.O_RDONLY)
    check_balance(running.session, (perf,))
    events = events_of(run_cli, running.session)
    assert all(event["result"] < 0 for event in events)
    caused = [(str(absent), -errno.ENOENT), (str(there / "below"), -errno.ENOTDIR)]
    found = [(event["path"], event["result"]) for event in _below(folder, events, "path")]
    check_found(running.session, found, caused * TIMES)


def test_hostile_paths(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """Whatever bytes a path has, its line stays one line, and sends a terminal nothing."""
    folder = tmp_path / "opened"
    folder.mkdir()
    hostile = {
        b"new\nline\rback": r"new\nline\rback",
        b"\x1b[2J\x1b]0;title\x07": r"\x1b[2J\x1b]0;title\x07",
        b"not \xff\xfe UTF-8": r"not \xff\xfe UTF-8",
        "\u202eright to left \x9b31m".encode(): r"\u202eright to left \x9b31m",
        b"tab\tand \x7f": r"tab\tand \x7f",
        "plain å 漢".encode(): "plain å 漢",
    }
    with recording(start_cli, tmp_path, "--bpf", "opensnoop") as running:
        for name in hostile:
            os.close(os.open(os.fsencode(folder) + b"/" + name, os.O_CREAT | os.O_WRONLY))
    check_balance(running.session, (perf,))
    found = _below(folder, events_of(run_cli, running.session), "path")
    caused = [f"{folder}/{name.decode(errors='backslashreplace')}" for name in hostile]
    check_found(running.session, [event["path"] for event in found], caused)
    table = table_of(run_cli, running.session)
    assert all(line.isprintable() for line in table.split("\n"))
    shown = re.findall(
        rf"^.* {os.getpid()} .*  {re.escape(str(folder))}/(.*)$", table, re.MULTILINE
    )
    check_found(running.session, shown, hostile.values())


@pytest.mark.parametrize("arguments", [True, False])
def test_system_calls(
    start_cli: Start,
    run_cli: Run,
    tmp_path: Path,
    *,
    generator: Generator,
    perf: Perf,
    arguments: bool,
) -> None:
    """Only those of a number and a process, with their first two arguments unless told not to."""
    chosen = {"nr": NUMBER, "pid": os.getpid(), "arguments": str(arguments).lower()}
    words = [word for key, value in chosen.items() for word in ("--bpf-arg", f"{key}={value}")]
    values = [(1 << 40, 2**64 - 1), (7, 1 << 63)]
    with recording(start_cli, tmp_path, "--bpf", "syscall_stream", *words) as running:
        for _ in range(TIMES):
            for pair in values:
                bpf_load.system_call(NUMBER, *pair)
            bpf_load.system_call(NUMBER + 1, 0, 0)
        with generator.start("count", nr=NUMBER, count=TIMES) as others:
            assert others.run()["events"] == TIMES
    check_balance(running.session, (perf,), generated=TIMES * len(values))
    found = [
        (event["nr"], event["pid"], event["tid"], event["arg0"], event["arg1"])
        for event in events_of(run_cli, running.session)
    ]
    caller = (NUMBER, os.getpid(), threading.get_native_id())
    caused = [(*caller, *(pair if arguments else (0, 0))) for pair in values]
    check_found(running.session, found, caused * TIMES)
