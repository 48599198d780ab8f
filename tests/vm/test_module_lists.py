# SPDX-License-Identifier: Apache-2.0
"""Segments have the functions of the kernel modules that were loaded at their end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.sink.symbol_list import kept_modules
from tests.support import daemons
from tests.support.daemons import sealed, wait_for
from tests.vm.support_modules import loaded_relay

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("tracefs")

MODULE: Final = "test_relay"
SESSION: Final = """
[[session]]
name = "load"

[[session.source]]
kind = "perf"
events = ["cpu-clock"]
frequency = 49
call_graph = "fp"
"""


def test_a_module_is_listed_while_it_is_loaded(
    start_cli: Callable[..., subprocess.Popen[str]],
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    """Each segment has the functions of its time; without a change it is the same file."""
    config = daemons.write_sessions(tmp_path, SESSION)
    state = tmp_path / "state"

    def listed(count: int) -> Path:
        """End a segment, the `count`th, and return it once it has its list."""
        done = run_cli("rotate", "--socket", tmp_path / "control.sock")
        assert done.returncode == 0, done.stderr
        segment = sealed(state)[count - 1]
        wait_for(lambda: kept_modules(segment), f"the list of {segment.name}")
        return segment

    with daemons.running(start_cli, config) as daemon:
        wait_for(lambda: daemon.session("load")["stored"], "a sample")
        first = listed(1)
        wait_for(lambda: daemon.session("load")["stored"] > 5, "samples")
        second = listed(2)
        with loaded_relay():
            text = Path("/proc/kallsyms").read_text()
            with_module = listed(3)
        last = listed(4)
        daemon.stop()

    functions = re.findall(rf"^.* [tT] (\S+)\t\[{MODULE}\]$", text, re.MULTILINE)
    assert functions
    for segment in (first, second, last):
        assert f"[{MODULE}]".encode() not in kept_modules(segment)
    for name in functions:
        assert f" {name}\t[{MODULE}]\n".encode() in kept_modules(with_module)
    files = [Path(f"{segment}.modules.gz") for segment in (first, second, with_module)]
    assert files[0].samefile(files[1])
    assert not files[0].samefile(files[2])
