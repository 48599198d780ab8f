# SPDX-License-Identifier: Apache-2.0
"""Verify and list: what was changed behind the sink's back is found, and told in one line."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from typing import TYPE_CHECKING

import msgspec
import pytest
import xxhash

from collectord._native._core import Sum
from collectord.codec.perf_data import parse_header
from collectord.errors import SinkError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.reader.verify import State, list_segments, verify
from collectord.sink import chain_log
from collectord.sink.outcome import Action
from collectord.sink.repair import repair
from collectord.sink.scan import xxh3
from collectord.sink.segment import segment_directories
from collectord.sink.stored_file import Check, Part
from collectord.sink.sums import chunks_of, data_span, sums_of
from tests.support import segments as support
from tests.support.changed_segments import change_manifest, finding, overwrite

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.sink.base import SegmentInfo


@pytest.fixture
def info(tmp_path: Path) -> SegmentInfo:
    """Return a sealed segment of 250 samples, alone in its directory."""
    return support.write_segment(support.make_sink(tmp_path))


def test_sound_segment(tmp_path: Path, info: SegmentInfo) -> None:
    """A segment as it was sealed has no finding; its SHA-256 comes when asked for."""
    (verdict,) = verify([tmp_path], sha256=True)
    assert (verdict.path, verdict.state, verdict.finding) == (info.path, State.SEALED, None)
    assert (verdict.samples, verdict.bytes) == (250, info.manifest.bytes)
    assert verdict.sha256 == hashlib.sha256(info.path.read_bytes()).hexdigest()
    assert verify([info.path]) == verify([tmp_path])
    assert verify([info.path])[0].sha256 is None


@pytest.mark.parametrize("part", ["head", "data", "tail"])
def test_changed_byte(tmp_path: Path, info: SegmentInfo, part: str) -> None:
    """A changed bit anywhere in the file is found, and the part of the file named."""
    (span,) = (span for span in info.manifest.spans if span.part == part)
    offset = span.offset + span.bytes - 1
    overwrite(info.path, offset, bytes([info.path.read_bytes()[offset] ^ 1]))
    check, detail = finding(tmp_path)
    assert check is Check.CHECKSUM
    assert detail.startswith(f"the {part} (bytes {span.offset} to ")


def test_spans_cover_the_file(tmp_path: Path, info: SegmentInfo) -> None:
    """Checksums that leave a part of the file out are no proof."""
    head, data, tail = msgspec.to_builtins(info.manifest.spans)
    change_manifest(info, spans=[head, data])
    check, detail = finding(tmp_path)
    assert (check, detail.startswith("the checksums end at byte")) == (Check.CHECKSUM, True)
    change_manifest(info, spans=[data, head, tail])
    assert finding(tmp_path)[0] is Check.CHECKSUM


def test_spans_over_each_other(tmp_path: Path, info: SegmentInfo) -> None:
    """They are refused before a byte of them is hashed, however many there are."""
    overwrite(info.path, info.manifest.data_offset, b"\xff")
    change_manifest(info, spans=msgspec.to_builtins(info.manifest.spans) * 3)
    check, detail = finding(tmp_path)
    assert (check, detail.startswith("the checksums end at byte")) == (Check.CHECKSUM, True)


def test_whole_file_of_another_size(tmp_path: Path, info: SegmentInfo) -> None:
    """It is not hashed: what somebody made longer may be terabytes of holes."""
    os.truncate(info.path, 1 << 42)
    (verdict,) = verify([tmp_path], sha256=True)
    assert verdict.finding is not None
    assert (verdict.finding.check, verdict.sha256) == (Check.SIZE, None)


def test_truncated_file(tmp_path: Path, info: SegmentInfo) -> None:
    """A file that is shorter than its manifest says is found before anything is read."""
    os.truncate(info.path, 5000)
    check, detail = finding(tmp_path)
    assert check is Check.SIZE
    assert detail == f"5000 bytes, its manifest says {info.manifest.bytes}"


def test_damaged_header(tmp_path: Path, info: SegmentInfo) -> None:
    """A file that does not begin as perf.data does is found by its head."""
    overwrite(info.path, 0, b"PERFILE3")
    assert finding(tmp_path)[0] is Check.HEAD


def test_data_size_in_the_header(tmp_path: Path, info: SegmentInfo) -> None:
    """A header whose data size differs from the manifest's is found."""
    in_head = info.manifest.data_offset - parse_header(info.path.read_bytes()).data.offset
    overwrite(info.path, 48, struct.pack("<Q", in_head + 4096))
    check, detail = finding(tmp_path)
    assert (check, "of 4096 bytes" in detail) == (Check.HEAD, True)


