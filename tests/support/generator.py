# SPDX-License-Identifier: Apache-2.0
"""Build and control generator.c, the program that makes a known number of events."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

SOURCE = Path(__file__).with_name("generator.c")
Option = int | float | str
# Belongs to no system call: the kernel answers ENOSYS, and raw_syscalls:sys_enter has its number.
MARK = 3999
MARK_FILTER = f"id == {MARK}"


def build(directory: Path) -> Path:
    """Compile the generator into `directory`, unless it is there; return the program's path."""
    program = directory / "generator"
    if program.exists():
        return program
    subprocess.run(
        [
            *(os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-g", "-pthread"),
            *("-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"),
            *("-Wall", "-Wextra", "-Wconversion", "-Werror"),
            *("-o", program, SOURCE),
        ],
        check=True,
    )
    return program


class Running:
    """One run of the generator. As a context manager it never outlives its block.

    Attributes:
        ready: the line printed before the barrier (`pid`, `tids` or `address`).
    """

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready: dict[str, Any] = self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            message = f"generator ended with status {self._process.wait()} before its answer"
            raise RuntimeError(message)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _send(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def tids(self) -> tuple[int, ...]:
        """The threads of mode `count` that exist before the start."""
        return tuple(self.ready["tids"])

    def go(self) -> None:
        """Start its work; returns at once."""
        self._send()

    def result(self) -> dict[str, Any]:
        """Wait until its work is done, and return what it did (`events`, `seconds`, ...).

        A generator started with `hold=True` lives on until the block ends.
        """
        return self._line()

    def run(self) -> dict[str, Any]:
        """Do `go`, then `result`."""
        self.go()
        return self.result()

    def end(self) -> dict[str, Any]:
        """End the calls of a run that is `endless`, and return its result."""
        self._send()
        return self._line()

    def kill(self) -> None:
        """Kill it in the middle of its work."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        with self._process:  # closes its pipes, which ends a --hold, and waits
            pass


@dataclass(frozen=True, slots=True)
class Generator:
    """The built generator program."""

    program: Path

    def command(
        self, mode: str, *, now: bool = True, hold: bool = False, **options: Option
    ) -> list[str]:
        """Return the command line; `later=4` becomes `--later 4`. For `record -- COMMAND`."""
        words = [str(self.program), mode]
        words += ["--now"] if now else []
        words += ["--hold"] if hold else []
        for name, value in options.items():
            words += [f"--{name}", str(value)]
        return words

    def start(self, mode: str, *, hold: bool = False, **options: Option) -> Running:
        """Start it, and return when it waits for `go`."""
        return Running(self.command(mode, now=False, hold=hold, **options))
