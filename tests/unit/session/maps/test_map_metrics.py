# SPDX-License-Identifier: Apache-2.0
"""Maps of BPF programs as metrics: what is added up, by which labels, and never goes back."""

from __future__ import annotations

from typing import Any, Final

import pytest

from collectord.errors import BpfError, KernelError
from collectord.kernel.values.bpf_objects import MapType
from collectord.programs.program_manifest import LabelConfig, MetricConfig
from collectord.session.maps.histogram import buckets, slot_range
from collectord.session.maps.map_metrics import SERIES_MAX, MapReader
from tests.support.bpf_tables import S32, U32, U64, FakeMaps, FakeNames, key_struct, u32, u64

DEVICE: Final = LabelConfig(name="device", field="dev", show="device", max=2)
DEV_SLOT: Final = (key_struct(["dev", U32], ["slot", U32]), 8)
SECOND: Final = 1_000_000_000


def metric(kind: str, **more: Any) -> MetricConfig:  # noqa: ANN401  # of MetricConfig
    """Return a metric `m` of table `t`."""
    return MetricConfig(**{"name": "m", "type": kind, "help": "It counts.", "table": "t", **more})


def reader(maps: FakeMaps, *metrics: MetricConfig) -> MapReader:
    """Return a reader of a program `p`."""
    return MapReader(maps, "p", maps.tables, metrics, FakeNames())


def values(looks: MapReader) -> dict[tuple[str, ...], float | None]:
    """Read the first metric once: values by labels."""
    return {series.labels: series.value for series in looks.read()[0].series}


