# SPDX-License-Identifier: Apache-2.0
"""Segments with AUX traces: sealed, checked and repaired."""

from __future__ import annotations

import os
import random
import shutil
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.aux_record import auxtrace_index, iter_pieces
from collectord.codec.perf_data import AttrSection, parse_feature_table, parse_header
from collectord.codec.perf_features import Features, decode_auxtrace_index
from collectord.codec.perf_section import Feature
from collectord.plan.sink_plan import SinkPlan
from collectord.reader.verify import verify
from collectord.sink.manifest import RingEntry
from collectord.sink.outcome import Action
from collectord.sink.perf_data_sink import PerfDataSink
from collectord.sink.repair import repair
from collectord.sink.stored_file import Check
from tests.support import daemons
from tests.support import segments as support
from tests.support.aux_files import PMU_TYPE, AuxFile
from tests.support.aux_records import Aux
from tests.support.chunks import footed, show
from tests.support.pt import PtTrace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectord._native._core import SegmentClosed
    from collectord.sink.base import OpenSegment
    from tests.support.perf_tools import Perf

FILE: Final = AuxFile()
HIDDEN: Final = AuxFile(aux=None)
TRACE: Final = bytes(PtTrace().psb(ip=0x400100, time=1_000).tip(0x400200).tip(0x400300).data)
TORN: Final = {"zeros": bytes(1 << 16), "random": random.Random(1).randbytes(1 << 16)}  # noqa: S311
PIECE_BYTES: Final = 8192
CODE: Final = [0x400100, 0x400200, 0x400300]


def make_sink(directory: Path, file: AuxFile = FILE) -> PerfDataSink:
    """Return a sink for the trace of one PMU."""
    return PerfDataSink(
        SinkPlan(format="perf.data", directory=str(directory)),
        support.IDENTITY,
        attrs=(
            AttrSection(file.owner, (1, 2), "traced//"),
            AttrSection(file.clocked, (11, 12), "cpu-clock"),
            AttrSection(file.dummy, (21, 22), "dummy:u"),
        ),
        features=Features(hostname="h", osrelease="6.12.0", pmu_mappings=(("traced", PMU_TYPE),)),
        aux_info=file.info(),
    )


def rounds_of(file: AuxFile = FILE, rounds: int = 3) -> Iterator[bytes]:
    """Yield the records of rounds with a sample and two pieces each."""
    for number in range(rounds):
        time_ns, at = 1_000 + 100 * number, 2 * number * len(TRACE)
        parts = [b"" if number else file.opening(), file.sample(time_ns)]
        for half in range(2):
            offset = at + half * len(TRACE)
            parts.append(file.side(Aux(offset, len(TRACE)), time_ns + 50))
            parts.append(file.piece(TRACE, offset))
        yield b"".join(parts)


def chunks(file: AuxFile = FILE, rounds: int = 3) -> list[bytes]:
    """Return a chunk for each round."""
    return [support.chunk(records) for records in rounds_of(file, rounds)]


def fill(segment: OpenSegment, pieces: list[bytes]) -> SegmentClosed:
    """Write chunks, and tell what the core tells of them."""
    data = b"".join(pieces)
    support.write_data(segment, pieces)
    closed = support.closed(segment, pieces, samples=len(pieces))
    index = tuple(segment.data_offset + at for at in auxtrace_index(data))
    size = sum(piece.size for piece in iter_pieces(data))
    return closed._replace(aux_index=index, aux=((7, size, size + 48),))


def sealed(directory: Path, file: AuxFile = FILE) -> Path:
    """Return a sealed segment."""
    sink = make_sink(directory, file)
    segment = sink.next_segment(1, support.OPENING)
    info = sink.seal(segment, fill(segment, chunks(file)), support.closing())
    assert info is not None
    return info.path


def listed(path: Path) -> tuple[int, ...]:
    """Return the index in the file."""
    data = path.read_bytes()
    header = parse_header(data)
    table = data[header.data.offset + header.data.size :]
    section = parse_feature_table(table, header, len(data)).get(Feature.AUXTRACE)
    if section is None:
        return ()
    return decode_auxtrace_index(data[section.offset : section.offset + section.size])


