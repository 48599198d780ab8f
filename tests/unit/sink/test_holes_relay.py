# SPDX-License-Identifier: Apache-2.0
"""Files of blktrace's records with a hole, or another damage, in their middle."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from collectord import cli
from collectord.kernel.linux import LinuxKernel
from collectord.reader.verify import verify
from collectord.sink.blk_records import examine
from collectord.sink.manifest import Manifest, decode
from collectord.sink.outcome import Action
from collectord.sink.repair import repair
from collectord.sink.stored_file import Part
from tests.support import relay_segments
from tests.support.changed_segments import overwrite
from tests.support.relay_records import note, requests
from tests.support.segments import files_in

if TYPE_CHECKING:
    from pathlib import Path

HOLE = 1 << 16
TORN = {"zeros": bytes(HOLE), "random": random.Random(1).randbytes(HOLE)}  # noqa: S311


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("sealed", [True, False])
def test_records_of_blktrace_on_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], torn: str, *, sealed: bool
) -> None:
    """A file with a hole keeps whole records on both sides, and says in between what was cut out.

    With checksums all that does not match is cut out; else the hole and the record before it.
    """
    # Chunks on both sides of the hole's, or what is longer than a hole.
    data = {4: b"".join(requests(60_000 if sealed else 6_000)), 5: b""}
    assert len(data[4]) > (2 << 20 if sealed else 3 * HOLE)
    sink = relay_segments.make_sink(tmp_path)
    if sealed:
        relay_segments.seal(sink, 1, data)
    else:
        relay_segments.filled(sink, 1, data)
        sink.close()
    path = max(files_in(tmp_path), key=lambda one: one.stat().st_size)
    hole = len(data[4]) // 2 + 30
    overwrite(path, hole, TORN[torn])
    verdict = next(one for one in verify([tmp_path]) if one.path == path)
    assert verdict.finding is not None
    assert len(verdict.finding.chunks) == sealed
    outcomes = repair(tmp_path, sealed=True)
    outcome = next(one for one in outcomes if one.path.name.endswith(".blktrace.0"))
    assert outcome.action is Action.RECOVERED
    assert "damaged bytes at byte" in outcome.detail
    raw = outcome.path.with_name(outcome.path.name + ".json").read_bytes()
    manifest = decode(raw, Manifest)
    assert manifest is not None
    (cut,) = manifest.cut
    limit = (1 << 20 if sealed else HOLE) + 3 * len(note(""))
    assert cut.offset <= hole < hole + HOLE <= cut.offset + cut.bytes
    assert cut.bytes <= limit
    kept = data[4][: cut.offset], data[4][cut.offset + cut.bytes :]
    left = outcome.path.read_bytes()
    assert (left[: cut.offset], left[cut.offset + cut.bytes :]) == kept
    capsys.readouterr()
    assert cli.main(LinuxKernel, ["events", "--json", str(outcome.path)]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum("sequence" in one.get("fields", ()) for one in found) == manifest.samples
    said = [one for one in found if one.get("event") == "blktrace:message"]
    assert len(said) == -(-cut.bytes // (48 + 65535))
    assert [one.finding for one in verify([tmp_path])] == [None] * 3
    assert repair(tmp_path, sealed=True) == []


def test_one_bit_of_a_sealed_record_costs_its_chunk(tmp_path: Path) -> None:
    """No record of blktrace is kept that is in a chunk that does not match its checksum."""
    data = {4: b"".join(requests(60_000)), 5: b""}
    info = relay_segments.seal(relay_segments.make_sink(tmp_path), 1, data)
    assert info is not None
    chunk = 1 << 20
    overwrite(info.path, chunk + 500_000, bytes([data[4][chunk + 500_000] ^ 1]))
    (outcome,) = repair(tmp_path, sealed=True)
    (cut,) = examine(memoryview(outcome.path.read_bytes())).cuts
    assert chunk - 100 < cut.offset <= chunk
    assert 2 * chunk <= cut.end < 2 * chunk + 100


def test_repaired_again(tmp_path: Path) -> None:
    """A second repair of blktrace's records reports the same hole as the first."""
    data = {4: b"".join(requests(3000)), 5: b""}
    sink = relay_segments.make_sink(tmp_path)
    segment = relay_segments.filled(sink, 1, data)
    sink.close()
    overwrite(segment.paths.partial, 40_000, b"\xff" * 100)
    outcome = next(one for one in repair(tmp_path) if one.samples)
    left = outcome.path.read_bytes()
    (first,) = examine(memoryview(left)).cuts
    assert first.offset <= 40_000
    assert first.end >= 40_100
    torn = left[:90_000] + bytes(300) + left[90_300:]
    again, second = examine(memoryview(torn)).cuts
    assert again == first
    assert second.offset <= 90_000
    assert second.end >= 90_300


@pytest.mark.parametrize("damaged", [7, 47], ids=["number", "length"])
@pytest.mark.parametrize("record_number", [501, 901])
def test_one_record_costs_itself(record_number: int, damaged: int) -> None:
    """A number that jumped, or a length that reaches over others or the end, is not believed."""
    whole = requests(1000)
    data = bytearray(b"".join(whole))
    at = sum(map(len, whole[:record_number]))
    data[at + damaged] ^= 0x40
    found = examine(memoryview(data))
    assert found.cuts == (Part(at, len(whole[record_number])),)
    assert found.end == len(data)


def test_bytes_of_a_channel_are_left(tmp_path: Path) -> None:
    """If record boundaries are unknown, a sealed file is reported, and left unchanged."""
    relay = relay_segments.make_sink(tmp_path)
    relay_segments.seal(relay, 1, relay_segments.DATA)
    path = next(one for one in files_in(tmp_path) if one.name.endswith(".0"))
    overwrite(path, 4, b"\xff")
    before = path.read_bytes()
    assert [outcome.action for outcome in repair(tmp_path, sealed=True)] == [Action.DAMAGED]
    assert path.read_bytes() == before
