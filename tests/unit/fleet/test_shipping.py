# SPDX-License-Identifier: Apache-2.0
"""Segments are put into a store: each once, whole, and with nothing that must not leave."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collectord.fleet.incident_files import Incidents
from collectord.fleet.pace import Pace
from collectord.fleet.pending_segments import Target
from collectord.fleet.redaction import Redaction
from collectord.fleet.shipment import Host as HostOfShipment
from collectord.fleet.shipment import Shipment
from collectord.fleet.shipper import Shipper
from collectord.fleet.store import Store
from collectord.plan.sink_plan import HoldPlan, RetentionPlan
from collectord.sink import ship_note
from collectord.sink.eviction import evict
from collectord.sink.pack import compress
from collectord.sink.ship_note import Waiting
from tests.support.examples import examples
from tests.support.odd_stores import Oddity, OddStore
from tests.support.patience import patient
from tests.support.segments import PID, orphan
from tests.support.shipping import (
    EVENT,
    HOST,
    SAMPLES,
    Host,
    check_store,
    commits_in,
    in_chain,
    rows_of,
    ship,
    text_in,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.object_stores import S3Server

    RunCli = Callable[..., subprocess.CompletedProcess[str]]
    StartCli = Callable[..., subprocess.Popen[str]]

# It starts the program again and again.
pytestmark = pytest.mark.slow

SEED = int(os.environ.get("COLLECTORD_SHIP_SEED", "1"))
KILLS = int(os.environ.get("COLLECTORD_SHIP_KILLS", str(examples(12))))
SEGMENTS = 6
SOME_BYTES = 1 << 10


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host with sealed segments whose columns are shipped."""
    made = Host(tmp_path / "host")
    made.record(SEGMENTS)
    return made


def test_a_folder_as_the_store(host: Host, run_cli: RunCli, tmp_path: Path) -> None:
    """Each segment is there with rows, ledger and the host's labels; a second run is idle."""
    url = str(tmp_path / "store")
    done = run_cli(*host.words(url, "--once"), env=host.environment())
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    store = Store.open(url)
    ordered = check_store(store, SEGMENTS)
    first = ordered[0]
    assert (first.host, first.session, first.format) == (HOST, "exec", "perf.data")
    assert first.labels == {"role": "db", "kernel": "6.18.0"}
    assert (first.balance.produced, first.balance.stored) == (10, SAMPLES)
    assert [one.segment for one in ordered] == sorted(one.segment for one in ordered)
    (key,) = (one.key for one in first.objects if one.event == EVENT)
    rows = rows_of(store, key, tmp_path)
    assert [row["mono_ns"] for row in rows] == sorted(row["mono_ns"] for row in rows)
    assert {(row["session"], row["tid"], row["comm"]) for row in rows} == {
        ("exec", PID, "generator")
    }
    before = sorted(store.objects())
    again = run_cli(*host.words(url, "--once"), env=host.environment())
    assert again.returncode == 0
    assert sorted(store.objects()) == before
    note = ship_note.read(host.note)
    assert note is not None
    (stream,) = note.streams
    assert (stream.shipped, stream.sequence) == (SEGMENTS, SEGMENTS)


def test_a_lost_note(host: Host, tmp_path: Path) -> None:
    """Without the note the store says what is there, and the chain goes on."""
    url = str(tmp_path / "store")
    assert ship(host, url).failed == 0
    before = sorted(Store.open(url).objects())
    (host.note / ship_note.NAME).unlink()
    assert ship(host, url).failed == 0
    assert sorted(Store.open(url).objects()) == before
    (host.note / ship_note.NAME).unlink()
    host.record(1)
    for path in sorted(host.directory.glob("*.perf.data"))[:SEGMENTS]:
        path.unlink()
        path.with_name(path.name + ".json").unlink()
    assert ship(host, url).failed == 0
    check_store(Store.open(url), SEGMENTS + 1)


def test_a_ledger_goes_on_where_retention_has_deleted(host: Host, tmp_path: Path) -> None:
    """The part of a segment is told by the manifest before it, here or in the store."""
    url = str(tmp_path / "store")
    first, second, *others = sorted(host.directory.glob("*.perf.data"))
    for path in others:
        path.unlink()
        path.with_name(path.name + ".json").unlink()
    kept = [second, second.with_name(second.name + ".json")]
    for path in kept:
        path.rename(tmp_path / path.name)
    assert ship(host, url).failed == 0
    first.unlink()
    first.with_name(first.name + ".json").unlink()
    for path in kept:
        (tmp_path / path.name).rename(path)
    assert ship(host, url).failed == 0
    ordered = check_store(Store.open(url), 2)
    # The kernel's counter is the same in both manifests.
    assert [one.balance.produced for one in ordered] == [10, 0]


