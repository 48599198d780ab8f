# SPDX-License-Identifier: Apache-2.0
"""perf.data segments: from creation to seal, as files that perf reads."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from collectord.errors import SinkError
from collectord.folders.walk import open_folder
from collectord.reader.verify import State, verify
from collectord.sink.formats import open_stored
from collectord.sink.manifest import Manifest, decode
from collectord.sink.repair import repair
from tests.support import segments as support
from tests.support.chunks import footed, show
from tests.support.segments import files_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.sink.base import OpenSegment
    from tests.support.perf_tools import Perf

_MIB = 1 << 20


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in files_in(directory))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a filesystem of 2 MiB."""
    with support.mounted("tmpfs", tmp_path / "small", "size=2m") as directory:
        yield directory


def test_sealed_segment_is_read_by_perf(tmp_path: Path, perfs: tuple[Perf, ...]) -> None:
    """Each perf lists a sealed segment's samples, all of them, with their comm and event."""
    info = support.write_segment(support.make_sink(tmp_path), samples=250)
    for perf in perfs:
        lines = perf.script(info.path)
        assert len(lines) == 250, perf.version
        assert all("generator" in line and support.EVENT in line for line in lines)
        shares = perf.script(info.path, "--time", "10%-20%")
        assert 20 < len(shares) < 30, "the sample time section is off"


def test_sealed_segment_has_nothing_but_data_and_manifest(tmp_path: Path) -> None:
    """Sealing leaves the segment under its final name, its manifest, and no space ahead."""
    info = support.write_segment(support.make_sink(tmp_path))
    assert _names(tmp_path) == [info.path.name, info.path.name + ".json"]
    status = info.path.stat()
    assert status.st_mode & 0o777 == 0o640
    assert status.st_size == info.manifest.bytes
    assert status.st_blocks * 512 == info.manifest.allocated_bytes < status.st_size + 8192


def _write_rounds(segment: OpenSegment, rounds: int) -> tuple[list[bytes], list[int]]:
    """Write chunks of 100 samples and a round; return them, and where their paddings begin."""
    chunks: list[bytes] = []
    ends: list[int] = []
    at = segment.data_offset
    for number in range(rounds):
        samples = map(support.sample_record, range(100 * number, 100 * (number + 1)))
        records = b"".join((support.comm_record(), *samples, support.ROUND))
        chunks.append(footed(records, at, segment.table))
        ends.append(at + len(records))
        at += len(chunks[-1])
    support.write_data(segment, chunks)
    return chunks, ends


def test_running_segment_is_read_by_perf(tmp_path: Path, perfs: tuple[Perf, ...]) -> None:
    """Each perf lists what was shown, of the file and of a copy, without a word of complaint."""
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    chunks, ends = _write_rounds(segment, 3)
    copy = tmp_path / "copy"
    for shown in range(len(ends) + 1):
        if shown:
            show(segment, ends[shown - 1])
        shutil.copyfile(segment.paths.partial, copy)
        for perf in perfs:
            for file in (segment.paths.partial, copy):
                assert len(perf.script(file)) == 100 * shown, perf.version
                about = perf.run("report", "--header-only", "-i", file)
                assert (about.returncode, about.stderr) == (0, "")
                assert "# hostname : host.example" in about.stdout
    info = sink.seal(segment, support.closed(segment, chunks, 300), support.closing())
    assert info is not None
    (verdict,) = verify([tmp_path])
    assert verdict.finding is None
    assert [len(perf.script(info.path)) for perf in perfs] == [300] * len(perfs)


def test_repair_keeps_what_was_not_shown(tmp_path: Path, perfs: tuple[Perf, ...]) -> None:
    """A killed writer's segment is sealed with all that was written, shown or not."""

    def work() -> None:
        sink = support.make_sink(tmp_path)
        segment = sink.next_segment(1, support.OPENING)
        _, ends = _write_rounds(segment, 3)
        show(segment, ends[0])

    support.killed(work)
    (outcome,) = repair(tmp_path)
    assert outcome.samples == 300
    (verdict,) = verify([tmp_path])
    assert (verdict.state, verdict.finding) == (State.RECOVERED, None)
    assert [len(perf.script(outcome.path)) for perf in perfs] == [300] * len(perfs)


