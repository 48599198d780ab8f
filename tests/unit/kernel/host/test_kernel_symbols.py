# SPDX-License-Identifier: Apache-2.0
"""Names from /proc/kallsyms: which lines are functions, and whether their addresses are shown."""

from __future__ import annotations

from collectord.kernel.tracefs import trace_metadata

PER_CPU = b"0000000000000000 A fixed_percpu_data\n0000000000001000 A cpu_debug_store\n"
TEXT = b"ffffffff81000000 T _text\nffffffff81000010 t schedule\n"
DATA = b"ffffffff82000000 D jiffies\n"


def test_variables_at_zero_hide_nothing() -> None:
    """Linux 6.12 lists per-CPU variables at 0 first, with every address shown."""
    assert trace_metadata._functions(PER_CPU + TEXT + DATA) == TEXT


def test_functions_at_zero_are_hidden() -> None:
    """Without CAP_SYSLOG every address reads as 0."""
    assert trace_metadata._functions(b"0000000000000000 T _text\n0000000000000000 t x\n") == b""
    assert trace_metadata._functions(b"") == b""