def test_raw_segments(tmp_path: Path, run_cli: RunCli, s3_server: S3Server) -> None:
    """The file of each segment is in the store too, byte for byte."""
    host = Host(tmp_path / "host", rule="raw")
    paths = host.record(2)
    url = s3_server.new_bucket()
    options = s3_server.options()
    done = run_cli(*host.words(url, "--once"), env=host.environment(options))
    assert done.returncode == 0, done.stderr
    store = Store.open(url, options)
    for path, commit in zip(paths, check_store(store, 2, raw=True), strict=True):
        (raw,) = (one for one in commit.objects if not one.event)
        assert raw.key.endswith(path.name)
        assert store.get(raw.key, 1 << 30) == path.read_bytes()


def test_the_ledger_alone(tmp_path: Path, run_cli: RunCli) -> None:
    """No row leaves the host, and each segment's part of the ledger does."""
    host = Host(tmp_path / "host", rule="ledger")
    host.record(2)
    url = str(tmp_path / "store")
    assert run_cli(*host.words(url, "--once"), env=host.environment()).returncode == 0
    store = Store.open(url)
    found = commits_in(store)
    assert [one.objects for one in found.values()] == [(), ()]
    assert {one.key for one in store.objects()} == {*found}


def test_a_dry_run_puts_nothing(host: Host, run_cli: RunCli, tmp_path: Path) -> None:
    """It shows the objects and their columns, and leaves no note."""
    url = str(tmp_path / "store")
    words = host.words(url, "--dry-run", "--json")
    done = run_cli(*words, env=host.environment())
    assert done.returncode == 0, done.stderr
    objects = json.loads(done.stdout)["objects"]
    assert sum(one["rows"] for one in objects if f"event={EVENT}/" in one["key"]) == (
        SEGMENTS * SAMPLES
    )
    assert any("comm" in one["columns"] for one in objects)
    assert not Path(url).exists()
    assert not host.note.exists()
    shown = run_cli(*host.words(url, "--dry-run"), env=host.environment())
    assert f"{len(objects):,} objects" in shown.stdout


def test_redacted_text_is_in_no_object(tmp_path: Path, run_cli: RunCli) -> None:
    """A name that is hashed, and what is dropped, cannot be found in the store."""
    rules = (
        '[[session.redact]]\ncolumn = "*comm"\nhow = "hash"\n'
        '[[session.redact]]\ncolumn = "file"\nhow = "prefix"\nkeep = 1\n'
    )
    host = Host(tmp_path / "host", more=rules)
    host.record(2)
    url = str(tmp_path / "store")
    done = run_cli(*host.words(url, "--once"), env=host.environment())
    assert done.returncode == 0, done.stderr
    store = Store.open(url)
    texts = {one.key: text_in(store, one.key, tmp_path) for one in store.objects()}
    assert texts
    for text in texts.values():
        assert "generator" not in text
        assert str(tmp_path) not in text
    (commit, _) = commits_in(store).values()
    assert commit.redacted
    names = {row["comm"] for row in rows_of(store, commit.objects[-1].key, tmp_path)}
    assert len(names) == 1
    hidden = next(iter(names))
    assert hidden != "generator"
    assert len(hidden) == 32


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("raw", "raw segments cannot be redacted"), ("columns", "has no key of 16 bytes")],
)
def test_redaction_cannot_be_missed(
    tmp_path: Path, run_cli: RunCli, rule: str, expected: str
) -> None:
    """Raw segments, or hashes without a key, are refused before anything is read."""
    host = Host(tmp_path / "host", rule, '[[session.redact]]\ncolumn = "*comm"\nhow = "hash"\n')
    (host.credentials / "redact").unlink()
    url = str(tmp_path / "store")
    done = run_cli(*host.words(url, "--once"), env=host.environment())
    assert done.returncode == 6
    assert expected in done.stderr


def test_two_shippers_of_one_host(host: Host, start_cli: StartCli, s3_server: S3Server) -> None:
    """Both end well, and each segment is in the store once."""
    url, options = s3_server.new_bucket(), s3_server.options()
    other = host.config.with_name("other.toml")
    other.write_text(host.config.read_text().replace(str(host.note), str(host.note) + "-2"))
    env = host.environment(options)
    words = host.words(url, "--once")
    both = [
        start_cli(*words, env=env),
        start_cli(*(str(other) if word == str(host.config) else word for word in words), env=env),
    ]
    for one in both:
        _, stderr = one.communicate(timeout=patient(120))
        assert one.returncode == 0, stderr
    check_store(Store.open(url, options), SEGMENTS)


