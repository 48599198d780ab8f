# SPDX-License-Identifier: Apache-2.0
"""Tools of bcc that run beside a recording, and what they print when they end.

Those without `-bpfcc` in their names need no compiler: they know the kernel by its own description
of types.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

_SLOT: Final = re.compile(r" *(\d+) -> \d+ +: (\d+) ")


class Tool:
    """A tool that runs, and what it has printed.

    Args:
        process: the tool, whose output is a terminal: it would keep what it prints into a pipe.
        terminal: the other end of that.
    """

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.text = ""
        self._process = process
        self._terminal = terminal

    def await_text(self, pattern: str, count: int = 1) -> None:
        """Wait until it has printed so many lines that a pattern is in."""
        end = time.monotonic() + patient(60)
        while len(re.findall(pattern, self.text)) < count:
            assert time.monotonic() < end, f"never came: {count} of {pattern} in {self.text}"
            if select.select([self._terminal], [], [], 1)[0] and not self._read():
                raise AssertionError(f"{self._process.args!r} ended: {self.text}")

    def end(self) -> None:
        """Interrupt it, and wait until it has printed the rest."""
        self._process.send_signal(signal.SIGINT)
        while self._read():
            pass
        assert self._process.wait(timeout=patient(20)) == 0, self.text

    def _read(self) -> bool:
        """Read what comes next; nothing if the other end is closed."""
        try:
            more = os.read(self._terminal, 1 << 16)
        except OSError:
            return False
        self.text += more.decode(errors="replace").replace("\r\n", "\n")
        return bool(more)


def _path(name: str) -> str:
    """Return the program, which newer releases of Debian call NAME-libbpf."""
    found = shutil.which(name) or shutil.which(f"{name}-libbpf")
    assert found, f"{name} is not installed: make setup"
    return found


@contextmanager
def running(name: str, *words: str, begun: str = "Tracing") -> Iterator[Tool]:
    """Run a tool for the length of a block, at whose beginning it traces already.

    Args:
        name: of the tool.
        words: its options.
        begun: what it prints then.
    """
    with ExitStack() as stack:
        ours, theirs = pty.openpty()
        stack.callback(os.close, ours)
        command = [_path(name), *words]
        process = stack.enter_context(subprocess.Popen(command, stdout=theirs, stderr=theirs))
        os.close(theirs)
        stack.callback(process.kill)
        tool = Tool(process, ours)
        tool.await_text(re.escape(begun))
        yield tool
        tool.end()


def histograms(tool: Tool, key: str) -> dict[str, dict[int, int]]:
    """Return the histograms that a tool prints, one for each thread or the like.

    Args:
        tool: that has ended.
        key: what has one, such as "tid".

    Returns:
        By the number or name of each, how often a value was in the slot that begins at a number.
    """
    _, *parts = re.split(rf"^{key} = (\S+).*$", tool.text, flags=re.MULTILINE)
    found = {}
    for number, lines in zip(parts[::2], parts[1::2], strict=True):
        slots = (_SLOT.match(line) for line in lines.splitlines())
        found[number] = {int(slot[1]): int(slot[2]) for slot in slots if slot}
    return found
