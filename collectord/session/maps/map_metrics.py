# SPDX-License-Identifier: Apache-2.0
"""The metrics that a BPF program's manifest declares, made from its maps.

Reading takes system calls and time that grows with the contents of the maps: it is for a worker
thread, once per flush interval. A scrape gets the last values read.

A program's counters are summed up here, by their growth from poll to poll. So the sums stay when
an entry leaves its map (an LRU map drops entries unused for long), and when the program deletes an
entry and starts it anew: then the counts between the last poll and the deletion are missing, but
nothing is counted twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from collectord.kernel.values.bpf_objects import MapType
from collectord.session.maps.histogram import Buckets, buckets
from collectord.session.maps.labels import Labels
from collectord.session.maps.program_status import MetricValues, Series
from collectord.session.maps.table import Picker, describe_table, is_number, read_table
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from collectord.codec.bpf_show import Names
    from collectord.programs.program_manifest import MetricConfig
    from collectord.session.maps.table import BpfKernel, Table, TableContents, TableType, Value

# Series of one metric; each bucket of a histogram counts as one.
SERIES_MAX: Final = 4096
_SERIES_BESIDE_BUCKETS: Final = 3  # +Inf, _count, _sum
_PER_SECOND: Final = {"ns": NS_PER_SECOND, "us": 1_000_000, "ms": 1_000}


class MapReader:
    """Reads a program's maps, and keeps the sums of its counters and histograms.

    Args:
        kernel: reads maps.
        program: its name, for errors.
        tables: of the program, by name.
        metrics: of the program's manifest.
        names: of interfaces and devices.

    Raises:
        BpfError: a metric names a table or field that the program does not have.
        KernelError: the sizes of a map cannot be read.
    """

    def __init__(
        self,
        kernel: BpfKernel,
        program: str,
        tables: Mapping[str, Table],
        metrics: Sequence[MetricConfig],
        names: Names,
    ) -> None:
        self._kernel = kernel
        self._metrics: list[_Metric] = []
        self._tables: dict[str, TableType] = {}
        self._last: dict[str, TableContents] = {}
        for config in metrics:
            for name in (config.table, config.sum_table):
                if name and name not in self._tables:
                    self._tables[name] = describe_table(kernel, program, tables, name)
            self._metrics.append(_metric(config, self._tables, names))

    def read(self) -> tuple[MetricValues, ...]:
        """Read all maps and return the metrics. One thread at a time.

        Raises:
            KernelError: a map cannot be read; the values of the others are kept.
        """
        for name, table in self._tables.items():
            contents = read_table(self._kernel, table)
            last = self._last.get(name)
            if last is not None and last.entries == contents.entries:
                continue
            self._last[name] = contents
            for metric in self._metrics:
                metric.take(name, contents)
        return tuple(metric.values() for metric in self._metrics)

    @property
    def truncated(self) -> dict[str, bool]:
        """Whether the last reading of each table left out entries, or may have."""
        return {name: not last.entries.complete for name, last in self._last.items()}


class Growth:
    """The growth of the counters in a table's leaves since the last reading.

    Args:
        table: the table.
        value: the counting field of the leaf.
    """

    def __init__(self, table: TableType, value: str) -> None:
        self._field = table.number(value)
        self._last: dict[bytes, float] = {}

    def since_last(self, contents: TableContents) -> list[tuple[bytes, float]]:
        """Return keys and the growth of their counters, without those that did not grow."""
        now = dict(zip(contents.keys(), contents.numbers(self._field), strict=True))
        last = self._last
        grown = []
        for key, value in now.items():
            before = last.get(key, 0)
            # A lower value means that the entry was deleted and counts anew.
            growth = value - before if value >= before else value
            if growth > 0:
                grown.append((key, growth))
        if not contents.entries.complete:
            # Left-out entries may come back; not all can be remembered if the map is unbounded.
            unseen = [item for item in last.items() if item[0] not in now]
            now = {**dict(unseen[-len(now) :]), **now}
        self._last = now
        return grown


class _Metric:
    """A metric: the sums of its table's entries, by labels.

    Subclasses define the sum.
    """

    def __init__(self, config: MetricConfig, table: TableType, labels: Labels) -> None:
        self._config = config
        self._labels = labels
        self._pick = Picker(table.key, [table.key_field(one.field) for one in config.labels])
        self._divisor = _PER_SECOND.get(config.unit, 1)

    def take(self, table: str, contents: TableContents) -> None:
        """Add a new reading of a table, if it is the metric's table."""
        raise NotImplementedError

    def values(self) -> MetricValues:
        """Return the sums so far."""
        return MetricValues(
            name=self._config.name,
            type=self._config.type,
            help=self._config.help,
            label_names=self._labels.names,
            bounds=self._bounds(),
            series=tuple(self._series()),
        )

    def _bounds(self) -> tuple[float, ...]:
        return ()

    def _series(self) -> Iterator[Series]:
        raise NotImplementedError

    def _scaled(self, value: float) -> float:
        return value / self._divisor if self._divisor > 1 else value

    def _by_labels(
        self, pick: Picker, items: Iterable[tuple[bytes, float]]
    ) -> list[tuple[tuple[str, ...], list[tuple[bytes, float]]]]:
        """Group items by the labels of their keys.

        The groups with the highest counts come first, in case not all label values can be shown.
        """
        if not self._config.labels:
            return [((), list(items))]
        parts: dict[tuple[Value, ...], list[tuple[bytes, float]]] = defaultdict(list)
        for key, value in items:
            parts[pick(key)].append((key, value))
        most_first = sorted(parts, key=lambda part: -sum(value for _, value in parts[part]))
        return [(self._labels.of(part), parts[part]) for part in most_first]