def test_damaged_record(tmp_path: Path, info: SegmentInfo) -> None:
    """A record without a size is found and located, even if the checksum agrees."""
    offset = info.manifest.data_offset + len(support.comm_record())
    overwrite(info.path, offset + 6, b"\0\0")
    _agree(info)
    check, detail = finding(tmp_path)
    assert (check, detail) == (Check.RECORDS, f"a record has size 0 at byte {offset}")


def _agree(info: SegmentInfo) -> None:
    """Make the manifest's checksums those of the file."""
    data = info.path.read_bytes()
    spans = []
    for span in info.manifest.spans:
        part = memoryview(data)[span.offset : span.offset + span.bytes]
        one = msgspec.structs.replace(span, xxh3=xxh3(part))
        spans.append(data_span(span.offset, sums_of(part)) if span.part == "data" else one)
    change_manifest(info, spans=msgspec.to_builtins(spans))


MANY = 30_000


@pytest.mark.parametrize("torn", [bytes(1 << 16), random.Random(1).randbytes(1 << 16)])  # noqa: S311
def test_unsound_chunks_are_named(tmp_path: Path, torn: bytes) -> None:
    """Each chunk that damage has touched is told with its place and length, and no other."""
    info = support.write_segment(support.make_sink(tmp_path), samples=MANY)
    (span,) = (span for span in info.manifest.spans if span.part == "data")
    sizes = [one.bytes for one in chunks_of(span) or ()]
    assert len(sizes) > 2
    overwrite(info.path, span.offset + sizes[0] - 8192, torn)
    overwrite(info.path, span.offset + span.bytes - 1, b"\xff")
    (verdict,) = verify([tmp_path])
    assert verdict.finding is not None
    first, second = Part(span.offset, sizes[0]), Part(span.offset + sizes[0], sizes[1])
    last = Part(span.offset + span.bytes - sizes[-1], sizes[-1])
    assert verdict.finding.chunks == (first, second, last)
    assert verdict.finding.detail == (
        f"the data (bytes {first.offset} to {first.end}) does not match its checksum; nor do "
        f"{second.bytes} bytes at {second.offset}, {last.bytes} bytes at {last.offset}"
    )


def test_many_chunks_are_named_shortly(tmp_path: Path) -> None:
    """The line names some chunks, and counts the others."""
    info = support.write_segment(support.make_sink(tmp_path), samples=100)
    data = memoryview(info.path.read_bytes())
    head, found, tail = info.manifest.spans
    at = range(found.offset, found.offset + found.bytes, 512)
    sums = [Sum(len(data[i : i + 512][: found.offset + found.bytes - i]), 0) for i in at]
    change_manifest(info, spans=msgspec.to_builtins([head, data_span(found.offset, sums), tail]))
    (verdict,) = verify([tmp_path])
    assert verdict.finding is not None
    assert len(verdict.finding.chunks) == len(sums)
    assert verdict.finding.detail.endswith(f" and {len(sums) - 8} others")