@pytest.mark.parametrize("oddity", [*Oddity])
def test_an_odd_store(host: Host, run_cli: RunCli, s3_server: S3Server, oddity: Oddity) -> None:
    """A failure is told and tried again, and no success is believed that is not seen."""
    url = s3_server.new_bucket()
    store = Store.open(url, s3_server.options())
    with OddStore(s3_server.port, 0.3, [oddity], seed=SEED) as odd:
        env = host.environment(s3_server.options(odd.port))
        for _ in range(40):
            done = run_cli(*host.words(url, "--once"), env=env)
            note = ship_note.read(host.note)
            assert note is not None
            for stream in note.streams:
                assert len(commits_in(store)) >= stream.sequence
            if done.returncode == 0:
                break
            assert sum(note.errors.values()) > 0
        assert odd.done[oddity] > 0
    assert done.returncode == 0, done.stderr
    check_store(store, SEGMENTS)


def test_a_lie_about_a_commit(host: Host, run_cli: RunCli, s3_server: S3Server) -> None:
    """A segment whose commit cannot be read back is not noted as shipped."""
    url = s3_server.new_bucket()
    store = Store.open(url, s3_server.options())
    with OddStore(s3_server.port, 1.0, [Oddity.LIE], only="/ledger/") as odd:
        env = host.environment(s3_server.options(odd.port))
        done = run_cli(*host.words(url, "--once"), env=env)
        assert done.returncode == 1
        note = ship_note.read(host.note)
        assert note is not None
        assert (note.streams, note.errors) == ((), {"missing": 1})
        assert commits_in(store) == {}
        odd.rate = 0.0
        assert run_cli(*host.words(url, "--once"), env=env).returncode == 0
    check_store(store, SEGMENTS)


def _sums(host: Host) -> dict[str, str]:
    """Return the SHA-256 of the segments of a host, by name."""
    paths = host.directory.glob("*.perf.data")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_kills(start_cli: StartCli, run_cli: RunCli, s3_server: S3Server, tmp_path: Path) -> None:
    """Killed at any instant, with a store of which a fifth of the requests fails.

    Each segment is in the store once, byte for byte, or pending, and retention deletes none before
    it is there.
    """
    host = Host(tmp_path / "host", rule="raw")
    host.record(SEGMENTS)
    dice = random.Random(SEED)  # noqa: S311  # chooses instants
    url = s3_server.new_bucket()
    store = Store.open(url, s3_server.options())
    sealed = _sums(host)
    # No segment may stay but those that wait.
    hold = HoldPlan(str(host.note), (("exec", str(host.directory)),), bytes=1 << 40)
    plan = RetentionPlan(bytes=SOME_BYTES, hold=hold)
    with OddStore(s3_server.port, 0.2, seed=SEED) as odd:
        env = host.environment(s3_server.options(odd.port))
        for number in range(KILLS):
            if number % 4 == 3:
                host.record(1)
                sealed |= _sums(host)
            process = start_cli(*host.words(url, "--once"), env=env)
            ended = threading.Event()
            ended.wait(dice.random() * patient(2.0))
            process.kill()
            process.communicate()
            note = ship_note.read(host.note)
            gone = evict(host.state, plan, 0, waiting=Waiting(frozenset({host.directory}), note))
            there = {one.segment for one in commits_in(store).values()}
            assert {one.path.name for one in gone} <= there
            assert not any(one.unshipped for one in gone)
        odd.rate = 0.0
        done = run_cli(*host.words(url, "--once"), env=env)
    assert done.returncode == 0, done.stderr
    ordered = check_store(store, len(sealed), raw=True)
    raw = [
        (one.segment, stored.sha256)
        for one in ordered
        for stored in one.objects
        if not stored.event
    ]
    assert sorted(raw) == sorted(sealed.items())


def test_a_store_that_is_away(host: Host, run_cli: RunCli, s3_server: S3Server) -> None:
    """All is pending and told, and is shipped when the store is back."""
    url = s3_server.new_bucket()
    env = host.environment(s3_server.options(port=1))
    done = run_cli(*host.words(url, "--once"), env=env)
    assert done.returncode == 1
    note = ship_note.read(host.note)
    assert note is not None
    assert note.errors == {"unavailable": 1}  # of one request: the others are not tried
    assert note.streams == ()
    env = host.environment(s3_server.options())
    assert run_cli(*host.words(url, "--once"), env=env).returncode == 0
    check_store(Store.open(url, s3_server.options()), SEGMENTS)


