# SPDX-License-Identifier: Apache-2.0
"""Names from /proc/kallsyms: which lines are functions, and whether their addresses are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.kernel import bpf_programs, trace_metadata

if TYPE_CHECKING:
    from pathlib import Path

PER_CPU = b"0000000000000000 A fixed_percpu_data\n0000000000001000 A cpu_debug_store\n"
TEXT = b"ffffffff81000000 T _text\nffffffff81000010 t schedule\n"
DATA = b"ffffffff82000000 D jiffies\n"
PROGRAM = b"ffffffffc0001000 t bpf_prog_0011223344556677_restrict_filesystems\t[bpf]\n"


def test_variables_at_zero_hide_nothing() -> None:
    """Linux 6.12 lists per-CPU variables at 0 first, with every address shown."""
    assert trace_metadata._functions(PER_CPU + TEXT + DATA) == TEXT


def test_functions_at_zero_are_hidden() -> None:
    """Without CAP_SYSLOG every address reads as 0."""
    assert trace_metadata._functions(b"0000000000000000 T _text\n0000000000000000 t x\n") == b""
    assert trace_metadata._functions(b"") == b""


def test_names_of_programs_are_found_by_address(tmp_path: Path) -> None:
    """Those of programs only, and none where kallsyms cannot be read."""
    path = tmp_path / "kallsyms"
    path.write_bytes(PER_CPU + TEXT + PROGRAM)
    names = bpf_programs._Names(path)
    found = names.at(0xFFFFFFFFC0001000)
    assert found == b"bpf_prog_0011223344556677_restrict_filesystems"
    assert names.at(0xFFFFFFFF81000000) == b""
    assert bpf_programs._Names(tmp_path / "none").at(0xFFFFFFFFC0001000) == b""
