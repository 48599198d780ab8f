# SPDX-License-Identifier: Apache-2.0
"""Repair: whatever instant a writer is killed at, its segment opens in perf afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from collectord.reader.verify import State, list_segments, verify
from collectord.sink.manifest import Manifest, decode
from collectord.sink.outcome import Action
from collectord.sink.repair import repair
from collectord.sink.segment_lock import lock
from tests.support import segments as support
from tests.support.segments import files_in, names_in

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.support.perf_tools import Perf

pytestmark = pytest.mark.slow

SAMPLES = 250
SEAL_STEPS = (
    "tail written",
    "cut",
    "header written",
    "file synced",
    "manifest written",
    "manifest renamed",
    "noted as sealed",
    "segment renamed",
    "directory synced",
    "open manifest removed",
)


def _seal_steps(directory: Path, **options: str) -> Generator[str, None, object]:
    sink = support.make_sink(directory, **options)
    segment = sink.next_segment(1, support.OPENING)
    closed = support.fill(segment, SAMPLES)
    return sink.seal_steps(segment, closed, support.closing(lost_samples={11: 3}))


def _actions(directory: Path) -> list[Action]:
    return [outcome.action for outcome in repair(directory)]


def _assert_sound(directory: Path, perf: Perf, samples: int) -> State:
    """Check for one segment with so many samples, its manifest, and no other file."""
    (verdict,) = verify([directory])
    assert verdict.finding is None, verdict.finding
    assert verdict.samples == samples
    beside = {name for name in names_in(directory) if not name.endswith(".json.damaged")}
    assert beside == {verdict.path.name, verdict.path.name + ".json"}
    lines = perf.run("script", "-i", verdict.path).stdout.splitlines()
    assert len(lines) == samples
    assert all("generator" in line and support.EVENT in line for line in lines)
    return verdict.state


def test_seal_steps_are_those_that_are_killed(tmp_path: Path) -> None:
    """The list of steps below is the seal's own."""
    seen = tmp_path / "seen"
    support.killed(lambda: seen.write_text("\n".join(_seal_steps(tmp_path / "exec"))))
    assert tuple(seen.read_text().splitlines()) == SEAL_STEPS


@pytest.mark.parametrize("options", [{}, {"single_file": "out.data"}], ids=["rotated", "single"])
@pytest.mark.parametrize("step", SEAL_STEPS)
def test_kill_between_steps_of_a_seal(
    tmp_path: Path, perf: Perf, step: str, options: dict[str, str]
) -> None:
    """A writer killed after any step of a seal leaves a segment that repair makes whole."""
    options = {key: str(tmp_path / value) for key, value in options.items()}
    support.killed(lambda: support.walk_to(_seal_steps(tmp_path, **options), step))
    repair(tmp_path)
    state = _assert_sound(tmp_path, perf, SAMPLES)
    committed = SEAL_STEPS.index(step) >= SEAL_STEPS.index("manifest renamed")
    assert state is (State.SEALED if committed else State.RECOVERED)
    assert repair(tmp_path) == []


@pytest.mark.parametrize("step", SEAL_STEPS)
def test_kill_between_steps_of_a_repair(tmp_path: Path, perf: Perf, step: str) -> None:
    """A repair killed after any of its steps is done again, to the same result."""
    support.orphan(tmp_path, SAMPLES)
    support.interrupt_repair(tmp_path, step)
    repair(tmp_path)
    assert _assert_sound(tmp_path, perf, SAMPLES) is State.RECOVERED
    assert repair(tmp_path) == []


def test_recovered_manifest_promises_nothing(tmp_path: Path) -> None:
    """A recovered segment is not complete, and knows no number of events produced."""
    support.write_segment(support.make_sink(tmp_path))
    orphan = support.orphan(tmp_path, SAMPLES)
    (outcome,) = repair(tmp_path)
    assert (outcome.action, outcome.samples) == (Action.RECOVERED, SAMPLES)
    raw = outcome.path.with_name(outcome.path.name + ".json").read_bytes()
    manifest = decode(raw, Manifest)
    assert manifest is not None
    assert (manifest.recovered, manifest.complete, manifest.produced) == (True, False, None)
    assert manifest.ledger == {"basis": "none", "produced": None, "stored": SAMPLES}
    assert (manifest.session, manifest.host) == ("exec", "host.example")
    assert (manifest.first_ns, manifest.last_ns) == (1_000_000_000, 1_000_249_000)
    assert manifest.previous is not None
    assert orphan.name == outcome.path.name + ".partial"