def test_manifest_tells_the_segment(tmp_path: Path) -> None:
    """The manifest on disk is the one returned, in the order of its fields."""
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(7, support.OPENING)
    info = sink.seal(
        segment, support.fill(segment, 250), support.closing(flushes=(support.CLOCK,) * 1000)
    )
    assert info is not None
    raw = info.path.with_name(info.path.name + ".json").read_bytes()
    assert decode(raw, Manifest) == info.manifest
    assert list(msgspec.json.decode(raw)) == list(Manifest.__struct_fields__)
    manifest = info.manifest
    assert (manifest.samples, manifest.records, manifest.replayed) == (250, 251, 1)
    assert (manifest.complete, manifest.recovered, manifest.produced) == (True, False, 10)
    assert (manifest.first_ns, manifest.last_ns) == (1_000_000_000, 1_000_249_000)
    assert [(ring.cpu, ring.samples) for ring in manifest.rings] == [(0, 250), (0, 0)]
    assert len(manifest.clocks.flushes) == 64
    assert manifest.events == (support.EVENT, "dummy:HG")
    assert (info.token, manifest.segment, manifest.direct) == (7, info.path.name, True)


def test_open_segment_is_ready_for_data(tmp_path: Path) -> None:
    """A new segment has its head on disk, an aligned data offset and an O_DIRECT fd."""
    sink = support.make_sink(tmp_path, segment_bytes=_MIB)
    segment = sink.next_segment(1, support.OPENING)
    assert segment.data_offset % 4096 == 0
    assert segment.limit_bytes == segment.step_bytes == _MIB
    assert segment.manifest.direct
    assert os.O_DIRECT & _flags(segment.fd)
    assert segment.paths.partial.stat().st_size == segment.data_offset
    (verdict,) = verify([tmp_path])
    assert verdict.state is State.RUNNING
    sink.close()
    assert _names(tmp_path) == []


def _flags(fd: int) -> int:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("flags:")), 8)


def test_filesystem_without_direct_io(tmp_path: Path, perf: Perf) -> None:
    """If O_DIRECT is refused, data go through the page cache, and the manifest says so."""
    with support.mounted("ramfs", tmp_path / "ramfs") as directory:
        sink = support.make_sink(directory)
        segment = sink.next_segment(1, support.OPENING)
        assert not segment.manifest.direct
        chunks = support.sample_chunks(50)
        at = segment.data_offset
        for piece in chunks:
            at += os.pwrite(segment.fd, piece, at)
        info = sink.seal(segment, support.closed(segment, chunks, 50), support.closing())
        assert info is not None
        assert info.manifest.direct is False
        assert len(perf.script(info.path)) == 50
        sink.close()


def test_losses_are_in_the_file(tmp_path: Path, perf: Perf) -> None:
    """Losses since the last segment become LOST_SAMPLES per event id, at the data's end."""
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    lost = {support.EVENT_IDS[0]: 17, support.EVENT_IDS[1]: 0}
    info = sink.seal(segment, support.fill(segment), support.closing(lost_samples=lost))
    assert info is not None
    assert info.manifest.lost_samples == {"11": 17}
    assert info.manifest.records == 252
    dump = perf.run("script", "-D", "-i", info.path).stdout
    assert dump.count("PERF_RECORD_LOST_SAMPLES") == 1
    done = perf.run("script", "-i", info.path)
    assert len(done.stdout.splitlines()) == 250
    assert "lost 6.37%" in done.stderr  # 17 of 267
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]


def test_numbers_and_chain_go_on(tmp_path: Path) -> None:
    """A later sink of the directory numbers on, and chains to the last sealed manifest."""
    first = support.write_segment(support.make_sink(tmp_path))
    sink = support.make_sink(tmp_path)
    second = support.write_segment(sink, 1)
    third = support.write_segment(sink, 2)
    numbers = [info.path.name.partition("-")[2] for info in (first, second, third)]
    assert numbers == [f"{number:06}.perf.data" for number in (1, 2, 3)]
    assert first.manifest.previous is None
    links = [i.manifest.previous for i in (second, third)]
    assert [link and link.manifest for link in links] == [
        first.path.name + ".json",
        second.path.name + ".json",
    ]
    assert [verdict.finding for verdict in verify([tmp_path])] == [None] * 3


