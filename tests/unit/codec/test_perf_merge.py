# SPDX-License-Identifier: Apache-2.0
"""The events of several files in one, and the ids of their records."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from collectord.codec.perf_attr import PerfEventAttr, SampleType
from collectord.codec.perf_data import AttrSection
from collectord.codec.perf_merge import Renaming, merge
from collectord.errors import CodecError

BARE: Final = PerfEventAttr(config=1, sample_type=SampleType.TIME, sample_id_all=True)
NAMED: Final = replace(BARE, sample_type=SampleType.TIME | SampleType.IDENTIFIER)


def test_one_file_stays_as_it_is() -> None:
    """Also if it has the same event twice."""
    attrs = (AttrSection(NAMED, (1,), "a"), AttrSection(NAMED, (2,), "a"))
    assert merge([attrs]) == (attrs, (Renaming(),))


def test_the_same_events_of_several_files_are_one() -> None:
    """It has the ids of all; records keep theirs, even if they have none."""
    merged = merge([[AttrSection(NAMED, (1, 2), "a")], [AttrSection(NAMED, (2, 3), "a")]])
    assert merged == (
        (AttrSection(NAMED, (1, 2, 3), "a"),),
        (Renaming(unnamed=2), Renaming(unnamed=3)),
    )
    merged = merge([[AttrSection(BARE, (), "a")]] * 2)
    assert merged == ((AttrSection(BARE, (), "a"),), (Renaming(), Renaming()))


def test_an_id_of_two_events_is_replaced_and_a_missing_one_given() -> None:
    """New ids are above all others; all events have an IDENTIFIER then."""
    other = AttrSection(replace(NAMED, config=2), (1, 5), "b")
    merged = merge([[AttrSection(NAMED, (1,), "a")], [other], [AttrSection(BARE, (), "c")]])
    assert merged.attrs == (
        AttrSection(NAMED, (1,), "a"),
        AttrSection(other.attr, (6, 5), "b"),
        AttrSection(NAMED, (7,), "c"),
    )
    assert merged.renamings[1].ids == ((1, 6),)
    assert merged.renamings[2] == Renaming((), 7, adds_id=True)


@pytest.mark.parametrize(
    ("attrs", "why"),
    [
        ([replace(NAMED, sample_id_all=False)], "time"),
        ([BARE, replace(NAMED, config=3)], "IDENTIFIER"),
    ],
)
def test_what_does_not_go_into_one_file(attrs: list[PerfEventAttr], why: str) -> None:
    """The error says what differs."""
    other = [AttrSection(attr, (at,), "b") for at, attr in enumerate(attrs)]
    with pytest.raises(CodecError, match=why):
        merge([[AttrSection(NAMED, (9,), "a")], other])