def branches(perf: Perf, path: Path) -> list[int]:
    """Return the branches that quick decoding lists."""
    lines = perf.script(path, "--itrace=qi", "-F", "event,ip")
    return [int(line.split()[-1], 16) for line in lines if "instructions" in line]


def samples(perf: Perf, path: Path) -> int:
    """Return how many samples the kernel wrote."""
    return len(perf.script(path, "--no-itrace"))


def test_running_segment(tmp_path: Path, perfs: tuple[Perf, ...]) -> None:
    """The shown part of a trace is decoded, though the index of its pieces comes with the seal."""
    sink = make_sink(tmp_path, FILE)
    segment = sink.next_segment(1, support.OPENING)
    made: list[bytes] = []
    ends: list[int] = []
    for records in rounds_of():
        at = segment.data_offset + sum(map(len, made))
        made.append(footed(records + support.ROUND, at, segment.table))
        ends.append(at + len(records) + len(support.ROUND))
    support.write_data(segment, made)
    copy = tmp_path / "copy"
    for number in range(len(ends) + 1):
        if number:
            show(segment, ends[number - 1])
        shutil.copyfile(segment.paths.partial, copy)
        for perf in perfs:
            assert branches(perf, copy) == CODE * 2 * number, perf.version
            assert samples(perf, copy) == number
    sink.close()


