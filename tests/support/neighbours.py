# SPDX-License-Identifier: Apache-2.0
"""Other recorders, which see what a recording of ours sees at the same time."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Not bcc's own KeyError when its interpreter ends.
_COMPLAINT: Final = re.compile(r"\b(warning|error:|lost|assertion)", re.IGNORECASE)
_GATE: Final = ("sh", "-c", 'echo open >&2 && read -r _ < "$0"')


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A tool that records the whole host for as long as its command runs.

    Attributes:
        name: of its files.
        words: its command line, in whose end the command goes.
        out: the file that it writes.
    """

    name: str
    words: tuple[str | Path, ...]
    out: Path

    @property
    def printed(self) -> Path:
        """Its standard output."""
        return self.out.with_suffix(".txt")

    @contextmanager
    def running(self, directory: Path) -> Iterator[None]:
        """Record for the length of a block; it must end well, without complaints."""
        gate = directory / f"{self.name}.gate"
        os.mkfifo(gate)
        with (
            self.printed.open("w") as printed,
            subprocess.Popen(
                [*self.words, *_GATE, gate],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            ) as process,
        ):
            assert process.stderr is not None
            said: list[str] = []
            while (line := process.stderr.readline()) != "open\n":
                assert line, "".join(said)
                said.append(line)
            try:
                yield
            finally:
                key = os.open(gate, os.O_RDWR)  # waits for no reader, should the command be gone
                os.write(key, b"\n")
                said += process.stderr.readlines()
                os.close(key)
        assert process.returncode == 0, "".join(said)
        complaints = [line for line in said if _COMPLAINT.search(line)]
        assert complaints == [], "".join(said)