def test_segment_of_replay_only_is_dropped(tmp_path: Path) -> None:
    """A segment with nothing but replay stays only as the first of its sink, or with losses."""
    sink = support.make_sink(tmp_path)
    first = support.write_segment(sink, 1, samples=0)
    segment = sink.next_segment(2, support.OPENING)
    assert sink.seal(segment, support.fill(segment, 0), support.closing()) is None
    segment = sink.next_segment(3, support.OPENING)
    lossy = sink.seal(segment, support.fill(segment, 0), support.closing(lost_samples={11: 1}))
    assert lossy is not None
    kept = [first.path.name, lossy.path.name]
    assert _names(tmp_path) == sorted(kept + [name + ".json" for name in kept])


def test_close_keeps_data(tmp_path: Path) -> None:
    """Closing a sink deletes prepared segments, and leaves one with data to the repair."""
    sink = support.make_sink(tmp_path)
    running = sink.next_segment(1, support.OPENING)
    sink.next_segment(2, support.OPENING)
    support.fill(running)
    sink.close()
    paths = running.paths
    left = (paths.new_manifest, paths.open_manifest, paths.partial)
    assert _names(tmp_path) == [path.name for path in left]


def test_single_file(tmp_path: Path, perf: Perf) -> None:
    """With a file named, the segment gets that name at its seal; an older file becomes .old."""
    file = tmp_path / "out.data"
    file.write_bytes(b"older")
    sink = support.make_sink(tmp_path, single_file=str(file))
    segment = sink.next_segment(1, support.OPENING)
    assert file.read_bytes() == b"older"
    assert segment.limit_bytes > 1 << 60
    info = sink.seal(segment, support.fill(segment, 0), support.closing())
    assert info is not None
    assert _names(tmp_path) == ["out.data", "out.data.json", "out.data.old"]
    assert (tmp_path / "out.data.old").read_bytes() == b"older"
    assert perf.script(file) == []


def test_file_that_is_replaced_is_kept(tmp_path: Path, perf: Perf) -> None:
    """With its manifest, as FILE.old, and the one that was kept before goes."""
    file, old = tmp_path / "out.data", tmp_path / "out.data.old"
    for samples in (30, 20, 10):
        support.write_segment(support.make_sink(tmp_path, single_file=str(file)), samples=samples)
    names = ["out.data", "out.data.json", "out.data.old", "out.data.old.json"]
    assert _names(tmp_path) == names
    found = {verdict.path: (verdict.samples, verdict.finding) for verdict in verify([tmp_path])}
    assert found == {file: (10, None), old: (20, None)}
    assert [len(perf.script(path)) for path in (file, old)] == [10, 20]
    old.with_name("out.data.json").unlink()  # as another program's file would be
    support.write_segment(support.make_sink(tmp_path, single_file=str(file)))
    assert _names(tmp_path) == names[:-1]


@pytest.mark.parametrize("last", ["old manifest kept", "old segment kept", "manifest renamed"])
def test_kill_while_the_replaced_file_is_kept(tmp_path: Path, last: str) -> None:
    """Both recordings are there afterwards, whatever their names are."""
    options = {"single_file": str(tmp_path / "out.data")}
    support.write_segment(support.make_sink(tmp_path, **options), samples=20)

    def seal() -> None:
        sink = support.make_sink(tmp_path, **options)
        segment = sink.next_segment(1, support.OPENING)
        closed = support.fill(segment, 10)
        support.walk_to(sink.seal_steps(segment, closed, support.closing()), last)

    support.killed(seal)
    repair(tmp_path)
    found = [path for path in files_in(tmp_path) if not path.name.endswith(".json")]
    assert sorted(_samples(path) for path in found) == [10, 20]


def _samples(path: Path) -> int:
    with path.open("rb") as file:
        return open_stored(file.fileno()).survey().samples


def test_name_for_the_replaced_file_that_is_taken(tmp_path: Path) -> None:
    """It is refused before anything is recorded."""
    (tmp_path / "out.data.old").mkdir()
    with pytest.raises(SinkError, match=r"not a regular file: .*out\.data\.old"):
        support.make_sink(tmp_path, single_file=str(tmp_path / "out.data")).next_segment(
            1, support.OPENING
        )


def test_single_file_is_written_by_one(tmp_path: Path) -> None:
    """A second recording to a file that is being written is refused, and harms nothing."""
    file = tmp_path / "out.data"
    sink = support.make_sink(tmp_path, single_file=str(file))
    segment = sink.next_segment(1, support.OPENING)
    with pytest.raises(SinkError, match="another recording writes this file") as caught:
        support.make_sink(tmp_path, single_file=str(file)).next_segment(1, support.OPENING)
    assert caught.value.errno == errno.EBUSY
    assert sink.seal(segment, support.fill(segment), support.closing()) is not None


