# SPDX-License-Identifier: Apache-2.0
"""Segments say which build of each file ran, of files that are gone by now too."""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.kernel.host import code_files
from tests.support.daemons import wait_for
from tests.support.generator import Generator
from tests.support.patience import patient
from tests.support.recording import CALLS, recording, segments_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.alone]

IN_CLOSE_NOWRITE: Final = 0x10


def of_file(path: Path) -> str:
    """Return the build-id of a file."""
    with path.open("rb") as file:
        return code_files.file_build_id(file.fileno()).hex()


def executes(pid: int, name: bytes) -> bool:
    """Return whether a process executes the program with a name by now."""
    return Path(f"/proc/{pid}/comm").read_bytes().rstrip() == name


@contextmanager
def read_by_somebody(path: Path) -> Iterator[None]:
    """Wait at the end of the block until a file was opened and closed that a process runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_CLOEXEC)
    assert watch >= 0
    try:
        assert libc.inotify_add_watch(watch, os.fsencode(path), IN_CLOSE_NOWRITE) >= 0
        yield
        assert select.select([watch], [], [], patient(20))[0], f"nobody reads {path}"
    finally:
        os.close(watch)


def test_what_ran_is_told_though_its_file_is_gone(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """Programs from before or during the recording, libraries and the kernel have build-ids.

    One has ended by the time of the seal, too: its file is read while it runs.
    """
    copies = old, new, brief = [
        Generator(Path(shutil.copy2(generator.program, tmp_path / name)))
        for name in ("old", "new", "brief")
    ]
    with ExitStack() as stack:
        stack.enter_context(old.start("count", hold=True))
        with recording(start_cli, tmp_path, "-a", *CALLS) as ours:
            stack.enter_context(new.start("count", hold=True))
            new.program.unlink()
            with ExitStack() as until_read, read_by_somebody(brief.program):
                until_read.enter_context(brief.start("count", hold=True))
            for copy in (old, brief):
                copy.program.unlink()
    (segment,) = segments_of(ours.session)
    known = of_file(generator.program)
    expected = {f"{known} {copy.program}" for copy in copies}
    expected.add(f"{code_files.own_vdso_build_id().hex()} [vdso]")
    for perf in perfs:
        listed = perf.run("buildid-list", "-i", segment)
        assert (listed.returncode, listed.stderr) == (0, "")
        lines = set(listed.stdout.splitlines())
        assert expected <= lines
        kernel = perf.run("buildid-list", "--kernel").stdout.strip()
        assert f"{kernel} [kernel.kallsyms]" in lines
        assert any("/libc" in line for line in lines)


@pytest.mark.parametrize("lives", [True, False])
def test_of_files_of_one_name_that_counts_to_which_it_leads(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perf: Perf, lives: bool
) -> None:
    """A process in another mount namespace runs another file there, which may be gone by now."""
    program = Generator(Path(shutil.copy2(generator.program, tmp_path / "name")))
    other = ("sh", "-c", 'mount --bind "$(command -v sleep)" "$0" && exec "$0" "$1"')
    words = ("unshare", "-m", *other, program.program, "infinity" if lives else "0")
    with ExitStack() as stack, recording(start_cli, tmp_path, "-a", *CALLS) as ours:
        with read_by_somebody(program.program):
            stack.enter_context(program.start("count", hold=True))
        process = stack.enter_context(subprocess.Popen(words))
        stack.callback(process.kill)
        if lives:
            wait_for(lambda: executes(process.pid, b"name"), "the other program")
        else:
            assert process.wait() == 0
    (segment,) = segments_of(ours.session)
    lines = perf.run("buildid-list", "-i", segment).stdout.splitlines()
    found = [line for line in lines if line.endswith(f" {program.program}")]
    assert found == [f"{of_file(program.program)} {program.program}"]