def counts(looks: MapReader) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Read the first metric, a histogram, once: counts of its buckets by labels."""
    return {series.labels: series.counts for series in looks.read()[0].series}


def test_counter_is_there_from_the_first_look() -> None:
    """Without labels there is one series, at 0 before anything was counted."""
    maps = FakeMaps()
    maps.add("t", MapType.HASH, (U32, 4))
    (found,) = reader(maps, metric("counter")).read()
    assert (found.name, found.type, found.help) == ("m", "counter", "It counts.")
    assert [(s.labels, s.value) for s in found.series] == [((), 0)]


def test_values_of_all_cpus_and_entries_are_added() -> None:
    """A per-CPU value is the sum over the CPUs, a metric without labels that over the entries."""
    maps = FakeMaps()
    table = maps.add("t", MapType.PERCPU_HASH, (U32, 4), cpus=3)
    looks = reader(maps, metric("counter"))
    table[u32(1)] = u64(1, 20, 300)
    table[u32(2)] = u64(4000, 0, 0)
    assert values(looks) == {(): 4321}


def test_a_field_of_each_cpus_leaf() -> None:
    """Leaves of CPUs are rounded up to 8 bytes; the field is found in each."""
    maps = FakeMaps()
    leaf = (key_struct(["a", U32], ["b", U32], ["c", U32]), 12)
    table = maps.add("t", MapType.PERCPU_ARRAY, (U32, 4), leaf, entries=1)
    looks = reader(maps, metric("counter", value="b"), metric("gauge", name="g", value="c"))
    table[u32(0)] = u32(7, 1, 30, 999) + u32(7, 2, 40, 999)
    assert [found.series[0].value for found in looks.read()] == [3, 70]
    assert maps.reads == 1, "two metrics of one table take one look"


def test_counters_go_on_when_an_entry_leaves() -> None:
    """An entry that an LRU map dropped is not taken back, and counts anew when it returns."""
    maps = FakeMaps()
    table = maps.add("t", MapType.LRU_HASH, (U32, 4))
    looks = reader(maps, metric("counter"))
    table[u32(1)], table[u32(2)] = u64(10), u64(5)
    assert values(looks) == {(): 15}
    del table[u32(1)]
    assert values(looks) == {(): 15}
    table[u32(1)] = u64(3)
    table[u32(2)] = u64(6)
    assert values(looks) == {(): 19}


def test_an_entry_that_was_deleted_between_two_looks() -> None:
    """A value below the last one has counted from 0."""
    maps = FakeMaps()
    table = maps.add("t", MapType.HASH, (U32, 4))
    looks = reader(maps, metric("counter"))
    table[u32(1)] = u64(10)
    assert values(looks) == {(): 10}
    table[u32(1)] = u64(4)
    assert values(looks) == {(): 14}
    table[u32(1)] = u64(5)
    assert values(looks) == {(): 15}


def test_entries_left_out_of_a_look_are_not_counted_twice() -> None:
    """A map with more than is read shows other entries each time, and says so."""
    maps = FakeMaps()
    table = maps.add("t", MapType.HASH, (U32, 4))
    looks = reader(maps, metric("counter"))
    table[u32(1)], table[u32(2)] = u64(10), u64(20)
    assert values(looks) == {(): 30}
    assert looks.truncated == {"t": False}
    maps.incomplete.add("t")
    del table[u32(1)]
    assert values(looks) == {(): 30}
    assert looks.truncated == {"t": True}
    table[u32(1)] = u64(11)
    assert values(looks) == {(): 31}


def test_what_is_remembered_of_a_truncated_map_is_bounded() -> None:
    """Keys that never come back are forgotten."""
    maps = FakeMaps()
    table = maps.add("t", MapType.HASH, (U32, 4))
    looks = reader(maps, metric("counter"))
    maps.incomplete.add("t")
    for key in range(0, 1000, 10):
        table.clear()
        table |= {u32(one): u64(1) for one in range(key, key + 10)}
        looks.read()
    (counter,) = looks._metrics
    assert len(counter._growth._last) == 20  # type: ignore[attr-defined]  # a counter's
    assert values(looks) == {(): 1000}


def test_labels_are_bounded_and_what_is_shown_stays() -> None:
    """The largest come first, the rest is `other`, and neither changes places later."""
    maps = FakeMaps()
    table = maps.add("t", MapType.HASH, (key_struct(["dev", U32]), 4))
    looks = reader(maps, metric("counter", labels=(DEVICE,)))
    table |= {u32(1): u64(1), u32(2): u64(30), u32(3): u64(20), u32(4): u64(2)}
    assert values(looks) == {("sd2",): 30, ("sd3",): 20, ("other",): 3}
    table |= {u32(1): u64(1000), u32(5): u64(1)}
    assert values(looks) == {("sd2",): 30, ("sd3",): 20, ("other",): 1003}
    table.clear()
    table[u32(1)] = u64(7)
    assert values(looks) == {("sd2",): 30, ("sd3",): 20, ("other",): 1010}


def test_label_values_that_look_alike_count_together() -> None:
    """Two values with one text are one series; texts are fit for a scrape."""
    maps = FakeMaps()
    table = maps.add("t", MapType.HASH, (key_struct(["comm", "char", [4]]), 4))
    label = LabelConfig(name="who", field="comm", show="text")
    looks = reader(maps, metric("counter", labels=(label,)))
    table |= {b"a\0xx": u64(1), b"a\0yy": u64(2), b"\x1b\xffb\0": u64(4)}
    found = values(looks)
    assert found.pop(("a",)) == 3
    ((text,),) = found
    assert text.isprintable()
    assert text.encode()


def test_each_label_has_its_own_bound() -> None:
    """One label's overflow does not hide another's values."""
    maps = FakeMaps()
    key = (key_struct(["dev", U32], ["write", U32]), 8)
    table = maps.add("t", MapType.HASH, key)
    labels = (
        LabelConfig(name="device", field="dev", show="device", max=1),
        LabelConfig(name="write", field="write"),
    )
    looks = reader(maps, metric("counter", labels=labels))
    table |= {u32(1, 0): u64(9), u32(1, 1): u64(8), u32(2, 0): u64(3), u32(3, 0): u64(4)}
    assert values(looks) == {("sd1", "0"): 9, ("sd1", "1"): 8, ("other", "0"): 7}


def test_series_of_a_metric_are_bounded() -> None:
    """However many labels may show, a metric has a bounded number of series."""
    maps = FakeMaps()
    table = maps.add("t", MapType.HASH, DEV_SLOT, entries=1 << 16)
    label = LabelConfig(name="device", field="dev", show="device", max=10_000)
    looks = reader(
        maps, metric("histogram", scale="log2", slot="slot", unit="ns", labels=(label,))
    )
    table |= {u32(dev, 20): u64(1) for dev in range(5000)}
    (found,) = looks.read()
    series = len(found.series) * (len(found.bounds) + 3)
    assert SERIES_MAX // 2 < series <= SERIES_MAX + 100
    assert sum(sum(one.counts) for one in found.series) == 5000
    assert ("other",) in {one.labels for one in found.series}


def test_gauge_follows_its_map() -> None:
    """A gauge goes down; a label whose entries are gone shows 0 and does not vanish."""
    maps = FakeMaps()
    table = maps.add("t", MapType.HASH, (key_struct(["dev", U32]), 4), (S32, 4))
    looks = reader(maps, metric("gauge", labels=(DEVICE,)))
    table |= {u32(1): u32(5), u32(2): (-3).to_bytes(4, "little", signed=True)}
    assert values(looks) == {("sd1",): 5, ("sd2",): -3}
    del table[u32(1)]
    assert values(looks) == {("sd1",): 0, ("sd2",): -3}


def test_times_are_seconds() -> None:
    """Nanoseconds in the map are seconds in the metric."""
    maps = FakeMaps()
    table = maps.add("t", MapType.ARRAY, (U32, 4), entries=1)
    looks = reader(
        maps,
        metric("counter", unit="ns"),
        metric("counter", unit="us"),
        metric("counter", unit="ms"),
        metric("counter", unit="bytes"),
    )
    table[u32(0)] = u64(1_500_000)
    assert [found.series[0].value for found in looks.read()] == [0.0015, 1.5, 1500, 1_500_000]


def test_log2_histogram() -> None:
    """Each slot is in the bucket whose bound is the highest value that it holds."""
    maps = FakeMaps()
    table = maps.add("t", MapType.ARRAY, (U32, 4), entries=64)
    maps.add("s", MapType.ARRAY, (U32, 4), entries=1)[u32(0)] = u64(3 * SECOND)
    looks = reader(maps, metric("histogram", scale="log2", unit="ns", sum_table="s"))
    table |= {u32(slot): u64(0) for slot in range(64)}
    table |= {u32(1): u64(2), u32(8): u64(4), u32(9): u64(8), u32(37): u64(16), u32(38): u64(32)}
    (found,) = looks.read()
    assert found.bounds[:2] == (255 / SECOND, 511 / SECOND)
    assert found.bounds[-1] == ((1 << 37) - 1) / SECOND
    (series,) = found.series
    assert series.counts == (6, 8, *[0] * 27, 16, 32)
    assert series.value == 3


def test_slots_of_a_hash_do_not_follow_from_its_size() -> None:
    """A key that has more than the slot in it leaves the buckets as they are."""
    maps = FakeMaps()
    maps.add("t", MapType.HASH, DEV_SLOT, entries=5)
    maps.add("u", MapType.HASH, (U64, 8), entries=5)
    looks = reader(
        maps,
        metric("histogram", scale="log2", slot="slot"),
        metric("histogram", scale="log2", table="u"),
    )
    assert {len(found.bounds) for found in looks.read()} == {32}


def test_a_sum_is_in_slot_0() -> None:
    """Other values that a program keeps beside the sum are not part of it."""
    maps = FakeMaps()
    maps.add("t", MapType.ARRAY, (U32, 4), entries=64)
    sums = maps.add("s", MapType.PERCPU_ARRAY, (U32, 4), entries=2, cpus=2)
    sums |= {u32(0): u64(2_000_000, 1_000_000), u32(1): u64(9, 9)}
    looks = reader(maps, metric("histogram", scale="log2", unit="us", sum_table="s"))
    assert values(looks) == {(): 3}


def test_histogram_without_a_sum_claims_none() -> None:
    """If the program keeps no sum, or not by the metric's labels, none is exported."""
    maps = FakeMaps()
    table = maps.add("t", MapType.HASH, DEV_SLOT)
    maps.add("s", MapType.ARRAY, (U32, 4), entries=1)[u32(0)] = u64(9)
    more = {"scale": "log2", "slot": "slot", "labels": (DEVICE,)}
    looks = reader(maps, metric("histogram", **more), metric("histogram", sum_table="s", **more))
    table[u32(1, 2)] = u64(1)
    assert [found.series[0].value for found in looks.read()] == [None, None]


