# SPDX-License-Identifier: Apache-2.0
"""Folded stacks: a line for each, its frames from the outermost on, and its count."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from collectord.errors import UsageError
from collectord.reader.symbols.frame import folded, of_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectord.reader.flame.picture import Picture
    from collectord.reader.flame.profile import Stacks

_LINE: Final = re.compile(r"(\S.*?) +(\d{1,18})")


def lines(picture: Picture) -> Iterator[str]:
    """Yield the lines; of a comparison they have two counts, that before and that now."""
    if picture.before is None:
        for frames, count in picture.sorted():
            yield f"{folded(frames)} {count}"
        return
    for frames in sorted({*picture.stacks, *picture.before}):
        before, now = picture.before.get(frames, 0), picture.stacks.get(frames, 0)
        yield f"{folded(frames)} {before} {now}"


def parse(text: str, name: str, shown: Callable[[str], str]) -> Stacks:
    """Return the stacks in a text, from anybody.

    Args:
        text: of folded stacks.
        name: of the file, for messages.
        shown: makes unprintable characters visible.

    Raises:
        UsageError: a line is of another form.
    """
    found: Stacks = Counter()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        told = _LINE.fullmatch(line.strip())
        if told is None:
            raise UsageError(
                f"{name}, line {number}: no folded stack", hint="such as main;work;spin 12"
            )
        found[tuple(of_text(shown(one)) for one in told[1].split(";"))] += int(told[2])
    return found
