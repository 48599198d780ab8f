# SPDX-License-Identifier: Apache-2.0
"""Compression: whatever instant it is killed at, one whole segment is left, and perf reads it."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
import pytest

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import frame
from collectord.errors import CodecError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.reader.any_events import open_any
from collectord.reader.blk_tables import BlkTables
from collectord.reader.event_tables import tables_of
from collectord.reader.verify import list_segments, verify
from collectord.sink.earlier_run import last_records
from collectord.sink.outcome import Action
from collectord.sink.pack import Result, pack_steps
from collectord.sink.packing import unpacked
from collectord.sink.repair import repair
from collectord.sink.segment import SegmentPaths
from collectord.sink.segment_steps import run
from tests.support import event_lines
from tests.support import relay_segments as relays
from tests.support import segments as support
from tests.support import trace_segments as traces
from tests.support.changed_segments import manifest_of
from tests.support.query_tables import rows_of
from tests.support.relay_records import record
from tests.support.segments import files_in

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.sink.base import SegmentInfo
    from tests.support.perf_tools import Perf
    from tests.support.trace_cmds import TraceCmd

pytestmark = pytest.mark.slow

SAMPLES = 2_000
KILLS = 100
STEPS = (
    "compressed",
    "compressed file synced",
    "manifest written",
    "manifest renamed",
    "segment renamed",
    "directory synced",
)


def _sealed(directory: Path, samples: int = SAMPLES) -> SegmentInfo:
    return support.write_segment(support.make_sink(directory), samples=samples)


def _pack(path: Path) -> Result:
    with open_folder(path.parent, Trust.WRITE) as folder:
        return run(pack_steps(folder, SegmentPaths(path.parent, path.name)))


def _plain(path: Path) -> bytes:
    with path.open("rb") as file, unpacked(file.fileno()) as plain:
        return os.pread(plain, os.fstat(plain).st_size, 0)


def test_perf_reads_the_same(tmp_path: Path, perfs: tuple[Perf, ...]) -> None:
    """Stock perf prints the same of a compressed segment, and knows that it is compressed."""
    path = _sealed(tmp_path, samples=10_000).path
    before = [perf.run("script", "-i", path) for perf in perfs]
    assert _pack(path) is Result.PACKED
    for perf, one in zip(perfs, before, strict=True):
        after = perf.run("script", "-i", path)
        assert (after.stdout, after.stderr) == (one.stdout, one.stderr)
        assert len(after.stdout.splitlines()) == 10_000
        header = perf.run("report", "--header-only", "-i", path).stdout
        assert "# compressed : Zstd, level = 1" in header
        assert f"# sample duration : {9_999 / 1000:10.3f} ms" in header


def test_the_last_records_are_the_same(tmp_path: Path) -> None:
    """A daemon that goes on in another's rings finds the names of a compressed segment, too."""
    path = _sealed(tmp_path).path
    with last_records(tmp_path) as records:
        before = bytes(records)
    assert before
    assert _pack(path) is Result.PACKED
    with last_records(tmp_path) as records:
        assert bytes(records) == before


def test_damaged_last_records_are_said_to_be(tmp_path: Path) -> None:
    """Names are not loaded then, and nothing else is affected."""
    path = _sealed(tmp_path).path
    assert _pack(path) is Result.PACKED
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(64))
    with pytest.raises(CodecError), last_records(tmp_path):
        pass


def test_trace_cmd_reads_the_same(tmp_path: Path, trace_cmds: tuple[TraceCmd, ...]) -> None:
    """Stock trace-cmd prints the same, and the pages come back to their places."""
    path = traces.write_segment(traces.make_sink(tmp_path), counts=(300, 1)).path
    plain, before = path.read_bytes(), [one.report(path) for one in trace_cmds]
    assert len(before[0]) == 301 * traces.PER_PAGE
    assert _pack(path) is Result.PACKED
    assert [one.report(path) for one in trace_cmds] == before
    assert path.stat().st_size < len(plain) / 4
    assert _plain(path) == plain
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]
    assert len(event_lines.read(path)[0]) == len(before[0])


def test_cpu_without_pages(tmp_path: Path, trace_cmds: tuple[TraceCmd, ...]) -> None:
    """A CPU that recorded nothing has nothing to decompress."""
    path = traces.write_segment(traces.make_sink(tmp_path), counts=(100, 0)).path
    plain, before = path.read_bytes(), [one.report(path) for one in trace_cmds]
    assert _pack(path) is Result.PACKED
    assert [one.report(path) for one in trace_cmds] == before
    assert _plain(path) == plain