def _to_first_schema(info: SegmentInfo) -> None:
    """Make the manifest one of the first schema: one checksum over all bytes of each part."""
    data = info.path.read_bytes()
    spans = [
        {
            "part": span.part,
            "offset": span.offset,
            "bytes": span.bytes,
            "xxh3": xxh3(data[span.offset : span.offset + span.bytes]),
        }
        for span in info.manifest.spans
    ]
    change_manifest(info, schema=1, spans=spans)


def test_first_schema(tmp_path: Path, info: SegmentInfo) -> None:
    """A segment of a version without checksums of chunks is checked as a whole."""
    _to_first_schema(info)
    (tmp_path / chain_log.NAME).unlink()  # it came later
    (verdict,) = verify([tmp_path])
    assert (verdict.finding, verdict.samples) == (None, 250)
    overwrite(info.path, info.manifest.data_offset + 100, b"\xff\xff")
    (span,) = (span for span in info.manifest.spans if span.part == "data")
    (verdict,) = verify([tmp_path])
    assert verdict.finding is not None
    assert verdict.finding.check is Check.CHECKSUM
    assert verdict.finding.chunks == (Part(span.offset, span.bytes),)


@pytest.mark.parametrize(
    "chunks",
    [
        "1:0123456789abcdef",
        "x",
        " ",
        "-1:0123456789abcdef",
        f"{10**20}:0123456789abcdef",
    ],
)
def test_chunks_that_are_not_the_data(tmp_path: Path, info: SegmentInfo, chunks: str) -> None:
    """Checksums of chunks that do not make up what they are said to be are no proof."""
    head, data, tail = msgspec.to_builtins(info.manifest.spans)
    change_manifest(info, spans=[head, data | {"chunks": chunks}, tail])
    assert finding(tmp_path) == (
        Check.MANIFEST,
        "the chunks of its data do not add up to its size",
    )


def test_checksum_of_all_chunks(tmp_path: Path, info: SegmentInfo) -> None:
    """The one checksum of the data is that of the chunks' checksums."""
    head, data, tail = msgspec.to_builtins(info.manifest.spans)
    sums = chunks_of(info.manifest.spans[1])
    assert sums
    joined = b"".join(one.xxh3.to_bytes(8, "big") for one in sums)
    assert data["xxh3"] == xxhash.xxh3_64_hexdigest(joined)
    change_manifest(info, spans=[head, data | {"xxh3": "0" * 16}, tail])
    assert finding(tmp_path)[0] is Check.MANIFEST


def test_sample_count(tmp_path: Path, info: SegmentInfo) -> None:
    """A number of samples in the manifest that is not the file's is found."""
    change_manifest(info, samples=249)
    assert finding(tmp_path) == (Check.COUNT, "250 samples, its manifest says 249")


def test_chain(tmp_path: Path) -> None:
    """A manifest that was changed is found by the next one, a missing one while older exist."""
    sink = support.make_sink(tmp_path)
    infos = [support.write_segment(sink, token) for token in range(3)]
    change_manifest(infos[0], scope="cpus")
    findings = [verdict.finding for verdict in verify([tmp_path])]
    assert [finding and finding.check for finding in findings] == [Check.CHAIN] * 2 + [None]
    for name in (infos[1].path, infos[1].path.with_name(infos[1].path.name + ".json")):
        name.unlink()
    findings = [verdict.finding for verdict in verify([tmp_path])]
    assert [finding and finding.detail for finding in findings] == [
        "its manifest was changed since it was sealed",
        f"{infos[1].path.name}.json, sealed before it, is missing",
        "it was sealed here, and somebody has removed it with its manifest",
    ]


def test_evicted_segments_are_no_gap(tmp_path: Path) -> None:
    """When retention has deleted the oldest, those chained to them are still sound."""
    sink = support.make_sink(tmp_path)
    first, _ = (support.write_segment(sink, token) for token in range(2))
    with open_folder(tmp_path, Trust.WRITE) as folder:
        chain_log.note_evicted(folder, [(first.path.name, b"")], "age", 1)
    for path in (first.path, first.path.with_name(first.path.name + ".json")):
        path.unlink()
    assert [verdict.finding for verdict in verify([tmp_path])] == [None]


