# SPDX-License-Identifier: Apache-2.0
"""Parts of the shipper: its pace, labels, credentials, hashes, and which segments are wanted."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

import duckdb
import msgspec
import pytest

from collectord.errors import ConfigError
from collectord.fleet.credentials import redaction_key, store_options
from collectord.fleet.dry_store import DryStore
from collectord.fleet.host_labels import read_labels
from collectord.fleet.incident_files import AROUND_NS, SETTLED_NS, Incidents
from collectord.fleet.pace import Pace
from collectord.fleet.pending_segments import Sealed, Target, pending
from collectord.fleet.redaction import Redaction, Rule
from collectord.fleet.tables import hosts
from collectord.sink.incident_folder import IncidentFolder, IncidentNote
from collectord.sink.manifest import encode
from collectord.sink.ship_note import ShipNote
from tests.support.segments import TIME_NS
from tests.support.shipping import SESSION, Host

if TYPE_CHECKING:
    from pathlib import Path

SECOND_NS = 1_000_000_000


def asked(sql: str) -> list[tuple[str | None, ...]]:
    """Return the rows of a statement."""
    with duckdb.connect(":memory:") as connection:
        return connection.execute(sql).fetchall()


class Clock:
    """Time that passes while the pace waits, or as work is done."""

    def __init__(self) -> None:
        self.now_ns = self.used_ns = 0

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += int(seconds * SECOND_NS)

    def work(self, seconds: float) -> None:
        """Use the processor."""
        self.wait(seconds)
        self.used_ns += int(seconds * SECOND_NS)

    def pace(self, cpu: float, rate_bytes: int) -> Pace:
        """Return a pace by this clock."""
        return Pace(cpu, rate_bytes, self.wait, lambda: self.now_ns, lambda: self.used_ns)


def test_the_processor_time_is_limited() -> None:
    """A tenth of a CPU: a second of work takes ten, whatever its pieces are."""
    clock = Clock()
    pace = clock.pace(0.1, 0)
    for _ in range(10):
        clock.work(0.1)
        pace.keep()
    assert clock.now_ns / SECOND_NS == pytest.approx(10, rel=0.01)


def test_the_rate_is_limited() -> None:
    """At 1000 bytes per second, 5000 take five seconds."""
    clock = Clock()
    pace = clock.pace(0, 1000)
    for _ in range(5):
        pace.keep(1000)
    assert clock.now_ns / SECOND_NS == pytest.approx(5, rel=0.01)


def test_idle_time_is_not_saved_for_long() -> None:
    """A day without work gives no more than ten seconds of haste."""
    clock = Clock()
    pace = clock.pace(0, 1000)
    clock.wait(86_400)
    pace.keep()
    began_ns = clock.now_ns
    pace.keep(60_000)
    assert (clock.now_ns - began_ns) / SECOND_NS == pytest.approx(50, rel=0.01)


def test_labels(tmp_path: Path) -> None:
    """Texts of a host file, and none without one."""
    file = tmp_path / "host.toml"
    assert read_labels(file) == {}
    file.write_text('role = "db"\nrack = "a 1"\n')
    assert read_labels(file) == {"role": "db", "rack": "a 1"}


@pytest.mark.parametrize(
    "text", ["role = 1", 'Role = "db"', 'kernel = "x"', 'host = "x"', "role", 'r = "\\u0000']
)
def test_labels_that_are_none(tmp_path: Path, text: str) -> None:
    """Anything else is an error that names the file."""
    file = tmp_path / "host.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="host"):
        read_labels(file)


def test_a_label_is_no_second_column_of_names() -> None:
    """A commit may have one that is called so, from elsewhere."""
    table = hosts({"a": {"host": "x", "role": "db"}}, ["a"])
    assert [*table.columns] == ["host", "role"]
    assert [*table.rows] == [("a", "db")]


def test_credentials(tmp_path: Path) -> None:
    """Options a line each, and a key that is long enough."""
    assert store_options(None) == {}
    assert store_options(tmp_path) == {}
    (tmp_path / "store").write_text("# of the bucket\nAWS_ACCESS_KEY_ID = a=b\n\n")
    assert store_options(tmp_path) == {"aws_access_key_id": "a=b"}
    (tmp_path / "store").write_text("aws_access_key_id")
    with pytest.raises(ConfigError, match="is not an option"):
        store_options(tmp_path)
    assert redaction_key(None, needed=False) == b""
    (tmp_path / "redact").write_text("too short\n")
    with pytest.raises(ConfigError, match="has no key"):
        redaction_key(tmp_path, needed=True)
    (tmp_path / "redact").write_text("x" * 16 + "\n")
    assert redaction_key(tmp_path, needed=True) == b"x" * 16


@pytest.mark.parametrize("key", [b"k" * 16, b"k" * 64, b"k" * 100])
def test_hashes_are_hmacs(key: bytes) -> None:
    """Whoever has the key finds the hash of a name by any other program."""
    redaction = Redaction((Rule(column="*comm", how="hash"),), key)
    expression = redaction.expression("sched_switch", "prev_comm", "text")
    rows = asked(
        f"SELECT {expression} FROM (VALUES ('café'), (''), (NULL)) AS t(prev_comm)"  # noqa: S608
    )
    expected = [
        hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:32] for name in ("café", "")
    ]
    assert [row[0] for row in rows] == [*expected, None]


def test_rules_fit_columns() -> None:
    """The first one that fits holds; numbers cannot be hashed, and are left out."""
    rules = (
        Rule(column="file", table="map*", how="prefix", keep=2),
        Rule(column="file"),
        Rule(column="*pid", how="hash"),
    )
    redaction = Redaction(rules, b"k" * 16)
    prefix = redaction.expression("mappings", "file", "text")
    found = asked(
        f"SELECT {prefix} FROM (VALUES ('/usr/lib/x/y'), ('/a'), ('[vdso]')) AS t(file)"  # noqa: S608
    )
    assert [row[0] for row in found] == ["/usr/lib", "/a", "[vdso]"]
    assert redaction.expression("losses", "file", "text") is None
    assert redaction.expression("x", "pid", "i32") is None
    assert redaction.expression("x", "time", "time") == '"time"'


def incident(host: Host, fired_ns: int, *files: str) -> str:
    """Make an incident; return its name."""
    folder = IncidentFolder(host.state)
    name = folder.begin(fired_ns, "oom")
    folder.put(
        IncidentNote(
            id=name,
            trigger="oom",
            kind="oom-kill",
            reason="generator was killed",
            hostname="h",
            boot_id="b",
            release="6",
            fired_ns=fired_ns,
            taken_ns=fired_ns,
            files=files,
            moment={"processes": ["generator"]},
        )
    )
    return name


def test_records_of_incidents_alone(tmp_path: Path) -> None:
    """A segment is wanted if an incident has it, or is near; before that is known it waits."""
    host = Host(tmp_path / "host")
    host.record(1)
    target = Target(SESSION, host.directory, "columns", by_incident=True, redaction=Redaction())
    (segment,) = pending(target, ShipNote(written_ns=0))
    assert isinstance(segment, Sealed)
    times = segment.times
    assert times is not None
    now_ns = times[1]

    def wanted() -> bool | None:
        made = Incidents(
            host.state, None, "", Pace(0, 0, lambda _: None), redacted=False, now_ns=lambda: now_ns
        )
        return made.is_wanted(target, segment)

    assert wanted() is None
    now_ns += SETTLED_NS
    assert wanted() is False
    incident(host, times[1] + AROUND_NS + 1)
    assert wanted() is False
    incident(host, times[1] + AROUND_NS)
    assert wanted() is True


def test_a_segment_in_an_incident_is_wanted(tmp_path: Path) -> None:
    """It is, whenever the incident was."""
    host = Host(tmp_path / "host")
    (path,) = host.record(1)
    target = Target(SESSION, host.directory, "columns", by_incident=True, redaction=Redaction())
    (segment,) = pending(target, ShipNote(written_ns=0))
    assert isinstance(segment, Sealed)
    incident(host, TIME_NS + 10**15, f"{SESSION}/{path.name}")
    made = Incidents(host.state, None, "", Pace(0, 0, lambda _: None), redacted=False)
    assert made.is_wanted(target, segment) is True


@pytest.mark.parametrize("redacted", [False, True])
def test_incidents_are_put_with_their_answers(tmp_path: Path, *, redacted: bool) -> None:
    """The note is last; where anything is redacted, it has no name of a process."""
    host = Host(tmp_path / "host")
    name = incident(host, TIME_NS)
    folder = IncidentFolder(host.state)
    for file in ("summary.txt", "answers/why-mem.txt"):
        with open(folder.create(name, file), "wb") as opened:  # noqa: PTH123  # a descriptor
            opened.write(b"of generator")
    store = DryStore()
    pace = Pace(0, 0, lambda _: None)
    incidents = Incidents(host.state, store, "db-1", pace, redacted=redacted)
    assert [*incidents.pending([name])] == []
    assert [*incidents.pending([])] == [name]
    incidents.ship(name)
    keys = [one.key for one in store.objects]
    below = f"incidents/host=db-1/{name}/"
    assert keys[-1] == f"{below}incident.json"
    assert len(keys) == (1 if redacted else 3)
    told = b"".join(store.get(key, 0) for key in keys)
    assert (b"generator" in told) is not redacted


def test_a_redacted_manifest_names_nothing_of_the_host(tmp_path: Path) -> None:
    """Paths of mapped files, filters and the scope are what was observed."""
    host = Host(tmp_path / "host")
    host.record(1)
    target = Target(SESSION, host.directory, "columns", by_incident=False, redaction=Redaction())
    (segment,) = pending(target, ShipNote(written_ns=0))
    assert isinstance(segment, Sealed)
    manifest = msgspec.structs.replace(
        segment.manifest,
        scope="comm generator",
        filters={"x:y": "comm == generator"},
        build_ids={"/usr/bin/generator": "00"},
    )
    hidden = Redaction((Rule("*comm", how="hash"),), b"k" * 16).manifest(manifest)
    assert b"generator" not in encode(hidden)
