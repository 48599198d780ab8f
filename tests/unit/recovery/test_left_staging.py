# SPDX-License-Identifier: Apache-2.0
"""Chunks of a killed daemon are written to segments of its run, behind the names of tasks."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import PAGE_BYTES, iter_records
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.reader.verify import verify
from collectord.recovery.left_staging import Memory, write_left
from collectord.sink.earlier_run import last_records
from collectord.sink.manifest import Manifest, OpenManifest, decode, encode
from collectord.sink.perf_chunks import padded
from collectord.sink.perf_file import read_head
from collectord.sink.repair import repair
from tests.support import segments
from tests.support.staging import SAMPLE, left_chunks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

KEPT: Final = 250  # samples of a segment that is not empty


def empty(directory: Path) -> Path:
    """Leave a segment into which nothing was written, with its open manifest; give its file."""
    before = set(directory.glob("*.partial"))
    segments.killed(lambda: segments.make_sink(directory).next_segment(1, segments.OPENING))
    (left,) = {path for path in directory.glob("*.data.partial") if path not in before}
    return left


def change(orphan: Path, **values: Any) -> None:  # noqa: ANN401 - of OpenManifest
    """Change an open manifest."""
    path = orphan.with_name(orphan.name.removesuffix(".partial") + ".json.partial")
    manifest = decode(path.read_bytes(), OpenManifest)
    assert manifest is not None
    path.write_bytes(encode(msgspec.structs.replace(manifest, **values)))


def written(
    directory: Path, orphan: Path, samples: Sequence[int], **more: Mapping[int, int]
) -> Manifest:
    """Write chunks with so many samples, repair, and return the segment's manifest."""
    with ExitStack() as stack:
        memory = Memory(left_chunks(stack, samples, orphan, **more))
        found = repair(directory, first=partial(write_left, memory))
    assert not [one for one in found if one.damaged]
    assert not [one for one in verify([directory]) if one.finding is not None]
    path = orphan.with_name(orphan.name.removesuffix(".partial") + ".json")
    manifest = decode(path.read_bytes(), Manifest)
    assert manifest is not None
    return manifest


def kinds(directory: Path) -> list[int]:
    """Return the types of the records of the last segment, as they follow one another."""
    with last_records(directory) as records:
        found = [one.type for one in iter_records(bytes(records))]
    return [one for one in found if one != RecordType.FINISHED_INIT]


def test_names_come_before_samples_that_no_replay_precedes(tmp_path: Path) -> None:
    """The daemon was killed before the segment got anything: the last one has the names."""
    segments.write_segment(segments.make_sink(tmp_path))
    manifest = written(tmp_path, empty(tmp_path), [3, 2])
    assert (manifest.samples, manifest.staged) == (5, 5)
    assert kinds(tmp_path) == [RecordType.COMM, *[RecordType.SAMPLE] * 5]


def test_names_complete_a_replay_that_was_cut_short(tmp_path: Path) -> None:
    """A replay has several chunks: that one of them is whole tells nothing of the others."""
    segments.write_segment(segments.make_sink(tmp_path))
    orphan = empty(tmp_path)
    with orphan.open("r+b") as file:
        head = read_head(file.fileno())
        part = padded(segments.comm_record(b"part"), head.write_offset, head.table)
        os.pwrite(file.fileno(), part, head.write_offset)
    assert written(tmp_path, orphan, [3]).samples == 3
    assert kinds(tmp_path) == [*[RecordType.COMM] * 2, *[RecordType.SAMPLE] * 3]


@pytest.mark.parametrize("kept", [PAGE_BYTES, 8])
def test_a_segment_that_was_cut_short_has_names_still(tmp_path: Path, kept: int) -> None:
    """Those in front are taken, and the samples are written in any case."""
    before = segments.write_segment(segments.make_sink(tmp_path))
    os.truncate(before.path, before.manifest.data_offset + kept)
    with ExitStack() as stack:
        memory = Memory(left_chunks(stack, [3], empty(tmp_path)))
        repair(tmp_path, first=partial(write_left, memory))
    named = [RecordType.COMM] if kept > len(segments.comm_record()) else []
    assert kinds(tmp_path) == [*named, *[RecordType.SAMPLE] * 3]


def test_names_of_another_boot_are_not_taken(tmp_path: Path) -> None:
    """Its tasks have nothing in common with those that run."""
    segments.write_segment(segments.make_sink(tmp_path))
    orphan = empty(tmp_path)
    change(orphan, boot_id="11111111-1111-1111-1111-111111111111")
    assert written(tmp_path, orphan, [3]).samples == 3
    assert kinds(tmp_path) == [RecordType.SAMPLE] * 3


def test_a_segment_of_another_run_gets_none_of_its_chunks(tmp_path: Path) -> None:
    """A session that was about to take the place of the old one has segments there too."""
    orphan = empty(tmp_path)
    segments.orphan(tmp_path, samples=KEPT)
    assert written(tmp_path, orphan, [7]).samples == 7
    with last_records(tmp_path) as records:
        found = [one.type for one in iter_records(bytes(records))]
    assert found.count(RecordType.SAMPLE) == KEPT


