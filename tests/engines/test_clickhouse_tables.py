# SPDX-License-Identifier: Apache-2.0
"""The tables of `config/fleet/clickhouse.sql` have the rows of committed segments, each once.

`make test-engines` runs this: chDB takes the statements as a server does.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from chdb.session import Session

from collectord.fleet.store import Store
from tests.support import object_stores
from tests.support.fleets import DAY, SCHED, SECOND, Host, Shipped, switches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.object_stores import S3Server

_SQL: Final = Path(__file__).parents[2] / "config/fleet/clickhouse.sql"
_ADDRESS: Final = "https://traces.s3.eu-central-1.amazonaws.com/fleet"
_REFRESH: Final = (
    "SYSTEM REFRESH VIEW fleet.copy_sched_switch",
    "SYSTEM WAIT VIEW fleet.copy_sched_switch",
)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """Run an S3 server."""
    object_stores.start_runtime()
    yield from object_stores.serve()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """Return an empty server of ClickHouse in this process."""
    made = Session(str(tmp_path / "clickhouse"))
    yield made
    made.close()


def _lines(session: Session, statement: str) -> list[str]:
    return str(session.query(statement, "CSV")).splitlines()


def _made(session: Session, address: str) -> None:
    """Carry the statements of the file out."""
    lines = [line for line in _SQL.read_text().splitlines() if not line.startswith("--")]
    for statement in "\n".join(lines).replace(_ADDRESS, address).split(";\n"):
        if statement.strip():
            session.query(statement.rstrip().removesuffix(";"))


def _put(
    store: Store, host: str, rows: int, *, age_ns: int = DAY // 2, is_committed: bool = True
) -> None:
    with Shipped(store) as shipped:
        begins_ns = time.time_ns() - age_ns
        events = {f"sched:{SCHED}": switches(1, rows)}
        shipped.segment(Host(host), events, begins_ns, SECOND, is_committed=is_committed)


def test_a_copy_has_each_committed_row_once(
    session: Session, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is continued; older days have theirs, and no row is without a commit."""
    options = server.options()
    for name in ("aws_access_key_id", "aws_secret_access_key"):
        monkeypatch.setenv(name.upper(), options[name])
    url = server.new_bucket()
    store = Store.open(url, options)
    _put(store, "a b", 30)
    _put(store, "old", 20, age_ns=5 * DAY // 2)
    _put(store, "half", 10, is_committed=False)
    _made(session, url.replace("s3:/", options["aws_endpoint"], 1))
    committed = "SELECT host, stored FROM fleet.committed ORDER BY host"
    assert _lines(session, committed) == ['"a b",30', '"old",20']
    of_host = "SELECT host, count() FROM fleet.{} GROUP BY host ORDER BY host"
    assert _lines(session, of_host.format("sched_switch")) == ['"a b",30', '"half",10', '"old",20']
    for statement in 2 * _REFRESH:
        session.query(statement)
    assert _lines(session, of_host.format("sched_switch_copy")) == ['"a b",30', '"old",20']
    _put(store, "new", 5)
    for statement in 2 * _REFRESH:
        session.query(statement)
    assert _lines(session, of_host.format("sched_switch_copy")) == [
        '"a b",30',
        '"new",5',
        '"old",20',
    ]