def test_set_is_files_for_zstd(tmp_path: Path) -> None:
    """Each file of a set is one that zstd decompresses, and its records are read as before."""
    data = {ring: b"".join(map(record, range(1, 3000))) for ring in (4, 5)}
    info = relays.seal(relays.make_sink(tmp_path), 1, data)
    assert info is not None
    paths = [path for path in (info.path, *info.more) if path.stat().st_size]
    assert [_pack(path) for path in paths] == [Result.PACKED] * 2
    for path, plain in zip(paths, data.values(), strict=True):
        with path.open() as file:
            done = subprocess.run(["zstd", "-dc"], stdin=file, capture_output=True, check=True)
        assert done.stdout == plain == _plain(path)
    assert {verdict.finding for verdict in verify([tmp_path])} == {None}
    with ExitStack() as stack:
        segment = open_any(info.path, stack)
        assert isinstance(segment, BlkTables)
        assert len(rows_of(tables_of([segment])["blktrace"], "cpu")) == 2999


@pytest.mark.parametrize("damage", ["cut", "garbled", "grown"])
@pytest.mark.parametrize("kind", ["perf", "trace", "relay"])
def test_damage_is_found(tmp_path: Path, kind: str, damage: str) -> None:
    """Whatever becomes of a compressed file, readers say so, and repair never fails on it."""
    path = _of_kind(kind, tmp_path)
    assert _pack(path) is Result.PACKED
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[len(data) * 2 // 3 :]
    elif damage == "grown":
        data += bytes(4096)
    else:
        dice = random.Random(kind)  # noqa: S311
        for _ in range(40):
            data[dice.randrange(100, len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    (verdict,) = [one for one in verify([tmp_path]) if one.path == path]
    assert verdict.finding is not None
    outcomes = [one for one in repair(tmp_path, sealed=True) if one.path == path]
    assert {one.action for one in outcomes} <= {Action.RECOVERED, Action.DAMAGED}
    if outcomes[0].action is Action.RECOVERED:
        assert {verdict.finding for verdict in verify([tmp_path])} == {None}


def _of_kind(kind: str, directory: Path) -> Path:
    if kind == "perf":
        return _sealed(directory).path
    if kind == "trace":
        return traces.write_segment(traces.make_sink(directory), counts=(300, 1)).path
    sink = relays.make_sink(directory)
    info = relays.seal(sink, 1, {4: record(1) * 9_000, 5: record(2) * 300})
    assert info is not None
    return info.path


def test_both_forms_are_described(tmp_path: Path) -> None:
    """Sizes and times are those that retention and lists need, and the contents come back."""
    path = _sealed(tmp_path).path
    plain, before = path.read_bytes(), path.stat()
    assert _pack(path) is Result.PACKED
    after, manifest = path.stat(), manifest_of(path)
    assert manifest.packed is not None
    assert (manifest.bytes, manifest.packed.bytes) == (before.st_size, after.st_size)
    assert after.st_blocks < before.st_blocks / 4
    assert (after.st_mtime_ns, after.st_mode) == (before.st_mtime_ns, before.st_mode)
    assert _plain(path) == plain
    (row,) = list_segments([tmp_path])
    assert (row.samples, row.bytes) == (SAMPLES, after.st_size)
    assert row.uncompressed_bytes == before.st_blocks * 512
    (verdict,) = verify([tmp_path], sha256=True)
    assert verdict.finding is None
    assert verdict.sha256 is not None
    assert verdict.uncompressed_bytes == before.st_blocks * 512
    assert _pack(path) is Result.PACKED  # and again is nothing to do
    assert path.stat().st_ino == after.st_ino


def test_chain_holds(tmp_path: Path) -> None:
    """The next segment's manifest leads to one that was replaced since."""
    sink = support.make_sink(tmp_path)
    first, second = (support.write_segment(sink, token, samples=SAMPLES) for token in (1, 2))
    assert _pack(first.path) is Result.PACKED
    third = support.write_segment(sink, 3, samples=SAMPLES)
    assert _pack(second.path) is Result.PACKED
    assert [verdict.finding for verdict in verify([tmp_path])] == [None] * 3
    assert third.manifest.previous is not None


@pytest.mark.parametrize("step", STEPS)
def test_killed(tmp_path: Path, perf: Perf, step: str) -> None:
    """After a kill there is one whole segment, and the next attempt compresses it."""
    path = _sealed(tmp_path).path
    plain = path.read_bytes()
    done = tmp_path.parent / f"{tmp_path.name}.steps"

    def up_to_step() -> None:
        with open_folder(tmp_path, Trust.WRITE) as folder, done.open("w") as told:
            for name in pack_steps(folder, SegmentPaths(tmp_path, path.name)):
                print(name, file=told, flush=True)
                if name == step:
                    return

    support.killed(up_to_step)
    assert tuple(done.read_text().split("\n"))[:-1] == STEPS[: STEPS.index(step) + 1]
    assert _plain(path) == plain
    repair(tmp_path)
    assert {one.name for one in files_in(tmp_path)} == {path.name, f"{path.name}.json"}
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]
    assert _pack(path) is Result.PACKED
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]
    assert len(perf.run("script", "-i", path).stdout.splitlines()) == SAMPLES


def test_killed_a_hundred_times(tmp_path: Path, perf: Perf) -> None:
    """A kill at any instant of a compression loses nothing, whatever an earlier one left."""
    chance = random.Random(KILLS)  # noqa: S311  # no secret
    path = _sealed(tmp_path / "one").path
    sealed = shutil.copytree(path.parent, tmp_path / "sealed")
    plain = path.read_bytes()
    limit_s, kills, places = 1.0, 0, set()
    while kills < KILLS:
        begun = time.monotonic()
        pid = os.fork()
        if not pid:
            try:
                os._exit(_pack(path) is not Result.PACKED)
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0, limit_s))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if status == signal.SIGKILL:
            kills += 1
            places.add(frozenset(one.name for one in files_in(path.parent)))
        else:  # it had come to its end: a shorter time is enough
            assert status == 0
            limit_s = min(limit_s, time.monotonic() - begun)
        assert _plain(path) == plain
        if kills % 10 == 0:
            assert [verdict.finding for verdict in verify([path.parent])] == [None]
            assert len(perf.run("script", "-i", path).stdout.splitlines()) == SAMPLES
        if path.stat().st_size < len(plain) / 2:  # it is compressed: begin anew
            shutil.rmtree(path.parent)
            shutil.copytree(sealed, path.parent)
    assert len(places) > 1  # some left a part of the compressed form
    repair(path.parent)
    assert _pack(path) is Result.PACKED
    assert {one.name for one in files_in(path.parent)} == {path.name, f"{path.name}.json"}


