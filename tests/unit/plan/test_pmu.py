# SPDX-License-Identifier: Apache-2.0
"""Terms of dynamic PMUs."""

from __future__ import annotations

import pytest

from collectord.config.event_spec import PmuEvent, parse
from collectord.errors import MissingFeature, UsageError
from collectord.plan.pmu import PmuConfig, lay_out, scatter
from tests.support.hosts import host


def laid_out(text: str) -> PmuConfig:
    """Config words of a PMU event on the test host."""
    event = parse(text)[0].events[0].body
    assert isinstance(event, PmuEvent)
    return lay_out(event, host().pmus[event.pmu], text)


def test_scatter_fills_ranges_from_low_to_high() -> None:
    """A value's low bits go to the first range, the next ones to the second."""
    assert scatter(0xABC, "0-7,32-35") == 0xA000000BC
    assert scatter(1, "23") == 1 << 23


def test_terms_go_to_their_words() -> None:
    """Formats place each term; terms without value are 1."""
    assert laid_out("cpu/event=0x1c0,umask=2,edge,ldlat=30/") == PmuConfig(
        config=0xC0 | 1 << 32 | 2 << 8 | 1 << 18, config1=30
    )


def test_aliases_are_expanded_and_can_be_overridden() -> None:
    """Terms behind an alias replace its terms."""
    assert laid_out("cpu/mem-loads/") == PmuConfig(config=0x1CD, config1=3)
    assert laid_out("cpu/mem-loads,ldlat=9/").config1 == 9


def test_perfs_common_terms_are_known() -> None:
    """Words, name, period and freq work for every PMU."""
    assert laid_out("cpu/config=0x10,config1=2,name=x,period=5/") == PmuConfig(
        config=0x10, config1=2, period=5, name="x"
    )
    assert laid_out("uncore_imc/event=1,freq=7/").frequency == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpu/evnt=1/", 'did you mean "event"'),
        ("uncore_imc/zzzz=1/", "it has config"),
        ("cpu/umask=0x100/", "does not fit 8 bits"),
        ("cpu/edge=2/", "does not fit 1 bit"),
        ("cpu/event=abc/", "is not a number"),
        ("cpu/event=-1/", "is not a number"),
        ("cpu/mem-loads=1/", "no term 'mem-loads'"),
        ("cpu/open/", "does not set umask"),
        ("cpu/config=0x10000000000000000/", "larger than 64 bits"),
    ],
)
def test_wrong_terms_say_why(text: str, words: str) -> None:
    """Unknown names, numbers that are none or too large, and open parameters are refused."""
    with pytest.raises(UsageError) as caught:
        laid_out(text)
    assert words in str(caught.value)


def test_an_open_parameter_can_be_given() -> None:
    """An alias with `umask=?` takes it from the event."""
    assert laid_out("cpu/open,umask=4/").config == 0x401


def test_a_word_that_files_cannot_hold_is_a_missing_feature() -> None:
    """config3 lies beyond the attributes that perf 6.1 reads."""
    with pytest.raises(MissingFeature):
        laid_out("cpu/wide=1/")
