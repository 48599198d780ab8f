# SPDX-License-Identifier: Apache-2.0
"""Segments say which build of each file ran, of files that are gone by now too."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collectord.kernel import build_id, code_files
from tests.support.generator import Generator
from tests.support.recording import CALLS, recording, segments_of

if TYPE_CHECKING:
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = pytest.mark.usefixtures("tracefs")


def of_file(path: Path) -> str:
    """The build-id of a file."""
    with path.open("rb") as file:
        return build_id.from_elf(file.fileno()).hex()


def test_what_ran_is_told_though_its_file_is_gone(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """Of a program that began before or during the recording, its libraries, and the kernel."""
    copies = [
        Generator(Path(shutil.copy2(generator.program, tmp_path / name)))
        for name in ("old", "new")
    ]
    with ExitStack() as stack:
        stack.enter_context(copies[0].start("count", hold=True))
        with recording(start_cli, tmp_path, "-a", *CALLS) as ours:
            stack.enter_context(copies[1].start("count", hold=True))
            for copy in copies:
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