def test_torn_chunk(tmp_path: Path, perf: Perf) -> None:
    """If a chunk's write was cut at a page, its whole records stay and the torn one goes."""

    def work() -> None:
        segment = support.make_sink(tmp_path).next_segment(1, support.OPENING)
        whole = support.chunk(support.comm_record())
        torn = support.chunk(b"".join(map(support.sample_record, range(100))))
        support.write_data(segment, [whole, torn[: support.PAGE_BYTES]])

    support.killed(work)
    fitting = support.PAGE_BYTES // len(support.sample_record(0))
    assert support.PAGE_BYTES % len(support.sample_record(0)), "a record must cross the page"
    (outcome,) = repair(tmp_path)
    assert "a record has size 0" in outcome.detail
    assert _assert_sound(tmp_path, perf, fitting) is State.RECOVERED


def test_shortened_file(tmp_path: Path, perf: Perf) -> None:
    """A data file that lost its end is cut to the last whole record."""
    orphan = support.orphan(tmp_path, SAMPLES)
    record_bytes = len(support.sample_record(0))
    data_offset = orphan.stat().st_size - (1 << 16) - sum(map(len, support.sample_chunks(SAMPLES)))
    comm_bytes = len(support.comm_record())
    os.truncate(orphan, data_offset + comm_bytes + 10 * record_bytes + 20)
    (outcome,) = repair(tmp_path)
    assert "cut short" in outcome.detail
    assert _assert_sound(tmp_path, perf, 10) is State.RECOVERED


def test_orphan_without_open_manifest(tmp_path: Path, perf: Perf) -> None:
    """A rotated segment's data is recovered from its own head when its manifest is gone."""
    orphan = support.orphan(tmp_path, SAMPLES)
    orphan.with_name(orphan.name.replace(".partial", ".json.partial")).unlink()
    assert _actions(tmp_path) == [Action.RECOVERED]
    _assert_sound(tmp_path, perf, SAMPLES)


def _open_manifest(orphan: Path) -> Path:
    return orphan.with_name(orphan.name.replace(".partial", ".json.partial"))


