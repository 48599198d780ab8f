# SPDX-License-Identifier: Apache-2.0
"""Starts of the program that a server forks, as tests start it."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from collectord import cli

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "words",
    [
        *([verb, "--help"] for verb in cli.VERBS),
        ["--version"],
        ["recrod"],
        ["check", "here.toml"],
        ["segments", "verify", "nothing"],
        ["status", "--socket", "nothing"],
    ],
    ids=" ".join,
)
def test_it_is_as_a_start_of_an_interpreter(words: list[str], run_cli: Run) -> None:
    """Each verb prints the same, and ends with the same status, as `python -m collectord`."""
    forked, fresh = run_cli(*words), run_cli(*words, fresh=True)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        fresh.returncode,
        fresh.stdout,
        fresh.stderr,
    )


def test_it_is_a_child(start_cli: Start) -> None:
    """Its end is for this process to see, as that of any child."""
    process = start_cli("--version")
    assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT) is not None
    assert (process.wait(), process.poll()) == (0, 0)


def test_limits_that_have_changed_are_not_lost(start_cli: Start) -> None:
    """A test that changes what starts inherit is told to have an interpreter start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        with pytest.raises(AssertionError, match="an interpreter of its own"):
            start_cli("--version")
        assert start_cli("--version", fresh=True).wait() == 0
