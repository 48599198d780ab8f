# SPDX-License-Identifier: Apache-2.0
"""Records of perf.data that `perf record -z` or this program compressed."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

import pytest
import zstandard

from collectord.cli import events
from collectord.codec import perf_packed
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_data import parse_header
from collectord.reader.any_events import open_tables
from collectord.reader.event_tables import tables_of
from collectord.sink.packing import contents_max_bytes
from tests.support import bpf_segments, segments
from tests.support.bpf_segments import EXITS, chunk, comm, exited, sample
from tests.support.perf_streams import compress
from tests.support.query_tables import rows_of, tables_in

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

ROUNDS: Final = 4
PER_ROUND: Final = 25
_HEADER: Final = struct.Struct("<IHH")


def _plain(directory: Path) -> Path:
    """Write a segment of some rounds, each with a name that its thread gets there."""
    directory.mkdir()
    chunks = [
        chunk(
            comm(9 + 100 * number, 500, b"task %d" % number),
            *(
                sample(10 + 100 * number + at, exited(at), event=EXITS, tid=500)
                for at in range(PER_ROUND)
            ),
            ends_round=True,
        )
        for number in range(ROUNDS)
    ]
    return bpf_segments.write(directory, *chunks)


def _parts(file: bytes) -> list[tuple[int, int]]:
    """Return {offset, size} of the compressed records of a file."""
    at = parse_header(file).data.offset
    end = at + parse_header(file).data.size
    found = []
    while at < end:
        kind, _, size = _HEADER.unpack_from(file, at)
        if kind in {RecordType.COMPRESSED, RecordType.COMPRESSED2}:
            found.append((at, size))
        at += size
    return found


@pytest.mark.parametrize(
    ("part_bytes", "late_bytes"),
    [(1 << 20, 0), (777, 0), (13, 0), (1 << 20, 100), (777, 100), (13, 100)],
)
@pytest.mark.parametrize("kind", [RecordType.COMPRESSED, RecordType.COMPRESSED2])
def test_one_stream_over_many_records_is_read(
    kind: RecordType,
    part_bytes: int,
    late_bytes: int,
    *,
    tmp_path: Path,
    stack: ExitStack,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rows and lines are those of the plain file, wherever the parts of the stream end.

    A record of it that goes on behind plain ones is read, too.
    """
    plain, packed = _plain(tmp_path / "plain"), tmp_path / "perf.data"
    packed.write_bytes(
        compress(plain.read_bytes(), part_bytes=part_bytes, kind=kind, late_bytes=late_bytes)
    )
    assert len(_parts(packed.read_bytes())) >= ROUNDS
    plain.with_name(f"{plain.name}.json").rename(packed.with_name("perf.data.json"))
    tables, others = tables_in(stack, packed), tables_in(stack, plain)
    rows = rows_of(tables["samples"], "mono_ns", "cpu", "tid", "comm", "event")
    assert rows == rows_of(others["samples"], "mono_ns", "cpu", "tid", "comm", "event")
    assert len(rows) == ROUNDS * PER_ROUND
    assert rows_of(tables["tasks"], "comm") == rows_of(others["tasks"], "comm")
    assert rows_of(tables["damage"], "byte") == []
    told = []
    for path in (packed, plain):
        assert events.run(["-o", "csv", str(path)]) == 0
        told.append(capsys.readouterr().out.split("\r\n")[1:])
    assert [line.split(",")[:6] for line in told[0]] == [line.split(",")[:6] for line in told[1]]