def test_others_at_work(tmp_path: Path) -> None:
    """A segment that is repaired, or compressed by another process, is left to it."""
    path = _sealed(tmp_path).path
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert _pack(path) is Result.BUSY
    beside = path.with_name(f"{path.name}.packing")
    with beside.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert _pack(path) is Result.BUSY
        repair(tmp_path)
        assert beside.exists()
    assert _pack(path) is Result.PACKED
    assert not beside.exists()


def test_what_hardly_shrinks_stays(tmp_path: Path) -> None:
    """A segment of random data is left as it is, and nothing of the attempt remains."""
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    rest_bytes = support.PAGE_BYTES - 8
    noises = [frame(RecordType.FINISHED_INIT, 0, os.urandom(rest_bytes)) for _ in range(50)]
    chunks = [*support.sample_chunks(1), *noises]
    support.write_data(segment, chunks)
    info = sink.seal(segment, support.closed(segment, chunks, 1), support.closing())
    assert info is not None
    plain = info.path.read_bytes()
    assert _pack(info.path) is Result.KEPT
    assert info.path.read_bytes() == plain
    assert manifest_of(info.path).packed is None
    assert len(list(files_in(tmp_path))) == 2


def test_unsound_segment_stays(tmp_path: Path) -> None:
    """Damage is not sealed in: it stays for a repair to find."""
    path = _sealed(tmp_path).path
    plain = bytearray(path.read_bytes())
    plain[len(plain) // 2] ^= 1
    path.write_bytes(plain)
    assert _pack(path) is Result.UNSOUND
    assert path.read_bytes() == plain


def test_deleted_meanwhile(tmp_path: Path) -> None:
    """Retention that deletes the segment under the work has the last word."""
    path = _sealed(tmp_path).path
    with open_folder(tmp_path, Trust.WRITE) as folder:
        steps = pack_steps(folder, SegmentPaths(tmp_path, path.name))
        for step in steps:
            if step == "compressed":
                path.unlink()
                path.with_name(f"{path.name}.json").unlink()
    assert list(files_in(tmp_path)) == []


def test_damaged_form(tmp_path: Path) -> None:
    """Damage of the compressed form is found, and a repair keeps the chunks around it."""
    path = _sealed(tmp_path, samples=12_000).path
    assert _pack(path) is Result.PACKED
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) * 3 // 4] ^= 1
    path.write_bytes(damaged)
    (verdict,) = verify([tmp_path])
    assert verdict.finding is not None
    (outcome,) = repair(tmp_path, sealed=True)
    assert outcome.action is Action.RECOVERED, outcome
    assert 0 < outcome.samples < 12_000
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]
    assert manifest_of(path).packed is None


def test_manifest_without_the_form(tmp_path: Path) -> None:
    """A compressed file whose manifest is older is found, and gets its first form back."""
    path = _sealed(tmp_path).path
    plain = path.read_bytes()
    assert _pack(path) is Result.PACKED
    manifest = path.with_name(f"{path.name}.json")
    manifest.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(manifest_of(path), packed=None))
    )
    (verdict,) = verify([tmp_path])
    assert verdict.finding is not None
    (outcome,) = repair(tmp_path, sealed=True)
    assert outcome.samples == SAMPLES
    assert path.read_bytes() == plain
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]
