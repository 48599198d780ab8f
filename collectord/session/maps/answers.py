# SPDX-License-Identifier: Apache-2.0
"""The answers that a BPF manifest asks of its maps: histograms, tables and stacks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from collectord.codec import bpf_show
from collectord.kernel.values.bpf_objects import MapType
from collectord.session.maps.folded_answer import FoldedAnswer, folded
from collectord.session.maps.histogram import slot_range
from collectord.session.maps.table import (
    Picker,
    describe_table,
    is_number,
    read_table,
)
from collectord.text.foreign import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from collectord.codec.bpf_show import Names
    from collectord.codec.bpf_struct import Field
    from collectord.programs.program_manifest import AnswerConfig, ColumnConfig
    from collectord.session.maps.folded_answer import Symbols
    from collectord.session.maps.table import BpfKernel, Table, TableContents, TableType, Value

    Cell = Callable[[int], Value]  # the value of an entry, by the entry's number

_ROWS_MAX: Final = 256  # for a histogram with its empty slots
_FIGURES: Final = ("decimal", "duration", "bytes")
_KEY: Final = "key"
_LEAF: Final = "value"


@dataclass(frozen=True, slots=True)
class Slot:
    """The number of values from `low` to `high`."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, slots=True)
class Section:
    """One histogram.

    Attributes:
        by: texts of the fields that distinguish it, by their titles.
        slots: from the first one that is not empty to the last, including empty ones between them
            unless they are very many.
    """

    by: Mapping[str, str]
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class HistogramAnswer:
    """Histograms of values in `unit`; those with most values first."""

    title: str
    unit: str
    sections: tuple[Section, ...]
    complete: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the answer for `--json`."""
        return {"kind": "histogram", **plain(self)}


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """Entries of a map.

    Attributes:
        columns: titles, and whether the column holds numbers.
        fields: names of the columns' fields.
        rows: text of each cell.
        values: the values of the cells as they are in the map.
        left_out: number of rows beyond the limit.
    """

    title: str
    columns: tuple[tuple[str, bool], ...]
    fields: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    values: tuple[tuple[Value, ...], ...]
    left_out: int
    complete: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the answer for `--json`."""
        return {
            "kind": "table",
            "title": self.title,
            "rows": [
                {
                    name: value.hex() if isinstance(value, bytes) else value
                    for name, value in zip(self.fields, row, strict=True)
                }
                for row in self.values
            ],
            "left_out": self.left_out,
            "complete": self.complete,
        }


Answer = HistogramAnswer | TableAnswer | FoldedAnswer


def describe_tables(
    kernel: BpfKernel, program: str, tables: Mapping[str, Table], answers: Iterable[AnswerConfig]
) -> dict[str, TableType]:
    """Describe the tables that answers need, as the program is loaded: errors are raised then.

    Raises:
        BpfError: the manifest names a table or field that the program does not have.
        KernelError: the sizes of a map cannot be read.
    """
    found: dict[str, TableType] = {}
    for config in answers:
        for name in filter(None, (config.table, config.stacks)):
            if name not in found:
                found[name] = describe_table(kernel, program, tables, name)
        if config.stacks and found[config.stacks].info.type != MapType.STACK_TRACE:
            raise found[config.stacks].wrong("it holds no stacks", "declare it by BPF_STACK_TRACE")
        _check(config, found[config.table])
    return found


def read_tables(kernel: BpfKernel, tables: Mapping[str, TableType]) -> dict[str, TableContents]:
    """Read the tables while their descriptors are open. Raises KernelError."""
    return {name: read_table(kernel, table) for name, table in tables.items()}


def make_answer(
    config: AnswerConfig, contents: Mapping[str, TableContents], names: Names, symbols: Symbols
) -> Answer:
    """Make an answer from the contents of the tables.

    Args:
        config: the answer as the manifest declares it.
        contents: of the tables, by name, as `read_tables` returned them.
        names: of interfaces and devices.
        symbols: names addresses; called once for a folded answer, never for another.
    """
    if config.kind == "histogram":
        return _histogram(config, contents[config.table], names)
    if config.kind == "table":
        return _table(config, contents[config.table], names)
    return folded(config, contents[config.table], contents[config.stacks], symbols)