def test_damage_ends_a_stream_and_leaves_what_is_sound(
    tmp_path: Path, stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """All before it is shown, and all that is not of the stream; the damage is one row."""
    plain, packed = _plain(tmp_path / "plain"), tmp_path / "perf.data"
    data = bytearray(compress(plain.read_bytes(), part_bytes=600))
    parts = _parts(bytes(data))
    at, size = parts[len(parts) // 2]
    data[at + 8 : at + size] = b"\xff" * (size - 8)
    packed.write_bytes(data)
    tables = tables_in(stack, packed)
    seen = [row[0] for row in rows_of(tables["samples"], "mono_ns")]
    expected = [row[0] for row in rows_of(tables_in(stack, plain)["samples"], "mono_ns")]
    assert 10 < len(seen) < len(expected)
    assert seen == expected[: len(seen)]
    assert [row[0] for row in rows_of(tables["damage"], "reason")] == ["not_decompressed"]
    (file,) = tables["samples"].files
    assert not file.damage
    assert events.run(["--count", str(packed)]) == 1
    shown = capsys.readouterr()
    assert f"{len(seen)}" in shown.out
    assert shown.err.count("not_decompressed") == 1
    assert events.run([str(packed)]) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == len(seen)
    assert shown.err.count("not_decompressed") == 1


def test_a_frame_of_its_own_is_read_behind_a_damaged_one(tmp_path: Path, stack: ExitStack) -> None:
    """Files of this program have a frame in each record: one costs its contents alone."""
    path = segments.write_segment(segments.make_sink(tmp_path / "sealed"), samples=3000).path
    expected = [row[0] for row in rows_of(tables_in(stack, path)["samples"], "mono_ns")]
    packed = tmp_path / "packed.perf.data"
    with packed.open("w+b") as file, memoryview(path.read_bytes()) as plain:
        for offset, data in perf_packed.pack(plain):
            file.seek(offset)
            file.write(data)
    image = bytearray(packed.read_bytes())
    # In two parts: the last record of the first one is cut.
    ((at, size),) = _parts(bytes(image))
    assert size > 100
    tables = tables_in(stack, packed)
    assert [row[0] for row in rows_of(tables["samples"], "mono_ns")] == expected
    image[at + 40] ^= 0xFF
    packed.write_bytes(image)
    tables = tables_in(stack, packed)
    assert rows_of(tables["samples"], "mono_ns") == []
    assert rows_of(tables["damage"], "reason") == [("not_decompressed",)]


def test_a_file_that_perf_left_open_is_read(tmp_path: Path, stack: ExitStack) -> None:
    """Its header tells of no records, and its last one may be cut."""
    plain, packed = _plain(tmp_path / "plain"), tmp_path / "perf.data"
    data = compress(plain.read_bytes(), part_bytes=600)
    at, size = _parts(data)[-6]
    packed.write_bytes(data[:48] + bytes(8) + data[56 : at + size - 1])
    tables = tables_in(stack, packed)
    (file,) = tables["samples"].files
    assert not file.damage
    seen = rows_of(tables["samples"], "mono_ns")
    assert len(seen) > (ROUNDS - 1) * PER_ROUND
    assert rows_of(tables["damage"], "reason") == [("not_decompressed",)]


def test_contents_are_bounded(tmp_path: Path, stack: ExitStack) -> None:
    """A stream that stands for much more than records ever do is damage, and fills no disk."""
    plain, packed = _plain(tmp_path / "plain"), tmp_path / "perf.data"
    image = compress(plain.read_bytes(), part_bytes=600)
    at, _ = _parts(image)[0]
    most = contents_max_bytes(len(image) + (64 << 10))
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(2 * most))
    parts = [bomb[first : first + 60000] for first in range(0, len(bomb), 60000)]
    told = b"".join(_HEADER.pack(RecordType.COMPRESSED, 0, 8 + len(part)) + part for part in parts)
    packed.write_bytes(image[:48] + bytes(8) + image[56:at] + told)
    assert packed.stat().st_size < len(image) + (64 << 10)
    file = open_tables(packed, stack)
    assert file is not None
    fd, _ = file.contents(file.sources[0])
    assert os.fstat(fd).st_size < most
    assert rows_of(tables_of([file])["damage"], "reason") == [("not_decompressed",)]
