# SPDX-License-Identifier: Apache-2.0
"""Values with units."""

from __future__ import annotations

import pytest

from collectord.errors import UsageError
from collectord.text.units import (
    Bytes,
    Least,
    Nanoseconds,
    RingSize,
    Share,
    show_bytes,
    show_least,
    show_ns,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20),
        ("64M", 64 << 20),
        ("1.5 KiB", 1536),
        ("512B", 512),
        ("2TiB", 2 << 40),
        ("0", 0),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """Units are powers of two; only nothing needs none."""
    assert Bytes.parse(text) == size


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [("10s", 10_000_000_000), ("1.5ms", 1_500_000), ("7d", 7 * 86400 * 10**9), ("0", 0)],
)
def test_durations(text: str, duration_ns: int) -> None:
    """From nanoseconds to days, exactly."""
    assert Nanoseconds.parse(text) == duration_ns


@pytest.mark.parametrize(
    "text", ["64", "64 MB", "64mib", "-1KiB", "MiB", "", 64, None, "9999999999TiB"]
)
def test_wrong_sizes_name_the_units(text: object) -> None:
    """A bare number, another unit or no number at all is refused with what is allowed."""
    with pytest.raises(UsageError, match=r"MiB|63 bits"):
        Bytes.parse(text)


@pytest.mark.parametrize("text", ["10", "10 sec", "1M", "s", 10, 1.5])
def test_wrong_durations_name_the_units(text: object) -> None:
    """The message lists the units of time, not of size."""
    with pytest.raises(UsageError, match="ns, us, ms, s, m, h or d"):
        Nanoseconds.parse(text)


def test_shares_are_percents_or_sizes() -> None:
    """A share keeps which of the two it was."""
    assert Share.parse("25%") == Share(percent=25.0)
    assert Share.parse("2.5%") == Share(percent=2.5)
    assert Share.parse("64KiB") == Share(65536)
    assert Share.parse("25%") != Share.parse("25KiB")
    assert len({Share.parse("25%"), Share.parse("25.0%")}) == 1


@pytest.mark.parametrize("text", ["0%", "101%", "%", "x%", "-5%", "25", 25])
def test_wrong_shares_are_refused(text: object) -> None:
    """Percent lie above 0 and up to 100, and a bare number is neither."""
    with pytest.raises(UsageError):
        Share.parse(text)


def test_a_limit_is_the_smaller_of_a_size_and_a_share() -> None:
    """Each may be left out; a share of what is not known is none."""
    both = Least.parse("2GiB, 5%")
    assert both == Least.parse("5%,2GiB") == Least(2 << 30, 5.0)
    assert (both.of(1000), both.of(1 << 50), both.of(0)) == (50, 2 << 30, 2 << 30)
    assert (Least.parse("5%").of(1000), Least.parse("5%").of(0)) == (50, 0)
    assert (Least.parse("64KiB").of(1000), Least.parse("0").of(1000)) == (64 << 10, 0)
    for text in ("2GiB, 5%", "5%", "64KiB"):
        assert show_least(Least.parse(text)) == text
    assert repr(Least(2 << 30, 5.0)) == "Least(2GiB, 5%)"


@pytest.mark.parametrize("text", ["5%, 6%", "1GiB, 2GiB", "1GiB, 2GiB, 5%", "0%", "25", 25, ","])
def test_wrong_limits_are_refused(text: object) -> None:
    """There is at most one of each, with its unit."""
    with pytest.raises(UsageError):
        Least.parse(text)


def test_ring_sizes_are_bytes_pages_or_automatic() -> None:
    """Pages become bytes when the page size is known, "auto" when the plan knows better."""
    assert RingSize.parse("2MiB").in_bytes(4096, 7) == 2 << 20
    assert RingSize.parse("128pages").in_bytes(65536, 7) == 128 * 65536
    assert RingSize.parse("auto").in_bytes(4096, 7) == 7
    assert RingSize.parse("4KiB") != RingSize.parse("1pages")
    assert len({RingSize.parse("4KiB"), RingSize.parse("4096B")}) == 1


@pytest.mark.parametrize("text", ["0", "0pages", "1.5pages", "128", 128, "half"])
def test_wrong_ring_sizes_are_refused(text: object) -> None:
    """No ring, part of a page, and numbers without unit."""
    with pytest.raises(UsageError, match="pages"):
        RingSize.parse(text)


def test_values_are_shown_in_the_unit_that_keeps_them_whole() -> None:
    """A shown value can be read again."""
    for size in (0, 1, 1023, 1536, 512 << 10, 3 << 30):
        assert Bytes.parse(show_bytes(size)) == size
    for duration_ns in (0, 1, 1500, 10**9, 90 * 10**9, 86400 * 10**9):
        assert Nanoseconds.parse(show_ns(duration_ns)) == duration_ns
    assert (show_bytes(512 << 10), show_ns(600 * 10**9)) == ("512KiB", "10m")


def test_values_say_what_they_are() -> None:
    """A failing comparison shows the value."""
    assert repr(Share(percent=25.0)) == "Share(25%)"
    assert repr(Share(5)) == "Share(5B)"
    assert repr(RingSize(pages=3)) == "RingSize(0B, 3 pages)"
