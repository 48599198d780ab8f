# SPDX-License-Identifier: Apache-2.0
"""For all maps: counters never go back, every value is in the bucket that its bounds say."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, Literal

from hypothesis import given
from hypothesis import strategies as st

from collectord.kernel.values.bpf_objects import MapType
from collectord.programs.program_manifest import LabelConfig, MetricConfig
from collectord.session.maps.histogram import buckets, slot_range
from collectord.session.maps.map_metrics import MapReader
from tests.support.bpf_tables import U32, FakeMaps, FakeNames, key_struct, u32, u64

if TYPE_CHECKING:
    from collections.abc import Sequence

UNITS: Final[Sequence[Literal["ns", "us", "ms", "bytes", "count"]]] = (
    "ns", "us", "ms", "bytes", "count",
)  # fmt: skip
U64S: Final = st.integers(0, (1 << 64) - 1)
VALUES: Final = st.one_of(U64S, st.integers(0, 64).map(lambda bit: (1 << bit) - 1), U64S.map(abs))
# The content of a map from look to look: key (label, slot) to value.
LOOKS: Final = st.lists(
    st.dictionaries(
        st.tuples(st.integers(0, 4), st.integers(0, 5)), st.integers(0, 50), max_size=12
    ),
    max_size=8,
)


def log2_slot(value: int) -> int:
    """bpf_log2l() of BCC, in its steps: one of two halves, then shifts by 16, 8, 4, 2, 1."""
    high = value >> 32
    rest, slot = (high, 33) if high else (value, 1)
    for bits in (16, 8, 4, 2, 1):
        if rest >= 1 << bits:
            rest >>= bits
            slot += bits
    return slot


@given(VALUES)
def test_a_value_is_within_its_slots_range(value: int) -> None:
    """The range is exact to the integer for all 64-bit values."""
    low, high = slot_range("log2", log2_slot(value))
    assert low <= value <= high


@given(VALUES, st.sampled_from(UNITS), st.none() | st.integers(1, 64))
def test_log2_bounds(value: int, unit: str, slots: int | None) -> None:
    """`le` holds for each value: it is in the first bucket whose bound is not below it."""
    made = buckets("log2", unit, slots=slots)
    slot = log2_slot(value)
    if slots is not None:
        slot = min(slot, slots - 1)  # as a program does with what is too large
    assert made.index(slot) == bisect_left(made.bounds, value)


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20), st.none() | st.integers(1, 3000))
def test_linear_bounds(value: int, step: int, slots: int | None) -> None:
    """Likewise, also where a bucket is made of several slots."""
    made = buckets("linear", "count", step=step, slots=slots)
    slot = value // step if slots is None else min(value // step, slots - 1)
    assert made.index(slot) == bisect_left(made.bounds, value)
    assert len(made.bounds) <= 64


@given(LOOKS, st.integers(1, 3), st.sets(st.integers(0, 7)))
def test_counters_never_go_back(
    looks: list[dict[tuple[int, int], int]], most: int, incomplete: set[int]
) -> None:
    """Whatever comes, goes, falls or is left out of a look: no series falls or vanishes."""
    maps = FakeMaps()
    table = maps.add("t", MapType.LRU_HASH, (key_struct(["dev", U32], ["slot", U32]), 8))
    labels = (LabelConfig(name="device", field="dev", show="device", max=most),)
    reader = MapReader(
        maps,
        "p",
        maps.tables,
        (
            MetricConfig(name="c", type="counter", help="c", table="t", labels=labels),
            MetricConfig(
                name="h",
                type="histogram",
                help="h",
                table="t",
                scale="log2",
                slot="slot",
                labels=labels,
            ),
        ),
        FakeNames(),
    )
    before: dict[tuple[str, ...], tuple[float, ...]] = {}
    for number, look in enumerate(looks):
        table.clear()
        table |= {u32(*key): u64(value) for key, value in look.items()}
        maps.incomplete = {"t"} if number in incomplete else set()
        counter, histogram = reader.read()
        now: dict[tuple[str, ...], tuple[float, ...]] = {
            ("counter", *series.labels): (series.value or 0,) for series in counter.series
        }
        now |= {("histogram", *series.labels): series.counts for series in histogram.series}
        assert len(counter.series) <= most + 1
        for labels_of, figures in before.items():
            assert all(new >= old for new, old in zip(now[labels_of], figures, strict=True))
        before = now


@given(LOOKS)
def test_nothing_is_counted_that_was_not_there(looks: list[dict[tuple[int, int], int]]) -> None:
    """A counter is at least its map's highest sum, at most all that its entries ever grew by."""
    maps = FakeMaps()
    table = maps.add("t", MapType.LRU_HASH, (key_struct(["dev", U32], ["slot", U32]), 8))
    config = MetricConfig(name="c", type="counter", help="c", table="t")
    reader = MapReader(maps, "p", maps.tables, (config,), FakeNames())
    least, most = 0, 0
    for look in looks:
        table.clear()
        table |= {u32(*key): u64(value) for key, value in look.items()}
        ((series,),) = (found.series for found in reader.read())
        least = max(least, sum(look.values()))
        most += sum(look.values())
        assert least <= (series.value or 0) <= most