def test_sums_by_label() -> None:
    """A table of sums with the labels in its key gives each set of buckets its own."""
    maps = FakeMaps()
    table = maps.add("t", MapType.HASH, DEV_SLOT)
    sums = maps.add("s", MapType.HASH, (key_struct(["dev", U32]), 4))
    looks = reader(
        maps,
        metric("histogram", scale="log2", slot="slot", sum_table="s", labels=(DEVICE,)),
    )
    table |= {u32(1, 2): u64(2), u32(2, 3): u64(1), u32(3, 3): u64(1)}
    sums |= {u32(1): u64(5), u32(2): u64(7), u32(3): u64(6)}
    assert values(looks) == {("sd1",): 5, ("sd2",): 7, ("other",): 6}


def test_linear_histogram() -> None:
    """Slot k holds k * step to (k + 1) * step - 1, and what is too large is in the last one."""
    maps = FakeMaps()
    table = maps.add("t", MapType.ARRAY, (U32, 4), entries=5)
    looks = reader(maps, metric("histogram", scale="linear", step=10, unit="bytes"))
    table |= {u32(slot): u64(1 << slot) for slot in range(5)}
    assert looks.read()[0].bounds == (9, 19, 29, 39)
    assert counts(looks) == {(): (1, 2, 4, 8, 16)}


