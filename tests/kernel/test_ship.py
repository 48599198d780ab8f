# SPDX-License-Identifier: Apache-2.0
"""Segments of real rings in a store: the rows and the ledgers are those that the host has."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import pytest

from collectord.fleet.commit import decode

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    RunCli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.beside

CONFIG = """
[daemon]
state_dir = "{state}"
[ship]
directory = "{folder}/ship"
host = "db-1"
host_file = "{folder}/none"
cpu = "100%"
[[session]]
name = "perf"
ship = "raw"
[[session.source]]
kind = "perf"
events = ["cpu-clock"]
[[session]]
name = "ftrace"
ship = "columns"
[[session.source]]
kind = "tracefs"
events = ["sched:*"]
"""


def test_a_store_says_what_the_host_says(tracefs: Path, run_cli: RunCli, tmp_path: Path) -> None:
    """Counts by event, the stacks and the balances, of perf with call chains and of ftrace."""
    del tracefs
    state, store = tmp_path / "state", tmp_path / "store"
    config = tmp_path / "collectord.toml"
    config.write_text(CONFIG.format(state=state, folder=tmp_path))
    common = ("record", "-a", "--duration", "1s", "--json", "--output-dir")
    # A call chain at each switch: there is one even on an idle host.
    perf = run_cli(*common, state / "perf", "-g", "-e", "sched:sched_switch", "-e", "cpu-clock")
    ftrace = run_cli(*common, state / "ftrace", "--via", "ftrace", "-e", "sched:*")
    stored = 0
    for done in (perf, ftrace):
        assert done.returncode == 0, done.stderr
        stored += json.loads(done.stdout)["sessions"][0]["stored"]
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    shipped = run_cli(*("ship", "--once", "--config", config, "--store", store), env=environment)
    assert shipped.returncode == 0, shipped.stderr
    found = [decode(path.read_bytes(), path.name) for path in store.glob("ledger/*/*/*.json")]
    assert sum(one.balance.stored for one in found) == stored
    rows: Counter[str] = Counter()
    for commit in found:
        rows.update({one.event: one.rows for one in commit.objects if one.event})
    for table in ("sched_switch", "stacks", "frames"):
        asked = run_cli(
            *("query", "--json", f"SELECT count(*) AS n FROM {table}", state),  # noqa: S608
            env=environment,
        )
        assert json.loads(asked.stdout)["n"] == rows[table] > 0, table
    with duckdb.connect(":memory:") as connection:
        sql = (
            "SELECT count(*), count(DISTINCT boot_id) FROM read_parquet($files, "
            "hive_partitioning = true, union_by_name = true) "
            "WHERE host = 'db-1' AND time IS NOT NULL"
        )
        files = {"files": f"{store}/events/event=sched_switch/*/*/*.parquet"}
        assert connection.execute(sql, files).fetchall() == [(rows["sched_switch"], 1)]