def drained_first(directory: Path) -> tuple[Path, Path]:
    """Leave the segment of a killed daemon, and one of a successor that has written nothing."""
    before = empty(directory)
    with before.open("r+b") as file:
        head = read_head(file.fileno())
        chunk = padded(segments.comm_record() + SAMPLE * KEPT, head.write_offset, head.table)
        os.pwrite(file.fileno(), chunk, head.write_offset)
    return before, empty(directory)


def test_what_was_drained_before_a_segment_was_sealed_goes_there(tmp_path: Path) -> None:
    """It has the names; the next segment, which is empty, is removed."""
    before, orphan = drained_first(tmp_path)
    with ExitStack() as stack:
        memory = Memory(left_chunks(stack, [3, 2], orphan))
        repair(tmp_path, first=partial(write_left, memory))
    with last_records(tmp_path) as records:
        found = [one.type for one in iter_records(bytes(records))]
    assert found.count(RecordType.SAMPLE) == KEPT + 5
    assert not before.exists()
    assert not orphan.exists()


def test_a_kill_while_it_is_written_there_leaves_it_once(tmp_path: Path) -> None:
    """Where it goes is noted, also if the segment is not the one of its own run."""
    _, orphan = drained_first(tmp_path)
    with ExitStack() as stack:
        left = left_chunks(stack, [3, 2], orphan)
        with open_folder(tmp_path, Trust.WRITE) as folder:
            for _ in range(2):
                write_left(Memory(left), folder)
        repair(tmp_path, first=partial(write_left, Memory(left)))
    with last_records(tmp_path) as records:
        found = [one.type for one in iter_records(bytes(records))]
    assert found.count(RecordType.SAMPLE) == KEPT + 5


def test_of_other_rings_nothing_goes_there(tmp_path: Path) -> None:
    """Nor to a segment of another boot."""
    before, orphan = drained_first(tmp_path)
    change(before, boot_id="11111111-1111-1111-1111-111111111111")
    assert written(tmp_path, orphan, [3]).samples == 3


def test_a_segment_without_its_name_alone_has_the_names(tmp_path: Path) -> None:
    """The kill came between the renames of a seal: it is no segment to write to any more."""
    info = segments.write_segment(segments.make_sink(tmp_path))
    info.path.rename(f"{info.path}.partial")
    assert written(tmp_path, empty(tmp_path), [3]).samples == 3
    assert kinds(tmp_path) == [RecordType.COMM, *[RecordType.SAMPLE] * 3]


def test_a_ring_may_tell_of_more_than_its_chunk(tmp_path: Path) -> None:
    """It says first what it took: with its position, so that the ring has it no longer."""
    manifest = written(tmp_path, empty(tmp_path), [2, 0], taken={0: 1, 1: 4})
    assert manifest.samples == 2 + 4


def test_a_file_of_somebody_else_keeps_no_chunk_from_its_segment(tmp_path: Path) -> None:
    """It is left alone."""
    orphan = empty(tmp_path)
    planted = tmp_path / orphan.name.replace("-000001", "-000002")
    planted.touch()
    os.chown(planted, 1, 1)
    with ExitStack() as stack:
        memory = Memory(left_chunks(stack, [5], orphan))
        repair(tmp_path, first=partial(write_left, memory))
    assert kinds(tmp_path) == [RecordType.SAMPLE] * 5
    assert planted.read_bytes() == b""


def test_a_round_ends_where_it_was_to_end(tmp_path: Path) -> None:
    """A chunk is written with the same bytes as the daemon would have written."""
    orphan = empty(tmp_path)
    start = orphan.stat().st_size
    written(tmp_path, orphan, [1, 1], aims={0: start | 1, 1: start + PAGE_BYTES})
    ends = [RecordType.SAMPLE, RecordType.FINISHED_ROUND, RecordType.SAMPLE]
    assert kinds(tmp_path) == ends


def test_what_is_behind_the_sound_part_is_not_kept(tmp_path: Path) -> None:
    """Chunks without a place follow the last sound one, whatever was half written behind that."""
    orphan = empty(tmp_path)
    with orphan.open("r+b") as file:
        table = read_head(file.fileno()).table
        start = at = orphan.stat().st_size
        for torn in (False, True):
            chunk = padded(SAMPLE * 400, at, table)
            assert len(chunk) > 2 * PAGE_BYTES
            os.pwrite(file.fileno(), bytes(PAGE_BYTES) + chunk[PAGE_BYTES:] if torn else chunk, at)
            at += len(chunk)
        os.pwrite(file.fileno(), SAMPLE * 400, at)
    manifest = written(tmp_path, orphan, [7])
    assert (manifest.samples, manifest.cut, manifest.data_offset) == (407, (), start)


def test_a_full_disk_takes_what_it_can(tmp_path: Path) -> None:
    """The segment can be sealed, and its manifest counts what found room alone."""
    with segments.mounted("tmpfs", tmp_path / "disk", "size=4m") as disk:
        orphan = empty(disk)
        filler = segments.fill_disk(disk)
        os.truncate(filler, filler.stat().st_size - (200 << 10))
        manifest = written(disk, orphan, [400] * 8)
        assert 0 < manifest.samples < 400 * 8