def test_many_linear_slots_become_fewer_buckets() -> None:
    """Buckets of several slots each cover all of them."""
    made = buckets("linear", "count", step=2, slots=1025)
    assert len(made.bounds) == 64
    assert made.bounds[-1] == 2 * 1024 - 1
    assert [made.index(slot) for slot in (0, 15, 16, 1023, 1024, 1 << 40)] == [0, 0, 1, 63, 64, 64]


def test_slots_of_bccs_log2() -> None:
    """Slot 1 holds 0 and 1, each further one twice as many; none is beyond 64 bits."""
    assert [slot_range("log2", slot) for slot in range(5)] == [
        (0, 0), (0, 1), (2, 3), (4, 7), (8, 15),
    ]  # fmt: skip
    assert slot_range("log2", 64) == (1 << 63, (1 << 64) - 1)
    assert slot_range("log2", 1 << 31) == (1 << 63, (1 << 64) - 1)


def test_a_small_log2_array_has_no_bound_for_its_last_slot() -> None:
    """Values too large for the program's slots are above every bound."""
    made = buckets("log2", "count", slots=5)
    assert made.bounds == (1, 3, 7)
    assert [made.index(slot) for slot in range(6)] == [0, 0, 1, 2, 3, 3]


def test_an_unchanged_map_is_not_gone_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that finds what the last one found costs the reading alone."""
    maps = FakeMaps()
    table = maps.add("t", MapType.HASH, (U32, 4))
    table[u32(1)] = u64(1)
    looks = reader(maps, metric("counter"))
    first = looks.read()
    monkeypatch.setattr("collectord.session.maps.map_metrics.Growth.since_last", None)
    assert looks.read() == first


def test_a_map_that_cannot_be_read_loses_nothing() -> None:
    """The next reading includes what the counters grew by while reading failed."""
    maps = FakeMaps()
    one = maps.add("t", MapType.HASH, (U32, 4))
    maps.add("u", MapType.HASH, (U32, 4))
    looks = reader(maps, metric("counter"), metric("counter", name="n", table="u"))
    one[u32(1)] = u64(1)
    maps.failing.add("u")
    with pytest.raises(KernelError, match="u"):
        looks.read()
    one[u32(1)] = u64(2)
    maps.failing.clear()
    assert values(looks) == {(): 2}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (metric("counter", table="tt"), r"no table 'tt'; did you mean \"t\""),
        (metric("counter", table="latency"), "no table 'latency'; tables: t"),
        (metric("counter", value="byte"), r"leaf has no field 'byte'; did you mean \"bytes\""),
        (metric("counter"), "leaf is a struct, so a field of it must be named"),
        (metric("counter", value="count.x"), "no field 'count.x'"),
        (metric("gauge", value="text"), "text .char. is not a number"),
        (
            metric("counter", value="count", labels=(LabelConfig(name="x", field="x"),)),
            "key has no field 'x'",
        ),
        (metric("histogram", value="count", scale="log2", slot="comm"), "is not a number"),
        (metric("histogram", value="count", scale="log2"), "key is a struct"),
    ],
)
def test_a_manifest_that_does_not_fit_its_program(config: MetricConfig, words: str) -> None:
    """A missing name is reported with its table and the nearest name."""
    maps = FakeMaps()
    leaf = (key_struct(["count", U64], ["bytes", U64], ["text", "char", [8]]), 24)
    maps.add("t", MapType.HASH, (key_struct(["dev", U32], ["comm", "char", [4]]), 8), leaf)
    with pytest.raises(BpfError, match=words) as caught:
        reader(maps, config)
    assert (caught.value.program, caught.value.step) == ("p", "describe")


def test_a_table_that_cannot_be_described() -> None:
    """The error names the table and the member."""
    maps = FakeMaps()
    maps.add("t", MapType.HASH, (["k", [["a", "long double"]], "struct"], 16))
    with pytest.raises(BpfError, match=r"table t cannot be described: member a \(long double\)"):
        reader(maps, metric("counter"))
