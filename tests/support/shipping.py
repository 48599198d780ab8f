# SPDX-License-Identifier: Apache-2.0
"""Hosts with sealed segments to ship, and what must be in a store afterwards."""

from __future__ import annotations

import hashlib
import io
import json
from typing import TYPE_CHECKING, Any, Final

import duckdb

from collectord.fleet import commit as commits
from collectord.fleet.incident_files import Incidents
from collectord.fleet.pace import Pace
from collectord.fleet.pending_segments import Target
from collectord.fleet.redaction import Redaction
from collectord.fleet.shipment import Host as OfShipment
from collectord.fleet.shipment import Shipment
from collectord.fleet.shipper import Shipper
from collectord.fleet.store import Store
from collectord.fleet.store_keys import LEDGER, parse_commit_key, parse_event_key
from tests.support.segments import make_sink, write_segment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collectord.fleet.commit import Commit, Rule
    from collectord.fleet.shipper import Result

SESSION: Final = "exec"
EVENT: Final = "sys_enter_getppid"
SAMPLES: Final = 250
HOST: Final = "db-1"
KEY: Final = "0123456789abcdef0123456789abcdef"
LIMIT_BYTES: Final = 64 << 20


class Host:
    """A host with the segments of one session.

    Args:
        folder: for all that it has.
        rule: what is shipped.
        more: lines of the session.
        ship: lines of the table [ship].
    """

    def __init__(
        self, folder: Path, rule: str = "columns", more: str = "", ship: str = ""
    ) -> None:
        self.folder = folder
        self.rule = rule
        self.state = folder / "state"
        self.directory = self.state / SESSION
        self.note = folder / "ship"
        self.config = folder / "collectord.toml"
        self.credentials = folder / "credentials"
        folder.mkdir(exist_ok=True)
        self.credentials.mkdir()
        self.labels = folder / "host.toml"
        self.labels.write_text('role = "db"\n')
        (self.credentials / "redact").write_text(KEY)
        self.config.write_text(
            f'[daemon]\nstate_dir = "{self.state}"\n'
            f'[ship]\nhost = "{HOST}"\nhost_file = "{self.labels}"\ncpu = "100%"\nrate = "0"\n'
            f'directory = "{self.note}"\n{ship}\n'
            f'[[session]]\nname = "{SESSION}"\nship = "{rule}"\n{more}\n'
            '[[session.source]]\nkind = "perf"\nevents = ["syscalls:sys_enter_getppid"]\n'
        )

    def record(self, segments: int) -> list[Path]:
        """Seal so many segments; return their paths."""
        sink = make_sink(self.directory)
        try:
            return [write_segment(sink, token, SAMPLES).path for token in range(1, segments + 1)]
        finally:
            sink.close()

    def words(self, url: str, *more: str) -> tuple[str, ...]:
        """Return the words of a command that ships to a store."""
        return ("ship", "--config", str(self.config), "--store", url, *more)

    def environment(self, options: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return what a service manager gives the shipper."""
        lines = [f"{name}={value}\n" for name, value in (options or {}).items()]
        (self.credentials / "store").write_text("".join(lines))
        return {
            "CREDENTIALS_DIRECTORY": str(self.credentials),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }


def ship(host: Host, url: str) -> Result:
    """Ship what is pending on a host to a folder, in this process."""
    pace = Pace(0, 0, lambda _: None)
    host.note.mkdir(exist_ok=True)
    rule: Rule = host.rule  # type: ignore[assignment]  # of the configuration
    target = Target(SESSION, host.directory, rule, by_incident=False, redaction=Redaction())
    store = Store.open(url, make=True)
    shipment = Shipment(store, OfShipment(HOST, {"role": "db"}), pace)
    incidents = Incidents(host.state, store, HOST, pace, redacted=False)
    return Shipper([target], host.note, shipment, incidents, lambda: False).ship_all()


def commits_in(store: Store) -> dict[str, Commit]:
    """Return the commits in a store by key."""
    return {
        one.key: commits.decode(store.get(one.key, LIMIT_BYTES), one.key)
        for one in store.objects(LEDGER)
    }


def check_store(store: Store, segments: int, *, raw: bool = False) -> list[Commit]:
    """Check that each segment is in a store once, and whole; return the commits in their order."""
    found = commits_in(store)
    assert len(found) == segments
    objects = {one.key: one.bytes for one in store.objects()}
    named = {one.key for commit in found.values() for one in commit.objects}
    assert named | {*found} == {*objects}, "an object belongs to no commit"
    for key, commit in found.items():
        place = parse_commit_key(key)
        assert place is not None
        assert place.source == commit.source == commits.sources_told(commit)[0]
        for one in commit.objects:
            assert store.digest(one.key) == (one.bytes, one.sha256)
            told = parse_event_key(one.key)
            assert raw or told is not None
            if told is not None:
                assert (told.event, told.source) == (one.event, commit.source)
        rows = [one.rows for one in commit.objects if one.event == EVENT]
        assert rows == [SAMPLES]
    return in_chain(store, found)


def in_chain(store: Store, found: Mapping[str, Commit]) -> list[Commit]:
    """Return commits of one stream in their order, which their hashes prove."""
    after = {one.previous.key if one.previous else "": key for key, one in found.items()}
    assert len(after) == len(found), "the chain forks"
    ordered = []
    key = ""
    while key in after:
        key = after[key]
        commit = found[key]
        if commit.previous is not None:
            data = store.get(commit.previous.key, LIMIT_BYTES)
            assert hashlib.sha256(data).hexdigest() == commit.previous.sha256
        ordered.append(commit)
    assert len(ordered) == len(found)
    return ordered


def rows_of(store: Store, key: str, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file in a store."""
    target = folder / "rows.parquet"
    target.unlink(missing_ok=True)
    store.download(key, target)
    with duckdb.connect(":memory:") as connection:
        made = connection.execute("FROM read_parquet($path)", {"path": str(target)})
        names = [column[0] for column in made.description or ()]
        return [dict(zip(names, row, strict=True)) for row in made.fetchall()]


def text_in(store: Store, key: str, folder: Path) -> str:
    """Return all that an object says as text: of Parquet all values, and the bytes themselves."""
    data = store.get(key, LIMIT_BYTES)
    text = io.StringIO()
    if key.endswith(".parquet"):
        text.write(json.dumps(rows_of(store, key, folder), default=str))
    text.write(data.decode(errors="replace"))
    return text.getvalue()