def test_sealed_segment(tmp_path: Path, perfs: tuple[Perf, ...]) -> None:
    """The decoder's record is ahead of the trace, the index names each piece, perf reads both."""
    path = sealed(tmp_path)
    data = path.read_bytes()
    header = parse_header(data)
    assert struct.unpack_from("<I", data, header.data.offset)[0] == 79  # the clock, then the rest
    assert header.data.offset % support.PAGE_BYTES
    assert len(listed(path)) == 6
    for offset in listed(path):
        assert struct.unpack_from("<IHHQ", data, offset) == (71, 0, 48, -(-len(TRACE) // 8) * 8)
    for perf in perfs:
        assert branches(perf, path) == CODE * 6
        assert samples(perf, path) == 3
    (verdict,) = verify([tmp_path])
    assert verdict.finding is None


def test_writer_has_whole_pages(tmp_path: Path) -> None:
    """Records ahead of the data do not move the writer's offset off a page."""
    sink = make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    assert not segment.data_offset % support.PAGE_BYTES
    assert segment.manifest.data_offset == segment.data_offset
    sink.close()


def test_ring_of_an_area(tmp_path: Path) -> None:
    """An AUX ring's share of the segment is listed like that of a ring."""
    sink = make_sink(tmp_path)
    area = RingEntry(ring=7, role="aux", cpu=0, data_bytes=4096, watermark_bytes=0)
    opening = replace(support.OPENING, rings=(*support.RINGS, area))
    segment = sink.next_segment(1, opening)
    closing = support.closing(rings=(*support.RINGS, area))
    info = sink.seal(segment, fill(segment, chunks()), closing)
    assert info is not None
    (entry,) = (ring for ring in info.manifest.rings if ring.ring == 7)
    assert (entry.samples, entry.bytes) == (0, 6 * len(TRACE))


def test_only_trace(tmp_path: Path) -> None:
    """A later segment with nothing but trace holds something, and is kept."""
    sink = make_sink(tmp_path)
    sink.seal(
        first := sink.next_segment(1, support.OPENING), fill(first, chunks()), support.closing()
    )
    segment = sink.next_segment(2, support.OPENING)
    closed = fill(segment, [support.chunk(FILE.piece(TRACE))])._replace(records=0, samples=0)
    assert sink.seal(segment, closed, support.closing()) is not None
    empty = sink.next_segment(3, support.OPENING)
    closed = support.closed(empty, [support.chunk(b"")], 0)._replace(records=0)
    assert sink.seal(empty, closed, support.closing()) is None


@pytest.mark.parametrize("file", [FILE, HIDDEN], ids=["shown", "hidden"])
def test_orphan(tmp_path: Path, perfs: tuple[Perf, ...], file: AuxFile) -> None:
    """A repair makes the index anew, and the segment is one that perf and verify take.

    Its manifest tells how much trace of which area it holds: what is missing was lost.
    """
    area = RingEntry(ring=7, role="aux", cpu=0, data_bytes=4096, watermark_bytes=0)
    opening = replace(support.OPENING, rings=(*support.RINGS, area))
    support.killed(lambda: fill(make_sink(tmp_path, file).next_segment(1, opening), chunks(file)))
    (outcome,) = repair(tmp_path)
    assert (outcome.action, outcome.samples) == (Action.RECOVERED, 3)
    entry = daemons.manifest(outcome.path)["rings"][-1]
    assert (entry["bytes"], entry["stored_total"]) == (6 * len(TRACE), 6 * len(TRACE))
    assert len(listed(outcome.path)) == (0 if file.hidden else 6)
    for perf in perfs:
        assert samples(perf, outcome.path) == 3
        if not file.hidden:
            assert branches(perf, outcome.path) == CODE * 6
    (verdict,) = verify([tmp_path])
    assert verdict.finding is None


def test_orphan_that_ends_in_a_piece(tmp_path: Path, perf: Perf) -> None:
    """A piece whose trace is not all there is given up whole, with its place in the index."""
    long = FILE.piece(bytes(3 * support.PAGE_BYTES))
    made = [*chunks(rounds=1), support.chunk(FILE.sample(2_000) + long)]
    cut = made[1][: support.PAGE_BYTES] + bytes(len(made[1]) - support.PAGE_BYTES)

    def write() -> None:
        segment = make_sink(tmp_path).next_segment(1, support.OPENING)
        support.write_data(segment, [made[0], cut])
        os.ftruncate(segment.meta_fd, segment.data_offset + len(made[0]) + 2 * support.PAGE_BYTES)

    support.killed(write)
    (outcome,) = repair(tmp_path)
    assert (outcome.action, outcome.samples) == (Action.RECOVERED, 2)
    assert len(listed(outcome.path)) == 2
    assert branches(perf, outcome.path) == CODE * 2


@pytest.mark.parametrize("torn", TORN)
def test_hole_in_a_trace(tmp_path: Path, perf: Perf, torn: str) -> None:
    """Whole chunks on both sides stay, the index names the pieces of them, perf decodes all."""
    padded = TRACE + bytes(PIECE_BYTES - len(TRACE))  # PT pads its packets with zeros
    sink = make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    made, at = [], segment.data_offset
    for number in range(12):
        parts = [b"" if number else FILE.opening(), FILE.sample(1_000 + 100 * number)]
        for piece in range(number * 12, number * 12 + 12):
            offset, time_ns = piece * PIECE_BYTES, 1_050 + 100 * number
            parts += [FILE.side(Aux(offset, PIECE_BYTES), time_ns), FILE.piece(padded, offset)]
        made.append(footed(b"".join(parts), at))
        at += len(made[-1])
    support.write_data(segment, made)
    sink.close()
    hole = segment.data_offset + sum(map(len, made[:7])) - len(TORN[torn]) // 2
    with segment.paths.partial.open("r+b") as file:
        file.seek(hole)
        file.write(TORN[torn])
    (outcome,) = repair(tmp_path)
    assert (outcome.action, outcome.samples) == (Action.RECOVERED, 10)
    assert len(listed(outcome.path)) == 10 * 12
    assert samples(perf, outcome.path) == 10
    assert branches(perf, outcome.path) == CODE * 10 * 12
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]


def test_index_that_lies(tmp_path: Path) -> None:
    """Verify compares the index with the records, whatever the checksums say."""
    path = sealed(tmp_path)
    sink = make_sink(tmp_path / "lie")
    segment = sink.next_segment(1, support.OPENING)
    closed = fill(segment, chunks())
    sink.seal(segment, closed._replace(aux_index=closed.aux_index[1:]), support.closing())
    (verdict,) = verify([tmp_path / "lie"])
    assert verdict.finding is not None
    assert verdict.finding.check is Check.RECORDS
    assert "5 AUXTRACE records in the index, 6 in the data" in verdict.finding.detail
    (sound,) = verify([path])
    assert sound.finding is None


def test_changed_trace(tmp_path: Path) -> None:
    """A changed byte of a trace is a wrong checksum."""
    path = sealed(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.index(TRACE)
    data[at + 20] ^= 1
    path.write_bytes(data)
    (verdict,) = verify([tmp_path])
    assert verdict.finding is not None
    assert verdict.finding.check is Check.CHECKSUM
