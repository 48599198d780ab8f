# SPDX-License-Identifier: Apache-2.0
"""The chain of manifests: what was changed or removed is found, whichever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.plan.sink_plan import RetentionPlan
from collectord.reader.audit import audit
from collectord.reader.audit_findings import What
from collectord.reader.verify import verify
from collectord.sink import chain_log
from collectord.sink.eviction import evict
from collectord.sink.pack import compress
from collectord.sink.repair import repair
from tests.support import segments as support
from tests.support.segments import files_in

if TYPE_CHECKING:
    from pathlib import Path


EVER_NS = 1 << 62


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Return the three segments of a session."""
    sink = support.make_sink(tmp_path / "exec")
    made = [support.write_segment(sink, token).path for token in range(3)]
    sink.close()
    return made


def manifest_of(path: Path) -> Path:
    """Return the path of a manifest."""
    return path.with_name(f"{path.name}.json")


def faults(root: Path) -> list[bool]:
    """Return whether each segment has a finding, those that are gone last."""
    return [verdict.finding is not None for verdict in verify([root])]


def found(root: Path) -> set[What]:
    """Return what an audit of all time finds about segments."""
    (one,) = audit([root], None, 0, EVER_NS)
    return {finding.what for finding in one.findings} & {
        *(What.EVICTED, What.MISSING, What.CHANGED, What.DAMAGED, What.UNCHAINED)
    }


def test_as_sealed(tmp_path: Path, paths: list[Path]) -> None:
    """Segments that nobody touched have no finding; nor have compressed ones."""
    assert faults(tmp_path) == [False] * 3
    assert not found(tmp_path)
    done = [one.attempt for one in compress(tmp_path / "exec")]
    assert len(done) == len(paths)
    assert faults(tmp_path) == [False] * 3
    assert not found(tmp_path)


@pytest.mark.parametrize("number", range(3))
def test_a_changed_manifest(tmp_path: Path, paths: list[Path], number: int) -> None:
    """A manifest that was changed is found, the newest too, and if it claims to be a successor."""
    path = manifest_of(paths[number])
    whole = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(whole | {"samples": 249}))
    assert faults(tmp_path)[number]
    assert What.CHANGED in found(tmp_path) or What.DAMAGED in found(tmp_path)
    with open_folder(tmp_path / "exec") as folder:
        log = chain_log.read(folder)
    assert log is not None
    sealed = log.entries[paths[number].name].sha256
    forged = whole | {"scope": "cpus", "replaces": sealed}
    path.write_bytes(msgspec.json.encode(forged))
    assert faults(tmp_path)[number]
    assert found(tmp_path) == {What.CHANGED}


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("what", ["data", "manifest", "both"])
def test_a_removed_file(tmp_path: Path, paths: list[Path], number: int, what: str) -> None:
    """A segment that somebody removed is found, the oldest and the newest too; also later."""
    if what in ("data", "both"):
        paths[number].unlink()
    if what in ("manifest", "both"):
        manifest_of(paths[number]).unlink()
    assert any(faults(tmp_path))
    assert What.MISSING in found(tmp_path)
    repair(tmp_path)
    sink = support.make_sink(tmp_path / "exec")  # the next one is chained to what was there
    info = support.write_segment(sink, 9)
    sink.close()
    assert info.manifest.previous is not None
    assert info.manifest.previous.manifest == manifest_of(paths[2]).name
    assert any(faults(tmp_path))
    assert What.MISSING in found(tmp_path)


def test_a_removed_line(tmp_path: Path, paths: list[Path]) -> None:
    """A line that is gone with its segment is found by the chain, and the list by its absence."""
    log = tmp_path / "exec" / chain_log.NAME
    first, _, last = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first + last)
    assert faults(tmp_path) == [False, True, False]
    paths[1].unlink()
    manifest_of(paths[1]).unlink()
    assert faults(tmp_path) == [False, True]
    log.unlink()
    assert What.UNCHAINED in found(tmp_path)


def test_evicted(tmp_path: Path, paths: list[Path]) -> None:
    """Segments that retention deleted are told from removed ones, also when all are gone."""
    size = sum(path.stat().st_blocks for path in files_in(tmp_path / "exec")) * 512
    evict(tmp_path, RetentionPlan(bytes=size - 1), 0)
    assert faults(tmp_path) == [False] * 2
    assert not paths[0].exists()
    assert not found(tmp_path)
    evict(tmp_path, RetentionPlan(bytes=1), 0)
    assert not [*files_in(tmp_path / "exec")]
    assert faults(tmp_path) == []
    with open_folder(tmp_path / "exec") as folder:
        log = chain_log.read(folder)
    assert log is not None
    assert [entry.evicted for entry in log.entries.values()] == ["quota"] * 3


def test_recovered(tmp_path: Path, paths: list[Path]) -> None:
    """A segment that a repair seals is in the chain as all others."""
    orphan = support.orphan(tmp_path / "exec")
    repair(tmp_path)
    assert faults(tmp_path) == [False] * 4
    path = orphan.with_name(orphan.name.removesuffix(".partial"))
    assert path.exists()
    path.unlink()
    manifest_of(path).unlink()
    assert faults(tmp_path) == [False] * 3 + [True]
    assert paths


def test_a_long_list_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest of many evicted segments are named, the others known to be evicted."""
    monkeypatch.setattr(chain_log, "_LONG_BYTES", 8 << 10)
    monkeypatch.setattr(chain_log, "_EVICTED_NAMED", 10)
    names = [f"20260101T000000Z-{number:06d}.perf.data" for number in range(1, 201)]
    with open_folder(tmp_path, Trust.WRITE) as folder:
        for name in names:
            chain_log.note_evicted(folder, [(name, b"")], "age", 1)
        log = chain_log.read(folder)
        assert (tmp_path / chain_log.NAME).stat().st_size < 16 << 10
    assert log is not None
    assert log.older is not None
    assert log.older.older + len(log.entries) == len(names)
    assert all(log.is_evicted(name, *chain_log.format_and_number(name)) for name in names)
    assert not log.is_evicted("x-000201.perf.data", "perf.data", 201)


def test_a_torn_line(tmp_path: Path, paths: list[Path]) -> None:
    """A line that was cut short costs no other one, and is told."""
    log = tmp_path / "exec" / chain_log.NAME
    log.write_bytes(log.read_bytes() + b'{"segment": "2026')
    sink = support.make_sink(tmp_path / "exec")
    support.write_segment(sink, 9)
    sink.close()
    assert faults(tmp_path) == [False] * 4
    assert found(tmp_path) == {What.UNCHAINED}
    assert paths
