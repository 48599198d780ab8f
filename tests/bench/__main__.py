# SPDX-License-Identifier: Apache-2.0
"""`make bench`: collectord and its peers side by side; one table, and a JSON file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from tests.bench.row import Row, Settings
from tests.bench.rows import ROWS
from tests.support import generator

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS: Final = Path(__file__).with_name("results")
_PEERS: Final = ("perf", "trace-cmd", "taskset", "unshare")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench BENCH=", description=__doc__)
    parser.add_argument(
        "--events",
        type=int,
        default=5_000_000,
        help="events of a saturated run (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="number of saturated runs (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=10, help="length of a timed run (default: %(default)s)"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=RESULTS,
        help="folder for the files of the runs (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="result file (default: in tests/bench/results)")
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        help=f"rows to run, from {', '.join(ROWS)} (default: all)",
    )
    args = parser.parse_args(arguments)
    unknown = set(args.rows) - set(ROWS)
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}")
    return args


def _unfit() -> str:
    """Return why this machine cannot run the bench, or ""."""
    if os.geteuid() != 0:
        return "the bench needs root"
    if len(os.sched_getaffinity(0)) < 2:
        return "the bench needs two CPUs: one for the generator, one for the collector"
    missing = [name for name in _PEERS if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}; make setup" if missing else ""


def _print(rows: Sequence[Row]) -> None:
    table = Table("work", "ours", "peer", "value", "must be", "")
    for row in rows:
        table.add_row(
            row.work,
            row.ours,
            row.peer,
            f"{row.value:.3g} {row.unit}",
            "-" if row.budget is None else f"<= {row.budget:.3g}",
            "" if row.budget is None else "ok" if row.within else "MISSED",
        )
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        console.print(f"- {note}", highlight=False)


def _save(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows that are done; a file of fewer rows is replaced."""
    perf = subprocess.run(["perf", "--version"], capture_output=True, text=True, check=True)
    text = json.dumps(
        {
            "kernel": platform.release(),
            "cpus": os.cpu_count(),
            "perf": perf.stdout.strip(),
            "python": platform.python_version(),
            "rows": [{**asdict(row), "within": row.within} for row in rows],
        },
        indent=1,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def main(arguments: Sequence[str]) -> int:
    """Run the rows; the status is 1 if one missed its budget."""
    args = _parse(arguments)
    unfit = _unfit()
    if unfit:
        print(unfit, file=sys.stderr)
        return 1
    path = args.json or RESULTS / time.strftime("%Y%m%dT%H%M%SZ.json", time.gmtime())
    rows: list[Row] = []
    args.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as built:
        load = generator.Generator(generator.build(Path(built)))
        try:
            for name in args.rows or ROWS:
                print(f"{name}: {ROWS[name].__doc__}", file=sys.stderr)
                # A folder of its own: no row finds what another left.
                with tempfile.TemporaryDirectory(dir=args.dir) as files:
                    directory = Path(files).resolve() / "run"
                    rows += ROWS[name](
                        Settings(load, directory, args.events, args.repeats, args.seconds)
                    )
                _save(path, rows)
        finally:  # one that fails takes minutes of others' figures with it otherwise
            if rows:
                _print(rows)
                print(f"wrote {path}")
    return 0 if all(row.within for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
