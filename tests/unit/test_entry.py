# SPDX-License-Identifier: Apache-2.0
"""Signals in the first moments of a start, at the imports that take most of that time."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from collectord.control.imports import slow_imports

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# The program, with signals just before it imports a module.
PROGRAM = """
import os, runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            for number in numbers.split(","):
                os.kill(os.getpid(), int(number))
module, numbers, sys.argv = sys.argv[1], sys.argv[2], ["collectord", *sys.argv[3:]]
sys.meta_path.insert(0, Finder())
runpy.run_module("collectord", run_name="__main__")
"""
# A daemon that is signalled while it probes, and then runs until it is stopped.
PROBING = """
import asyncio, os, signal, sys
from collectord.cli import run
last, config = int(sys.argv[1]), sys.argv[2]
class Daemon:
    is_abandoned = False
    def __init__(self, kernel, config, **_):
        self.commands = self
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), last)
    @property
    def incidents(self):
        return self
    async def by_signal(self):
        pass
    async def rotate(self, *_):
        return []
    async def reload(self, *_):
        return {}
    async def run(self, stop, **_):
        await asyncio.wait_for(stop.wait(), 30)
        return ()
run.Daemon = Daemon
run._claim = lambda *_: None
sys.argv[1:] = ["run", "--config", config]
import collectord.__main__
sys.exit(collectord.__main__.main())
"""
MODULES = (
    "collectord.cli",
    "structlog",
    "collectord.cli.run",
    "msgspec",
    "collectord.daemon.daemon",
)
CONFIG_ERROR = 6


def started(*words: object) -> subprocess.CompletedProcess[str]:
    """Start a program of ours, and see what it comes to."""
    return subprocess.run(
        [sys.executable, "-c", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("module", MODULES)
def test_strays_do_not_keep_a_daemon_from_its_start(module: str) -> None:
    """It comes to where it finds no configuration."""
    numbers = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    words = (",".join(map(str, map(int, numbers))), "run", "--config", "/nonexistent.toml")
    done = started(PROGRAM, module, *words)
    assert done.returncode == CONFIG_ERROR, done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_a_start_is_stopped_at_once_and_without_a_word(module: str) -> None:
    """There is nothing to finish, and the signal is what a shell and a manager are told."""
    for number in (signal.SIGTERM, signal.SIGINT):
        done = started(PROGRAM, module, int(number), "run", "--config", "/nonexistent.toml")
        assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")


def test_a_daemon_is_not_stopped_in_the_midst_of_its_probes(tmp_path: Path) -> None:
    """It undoes its probes, then ends as at any other time."""
    config = tmp_path / "collectord.toml"
    config.write_text("")
    for number in (signal.SIGTERM, signal.SIGINT):
        done = started(PROBING, number, config)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr


def test_nothing_is_collected_during_the_imports() -> None:
    """After them garbage is collected again, also if one fails."""

    def fail() -> None:
        with slow_imports():
            assert not gc.isenabled()
            raise ImportError

    assert gc.isenabled()
    with pytest.raises(ImportError):
        fail()
    assert gc.isenabled()