class _Counter(_Metric):
    """A counter: the growth of the leaves."""

    def __init__(self, config: MetricConfig, table: TableType, labels: Labels) -> None:
        super().__init__(config, table, labels)
        self._growth = Growth(table, config.value)
        self._totals: dict[tuple[str, ...], float] = {} if config.labels else {(): 0}

    def take(self, table: str, contents: TableContents) -> None:
        if table != self._config.table:
            return
        for labels, items in self._by_labels(self._pick, self._growth.since_last(contents)):
            self._totals[labels] = self._totals.get(labels, 0) + sum(value for _, value in items)

    def _series(self) -> Iterator[Series]:
        return (Series(labels, self._scaled(value)) for labels, value in self._totals.items())


class _Gauge(_Metric):
    """A gauge: the values of the leaves. Labels whose entries are gone show 0."""

    def __init__(self, config: MetricConfig, table: TableType, labels: Labels) -> None:
        super().__init__(config, table, labels)
        self._field = table.number(config.value)
        self._now: dict[tuple[str, ...], float] = {} if config.labels else {(): 0}

    def take(self, table: str, contents: TableContents) -> None:
        if table != self._config.table:
            return
        now: dict[tuple[str, ...], float] = dict.fromkeys(self._now, 0)
        items = zip(contents.keys(), contents.numbers(self._field), strict=True)
        for labels, part in self._by_labels(self._pick, items):
            now[labels] = now.get(labels, 0) + sum(value for _, value in part)
        self._now = now

    def _series(self) -> Iterator[Series]:
        return (Series(labels, self._scaled(value)) for labels, value in self._now.items())


class _Histogram(_Metric):
    """A histogram: the growth of the slots, and the sum of observed values if it is kept."""

    def __init__(
        self,
        config: MetricConfig,
        table: TableType,
        labels: Labels,
        sums: _Sums | None,
    ) -> None:
        super().__init__(config, table, labels)
        slot = table.key_field(config.slot)
        if not is_number(slot):
            raise table.wrong(f"slot {config.slot or 'its key'} ({slot.ctype}) is not a number")
        self._pick_slot = Picker(table.key, [slot])
        self._growth = Growth(table, config.value)
        self._buckets = _buckets(config, table)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums = sums
        if not config.labels:
            self._counts_of(())

    def take(self, table: str, contents: TableContents) -> None:
        if table == self._config.table:
            grown = self._growth.since_last(contents)
            for labels, items in self._by_labels(self._pick, grown):
                counts = self._counts_of(labels)
                for key, value in items:
                    (slot,) = self._pick_slot(key)
                    counts[self._buckets.index(int(slot))] += int(value)  # type: ignore[arg-type]  # is_number
        if self._sums is not None and table == self._config.sum_table:
            for labels, items in self._by_labels(self._sums.pick, self._sums.grown(contents)):
                self._counts_of(labels)
                self._sums.totals[labels] += sum(value for _, value in items)

    def _counts_of(self, labels: tuple[str, ...]) -> list[int]:
        return self._counts.setdefault(labels, [0] * (len(self._buckets.bounds) + 1))

    def _bounds(self) -> tuple[float, ...]:
        return tuple(self._scaled(bound) for bound in self._buckets.bounds)

    def _series(self) -> Iterator[Series]:
        for labels, counts in self._counts.items():
            total = None if self._sums is None else self._scaled(self._sums.totals[labels])
            yield Series(labels, total, tuple(counts))


class _Sums:
    """The table with the sums of a histogram: keyed by its labels, or a single number."""

    def __init__(self, config: MetricConfig, table: TableType) -> None:
        self.pick = Picker(table.key, [table.key_field(one.field) for one in config.labels])
        self.totals: dict[tuple[str, ...], float] = defaultdict(int)
        self._growth = Growth(table, "")
        self._first_only = not config.labels
        self._first = bytes(table.info.key_bytes)

    def grown(self, contents: TableContents) -> list[tuple[bytes, float]]:
        """Return the growth as `Growth.since_last`; without labels, that of key 0 alone."""
        grown = self._growth.since_last(contents)
        if self._first_only:
            return [item for item in grown if item[0] == self._first]
        return grown


def _buckets(config: MetricConfig, table: TableType) -> Buckets:
    # An array indexed by slots has an entry for each; the keys of a hash are not known.
    array = table.info.type in (MapType.ARRAY, MapType.PERCPU_ARRAY)
    slots = table.info.max_entries if array and not config.slot else None
    return buckets(config.scale, config.unit, step=config.step, slots=slots)


def _metric(config: MetricConfig, tables: Mapping[str, TableType], names: Names) -> _Metric:
    table = tables[config.table]
    if config.type != "histogram":
        labels = Labels(config.labels, names, SERIES_MAX)
        kind = _Counter if config.type == "counter" else _Gauge
        return kind(config, table, labels)
    per_set = len(_buckets(config, table).bounds) + _SERIES_BESIDE_BUCKETS
    sums = None
    if config.sum_table:
        table_of_sums = tables[config.sum_table]
        if all(table_of_sums.has_key_field(label.field) for label in config.labels):
            sums = _Sums(config, table_of_sums)
    return _Histogram(config, table, Labels(config.labels, names, SERIES_MAX // per_set), sums)
