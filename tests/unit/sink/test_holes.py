# SPDX-License-Identifier: Apache-2.0
"""A segment with a hole in its middle: a repair keeps both sides, and says what it cut out."""

from __future__ import annotations

import functools
import json
import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from collectord import cli
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.kernel.linux import LinuxKernel
from collectord.reader.verify import State, verify
from collectord.sink import chain_log
from collectord.sink.manifest import Manifest, decode
from collectord.sink.outcome import Action
from collectord.sink.repair import repair
from collectord.sink.sealed_repair import mend_steps
from collectord.sink.segment import group_files
from collectord.sink.trace_file import read_head
from tests.support import bpf_segments, trace_segments
from tests.support import segments as support
from tests.support.changed_segments import overwrite
from tests.support.chunks import footed, samples_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.perf_tools import Perf
    from tests.support.trace_cmds import TraceCmd

pytestmark = pytest.mark.slow

HOLE = 1 << 16
TORN = {"zeros": bytes(HOLE), "random": random.Random(1).randbytes(HOLE)}  # noqa: S311
# Samples of a chunk, and so of 12 chunks: some 100 KiB each.
PER_CHUNK = 1000
CHUNKS = 12


@functools.cache
def written() -> list[bytes]:
    """Return the samples of a segment."""
    return [support.sample_record(number) for number in range(CHUNKS * PER_CHUNK)]


def chunks_at(offset: int, *, footers: bool = True) -> list[bytes]:
    """Return the chunks of a segment whose data begin at this place."""
    made = []
    for number in range(CHUNKS):
        records = b"".join(written()[number * PER_CHUNK : (number + 1) * PER_CHUNK])
        records = (b"" if number else support.comm_record()) + records
        made.append(footed(records, offset) if footers else support.chunk(records))
        offset += len(made[-1])
    return made


def leave(directory: Path, *, footers: bool = True) -> Path:
    """Return a segment whose writer was killed."""

    def work() -> None:
        segment = support.make_sink(directory).next_segment(1, support.OPENING)
        support.write_data(segment, chunks_at(segment.data_offset, footers=footers))

    support.killed(work)
    return next(one for one in directory.glob("*.partial") if ".json" not in one.name)


def seal(directory: Path, *, footers: bool = True) -> Path:
    """Return a sealed segment, and one behind it that is chained to it."""
    sink = support.make_sink(directory)
    segment = sink.next_segment(1, support.OPENING)
    chunks = chunks_at(segment.data_offset, footers=footers)
    support.write_data(segment, chunks)
    closed = support.closed(segment, chunks, PER_CHUNK * CHUNKS)
    info = sink.seal(segment, closed, support.closing(lost_samples={11: 3}))
    assert info is not None
    support.write_segment(sink, token=2)
    return info.path


def data_offset(path: Path) -> int:
    """Return where the data of a segment begin, as its manifest says."""
    sealed = path.with_name(path.name + ".json")
    running = path.with_name(path.name.replace(".partial", ".json.partial"))
    offset: int = msgspec.json.decode((sealed if sealed.exists() else running).read_bytes())[
        "data_offset"
    ]
    return offset


def check(path: Path, perf: Perf, cut: tuple[int, int]) -> Manifest:
    """Check that perf and the file itself have all written data except the hole."""
    raw = path.with_name(path.name + ".json").read_bytes()
    manifest = decode(raw, Manifest)
    assert manifest is not None
    assert (manifest.complete, manifest.recovered, manifest.produced) == (False, True, None)
    data = path.read_bytes()[manifest.data_offset :][: manifest.data_bytes]
    kept = samples_in(data)
    known = set(kept)
    assert len(kept) == manifest.samples
    assert kept == [one for one in written() if one in known]  # nothing else, in their order
    assert {written()[0], written()[-1]} <= known
    assert len(kept) >= (CHUNKS - 3) * PER_CHUNK
    first, last = cut
    assert manifest.cut[0].offset <= first
    assert manifest.cut[-1].offset + manifest.cut[-1].bytes >= last
    assert len(perf.run("script", "-i", path).stdout.splitlines()) == manifest.samples
    return manifest


@pytest.mark.parametrize("footers", [True, False], ids=["footers", "older"])
@pytest.mark.parametrize("torn", TORN)
def test_killed_and_torn(tmp_path: Path, perf: Perf, torn: str, *, footers: bool) -> None:
    """A writer that was killed, and a hole: both sides stay, and the manifest tells the hole."""
    path = leave(tmp_path, footers=footers)
    hole = data_offset(path) + 6 * 112_000 + 2000
    overwrite(path, hole, TORN[torn])
    (outcome,) = repair(tmp_path)
    assert outcome.action is Action.RECOVERED
    assert "damaged bytes at byte" in outcome.detail
    check(outcome.path, perf, (hole, hole + HOLE))
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]
    assert repair(tmp_path, sealed=True) == []


