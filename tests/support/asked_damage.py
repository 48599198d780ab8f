# SPDX-License-Identifier: Apache-2.0
"""Damaged segments that `query`, `events`, `flame` and `export` are asked of.

One case alone: `python -m tests.support.asked_damage SEED NUMBER`.
"""

from __future__ import annotations

import contextlib
import csv
import io
import shutil
import sys
from typing import TYPE_CHECKING, Final

from collectord.cli import events, export, flame, query
from collectord.errors import CollectordError
from collectord.reader.flame.forms import FORMS
from tests.support import damage_runs
from tests.support.damage_templates import make_templates
from tests.support.odd_bytes import Odd, odd_bytes

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

# Statements of any events. An event that a folder has no table for is an error of ours, too.
_STATEMENTS: Final = (
    *("FROM samples", "FROM tasks, losses", "FROM mappings", "FROM aux", "FROM damage"),
    *("FROM frames", "FROM stacks", "FROM segments", "FROM blktrace"),
)
# Tables of events of the templates, and of what is recorded where a kernel is.
_TABLES: Final = (
    *("sys_enter_getppid", "opensnoop", "exits", "blktrace", "samples", "print"),
    *("sched_switch", "sched_wakeup", "sys_enter"),
)
_CHECKED: Final = 0.5  # share of statements whose rows are compared


class Case:
    """A copy of a template in which a file is damaged, and what is asked of it.

    Args:
        templates: a directory with one of the same name in each template.
        work: name of an empty directory, which is made here.
        choice: determines the case.
    """

    def __init__(self, templates: Path, work: Path, choice: random.Random) -> None:
        self._choice = choice
        self._work = work
        kind = choice.choice(sorted(path.name for path in templates.iterdir()))
        self._sound = templates / kind / kind
        self._directory = work / kind
        shutil.copytree(self._sound, self._directory)
        files = sorted(path for path in self._directory.iterdir() if path.is_file())
        data = [path for path in files if not _is_manifest(path) and path.stat().st_size]
        chosen = (
            data if choice.random() < 0.85 else [*filter(_is_manifest, files)] or data
        )  # a share
        self._file = choice.choice(chosen)
        self._odd = self._damage(choice.choice((1, 1, 1, 2, 8)))
        self._target = choice.choice((self._directory, self._file))
        self.told = [f"{kind}/{self._file.name}: {self._odd.what}"]

    def run(self) -> None:
        """Ask. Raises what a user must not see, and rows that are missing."""
        verbs = (self._query, self._query, self._events, self._flame, self._export)
        self._choice.choice(verbs)()

    def _damage(self, count: int) -> Odd:
        data = self._file.read_bytes()
        done = [odd_bytes(self._choice, data)]
        for _ in range(count - 1):
            done.append(odd_bytes(self._choice, done[-1].data))
        self._file.write_bytes(done[-1].data)
        at = min(odd.at for odd in done)
        return Odd(done[-1].data, at, ", ".join(odd.what for odd in done))

    def _query(self) -> None:
        if self._choice.random() < _CHECKED and not _is_manifest(self._file):
            self._check_rows(self._choice.choice(_TABLES))
            return
        statement = self._choice.choice((*_STATEMENTS, *(f"FROM {name}" for name in _TABLES)))
        words = self._choice.choice(([], ["--json"], ["--csv"], ["--since", "-10m"]))
        self._ask(query.run, *words, statement, self._target)

    def _check_rows(self, table: str) -> None:
        """Compare with files that end where the damage begins, and with those that have none."""
        statement = f"SELECT count(*) AS count FROM {table}"  # noqa: S608  # a name of ours
        found = self._count(statement, self._directory)
        without = self._work / "without" / self._directory.name
        shutil.copytree(self._sound, without)
        part = without / self._file.name
        part.write_bytes(part.read_bytes()[: self._odd.at])
        least = self._count(statement, without)
        assert found >= least, f"{table} has {found} rows, {least} stand before the damage"

    def _count(self, statement: str, directory: Path) -> int:
        """Return the count, or 0 where there is no such table."""
        said = self._ask(query.run, "--csv", statement, directory)
        return sum(int(row["count"]) for row in csv.DictReader(io.StringIO(said)))

    def _events(self) -> None:
        how = self._choice.choice(([], ["-o", "json"], ["-o", "csv"], ["--count"], ["-n", "3"]))
        self._ask(events.run, *how, self._target)

    def _flame(self) -> None:
        name = f"out{self._choice.choice(FORMS).suffix}"
        by = self._choice.choice((["--by", "pid"], ["--by", "cpu"], ["--off-cpu"], []))
        self._ask(flame.run, *by, "-o", self._work / name, self._target)

    def _export(self) -> None:
        """Check that a cut has no damaged record, and that no export is left half."""
        form = self._choice.choice(
            ("perfetto", "chrome-json", "parquet", "perf.data", "trace.dat", "folded", "pprof")
        )
        output = self._work / "export"
        failed: list[CollectordError] = []
        self._ask(export.run, "--format", form, "-o", output, self._target, failed=failed)
        if failed:
            assert not output.exists(), f"a failed export left a file: {failed[0]}"
        elif form in {"perf.data", "trace.dat"} and output.exists():
            said = self._ask(query.run, "--csv", "SELECT count(*) AS count FROM damage", output)
            assert said.splitlines()[-1] == "0", said

    def _ask(
        self,
        run: Callable[[Sequence[str]], int],
        *words: object,
        failed: list[CollectordError] | None = None,
    ) -> str:
        """Return what a verb prints; an error of ours ends it, in one line."""
        given = [str(word) for word in words]
        self.told.append(f"{run.__module__.rpartition('.')[2]} {' '.join(given)}")
        out, err = io.StringIO(), io.StringIO()
        errors: list[CollectordError] = [] if failed is None else failed
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                run(given)
        except CollectordError as error:
            errors.append(error)
        for one in map(str, errors):
            assert "\n" not in one, f"an error of several lines: {one}"
            assert "needs more than" not in one, f"it is out of memory: {one}"
        assert "Traceback" not in err.getvalue(), err.getvalue()
        return out.getvalue()


def _is_manifest(path: Path) -> bool:
    return ".json" in path.suffixes


if __name__ == "__main__":
    sys.exit(damage_runs.main(make_templates, Case) > 0)