def _check(config: AnswerConfig, table: TableType) -> None:
    """Check that all fields of an answer exist. Raises BpfError."""
    if config.kind == "table":
        for name in (*(column.field for column in config.columns), *filter(None, [config.sort])):
            _find(table, name)
        return
    table.number(config.value)
    keys = [column.field for column in config.by]
    if config.kind == "histogram":
        slot = table.key_field(config.slot)
        if not is_number(slot):
            raise table.wrong(f"slot {slot.name or 'its key'} ({slot.ctype}) is not a number")
    else:
        for name in filter(None, (config.kernel_stack, config.user_stack, config.pid)):
            field = table.key_field(name)
            if not is_number(field):
                raise table.wrong(f"{name} ({field.ctype}) is not a number")
        keys += config.frames_first
    for name in keys:
        table.key_field(name)


def _histogram(config: AnswerConfig, contents: TableContents, names: Names) -> HistogramAnswer:
    table = contents.type
    fields = [table.key_field(column.field) for column in config.by]
    pick = Picker(table.key, [table.key_field(config.slot), *fields])
    counts: dict[tuple[Value, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for key, count in contents.positive(table.number(config.value)):
        slot, *by = pick(key)
        counts[tuple(by)][max(0, int(slot))] += count  # type: ignore[arg-type]  # is_number
    most_first = sorted(counts, key=lambda by: -sum(counts[by].values()))
    return HistogramAnswer(
        title=config.title,
        unit=config.unit,
        sections=tuple(
            Section(
                {
                    column.title: _text(value, column, names)
                    for column, value in zip(config.by, by, strict=True)
                },
                tuple(_slots(config, counts[by])),
            )
            for by in most_first
        ),
        complete=contents.entries.complete,
    )


def _slots(config: AnswerConfig, counts: Mapping[int, int]) -> Iterator[Slot]:
    first, last = min(counts), max(counts)
    slots = range(first, last + 1) if last - first < _ROWS_MAX else sorted(counts)
    for slot in slots:
        yield Slot(*slot_range(config.scale, slot, config.step), counts.get(slot, 0))


def _table(config: AnswerConfig, contents: TableContents, names: Names) -> TableAnswer:
    cells = {
        name: _cell(contents, name)
        for name in (*(column.field for column in config.columns), *filter(None, [config.sort]))
    }
    entries: Sequence[int] = range(contents.entries.count)
    if config.sort:
        entries = sorted(entries, key=lambda entry: _rank(cells[config.sort](entry)))
    kept = entries[: config.limit] if config.limit else entries
    values = tuple(tuple(cells[column.field](e) for column in config.columns) for e in kept)
    return TableAnswer(
        title=config.title,
        columns=tuple(
            (
                column.title,
                column.show in _FIGURES and is_number(_find(contents.type, column.field)[1]),
            )
            for column in config.columns
        ),
        fields=tuple(column.field for column in config.columns),
        rows=tuple(
            tuple(
                _text(value, column, names)
                for column, value in zip(config.columns, row, strict=True)
            )
            for row in values
        ),
        values=values,
        left_out=len(entries) - len(kept),
        complete=contents.entries.complete,
    )


def _rank(value: Value) -> tuple[float, str]:
    """Return a sort key: numbers from the largest, text from A."""
    return (-value, "") if isinstance(value, int | float) else (0, str(value))


def _find(table: TableType, name: str) -> tuple[str, Field]:
    """Find a column's field: of the key, else of the leaf; `key.` and `value.` tell them apart.

    Keys and leaves that are no structs are the fields `key` and `value`.
    """
    for what, layout in ((_KEY, table.key), (_LEAF, table.leaf)):
        for field in layout.fields:
            if name in (field.name, f"{what}.{field.name}") or (not field.name and name == what):
                return what, field
    known = [
        *(field.name or _KEY for field in table.key.fields),
        *(field.name or _LEAF for field in table.leaf.fields),
    ]
    raise table.wrong(f"it has no field {name!r}", f"fields: {', '.join(known)}")


def _cell(contents: TableContents, name: str) -> Cell:
    """Return a function that looks a column up by the number of the entry."""
    what, field = _find(contents.type, name)
    if what == _LEAF and is_number(field):
        return contents.numbers(field).__getitem__
    layout = contents.type.key if what == _KEY else contents.type.leaf
    pick = Picker(layout, [field])
    parts = contents.keys() if what == _KEY else contents.leaves()
    return lambda entry: pick(parts[entry])[0]


def _text(value: Value, column: ColumnConfig, names: Names) -> str:
    shown = list(value) if isinstance(value, tuple) else value
    return bpf_show.show(shown, column.show, names)
