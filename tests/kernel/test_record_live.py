# SPDX-License-Identifier: Apache-2.0
"""`record --bpf` on a terminal: events as they come, and maps at an interval."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.bpf_counts import child, program
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.beside]

TIMES: Final = 20
SLEEPS: Final = 300
PATIENCE_S: Final = patient(60)
HOSTILE: Final = b"\x1b[2J\n\xff"
HARMLESS: Final = rb"\x1b[2J\n\xff"
ROW: Final = re.compile(r"^\d\d:\d\d:\d\d [ .:+*#@]*  ([\d,]+)$", re.MULTILINE)


class Terminal:
    """Return the text that a program has written to its terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.shown = b""

    def until(self, pattern: bytes, count: int = 1) -> None:
        """Read until a pattern is there so often."""
        while len(re.findall(pattern, self.shown)) < count:
            read = self._read()
            assert read, self.shown.decode(errors="backslashreplace")

    def rest(self) -> None:
        """Read until the program has closed it."""
        while self._read():
            pass

    def _read(self) -> bytes:
        try:
            read = os.read(self._fd, 1 << 16)
        except OSError:  # nobody has it open
            read = b""
        self.shown += read
        return read


@contextmanager
def _on_a_terminal(*words: str | Path) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """Run `collectord record WORDS...` on a terminal for the length of a block."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "collectord", "record", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            yield Terminal(ours), process
        finally:
            process.kill()
            os.close(ours)


def _open(path: bytes) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


@pytest.mark.parametrize("rotated", [False, True])
def test_events_are_shown_as_they_come(tmp_path: Path, *, rotated: bool) -> None:
    """Each is there while the recording goes on, once, and does the terminal no harm."""
    folder = os.fsencode(tmp_path) + b"/opened-"
    out = ("--output-dir", tmp_path / "out") if rotated else ("-o", tmp_path / "one.data")
    words: list[str | Path] = [*program("opensnoop", path=f"{tmp_path}/opened-*"), *out]
    ready = "while ! [ -e $0/stop ]; do : >$0/opened-ready; sleep 0.1; done"
    with _on_a_terminal(*words, "--", "sh", "-c", ready, tmp_path) as (terminal, process):
        terminal.until(rb"/opened-ready\r\n")
        for number in range(TIMES):
            _open(folder + b"%d" % number + HOSTILE)
        terminal.until(rb"/opened-\d+" + re.escape(HARMLESS) + rb"\r\n", TIMES)
        assert process.poll() is None
        (tmp_path / "stop").touch()
        terminal.until(rb"wrote ")
        terminal.rest()
        assert process.wait(PATIENCE_S) == 0
    shown = re.findall(rb"/opened-(\d+)" + re.escape(HARMLESS) + rb"\r\n", terminal.shown)
    assert sorted(map(int, shown)) == [*range(TIMES)]
    assert b"\x1b[2J" not in terminal.shown
    assert terminal.shown.count(b"  PATH\r\n") == 1


def test_no_events_are_shown(tmp_path: Path) -> None:
    """With -q the terminal has the result only."""
    script = "for _ in 1 2 3; do : >$0/opened; done; sleep 1.5"
    words = [*program("opensnoop", path=f"{tmp_path}/opened"), "-o", f"{tmp_path}/one.data", "-q"]
    with _on_a_terminal(*words, "--", "sh", "-c", script, tmp_path) as (terminal, process):
        terminal.rest()
        assert process.wait(PATIENCE_S) == 0
    assert b"/opened" not in terminal.shown
    assert b"wrote " in terminal.shown


def test_maps_at_an_interval(tmp_path: Path) -> None:
    """Each line has what came since the one before, and all of them no more than the whole."""
    with child() as sleeper:
        out = ("--interval", "1s", "-o", f"{tmp_path}/one.data", "--duration", "5s")
        with _on_a_terminal(*program("runqlat", pid=sleeper.pid), *out) as (terminal, process):
            terminal.until(rb"\d\d:\d\d:\d\d ")
            sleeper.do("sleep", SLEEPS)
            terminal.rest()
            assert process.wait(PATIENCE_S) == 0
    shown = terminal.shown.decode().replace("\r\n", "\n")
    came = [int(count.replace(",", "")) for count in ROW.findall(shown)]
    final = re.findall(r"\.\. +\d+ +(\d+)", shown)
    assert len(came) >= 3
    assert SLEEPS // 2 <= sum(came) <= sum(map(int, final))
