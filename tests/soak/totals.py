# SPDX-License-Identifier: Apache-2.0
"""Whether the rows of all tables of events are as many as the records that ledgers have stored.

As a program, it says so of each session of a state directory: `python -m tests.soak.totals DIR`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.reader.segment_tables import open_catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence

_STORED: Final = """
SELECT session, sum(stored)::BIGINT AS stored, count(*) AS segments FROM ledger GROUP BY session
"""
# Tables of what is no record of an event, or is beside those.
_NO_EVENTS: Final = {"aux", "damage", "losses", "mappings", "samples", "tasks"}


class Total(NamedTuple):
    """The records of a session by its ledgers, and by a query over its segments.

    Attributes:
        rows: of all tables of events.
        stored: of the ledgers of all its segments.
    """

    session: str
    segments: int
    rows: int
    stored: int

    def __str__(self) -> str:
        return (
            f"{self.session:16} {self.segments:6} segments {self.rows:12} rows "
            f"{self.stored:12} stored {'equal' if self.is_equal else 'DIFFERENT'}"
        )

    @property
    def is_equal(self) -> bool:
        """Whether each stored record is a row."""
        return self.rows == self.stored


def totals(state: Path) -> list[Total]:
    """Return the totals of all sessions that have a segment. Nothing may write there meanwhile."""
    return [
        Total(one["session"], one["segments"], _rows(state, one["session"]), one["stored"])
        for one in _asked(state, _STORED)
    ]


def _rows(state: Path, session: str) -> int:
    with ExitStack() as stack:
        catalogue = open_catalogue([state], stack, session=session, nearest=lambda *_: "")
        tables = sorted(set(catalogue.tables) - _NO_EVENTS)
    counts = [f'(SELECT count(*) FROM "{name}")' for name in tables]  # noqa: S608 - its own names
    if "samples" in catalogue.tables:
        named = ", ".join(f"'{name}'" for name in tables) or "''"
        # Such as those of a clock; a sample of a tracepoint is a row of its table, too.
        counts.append(
            "(SELECT count(*) FROM samples "  # noqa: S608 - likewise
            f"WHERE split_part(event, ':', -1) NOT IN ({named}))"
        )
    (told,) = _asked(state, f"SELECT {' + '.join(('0', *counts))} AS rows", "--session", session)
    return int(told["rows"])


def _asked(state: Path, statement: str, *words: str) -> list[dict[str, Any]]:
    ask = ("query", "--json", statement, *words, str(state))
    command = (sys.executable, "-m", "collectord", *ask)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(arguments: Sequence[str]) -> int:
    """Print the totals; return 1 if those of a session differ."""
    found = totals(Path(arguments[0]))
    for one in found:
        sys.stdout.write(f"{one}\n")
    return 0 if found and all(one.is_equal for one in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
