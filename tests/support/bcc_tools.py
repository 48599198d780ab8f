# SPDX-License-Identifier: Apache-2.0
"""Tools of bcc that run beside a recording, and what they print when they end.

They are those that need no compiler, as they know the kernel by its own description of types.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

_SLOT: Final = re.compile(r" *(\d+) -> \d+ +: (\d+) ")
_BEGUN: Final = b"Tracing"


@dataclass(slots=True)
class Told:
    """What a tool has printed, once its block has ended."""

    text: str = ""


def _path(name: str) -> str:
    """Return the program, which newer releases of Debian call NAME-libbpf."""
    found = shutil.which(name) or shutil.which(f"{name}-libbpf")
    assert found, f"{name} is not installed: make setup"
    return found


@contextmanager
def running(name: str, *words: str) -> Iterator[Told]:
    """Run a tool for the length of a block, at whose beginning it traces already."""
    told = Told()
    with ExitStack() as stack:
        ours, theirs = pty.openpty()  # it would keep what it prints into a pipe
        stack.callback(os.close, ours)
        command = [_path(name), *words]
        tool = stack.enter_context(subprocess.Popen(command, stdout=theirs, stderr=theirs))
        os.close(theirs)
        stack.callback(tool.kill)
        printed = b""
        while _BEGUN not in printed:
            printed += _read(ours) or _ended(tool, printed)
        yield told
        tool.send_signal(signal.SIGINT)
        while more := _read(ours):
            printed += more
        tool.wait(timeout=patient(20))
        told.text = printed.decode(errors="replace").replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    """Return what comes next; nothing if the other end is closed."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def _ended(tool: subprocess.Popen[bytes], printed: bytes) -> bytes:
    raise AssertionError(f"{tool.args!r} ended: {printed.decode(errors='replace')}")


def histograms(told: Told, key: str) -> dict[int, dict[int, int]]:
    """Return the histograms that a tool prints for each number of a kind.

    Args:
        told: by the tool.
        key: the kind, such as "tid".

    Returns:
        By number, how often a value was in the slot that begins at each power of two.
    """
    _, *parts = re.split(rf"^{key} = (\d+).*$", told.text, flags=re.MULTILINE)
    found = {}
    for number, lines in zip(parts[::2], parts[1::2], strict=True):
        slots = (_SLOT.match(line) for line in lines.splitlines())
        found[int(number)] = {int(slot[1]): int(slot[2]) for slot in slots if slot}
    return found
