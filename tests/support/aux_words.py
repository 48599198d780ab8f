# SPDX-License-Identifier: Apache-2.0
"""Build and run aux_words.c, which reads the test PMU's words out of segments."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE: Final = Path(__file__).with_name("aux_words.c")


@dataclass(frozen=True, slots=True)
class RingFound:
    """Pieces of one AUX area in the segments: where they begin and end, and breaks between."""

    idx: int
    cpu: int
    tid: int
    pieces: int
    bytes: int
    first: int
    end: int
    breaks: int


@dataclass(frozen=True, slots=True)
class WordsFound:
    """Words of one CPU in one AUX area.

    Attributes:
        of: the CPU.
        words: how many.
        first, last: numbers.
        gaps, missing: between them.
        disorder: repeated ones, or ones that go back.
    """

    idx: int
    cpu: int
    tid: int
    of: int
    words: int
    first: int
    last: int
    gaps: int
    missing: int
    disorder: int


@dataclass(frozen=True, slots=True)
class Found:
    """Contents of segments."""

    rings: tuple[RingFound, ...]
    words: tuple[WordsFound, ...]

    def of_cpu(self) -> dict[int, int]:
        """Return words by CPU, over all areas."""
        total: dict[int, int] = defaultdict(int)
        for found in self.words:
            total[found.of] += found.words
        return dict(total)

    @property
    def in_order(self) -> bool:
        """Whether no word is repeated or goes back, and no byte is repeated or missing."""
        whole = all(ring.breaks == 0 for ring in self.rings)
        return whole and all(words.disorder == 0 for words in self.words)


@dataclass(frozen=True, slots=True)
class Checker:
    """The built checker program."""

    program: Path

    def __call__(self, segments: Iterable[Path]) -> Found:
        """Read segments in this order."""
        text = subprocess.run(
            [self.program, *segments], check=True, capture_output=True, text=True
        ).stdout
        rows = [line.split() for line in text.splitlines()]
        strange = [row for row in rows if row[0] == "strange"]
        assert not strange, strange
        return Found(
            tuple(RingFound(*map(int, row[1:])) for row in rows if row[0] == "ring"),
            tuple(WordsFound(*map(int, row[1:])) for row in rows if row[0] == "words"),
        )


def build(directory: Path) -> Checker:
    """Compile the checker into a directory, unless it is there."""
    program = directory / "aux_words"
    if program.exists():
        return Checker(program)
    subprocess.run(
        [
            *(os.environ.get("CC", "cc"), "-std=gnu11", "-O2"),
            *("-Wall", "-Wextra", "-Wconversion", "-Werror"),
            *("-o", program, SOURCE),
        ],
        check=True,
    )
    return Checker(program)
