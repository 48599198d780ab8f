# SPDX-License-Identifier: Apache-2.0
"""Segments that are sets of files: one name, a file for each CPU, sealed and repaired together."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from collectord.errors import SinkError
from collectord.plan.sink_plan import RetentionPlan
from collectord.reader.verify import State, list_segments, verify
from collectord.sink.base import Closing, Opening
from collectord.sink.eviction import evict
from collectord.sink.outcome import Action
from collectord.sink.repair import repair
from collectord.sink.stored_file import Check
from tests.support.relay_records import note, record
from tests.support.relay_segments import DATA, EMPTY, RINGS, closed, filled, make_sink, seal
from tests.support.segments import CLOCK, LEDGER, files_in

if TYPE_CHECKING:
    from pathlib import Path


def test_a_set_has_one_name_and_every_number(tmp_path: Path) -> None:
    """Also that of a CPU without a ring: blkparse stops at a file that is missing."""
    info = seal(make_sink(tmp_path), 1, DATA)
    assert info is not None
    names = [path.name for path in (info.path, *info.more)]
    base = names[0].removesuffix(".0")
    assert names == [f"{base}.{number}" for number in range(3)]
    assert [(tmp_path / name).stat().st_size for name in names] == [96, 0, 48]
    assert [entry.samples for entry in info.manifest.rings] == [2, 1]
    assert {path.name for path in files_in(tmp_path)} == {
        *names,
        *(f"{name}.json" for name in names),
    }
    manifest = json.loads((tmp_path / f"{names[2]}.json").read_text())
    assert (manifest["format"], manifest["samples"]) == ("blktrace.2", 1)
    assert manifest["events"] == ["/dev/vdb"]
    assert [entry["cpu"] for entry in manifest["rings"]] == [2]


def test_a_ring_that_joins_has_its_file_from_the_next_set_on(tmp_path: Path) -> None:
    """The running set stays as it is; a CPU between the others and the new one has a file too."""
    sink = make_sink(tmp_path)
    first = filled(sink, 1, DATA)
    assert sink.add_ring(6, 4)
    late = msgspec.structs.replace(RINGS[0], ring=6, cpu=4)
    rings, data = (*RINGS, late), {**EMPTY, 6: record(1)}
    second = sink.next_segment(2, Opening(clock=CLOCK, rings=rings))
    assert sorted(second.files) == [4, 5, 6]
    os.pwrite(second.files[6], data[6], 0)
    closing = Closing(clock=CLOCK, rings=rings, ledger=LEDGER)
    infos = [
        sink.seal(first, closed(1, DATA), closing),
        sink.seal(second, closed(2, data), closing),
    ]
    files = [(info.path, *info.more) for info in infos if info is not None]
    assert [[path.stat().st_size for path in paths] for paths in files] == [
        [96, 0, 48],
        [0, 0, 0, 0, 48],
    ]
    manifest = json.loads((tmp_path / f"{files[1][4].name}.json").read_text())
    assert [(entry["cpu"], entry["samples"]) for entry in manifest["rings"]] == [(4, 1)]
    assert sink.so_far.stored == 4
    assert [verdict.finding for verdict in verify([tmp_path])] == [None] * 8
    sink.close()


def test_sets_of_two_devices_in_one_directory_differ(tmp_path: Path) -> None:
    """Neither takes a name of the other."""
    sinks = make_sink(tmp_path), make_sink(tmp_path)
    segments = [filled(sink, 1, DATA) for sink in sinks]
    names = {segment.paths.set_name for segment in segments}
    assert len(names) == 2
    for sink, segment in zip(sinks, segments, strict=True):
        sink.seal(segment, closed(1, DATA), Closing(clock=CLOCK, rings=RINGS, ledger=LEDGER))
    assert [verdict.finding for verdict in verify([tmp_path])] == [None] * 6


def test_named_files(tmp_path: Path) -> None:
    """`-o FILE` gives FILE.blktrace.N, as blktrace's own does."""
    sink = make_sink(tmp_path, single_file=str(tmp_path / "out"))
    info = seal(sink, 1, DATA, final=True)
    assert info is not None
    assert info.path == tmp_path / "out.blktrace.0"
    assert [v.finding for v in verify([tmp_path])] == [None] * 3
    assert [row.samples for row in list_segments([tmp_path])] == [2, 0, 1]


def test_set_that_is_replaced_is_kept(tmp_path: Path) -> None:
    """All its files, under a name that blkparse takes as one."""
    for data in (DATA, {4: record(1), 5: record(1)}):
        seal(make_sink(tmp_path, single_file=str(tmp_path / "out")), 1, data, final=True)
    found = {verdict.path.name: verdict.samples for verdict in verify([tmp_path])}
    assert found == {
        **{f"out.blktrace.{number}": samples for number, samples in ((0, 1), (1, 0), (2, 1))},
        **{f"out.old.blktrace.{number}": samples for number, samples in ((0, 2), (1, 0), (2, 1))},
    }
    assert not any(verdict.finding for verdict in verify([tmp_path]))


