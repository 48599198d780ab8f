# SPDX-License-Identifier: Apache-2.0
"""The native walk over ftrace's sub-buffers finds what the walk in Python does."""

from __future__ import annotations

from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from collectord._native import _core
from collectord.codec.ftrace_page import Walk
from tests.support.ftrace_pages import U32, U64, UNUSED_REST
from tests.support.page_cases import LOST, SOUND, SUBBUF_BYTES, U64S, build

# Words whose type and length mean something, among those that mean nothing.
WORD: Final = st.one_of(st.integers(0, 31), st.integers(0, 2**32 - 1), st.integers(4000, 4200))
DAMAGED: Final = st.one_of(SOUND, st.just(UNUSED_REST), WORD.map(U32.pack), st.binary(max_size=5))


def compare(data: bytes, subbuf_bytes: int) -> None:
    """Walk all pages in both ways."""
    pages = events = lost = lost_unknown = first_ns = last_ns = 0
    fault = "ok"
    for at in range(0, len(data) - subbuf_bytes + 1, subbuf_bytes):
        one = data[at : at + subbuf_bytes]
        if one[:12] == bytes(12):
            break
        walk = Walk(one)
        found = list(walk)
        if walk.fault is not None:
            fault = walk.fault.value
            break
        pages += 1
        if found and not events:
            first_ns = found[0].timestamp_ns
        events += len(found)
        lost += walk.lost_events or 0
        lost_unknown += walk.lost_events is None
        last_ns = walk.position.timestamp_ns
    scan = _core.scan_pages(data, subbuf_bytes)
    assert scan == _core.PageScan(
        pages,
        pages * subbuf_bytes,
        events,
        lost % 2**64,
        lost_unknown,
        first_ns,
        last_ns,
        fault,
    )


PAGES: Final = st.builds(build, st.lists(DAMAGED, max_size=20), U64S, LOST, extended=st.booleans())
SOUND_PAGES: Final = st.builds(build, st.lists(SOUND, max_size=40), U64S, LOST)


@given(st.lists(SOUND_PAGES, max_size=4), st.lists(PAGES, max_size=2), st.binary(max_size=40))
def test_pages(sound: list[bytes], damaged: list[bytes], rest: bytes) -> None:
    """Events, losses, times and faults are the same, and the walk ends at the same page."""
    compare(b"".join([*sound, *damaged, rest]), SUBBUF_BYTES)


@given(U64S, U64S, st.binary(max_size=300))
@example(2**64 - 1, 2**63, b"\xff" * 300)
def test_any_bytes(base: int, commit: int, data: bytes) -> None:
    """Whatever a page is made of, both walks end with the same answer."""
    whole = (U64.pack(base) + U64.pack(commit) + data).ljust(SUBBUF_BYTES, b"\0")
    compare(whole, SUBBUF_BYTES)
    head = U64.pack(base) + U64.pack(commit % 300) + data
    compare(head.ljust(SUBBUF_BYTES, b"\0"), SUBBUF_BYTES)


@given(st.binary(max_size=SUBBUF_BYTES - 1))
def test_less_than_a_page(data: bytes) -> None:
    """Less than a whole page is ignored."""
    assert _core.scan_pages(data, SUBBUF_BYTES).pages == 0