DAMAGES = {
    "cut": b'{"schema": 1',
    "byte": b'{"schema": 1, "host": "\xff"}',
    "deep": b'{"later": ' + b"[" * 100_000,
    "surrogate": b'{"schema": 1, "host": "\\ud800"}',
    "huge": b'{"schema": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_open_manifest(tmp_path: Path, perf: Perf, damage: str) -> None:
    """An unreadable one is set aside and reported, and its segment recovered; so are others."""
    orphan, other = support.orphan(tmp_path, SAMPLES), support.orphan(tmp_path / "other", SAMPLES)
    _open_manifest(orphan).write_bytes(DAMAGES[damage])
    outcomes = {outcome.path.parent: outcome for outcome in repair(tmp_path)}
    assert {outcome.action for outcome in outcomes.values()} == {Action.RECOVERED}
    outcome = outcomes[tmp_path]
    assert outcome.damaged
    assert not outcomes[other.parent].damaged
    assert outcome.set_aside is not None
    assert outcome.set_aside.name in outcome.detail
    assert outcome.set_aside.read_bytes() == DAMAGES[damage]
    _assert_sound(outcomes[other.parent].path.parent, perf, SAMPLES)
    shutil.rmtree(other.parent)
    _assert_sound(tmp_path, perf, SAMPLES)
    assert not repair(tmp_path)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_sealed_manifest(tmp_path: Path, damage: str) -> None:
    """It is told, changes nothing, and keeps no other segment from being looked at."""
    sink = support.make_sink(tmp_path)
    first, second = (support.write_segment(sink, token) for token in (1, 2))
    manifest = first.path.with_name(first.path.name + ".json")
    manifest.write_bytes(DAMAGES[damage])
    left = support.orphan(tmp_path)
    before = {path: path.read_bytes() for path in (first.path, manifest, second.path)}
    by_path = {outcome.path: outcome for outcome in repair(tmp_path)}
    assert by_path[first.path].action is Action.DAMAGED
    assert by_path[left.with_name(left.name.removesuffix(".partial"))].action is Action.RECOVERED
    assert {path: path.read_bytes() for path in before} == before
    states = {row.path: row.state for row in list_segments([tmp_path])}
    assert states[first.path] is State.DAMAGED
    found = {verdict.path: verdict.finding for verdict in verify([tmp_path])}
    assert {path for path, finding in found.items() if finding} == {first.path, second.path}
    support.write_segment(support.make_sink(tmp_path))  # the chain goes on


ODD_VALUES = {
    "before the file": {"data_offset": -1},
    "behind every file": {"data_offset": (1 << 63) - 1},
    "elsewhere": {"data_offset": 8192},
    "another format": {"format": "trace.dat"},
    "a broken layout": {"layouts": {support.EVENT: {
        "program": "p", "layout": {"name": "l", "size": 8, "fields": [
            {"name": "f", "ctype": "int", "offset": 8, "size": 4, "count": 0, "kind": "int"}]}}}},
    "a layout of no event": {"layouts": {"none": {
        "program": "p", "layout": {"name": "l", "size": 8, "fields": []}}}},
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD_VALUES)
def test_open_manifest_that_cannot_be_true(tmp_path: Path, odd: str) -> None:
    """Its segment is left alone, and told, until somebody takes the manifest away."""
    orphan = support.orphan(tmp_path, SAMPLES)
    path, data = _open_manifest(orphan), orphan.read_bytes()
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | ODD_VALUES[odd]))
    (outcome,) = repair(tmp_path)
    assert (outcome.action, outcome.damaged) == (Action.REFUSED, True)
    assert "move the manifest away" in outcome.detail
    assert orphan.read_bytes() == data
    path.rename(tmp_path / "away")
    assert _actions(tmp_path) == [Action.RECOVERED]
    (verdict,) = verify([tmp_path])
    assert (verdict.finding, verdict.samples) == (None, SAMPLES)


def test_open_manifest_alone(tmp_path: Path) -> None:
    """An open manifest without data is removed."""
    support.orphan(tmp_path).unlink()
    assert _actions(tmp_path) == [Action.REMOVED]
    assert not names_in(tmp_path)


def test_sealed_manifest_alone(tmp_path: Path) -> None:
    """A manifest whose segment was evicted is removed."""
    support.write_segment(support.make_sink(tmp_path)).path.unlink()
    assert _actions(tmp_path) == [Action.REMOVED]
    assert not names_in(tmp_path)


@pytest.mark.parametrize("keep_bytes", [0, 8, 104, 1000])
def test_kill_while_a_segment_is_created(tmp_path: Path, keep_bytes: int) -> None:
    """A data file without a whole head, and so without data, is removed."""
    orphan = support.orphan(tmp_path)
    os.truncate(orphan, keep_bytes)
    orphan.with_name(orphan.name.replace(".partial", ".json.partial")).unlink()
    assert _actions(tmp_path) == [Action.REMOVED]
    assert not names_in(tmp_path)


def test_kill_before_the_first_record(tmp_path: Path) -> None:
    """A segment that was killed before it got a record is removed."""
    support.killed(lambda: support.make_sink(tmp_path).next_segment(1, support.OPENING))
    assert len(names_in(tmp_path)) == 3
    assert _actions(tmp_path) == [Action.REMOVED]
    assert not names_in(tmp_path)


@pytest.mark.parametrize("offset", [0, 8])
def test_damaged_head(tmp_path: Path, offset: int) -> None:
    """Data behind a damaged head is left alone, and told."""
    orphan = support.orphan(tmp_path)
    with orphan.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 8)
    before = orphan.read_bytes()
    (outcome,) = repair(tmp_path)
    assert outcome.action is Action.REFUSED
    assert "head is damaged" in outcome.detail
    assert orphan.read_bytes() == before


def test_other_version(tmp_path: Path) -> None:
    """A segment whose manifest has another schema is left alone, and told in one line."""
    orphan = support.orphan(tmp_path)
    path = orphan.with_name(orphan.name.replace(".partial", ".json.partial"))
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {"schema": 99}))
    before = orphan.read_bytes()
    (outcome,) = repair(tmp_path)
    assert (outcome.action, outcome.path) == (Action.REFUSED, orphan)
    assert outcome.detail == "left alone: its manifest has schema 99, this version knows 2"
    assert orphan.read_bytes() == before


