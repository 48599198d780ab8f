# SPDX-License-Identifier: Apache-2.0
"""Any damage to the data of a segment: a repair raises nothing, and invents nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from collectord.reader.verify import verify
from collectord.sink.manifest import Manifest, decode
from collectord.sink.repair import repair
from tests.support import segments as support
from tests.support.chunks import footed, samples_in
from tests.support.examples import examples

_PER_CHUNK: Final = 40
_WRITTEN: Final = [support.sample_record(number) for number in range(6 * _PER_CHUNK)]
_DAMAGE: Final = st.tuples(
    st.floats(min_value=0, max_value=1, exclude_max=True),
    st.binary(min_size=1, max_size=64),
    st.sampled_from([1, 1, 100, 1000]),  # so many times
)


@given(damages=st.lists(_DAMAGE, min_size=1, max_size=4))
@settings(max_examples=examples(60))
def test_nothing_is_invented(damages: list[tuple[float, bytes, int]]) -> None:
    """Kept data were written; untouched chunks are kept; the result is sound."""
    with tempfile.TemporaryDirectory() as name:
        sink = support.make_sink(Path(name))
        segment = sink.next_segment(1, support.OPENING)
        chunks, at = [], segment.data_offset
        for first in range(0, len(_WRITTEN), _PER_CHUNK):
            chunks.append(footed(b"".join(_WRITTEN[first : first + _PER_CHUNK]), at))
            at += len(chunks[-1])
        support.write_data(segment, chunks)
        closed = support.closed(segment, chunks, len(_WRITTEN))
        info = sink.seal(segment, closed, support.closing())
        assert info is not None
        before = b"".join(chunks)
        after = bytearray(before)
        for share, pattern, times in damages:
            torn = pattern * times
            place = int(share * len(before))
            after[place : place + len(torn)] = torn[: len(before) - place]
        with info.path.open("r+b") as file:
            file.seek(segment.data_offset)
            file.write(after)
        repair(Path(name), sealed=True)
        (verdict,) = verify([Path(name)])
        untouched, at = 0, 0
        for chunk in chunks:
            untouched += after[at : at + len(chunk)] == chunk
            at += len(chunk)
        if not untouched:
            return
        assert verdict.finding is None
        raw = info.path.with_name(info.path.name + ".json").read_bytes()
        manifest = decode(raw, Manifest)
        assert manifest is not None
        data = info.path.read_bytes()[segment.data_offset :][: manifest.data_bytes]
        kept = samples_in(data)
        known = set(kept)
        assert kept == [one for one in _WRITTEN if one in known]
        assert len(kept) == manifest.samples == untouched * _PER_CHUNK
