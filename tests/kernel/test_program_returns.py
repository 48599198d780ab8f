# SPDX-License-Identifier: Apache-2.0
"""The loaded programs that may hide a tracepoint's events from perf."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from collectord.kernel.bpf.program_returns import may_hide_events
from tests.support import bpf

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.kernel, pytest.mark.beside]


@pytest.mark.parametrize(("returns", "hides"), [(1, False), (0, True), (2, True)])
def test_its_instructions_decide(
    returns: int, hides: bool, require: Callable[[str], None]
) -> None:
    """A program of a tracepoint is read as the kernel has it, whatever its text was."""
    require("BPF")
    with bpf.program(returns, b"decides") as fd:
        assert may_hide_events(fd) is hides


def test_a_program_of_no_tracepoint_hides_nothing(require: Callable[[str], None]) -> None:
    """A socket's filter is never asked about an event."""
    require("BPF")
    with bpf.filter_program(b"filters") as fd:
        assert may_hide_events(fd) is False


def test_an_old_kernel_counts_too_little(
    monkeypatch: pytest.MonkeyPatch, require: Callable[[str], None]
) -> None:
    """Before Linux 6.7 a run that is left out hides an event, and nobody knows."""
    require("BPF")
    told = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*told[:2], "6.6.1", *told[3:])))
    with bpf.program(1, b"passes") as fd:
        assert may_hide_events(fd) is True