def test_foreign_files(tmp_path: Path) -> None:
    """Files that are no segments stay as they are, and are not mentioned."""
    contents = {
        "download.partial": b"abc",
        "package.json": b"{}",
        "package": b"",
        "movie.partial": b"",
        "movie.json.partial": b"[1",
        "perf.data": b"PERFILE2",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    refused = [outcome.path.name for outcome in repair(tmp_path)]
    assert refused == ["movie.partial"]
    assert {path.name: path.read_bytes() for path in files_in(tmp_path)} == contents


def test_running_segment(tmp_path: Path) -> None:
    """A segment that is being written is left to its writer."""
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    closed = support.fill(segment)
    assert _actions(tmp_path) == [Action.IN_USE]
    assert sink.seal(segment, closed, support.closing()) is not None
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]


def test_segment_sealed_before_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that its writer seals between a repair's look and its lock is not touched."""
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    closed = support.fill(segment)

    def seal_first(fd: int) -> bool:
        assert sink.seal(segment, closed, support.closing()) is not None
        return lock(fd)

    monkeypatch.setattr("collectord.sink.repair.lock", seal_first)
    assert _actions(tmp_path) == []
    (verdict,) = verify([tmp_path])
    assert (verdict.state, verdict.finding) == (State.SEALED, None)


@pytest.mark.parametrize("step", ["cut", "file synced"])
def test_orphan_does_not_replace_a_file(tmp_path: Path, perf: Perf, step: str) -> None:
    """A killed recording to a name that is taken is recovered beside the older file."""
    file = tmp_path / "out.data"
    older = support.make_sink(tmp_path, single_file=str(file))
    segment = older.next_segment(1, support.OPENING)
    closed = support.fill(segment, SAMPLES)
    older.seal(segment, closed, support.closing(lost_samples={11: 3}))
    manifest = (tmp_path / "out.data.json").read_bytes()
    support.killed(lambda: support.walk_to(_seal_steps(tmp_path, single_file=str(file)), step))
    (outcome,) = repair(tmp_path)
    assert (outcome.action, outcome.path) == (Action.RECOVERED, tmp_path / "out.data.recovered")
    assert (tmp_path / "out.data.json").read_bytes() == manifest
    assert [verdict.finding for verdict in verify([tmp_path])] == [None, None]
    for path in (file, outcome.path):
        assert len(perf.run("script", "-i", path).stdout.splitlines()) == SAMPLES
    assert repair(tmp_path) == []


def test_sealed_manifest_of_lost_data(tmp_path: Path, perf: Perf) -> None:
    """A manifest that promises more than its unnamed segment holds is replaced."""
    info = support.write_segment(support.make_sink(tmp_path), samples=SAMPLES)
    partial = info.path.rename(info.path.with_name(info.path.name + ".partial"))
    os.truncate(partial, info.manifest.data_offset + 8192)
    assert _actions(tmp_path) == [Action.RECOVERED]
    (verdict,) = verify([tmp_path])
    assert 0 < verdict.samples < SAMPLES
    assert _assert_sound(tmp_path, perf, verdict.samples) is State.RECOVERED


def test_all_sessions(tmp_path: Path) -> None:
    """A repair reaches every session of a state directory; a bad segment stops no other."""
    for name in ("exec", "profile"):
        support.orphan(tmp_path / name, 5)
    bad = next((tmp_path / "exec").glob("*.json.partial"))
    bad.unlink()
    bad.mkdir()
    assert Counter(_actions(tmp_path)) == {Action.FAILED: 1, Action.RECOVERED: 1}


def test_unreadable_session() -> None:
    """A session directory that cannot be read is told, and stops no other."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for session in ("exec", "profile"):
            (root / session).mkdir(mode=0)
        if user == 0:
            os.seteuid(65534)
        try:
            outcomes = repair(root)
        finally:
            os.seteuid(user)
    assert [outcome.action for outcome in outcomes] == [Action.FAILED] * 2
    assert "Permission denied" in outcomes[0].detail
