# SPDX-License-Identifier: Apache-2.0
"""Address filters, as users write them and as the kernel takes them."""

from __future__ import annotations

import pytest

from collectord.config.address_filter import AddressFilter, parse
from collectord.errors import UsageError


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("filter 0x1000/0x200@/bin/x", "filter 0x1000/0x200@/bin/x"),
        ("filter  4096 / 512  @ /bin/x", "filter 0x1000/0x200@/bin/x"),
        ("filter 0xffffffff81000000/0x1000", "filter 0xffffffff81000000/0x1000"),
        ("start 0x10@/bin/x", "start 0x10@/bin/x"),
        ("start 0x10/0@/bin/x", "start 0x10@/bin/x"),
        ("stop 0x10", "stop 0x10"),
        ("tracestop 0x10/8@/bin/x", "stop 0x10/0x8@/bin/x"),
        (
            "start 1@/bin/a,stop 2@/bin/a , filter 3/4",
            "start 0x1@/bin/a,stop 0x2@/bin/a,filter 0x3/0x4",
        ),
        (" filter 1/2 filter 3/4, ", "filter 0x1/0x2,filter 0x3/0x4"),
        ("filter 0xffffffffffffff00/0x100", "filter 0xffffffffffffff00/0x100"),
    ],
)
def test_taken(text: str, taken: str) -> None:
    """Numbers, spaces and separators may vary; what the kernel gets has one form."""
    assert ",".join(map(str, parse(text))) == taken


def test_values() -> None:
    """A filter keeps what was meant, `tracestop` included."""
    assert parse("tracestop 16/8@/bin/x") == (AddressFilter("tracestop", 16, 8, "/bin/x"),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" , ", "empty"),
        ("filter", "not an address filter"),
        ("filter main@/bin/x", "'main'"),
        ("filter 0x10/size@/bin/x", "'size'"),
        ("filter -1/2", "'-1'"),
        ("filter 1_0/2", "'1_0'"),
        ("filter 0x10@/bin/x", "needs a size"),
        ("filter 0x10/0", "needs a size"),
        ("tracestop 0x10", "needs a size"),
        ("start 0x10/8", "one address"),
        ("stop 0x10/8@/bin/x", "one address"),
        ("keep 0x10/8", "'keep'"),
        ("filter 0x10/8@bin/x", "absolute"),
        ("filter 0x10/8@", "absolute"),
        ("filter 0x10/8@/bin/with space", "'space'"),
        ("filter 0xffffffffffffff00/0x101", "beyond 64 bits"),
        ("start 0x10000000000000000", "beyond 64 bits"),
        ("filter 0x10/8/9", "'8/9'"),
    ],
)
def test_refused(text: str, says: str) -> None:
    """A filter that the kernel would refuse or misread is refused with a hint."""
    with pytest.raises(UsageError, match=says) as caught:
        parse(text)
    assert caught.value.hint


def test_a_region_to_stop_in_is_told_of() -> None:
    """The message for `stop` with a size names the right word."""
    with pytest.raises(UsageError) as caught:
        parse("stop 0x10/8")
    assert "tracestop" in caught.value.hint