def test_single_file_after_a_kill(tmp_path: Path) -> None:
    """The file of a killed recording is sealed before a new one to the same name begins."""
    file = tmp_path / "out.data"
    support.orphan(tmp_path, 30, single_file=str(file))
    sink = support.make_sink(tmp_path, single_file=str(file))
    segment = sink.next_segment(1, support.OPENING)
    (verdict,) = verify([file])
    assert (verdict.state, verdict.samples) == (State.RECOVERED, 30)
    sink.discard(segment)
    assert _names(tmp_path) == ["out.data", "out.data.json"]


def test_single_file_names_a_directory(tmp_path: Path) -> None:
    """A directory is no file to record to."""
    with pytest.raises(SinkError, match="Is a directory"):
        support.make_sink(tmp_path.parent, single_file=str(tmp_path)).next_segment(
            1, support.OPENING
        )


def test_full_disk_leaves_nothing(small_disk: Path) -> None:
    """A segment that finds no space raises ENOSPC with a hint and leaves no file behind."""
    sink = support.make_sink(small_disk)
    filler = support.fill_disk(small_disk)
    with pytest.raises(SinkError, match=r"No space left.*free some space") as caught:
        sink.next_segment(1, support.OPENING)
    assert caught.value.errno == errno.ENOSPC
    assert _names(small_disk) == ["filler"]
    filler.unlink()
    support.write_segment(sink)
    sink.close()


def test_full_disk_evicts_first(small_disk: Path) -> None:
    """With old segments to evict, a full disk does not stop the next segment."""
    state = small_disk / "state"
    room = support.Room(state)
    sink = support.make_sink(state / "exec", make_room=room.make)
    old = [support.write_segment(sink, token) for token in range(3)]
    support.fill_disk(small_disk)
    sink.discard(sink.next_segment(9, support.OPENING))
    assert [eviction.path for eviction in room.evicted] == [info.path for info in old]


def test_full_disk_at_the_seal(small_disk: Path) -> None:
    """A seal that finds no space raises, and succeeds when called again with space."""
    sink = support.make_sink(small_disk)
    segment = sink.next_segment(1, support.OPENING)
    chunks = support.sample_chunks(300)
    support.write_data(segment, chunks, ahead_bytes=0)
    closed = support.closed(segment, chunks, 300)
    filler = support.fill_disk(small_disk)
    with pytest.raises(SinkError, match=r"cannot seal the segment.*No space left"):
        sink.seal(segment, closed, support.closing())
    filler.unlink()
    assert sink.seal(segment, closed, support.closing()) is not None
    (verdict,) = verify([small_disk])
    assert (verdict.finding, verdict.samples) == (None, 300)


def test_full_disk_leaves_no_half_manifest(small_disk: Path) -> None:
    """A small file that cannot be written whole is not left in part."""
    support.fill_disk(small_disk)
    with pytest.raises(OSError, match="No space left"), open_folder(small_disk) as folder:
        folder.write_new("manifest", b"{}")
    assert _names(small_disk) == ["filler"]


def test_unwritable_directory() -> None:
    """A directory without write permission is told with the user id that lacks it."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "state"
        directory.mkdir(mode=0o555)
        directory.parent.chmod(0o755)
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(SinkError, match=r"give uid .* write permission") as caught:
                support.make_sink(directory)
        finally:
            os.seteuid(user)
    assert caught.value.errno == errno.EACCES


def test_directory_below_a_file(tmp_path: Path) -> None:
    """A path through a file cannot become a directory."""
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="a part of the path is a file"):
        support.make_sink(tmp_path / "file" / "session")


def test_file_that_is_deleted_in_the_midst_of_its_seal(tmp_path: Path) -> None:
    """Its manifest has its final name by then, and goes with it."""
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    closed = support.fill(segment, 5)
    steps = sink.seal_steps(segment, closed, support.closing())
    support.walk_to(steps, "noted as sealed")
    segment.paths.partial.unlink()
    with pytest.raises(FileNotFoundError):
        next(steps)
    end = sink.give_up(segment, closed)
    assert (end.left, end.lost_events) == ((), end.events)
    assert _names(tmp_path) == []
