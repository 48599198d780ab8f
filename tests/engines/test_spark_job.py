# SPDX-License-Identifier: Apache-2.0
"""The job of config/fleet for `spark-submit` has the rows that `fleet query` has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from collectord.cli import fleet
from collectord.fleet.store import Store
from tests.support.fleets import BEGIN_NS, DAY, SCHED, SECOND, Host, Shipped, switches

if TYPE_CHECKING:
    import pytest

_JOB: Final = Path(__file__).parents[2] / "config/fleet/spark_job.py"
_SUBMIT: Final = Path(sys.executable).with_name("spark-submit")
_SQL: Final = (
    "SELECT host, next_comm, count(*) AS n, sum(mono_ns) AS total FROM {table} "
    "GROUP BY host, next_comm ORDER BY host, next_comm"
)


def test_the_job_has_the_rows_of_the_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of a segment without a commit are not among them."""
    store = Store.open(str(tmp_path / "store"), make=True)
    with Shipped(store) as shipped:
        for number, name in enumerate(("a", "b")):
            host = Host(name)
            for day in range(2):
                events = {f"sched:{SCHED}": switches(number, 100 + day)}
                shipped.segment(host, events, BEGIN_NS + day * DAY, 60 * SECOND)
            left_out = {f"sched:{SCHED}": switches(number, 7)}
            shipped.segment(host, left_out, BEGIN_NS, 60 * SECOND, is_committed=False)
    result = tmp_path / "result"
    done = subprocess.run(
        [
            _SUBMIT,
            "--master",
            "local[2]",
            _JOB,
            store.url,
            result,
            _SQL.format(table=f"`{SCHED}`"),
            SCHED,
        ],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    sql = _SQL.format(table=SCHED)
    assert fleet.run(["query", "--store", store.url, "--csv", sql]) == 0
    expected = capsys.readouterr().out.splitlines()[1:]
    assert len(expected) == 4
    with duckdb.connect() as database:
        found = database.execute(
            "SELECT host, next_comm, n, total FROM read_parquet($files) ORDER BY 1, 2",
            {"files": f"{result}/*.parquet"},
        ).fetchall()
    assert [",".join(map(str, row)) for row in found] == expected
