# SPDX-License-Identifier: Apache-2.0
"""Cuts of any pages and events: what is of the time is there as it was, and nothing else."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from collectord._native._columns import Scan, cut
from collectord.codec.ftrace_page import Walk
from collectord.codec.perf_attr import PerfEventAttr, SampleType
from collectord.codec.perf_data import AttrSection, build_head
from collectord.codec.perf_merge import merge
from collectord.folders.folder import opened
from tests.support.examples import examples
from tests.support.ftrace_pages import time_extend, time_stamp
from tests.support.page_cases import DELTAS, EVENTS, LOST, SUBBUF_BYTES, build

if TYPE_CHECKING:
    from collections.abc import Sequence

# A number is a stamp, that far behind the begin of the page. No host runs for so long that a stamp
# of 59 bits does not tell it.
Part = tuple[list[bytes | int], int, int | None]
PAST: Final = st.integers(0, 2**50)
MOVES: Final = st.one_of(EVENTS, st.builds(time_extend, PAST), PAST)
PARTS: Final = st.tuples(st.lists(MOVES, max_size=30), PAST, LOST)
# The number of an event, and how far an edge of the time is behind it.
EDGES: Final = st.tuples(st.integers(0, 120), st.one_of(st.integers(-2, 2), DELTAS))
_TYPES: Final = (
    SampleType.TIME,
    SampleType.TIME | SampleType.ID,
    SampleType.TIME | SampleType.IDENTIFIER,
    SampleType.TIME | SampleType.IDENTIFIER | SampleType.CALLCHAIN,
)


def _events(pages: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Return stamp and payload of each event of sound pages."""
    found = []
    for one in pages:
        walk = Walk(one)
        found += [(stamp, one[at : at + size].rstrip(b"\0")) for stamp, at, size in walk]
        assert walk.fault is None
    return found


def _pages(parts: Sequence[Part]) -> list[bytes]:
    """Return pages of which each begins behind all events of the one before it."""
    pages: list[bytes] = []
    begin = 0
    for moves, past, lost in parts:
        begin += past
        events = [one if isinstance(one, bytes) else time_stamp(begin + one) for one in moves]
        pages.append(build(events, begin, lost))
        begin = max([begin, *(stamp for stamp, _ in _events(pages[-1:]))])
    return pages


def _lost(page: bytes) -> tuple[int | None, int]:
    return Walk(page).lost_events, int.from_bytes(page[:8], "little")


@settings(max_examples=examples(150), deadline=None)
@given(parts=st.lists(PARTS, max_size=3), edges=st.tuples(EDGES, EDGES))
def test_pages_of_a_cut_have_the_events_of_its_time(
    parts: list[Part], edges: tuple[tuple[int, int], ...]
) -> None:
    """They are sound, have the same payloads at the same stamps, and the losses of the time."""
    pages = _pages(parts)
    events = _events(pages)
    stamps = [stamp for stamp, _ in events] or [1]
    since_ns, until_ns = (max(stamps[at % len(stamps)] + past, 0) for at, past in edges)
    with ExitStack() as stack:
        file, new = (stack.enter_context(opened(os.memfd_create(name))) for name in "ab")
        os.write(file, b"".join(pages))
        scan = Scan("all", ())
        size = SUBBUF_BYTES * len(pages)
        scan.add(file, "ftrace", (), [(0, 0, size)], since_ns=since_ns, until_ns=until_ns)
        made = cut(scan, new, 0)
        found = os.pread(new, size, 0)
    assert made.end == len(found)
    kept = [found[at : at + SUBBUF_BYTES] for at in range(0, len(found), SUBBUF_BYTES)]
    assert all(_events([one]) for one in kept)
    assert not made.damaged
    wanted = [(stamp, payload) for stamp, payload in events if since_ns <= stamp <= until_ns]
    assert _events(kept) == wanted
    assert made.records == len(wanted)
    lost = [_lost(page) for page in pages if _lost(page)[0] != 0]
    told = {one for one in lost if since_ns <= one[1] <= until_ns}
    assert {one for one in map(_lost, kept) if one[0] != 0} <= told


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 2), st.sampled_from(_TYPES), st.lists(st.integers(1, 6), max_size=3)
            ),
            min_size=1,
            max_size=3,
            unique_by=lambda one: one[0],
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_record_finds_its_event_in_a_file_of_several(
    told: list[list[tuple[int, SampleType, list[int]]]],
) -> None:
    """Its id, or the one that it gets, is its event's alone, and readers accept the file."""
    files = []
    for of_file in told:
        used: set[int] = set()
        attrs = []
        kind = of_file[0][1]
        for config, _, numbers in of_file:
            ids = tuple(dict.fromkeys(number for number in numbers if number not in used))
            used.update(ids)
            attr = PerfEventAttr(config=config, sample_type=kind, sample_id_all=True)
            attrs.append(AttrSection(attr, ids, f"event{config}"))
        files.append(attrs)
    merged = merge(files)
    if len(files) > 1:
        build_head(merged.attrs)
    by_id = {number: one for one in merged.attrs for number in one.ids}
    several = len(merged.attrs) > 1 and len(files) > 1
    for attrs, renaming in zip(files, merged.renamings, strict=True):
        renamed = dict(renaming.ids)
        for one in attrs:
            for number in one.ids:
                new = by_id[renamed.get(number, number)]
                assert (new.name, new.attr.config) == (one.name, one.attr.config)
                had = one.attr.sample_type | (SampleType.IDENTIFIER if renaming.adds_id else 0)
                assert new.attr.sample_type == had
        if several:
            assert by_id[renaming.unnamed].name == attrs[0].name
            identified = attrs[0].attr.sample_type & SampleType.IDENTIFIER
            assert renaming.adds_id == (not identified)
