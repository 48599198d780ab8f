# SPDX-License-Identifier: Apache-2.0
"""A damaged compressed segment is refused as damaged, or gives a bounded file."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collectord.codec import perf_packed, relay_packed, trace_packed
from collectord.errors import CodecError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.sink.pack import Result, pack_steps
from collectord.sink.packing import contents_max_bytes, write_pieces
from collectord.sink.scan import mapped
from collectord.sink.segment import SegmentPaths
from collectord.sink.segment_steps import run
from tests.support import relay_segments, segments, trace_segments
from tests.support.examples import examples
from tests.support.relay_records import record

if TYPE_CHECKING:
    from collectord.codec.packed import Packing
    from collectord.sink.base import SegmentInfo

_PACKINGS: Final[dict[str, Packing]] = {
    "perf": perf_packed,
    "relay": relay_packed,
    "trace": trace_packed,
}
_ENDS: Final = st.one_of(st.integers(0, 400), st.integers(-400, -1), st.integers(0, 1 << 20))
_NUMBERS: Final = st.one_of(
    st.sampled_from([1 << bits for bits in (0, 4, 12, 16, 31, 32, 40, 62, 63)]),
    st.integers(0, (1 << 64) - 1),
)
_EDIT: Final = st.tuples(_ENDS, st.sampled_from([1, 2, 4, 8]), _NUMBERS, st.integers(-1, 1))


def _segment(kind: str, folder: Path) -> SegmentInfo:
    if kind == "perf":
        return segments.write_segment(segments.make_sink(folder), samples=50)
    if kind == "trace":
        return trace_segments.write_segment(trace_segments.make_sink(folder), counts=(30, 1))
    info = relay_segments.seal(relay_segments.make_sink(folder), 1, {4: record(1) * 900})
    assert info is not None
    return info


@pytest.fixture(scope="module", params=list(_PACKINGS))
def packed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Packing, bytes]:
    """Give each form, and a compressed segment of it."""
    folder = tmp_path_factory.mktemp("packed")
    path = _segment(request.param, folder).path
    with open_folder(folder, Trust.WRITE) as opened:
        assert run(pack_steps(opened, SegmentPaths(folder, path.name))) is Result.PACKED
    return _PACKINGS[request.param], path.read_bytes()


@pytest.mark.parametrize("lenient", [False, True])
@given(edits=st.lists(_EDIT, min_size=1, max_size=3), cut=st.integers(0, 64))
@example(edits=[(-20, 8, 1 << 4, 0)], cut=0)  # a size of the file that its head does not fit in
@example(edits=[(-28, 8, 0, 0)], cut=0)  # a CPU without room for its pages
@settings(max_examples=examples(100))
def test_every_damage_is_a_codec_error(
    packed: tuple[Packing, bytes], edits: list[tuple[int, int, int, int]], cut: int, lenient: bool
) -> None:
    """Wrong sizes, places and counts end in a CodecError, and the file's map can be closed."""
    packing, whole = packed
    data = bytearray(whole)
    for at, width, number, near in edits:
        place = min(at % len(data), len(data) - width)
        value = (number + near) % (1 << 8 * width)
        data[place : place + width] = value.to_bytes(width, "little")
    if cut > 48:
        del data[-cut:]
    limit = contents_max_bytes(len(data))
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as file:
        source.write(data)
        source.flush()
        with contextlib.suppress(CodecError), mapped(source.fileno(), len(data)) as view:
            write_pieces(file.fileno(), packing.unpack(view, lenient=lenient), limit)
        assert Path(f"/proc/self/fd/{file.fileno()}").stat().st_size <= limit