def test_a_part_that_stays_loses_its_list_of_chunks_if_that_is_invalid(tmp_path: Path) -> None:
    """The part behind the data is sound as a whole: a repair leaves a valid manifest."""
    path = seal(tmp_path)
    overwrite(path, data_offset(path) + 6 * 112_000 + 2000, TORN["random"])
    beside = path.with_name(path.name + ".json")
    manifest = decode(beside.read_bytes(), Manifest)
    assert manifest is not None
    *others, tail = manifest.spans
    spans = (*others, msgspec.structs.replace(tail, chunks="a"))
    beside.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, spans=spans)))
    (tmp_path / chain_log.NAME).unlink()  # else the change is found
    assert Action.RECOVERED in {outcome.action for outcome in repair(tmp_path, sealed=True)}
    found = {verdict.path: verdict.finding for verdict in verify([tmp_path])}
    assert found[path] is None


def test_killed_between_writes_that_were_in_flight(tmp_path: Path, perf: Perf) -> None:
    """Chunks that never came before one that did cost themselves: nothing else is cut out."""
    path = leave(tmp_path)
    start = data_offset(path)
    chunks = chunks_at(start)
    begins = [start + sum(map(len, chunks[:number])) for number in range(CHUNKS)]
    for number in (5, 6, 9):
        overwrite(path, begins[number], bytes(len(chunks[number])))
    (outcome,) = repair(tmp_path)
    assert outcome.action is Action.RECOVERED
    manifest = check(outcome.path, perf, (begins[5], begins[10]))
    assert manifest.samples == (CHUNKS - 3) * PER_CHUNK
    assert [(cut.offset, cut.bytes) for cut in manifest.cut] == [
        (begins[5], len(chunks[5]) + len(chunks[6])),
        (begins[9], len(chunks[9])),
    ]


@pytest.mark.parametrize("footers", [True, False], ids=["footers", "older"])
@pytest.mark.parametrize("torn", TORN)
def test_sealed_and_torn(tmp_path: Path, perf: Perf, torn: str, *, footers: bool) -> None:
    """A hole in a sealed segment: both sides stay; its place in the chain of manifests too."""
    path = seal(tmp_path, footers=footers)
    before = decode(path.with_name(path.name + ".json").read_bytes(), Manifest)
    assert before is not None
    hole = data_offset(path) + 6 * 112_000 + 2000
    overwrite(path, hole, TORN[torn])
    damaged, _ = verify([tmp_path])
    assert damaged.finding is not None
    assert repair(tmp_path) == []  # a start looks at nothing that is sealed
    (outcome,) = repair(tmp_path, sealed=True)
    assert (outcome.action, outcome.path) == (Action.RECOVERED, path)
    manifest = check(path, perf, (hole, hole + HOLE))
    assert manifest.cut_samples == before.samples - manifest.samples > 0
    assert (manifest.lost_samples, manifest.ledger["stored"]) == ({"11": 3}, manifest.samples)
    first, second = verify([tmp_path])
    assert (first.finding, first.state, second.finding) == (None, State.RECOVERED, None)
    assert repair(tmp_path, sealed=True) == []
    overwrite(path, manifest.data_offset, b"\xff")  # and again
    (outcome,) = repair(path, sealed=True)
    assert outcome.action is Action.RECOVERED
    assert [verdict.finding for verdict in verify([tmp_path])] == [None, None]


@pytest.mark.parametrize("sealed", [True, False])
def test_one_bit_costs_its_chunk(tmp_path: Path, *, sealed: bool) -> None:
    """No record of a chunk that does not match its footer is kept, and all of each other."""
    path = seal(tmp_path) if sealed else leave(tmp_path)
    offset = data_offset(path)
    chunks = chunks_at(offset)
    at = offset + len(chunks[0]) + len(chunks[1]) + 300
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 1]))
    (outcome,) = repair(tmp_path, sealed=True)
    assert (outcome.action, outcome.samples) == (Action.RECOVERED, (CHUNKS - 1) * PER_CHUNK)
    raw = outcome.path.with_name(outcome.path.name + ".json").read_bytes()
    (cut,) = msgspec.json.decode(raw)["cut"]
    assert cut == {"offset": offset + len(chunks[0]) + len(chunks[1]), "bytes": len(chunks[2])}


def test_a_chunk_elsewhere_is_none(tmp_path: Path) -> None:
    """A chunk that stands in another one's place is not taken for it."""
    path = leave(tmp_path)
    offset = data_offset(path)
    chunks = chunks_at(offset)
    assert len(chunks[3]) == len(chunks[5])
    overwrite(path, offset + sum(map(len, chunks[:5])), chunks[3])
    (outcome,) = repair(tmp_path)
    assert outcome.samples == (CHUNKS - 1) * PER_CHUNK


