# SPDX-License-Identifier: Apache-2.0
"""Manifests: what is written is read back, by this version, and only what this one knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from collectord.sink.manifest import (
    Clocks,
    Manifest,
    OpenManifest,
    common_fields,
    data_times,
    decode,
    encode,
    foreign_schema,
    thin,
)
from tests.support import segments as support

if TYPE_CHECKING:
    from pathlib import Path

OPEN = OpenManifest(
    **msgspec.structs.asdict(support.IDENTITY),
    format="perf.data",
    segment="20261121T005819Z-000001.perf.data",
    started_ns=1,
    direct=True,
    data_offset=4096,
    events=(support.EVENT,),
    rings=support.RINGS,
    clocks=Clocks(open=support.CLOCK),
)


def test_name_that_is_no_utf8() -> None:
    """A manifest can be written for any file name; odd bytes are visible in it."""
    again = decode(encode(msgspec.structs.replace(OPEN, segment="a\udcff")), OpenManifest)
    assert again is not None
    assert again.segment == r"a\xff"


def test_round_trip() -> None:
    """A manifest is read back as it was written, one key a line."""
    data = encode(OPEN)
    assert decode(data, OpenManifest) == OPEN
    assert data.startswith(b'{\n "schema": 2,\n "format": "perf.data",\n')
    assert data.endswith(b"}\n")


def test_unknown_keys() -> None:
    """A later writer of the same schema may add keys."""
    data = msgspec.json.encode(msgspec.to_builtins(OPEN) | {"later": [1]})
    assert decode(data, OpenManifest) == OPEN
    assert foreign_schema(data) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"schema": "1"}', b"\xff"])
def test_no_manifest(data: bytes) -> None:
    """Bytes that are no manifest are told from those of another version."""
    assert decode(data, OpenManifest) is None
    assert foreign_schema(data) is None


def test_other_schema() -> None:
    """A manifest of another schema is not read, even if its keys are known."""
    data = msgspec.json.encode(msgspec.to_builtins(OPEN) | {"schema": 99})
    assert decode(data, OpenManifest) is None
    assert foreign_schema(data) == 99


def test_open_manifest_is_no_sealed_one() -> None:
    """An open manifest does not pass for a sealed one, whose common keys it provides."""
    assert decode(encode(OPEN), Manifest) is None
    assert set(common_fields(OPEN)) < set(Manifest.__struct_fields__)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 3600])
def test_flush_clocks_are_bounded(count: int) -> None:
    """Out of many readings 64 stay, the first and the last among them, none twice."""
    readings = [replace(support.CLOCK, monotonic_ns=number) for number in range(count)]
    kept = thin(readings)
    assert len(kept) == min(count, 64)
    assert sorted(set(kept), key=readings.index) == list(kept)
    assert kept[:1] == tuple(readings[:1])
    assert kept[-1:] == tuple(readings[-1:])


def test_times_of_the_data_by_their_own_clock(tmp_path: Path) -> None:
    """Records are stamped by one clock or the other; without a reading of it nobody knows."""
    reading = replace(support.CLOCK, monotonic_ns=100, perf_ns=200, realtime_ns=10_000)
    sealed = msgspec.structs.replace(
        support.write_segment(support.make_sink(tmp_path)).manifest,
        clocks=Clocks(open=reading),
        clock="monotonic",
    )
    assert data_times(sealed, 250, 300) == (10_150, 10_200)
    by_perf = msgspec.structs.replace(sealed, clock="perf")
    assert data_times(by_perf, 250, 300) == (10_050, 10_100)
    unknown = Clocks(open=replace(reading, perf_ns=0))
    assert data_times(msgspec.structs.replace(by_perf, clocks=unknown), 250, 300) is None
    assert data_times(sealed, 0, 0) is None