def test_manifest_is_missing_or_damaged(tmp_path: Path, info: SegmentInfo) -> None:
    """A segment without a manifest, or with one that is no JSON, cannot be vouched for."""
    manifest = info.path.with_name(info.path.name + ".json")
    manifest.write_bytes(b"{")
    assert finding(tmp_path) == (Check.MANIFEST, "its manifest is damaged")
    manifest.unlink()
    assert finding(tmp_path) == (Check.MANIFEST, "it has no manifest")


def test_other_version(tmp_path: Path, info: SegmentInfo) -> None:
    """A manifest of another schema is told as such."""
    change_manifest(info, schema=99)
    check, detail = finding(tmp_path)
    assert check is Check.VERSION
    assert detail == "manifest schema 99 is of another version; this one knows 2"


def test_states(tmp_path: Path) -> None:
    """Abandoned ones are found, running ones left alone, recovered ones told from sealed ones."""
    support.orphan(tmp_path / "a")
    repair(tmp_path)
    orphan = support.orphan(tmp_path / "b")
    sink = support.make_sink(tmp_path / "c")
    sink.next_segment(1, support.OPENING)
    verdicts = verify([tmp_path])
    assert [verdict.state for verdict in verdicts] == [
        *(State.RECOVERED, State.ABANDONED, State.RUNNING),
    ]
    assert [verdict.finding is not None for verdict in verdicts] == [False, True, False]
    assert verdicts[1].path == orphan
    rows = list_segments([tmp_path])
    assert [row.state for row in rows] == [verdict.state for verdict in verdicts]
    assert [row.samples for row in rows] == [250, 0, 0]  # nothing was flushed to the others
    assert [row.session for row in rows] == ["exec"] * 3
    sink.close()


def test_list_rows(tmp_path: Path, info: SegmentInfo) -> None:
    """A row holds what the manifest tells and what the file takes."""
    (row,) = list_segments([tmp_path])
    assert (row.path, row.state, row.session) == (info.path, State.SEALED, "exec")
    assert (row.records, row.samples, row.complete, row.basis) == (251, 250, True, "exact")
    assert (row.first_ns, row.last_ns) == (info.manifest.first_ns, info.manifest.last_ns)
    assert (row.bytes, row.allocated_bytes) == (
        info.manifest.bytes,
        info.manifest.allocated_bytes,
    )


def test_list_segment_without_manifest(tmp_path: Path, info: SegmentInfo) -> None:
    """A segment that nothing vouches for is listed with its size alone."""
    info.path.with_name(info.path.name + ".json").unlink()
    (row,) = list_segments([tmp_path])
    assert (row.state, row.samples, row.basis) == (State.UNKNOWN, None, None)
    assert row.bytes == info.manifest.bytes


def test_absent_targets(tmp_path: Path) -> None:
    """A file that does not exist is a finding."""
    check, detail = finding(tmp_path / "absent.perf.data")
    assert (check, detail) == (Check.FILE, "there is no such segment")


def test_unreadable_directory(tmp_path: Path) -> None:
    """A system error becomes one that names the path and what to do."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SinkError, match=r"cannot read .*a part of the path is a file") as caught:
        segment_directories(file)
    assert caught.value.path == str(file)


def test_a_manifest_that_contradicts_itself_mends_nothing(
    tmp_path: Path, info: SegmentInfo
) -> None:
    """Its segment is told and left: what it says of the data is what they would be mended by."""
    overwrite(info.path, info.manifest.data_offset, b"\xff")
    head, data, tail = msgspec.to_builtins(info.manifest.spans)
    change_manifest(info, spans=[head, data | {"bytes": data["bytes"] + 1}, tail])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    (outcome,) = repair(tmp_path, sealed=True)
    assert outcome.action is Action.DAMAGED
    assert "its manifest cannot be true" in outcome.detail
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