@pytest.mark.parametrize("kill", [1, 2, 3])
def test_killed_while_it_is_mended(tmp_path: Path, perf: Perf, kill: int) -> None:
    """A repair of a sealed segment that is killed after any step is done again."""
    path = seal(tmp_path)
    hole = data_offset(path) + 6 * 112_000 + 2000
    overwrite(path, hole, TORN["random"])

    def work() -> None:
        folder = open_folder(tmp_path, Trust.WRITE)
        group = next(one for one in group_files(folder) if one.paths.data == path)
        steps = mend_steps(folder, group)
        for _ in range(kill):
            next(steps)

    support.killed(work)
    repair(tmp_path)
    repair(tmp_path, sealed=True)
    check(path, perf, (hole, hole + HOLE))
    assert [verdict.finding for verdict in verify([tmp_path])] == [None, None]


def test_a_damaged_head_is_left(tmp_path: Path) -> None:
    """Data whose head does not match its checksum cannot be read."""
    path = seal(tmp_path)
    overwrite(path, 200, b"\xff\xff")
    before = path.read_bytes()
    (outcome,) = repair(path, sealed=True)
    assert (outcome.action, outcome.damaged) == (Action.DAMAGED, True)
    assert "its head is damaged" in outcome.detail
    assert path.read_bytes() == before


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("cpu", [0, 1])
def test_pages_on_both_sides(
    tmp_path: Path, trace_cmds: Sequence[TraceCmd], torn: str, cpu: int, *, sealed: bool
) -> None:
    """A CPU's pages on both sides of a hole stay, and trace-cmd reads them."""
    counts = (600, 3) if cpu == 0 else (3, 600)
    if sealed:
        info = trace_segments.write_segment(trace_segments.make_sink(tmp_path), counts=counts)
        path, offset = info.path, info.manifest.rings[cpu].offset
    else:
        path = trace_segments.orphan(tmp_path, counts)
        with path.open("rb") as file:
            offset = [*read_head(file.fileno()).extents.values()][cpu].offset
    hole = offset + 300 * 4096 + 100
    overwrite(path, hole, TORN[torn])
    if sealed:
        (verdict,) = verify([tmp_path])
        assert verdict.finding is not None
        assert [(part.offset, part.bytes) for part in verdict.finding.chunks] == [
            (offset + (1 << 20), 1 << 20)
        ]
    (outcome,) = repair(tmp_path, sealed=True)
    assert outcome.action is Action.RECOVERED
    raw = outcome.path.with_name(outcome.path.name + ".json").read_bytes()
    manifest = decode(raw, Manifest)
    assert manifest is not None
    (cut,) = manifest.cut
    gone = 256 if sealed else 17 + 2
    assert cut.bytes == gone * 4096
    assert manifest.samples == (sum(counts) - gone) * trace_segments.PER_PAGE
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]
    for tool in trace_cmds:
        shown = tool.run("report", "-i", outcome.path).stdout
        assert sum(": " in line for line in shown.splitlines()) >= manifest.samples
    assert repair(tmp_path, sealed=True) == []


@pytest.mark.parametrize("torn", TORN)
def test_events_of_programs_on_both_sides(
    tmp_path: Path, perf: Perf, capsys: pytest.CaptureFixture[str], torn: str
) -> None:
    """The chunks on both sides stay of a program's events, for perf and for `events`."""
    writer = bpf_segments.Writer(tmp_path)
    each = 750  # events, and so some 100 KiB
    for first in range(0, CHUNKS * each, each):
        records = [
            bpf_segments.sample(bpf_segments.S_NS + n, bpf_segments.opened(n), cpu=n % 2)
            for n in range(first, first + each)
        ]
        at = writer.path.stat().st_size if first else writer.segment.data_offset
        writer.write(footed(b"".join(records), at))
    size = (writer.path.stat().st_size - writer.segment.data_offset) // CHUNKS
    hole = writer.segment.data_offset + 7 * size - HOLE // 2
    overwrite(writer.path, hole, TORN[torn])
    writer.sink.close()
    (outcome,) = repair(tmp_path)
    assert (outcome.action, outcome.samples) == (Action.RECOVERED, (CHUNKS - 2) * each)
    assert len(perf.script(outcome.path, "-F", "event")) == outcome.samples
    assert cli.main(LinuxKernel, ["events", "--json", str(outcome.path)]) == 0
    found = [json.loads(line)["fields"]["pid"] for line in capsys.readouterr().out.splitlines()]
    assert found == [*range(6 * each), *range(8 * each, CHUNKS * each)]
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]
