# SPDX-License-Identifier: Apache-2.0
"""Descriptions of what BPF programs submit: in each manifest of a segment's life, and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from collectord.codec.bpf_struct import Field, Layout
from collectord.reader.event_file import read_manifest
from collectord.reader.verify import verify
from collectord.sink.manifest import EventLayout, Manifest, OpenManifest, decode, encode
from collectord.sink.outcome import Action
from collectord.sink.repair import repair
from collectord.sink.stored_file import Check
from tests.support import bpf_segments as support
from tests.support import event_lines
from tests.support import segments as perf_support
from tests.support.bpf_segments import DESCRIBED, EXITS, OPENS, S_NS, Writer, chunk, exited, sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.perf_tools import Perf

RECORDS = chunk(
    sample(S_NS, support.opened(5)), sample(2 * S_NS, exited(6), event=EXITS), ends_round=True
)


def manifest_of(path: Path) -> Path:
    """Return the manifest beside a segment."""
    return path.with_name(path.name + ".json")


def pids(path: Path) -> list[object]:
    """Return the pids of two samples, by their layouts."""
    return [one["fields"]["pid"] for one in event_lines.read(path)[0]]


def test_running_and_sealed(tmp_path: Path) -> None:
    """The open manifest has them from the creation on, the sealed one too."""
    writer = Writer(tmp_path)
    opened = decode(writer.segment.paths.open_manifest.read_bytes(), OpenManifest)
    assert opened is not None
    assert opened.layouts == DESCRIBED
    writer.write(RECORDS)
    assert pids(writer.path) == [5, 6]
    path = writer.seal()
    writer.sink.close()
    sealed = decode(manifest_of(path).read_bytes(), Manifest)
    assert sealed is not None
    assert sealed.layouts == DESCRIBED
    assert pids(path) == [5, 6]
    assert read_manifest(path) == sealed


def test_recovered_after_a_kill(tmp_path: Path) -> None:
    """A repair carries them over."""
    perf_support.killed(lambda: Writer(tmp_path).write(RECORDS))
    (left,) = tmp_path.glob("*.data.partial")
    assert pids(left) == [5, 6]
    (outcome,) = repair(tmp_path)
    assert outcome.action is Action.RECOVERED
    assert pids(outcome.path) == [5, 6]
    manifest = read_manifest(outcome.path)
    assert isinstance(manifest, Manifest)
    assert (manifest.layouts, manifest.complete) == (DESCRIBED, False)
    (verdict,) = verify([tmp_path])
    assert verdict.finding is None


def test_older_manifest_has_none(tmp_path: Path) -> None:
    """A manifest that was written before there were any is read."""
    info = perf_support.write_segment(perf_support.make_sink(tmp_path))
    assert info.manifest.layouts == {}
    text = msgspec.json.decode(encode(info.manifest))
    del text["layouts"]
    older = decode(msgspec.json.encode(text), Manifest)
    assert older == info.manifest


def _change(path: Path, **layouts: Any) -> None:  # noqa: ANN401 - JSON
    manifest = manifest_of(path)
    text = msgspec.json.decode(manifest.read_bytes())
    text["layouts"] |= layouts
    manifest.write_bytes(msgspec.json.encode(text))


def test_verify(tmp_path: Path) -> None:
    """A description of no event of the file, or one that cannot be, is found."""
    path = support.write(tmp_path, RECORDS)
    (verdict,) = verify([tmp_path])
    assert verdict.finding is None
    _change(path, gone=DESCRIBED[EXITS])
    (verdict,) = verify([tmp_path])
    assert verdict.finding is not None
    assert verdict.finding.check is Check.MANIFEST
    assert "describes gone, which is not one of its events" in verdict.finding.detail
    path = support.write(tmp_path / "other", RECORDS)
    odd = Layout(EXITS, 8, (Field("pid", "int", 6, 4, 0, "int"),))
    _change(path, exits=EventLayout(program=EXITS, layout=odd))
    (verdict,) = verify([tmp_path / "other"])
    assert verdict.finding is not None
    assert verdict.finding.check is Check.MANIFEST
    assert "member pid (int) does not fit its record" in verdict.finding.detail
    events = event_lines.read(path)[1].file.events
    assert {event.name: event.described is None for event in events} == {OPENS: False, EXITS: True}


@pytest.mark.parametrize("key", ["offset", "kind"])
def test_manifest_that_does_not_parse(tmp_path: Path, key: str) -> None:
    """A description of a wrong type makes it a damaged manifest; the events are bytes."""
    path = support.write(tmp_path, RECORDS)
    manifest = manifest_of(path)
    text = msgspec.json.decode(manifest.read_bytes())
    text["layouts"][EXITS]["layout"]["fields"][0][key] = "text"
    manifest.write_bytes(msgspec.json.encode(text))
    (verdict,) = verify([tmp_path])
    assert verdict.finding is not None
    assert verdict.finding.check is Check.MANIFEST
    assert read_manifest(path) is None


def test_room_for_the_sealed_manifest(tmp_path: Path) -> None:
    """It is kept from the creation on, however much there is to describe."""
    fields = tuple(Field(f"field_{n}", "int", 4 * n, 4, 0, "int") for n in range(1000))
    many = EventLayout(program=EXITS, layout=Layout(EXITS, 4000, fields))
    writer = Writer(tmp_path, layouts={EXITS: many})
    room_bytes = writer.segment.paths.new_manifest.stat().st_size
    writer.write(RECORDS)
    path = writer.seal()
    writer.sink.close()
    assert 100_000 < manifest_of(path).stat().st_size < room_bytes


def test_perf_shows_the_samples(tmp_path: Path, perf: Perf) -> None:
    """`perf script` has a line for each, by the program's name."""
    path = support.write(tmp_path, RECORDS)
    shown = perf.run("script", "-i", path).stdout.splitlines()
    assert [line for line in shown if f"{OPENS}:" in line]
    assert [line for line in shown if f"{EXITS}:" in line]
    assert any("BPF output" in line for line in shown)