def test_an_away_store_is_asked_less_and_less(host: Host, s3_server: S3Server) -> None:
    """The waits grow, up to a limit."""
    waits: list[float] = []
    store = Store.open("s3://bucket/x", s3_server.options(port=1))
    pace = Pace(0, 0, lambda _: None)
    host.note.mkdir()
    target = Target("exec", host.directory, "ledger", by_incident=False, redaction=Redaction())
    shipper = Shipper(
        [target],
        host.note,
        Shipment(store, HostOfShipment(name=HOST), pace),
        Incidents(host.state, None, HOST, pace, redacted=False),
        lambda: len(waits) >= 3,
    )
    shipper.run(10.0, waits.append)
    assert waits == [2.0, 4.0, 8.0]


def test_a_store_that_has_taken_a_segment_is_asked_soon(host: Host, s3_server: S3Server) -> None:
    """The waits begin anew with each pass that gets on, although it ends with a failure."""
    waits: list[float] = []
    host.note.mkdir()
    second = sorted(host.directory.glob("*.json"))[1].read_bytes()
    with OddStore(s3_server.port, 1.0, [Oddity.REFUSE]) as odd:

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                odd.only = hashlib.sha256(second).hexdigest()

        store = Store.open(s3_server.new_bucket(), s3_server.options(odd.port))
        pace = Pace(0, 0, lambda _: None)
        target = Target("exec", host.directory, "ledger", by_incident=False, redaction=Redaction())
        shipper = Shipper(
            [target],
            host.note,
            Shipment(store, HostOfShipment(name=HOST), pace),
            Incidents(host.state, None, HOST, pace, redacted=False),
            lambda: len(waits) >= 4,
        )
        shipper.run(10.0, wait)
    assert waits == [2.0, 4.0, 2.0, 4.0]


def test_what_is_not_sealed_holds_its_format_up(
    host: Host, run_cli: RunCli, tmp_path: Path
) -> None:
    """Segments follow each other: none is shipped behind one that a repair has yet to seal."""
    orphan(host.directory)
    host.record(1)
    url = str(tmp_path / "store")
    assert ship(host, url).failed == 0
    assert len(commits_in(Store.open(url))) == SEGMENTS
    assert run_cli("segments", "repair", host.state).returncode == 0
    assert ship(host, url).failed == 0
    ordered = check_store(Store.open(url), SEGMENTS + 2)
    assert [one.segment for one in ordered] == sorted(one.segment for one in ordered)


def test_a_compressed_segment_is_the_same_one(host: Host, tmp_path: Path) -> None:
    """It has the key that it had, and its commit the manifest as it was sealed."""
    assert len([*compress(host.directory)]) == SEGMENTS
    url = str(tmp_path / "store")
    assert ship(host, url).failed == 0
    check_store(Store.open(url), SEGMENTS)


def test_an_unreadable_manifest_is_passed_over(host: Host, tmp_path: Path) -> None:
    """The others are shipped, and the next commit says how many are missing."""
    paths = sorted(host.directory.glob("*.perf.data"))
    paths[1].with_name(paths[1].name + ".json").write_bytes(b"{}")
    url = str(tmp_path / "store")
    result = ship(host, url)
    assert (result.shipped, result.failed) == (SEGMENTS - 1, 0)
    ordered = in_chain(Store.open(url), commits_in(Store.open(url)))
    assert [one.passed_over for one in ordered] == [0, 1, *[0] * (SEGMENTS - 3)]
    note = ship_note.read(host.note)
    assert note is not None
    assert note.errors == {"unreadable": 1}


def test_without_the_packages(host: Host, run_cli: RunCli, tmp_path: Path) -> None:
    """The verb says what to install, and all others work."""
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "obstore.py").write_text("raise ImportError\n")
    env = {**host.environment(), "PYTHONPATH": f"{fake}:{Path(__file__).parents[3]}"}
    done = run_cli(*host.words(str(tmp_path / "store"), "--once"), env=env)
    assert done.returncode == 1
    assert "collectord[fleet]" in done.stderr
    listed = run_cli("segments", "verify", host.state, env=env)
    assert listed.returncode == 0, listed.stderr