def test_a_set_without_data_is_dropped_as_one(tmp_path: Path) -> None:
    """The first and the last set are kept."""
    sink = make_sink(tmp_path)
    assert seal(sink, 1, EMPTY) is not None
    assert seal(sink, 2, EMPTY) is None
    assert seal(sink, 3, {4: record(1), 5: b""}) is not None
    assert seal(sink, 4, EMPTY, final=True) is not None
    assert len(list(tmp_path.glob("*.blktrace.?"))) == 9
    sink.close()


def test_what_was_prepared_goes_with_the_sink(tmp_path: Path) -> None:
    """No file of an empty set is left."""
    sink = make_sink(tmp_path / "new")
    filled(sink, 1, {})
    sink.close()
    assert not (tmp_path / "new").exists()
    sink.close()


def test_a_killed_writer_leaves_whole_records(tmp_path: Path) -> None:
    """A record that is half there is cut off; an empty file keeps its place beside the others."""
    sink = make_sink(tmp_path)
    filled(sink, 1, {4: b"", 5: note("x") + record(1) + record(2)[:20]})
    sink.close()
    (first, second, third) = sorted(repair(tmp_path), key=lambda outcome: outcome.path)
    assert {one.action for one in (first, second, third)} == {Action.RECOVERED}
    assert (first.bytes, second.bytes, third.bytes) == (0, 0, 112)
    assert (third.samples, third.path.name[-11:]) == (1, ".blktrace.2")
    assert "20 bytes behind them cut off" in third.detail
    assert [v.finding for v in verify([tmp_path])] == [None] * 3
    assert {row.state for row in list_segments([tmp_path])} == {State.RECOVERED}
    assert repair(tmp_path) == []


def test_a_set_that_held_nothing_is_removed(tmp_path: Path) -> None:
    """It is removed when its writer died as well."""
    sink = make_sink(tmp_path)
    segment = filled(sink, 1, EMPTY)
    for part in tmp_path.glob("*.partial"):
        assert part.exists()
    del segment
    sink.__dict__["_sets"].clear()
    for one in sink.__dict__["_parts"]:
        one.leave(next(iter(one.__dict__["_open"].values())))
    assert {outcome.action for outcome in repair(tmp_path)} == {Action.REMOVED}
    assert list(files_in(tmp_path)) == []


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (lambda data: data + b"\0", Check.SIZE),
        (lambda data: data[:9] + b"\x11" + data[10:], Check.CHECKSUM),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: object, check: Check) -> None:
    """It is found in every file of a set."""
    assert callable(damage)
    info = seal(make_sink(tmp_path), 1, DATA)
    assert info is not None
    info.path.write_bytes(damage(info.path.read_bytes()))
    found = [v.finding.check for v in verify([tmp_path]) if v.finding is not None]
    assert found == [check]


def test_bytes_of_a_channel_are_kept_as_they_are(tmp_path: Path) -> None:
    """Whatever they are: nothing is cut off them by a repair."""
    sink = make_sink(tmp_path, "relay")
    filled(sink, 1, {4: b"any bytes", 5: b""})
    sink.close()
    outcomes = sorted(repair(tmp_path), key=lambda outcome: outcome.path)
    assert [outcome.bytes for outcome in outcomes] == [9, 0, 0]
    assert outcomes[0].path.read_bytes() == b"any bytes"
    assert [v.finding for v in verify([tmp_path])] == [None] * 3


def test_retention_takes_whole_sets(tmp_path: Path) -> None:
    """Half of one would be unreadable; one that is being written stays."""
    sink = make_sink(tmp_path / "s")
    for token in (1, 2, 3):
        assert seal(sink, token, DATA) is not None
    running = filled(sink, 4, DATA)
    names = sorted({path.name.rpartition(".")[0] for path in tmp_path.glob("s/*.blktrace.?")})
    evicted = evict(tmp_path, RetentionPlan(), 0, need_bytes=1)
    assert [eviction.path.name for eviction in evicted] == [f"{names[0]}.0"]
    left = sorted({path.name.rpartition(".")[0] for path in tmp_path.glob("s/*.blktrace.?")})
    assert left == names[1:]
    assert len(evict(tmp_path, RetentionPlan(), 0, need_bytes=1 << 40)) == 2
    assert running.paths.partial.exists()
    sink.seal(running, closed(4, DATA), Closing(clock=CLOCK, rings=RINGS, ledger=LEDGER))


def test_file_of_a_set_that_is_deleted_in_use(tmp_path: Path) -> None:
    """Its records are gone, those of the other files sealed, and no file stays open."""
    sink = make_sink(tmp_path)
    segment = filled(sink, 1, DATA)
    told = closed(1, DATA)
    first = segment.paths.partial
    gone = first.with_name(first.name.replace(".blktrace.0", ".blktrace.2"))
    gone.unlink()
    with pytest.raises(SinkError, match="the segment is gone"):
        sink.seal(segment, told, Closing(clock=CLOCK, rings=RINGS, ledger=LEDGER))
    end = sink.give_up(segment, told)
    assert (end.left, end.lost_events, end.events) == ((), {5: 1}, {5: 1})
    sealed = [path for info in end.infos for path in (info.path, *info.more)]
    assert [verdict.finding for verdict in verify(sealed)] == [None, None]
    assert {path.name for path in files_in(tmp_path)} == {
        name for path in sealed for name in (path.name, path.name + ".json")
    }
    sink.close()
