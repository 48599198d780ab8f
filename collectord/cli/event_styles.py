# SPDX-License-Identifier: Apache-2.0
"""How `collectord events` shows records to people: the programs that make text of them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, Protocol

from collectord.codec import bpf_show
from collectord.codec.blk_columns import blk_fields, blk_text
from collectord.codec.blktrace import NOTE
from collectord.codec.line_ops import (
    DECIMAL,
    DEVICE,
    PRINT_ZERO,
    Pushed,
    member,
    op,
    place_of,
    rest,
    tracepoint_field,
)
from collectord.codec.perf_attr import SampleType
from collectord.codec.perf_record import word_offset
from collectord.codec.print_format import compile_format
from collectord.programs.program_manifest import ColumnConfig
from collectord.text.foreign import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.codec.line_ops import Op, Ops, Words
    from collectord.reader.event_file import FileEvent

_TIME_WIDTH: Final = 16
_TASK_WIDTH: Final = 22
_NAME_MAX: Final = 32
DATA_AT: Final = 8  # behind the fields that all events of ftrace have
LOST: Final = op("inline", 8, 0, 8)  # in `struct incident` of the core
_END: Final = "\n"
# Formats of numbers, which are aligned to the right, with the initial width of their columns.
_FIGURES: Final = {"decimal": 6, "hex": 10, "errno": 6, "duration": 7, "bytes": 8}
_WIDTHS: Final = {"text": 16, "ip": 15, "ifindex": 6, "device": 6, "tcp_state": 11}
_KINDS: Final = {"char": bpf_show.TEXT}
_NUMBERED: Final = range(1, 65)  # signals, and more than there are states of TCP
CHAIN: Final = "callchain"
_IP: Final = "ip"
PUSHED_CHAIN: Final = "chain"
UNKNOWN: Final = "unknown"


class Hosts(bpf_show.Names, Protocol):
    """Names that this host has for numbers, all at once."""

    def interfaces(self) -> Mapping[int, str]:
        """Return the names of all network interfaces."""

    def devices(self) -> Mapping[int, str]:
        """Return the names of all block devices by their `dev_t`."""


class Style(Protocol):
    """A way to show records; all programs of a file share texts and tables."""

    def program(self, event: FileEvent, fields: Sequence[Pushed], words: Words) -> Ops:
        """Return what shows a record of an event."""

    def unknown(self, words: Words) -> Ops:
        """Return what shows a record whose event the file does not describe."""

    def loss(self, words: Words, how: str) -> Ops:
        """Return what shows a loss before the next record of a ring; none: nothing does."""


def fields_of(event: FileEvent) -> tuple[Pushed, ...]:
    """Return the fields of an event's records."""
    if event.layout is not None:
        common = (tracepoint_field(field, common=True) for field in event.layout.common)
        own = map(tracepoint_field, event.layout.fields)
        hidden = common if event.sample_type is None else ()
        return (*hidden, *own, *_chain(event))
    if event.described is not None:
        return (*map(member, event.described.layout.fields), *_chain(event))
    if event.is_program:
        return (rest("data", 0), *_chain(event))
    if event.letter:
        return blk_fields(of_notes=event.letter == NOTE)
    words = (
        (name, word_offset(event.sample_type or 0, bit))
        for name, bit in ((_IP, SampleType.IP), ("addr", SampleType.ADDR),
                          ("period", SampleType.PERIOD))
    )  # fmt: skip
    return (*(_word(event, name, offset) for name, offset in words if offset), *_chain(event))


def _word(event: FileEvent, name: str, offset: int) -> Pushed:
    push = op("inline", 8, 0, offset)
    addresses = push if name == _IP and not event.has_chain else None
    return Pushed(name, push, "number", is_hex=name != "period", addresses=addresses)


def _chain(event: FileEvent) -> tuple[Pushed, ...]:
    if not event.has_chain:
        return ()
    chain, marked = op(PUSHED_CHAIN), op(PUSHED_CHAIN, 1)
    return (Pushed(CHAIN, chain, "array", is_hex=True, addresses=marked),)


def columns_of(event: FileEvent) -> tuple[ColumnConfig, ...]:
    """Return the columns of a program's table, or all fields."""
    if event.described is None:
        return (ColumnConfig(field="data", title="DATA"),)
    return event.described.columns or tuple(
        ColumnConfig(
            field=field.name,
            title=field.name.upper(),
            show=_KINDS.get(field.kind, bpf_show.DECIMAL),
        )
        for field in event.described.layout.fields
    )


class Lines:
    """A line of text for each record, with what it is of.

    Args:
        events: that are shown, of all files.
        hosts: names numbers.
        named: places are made of addresses of functions, for names.
    """

    def __init__(self, events: Sequence[FileEvent], hosts: Hosts, *, named: bool = False) -> None:
        self._hosts = hosts
        self._named = named
        longest = max((len(event.full_name) for event in events), default=0)
        self._name_width = min(longest, _NAME_MAX) + 1

    def program(self, event: FileEvent, fields: Sequence[Pushed], words: Words) -> Ops:
        """Return what shows a record of an event."""
        made = [
            *_head(words),
            words.literal(f"{visible(event.full_name) + ':':<{self._name_width}} "),
        ]
        if event.letter:
            return [*_head(words), *blk_text(event.name, event.letter, words)]
        own = [field for field in fields if not field.common]
        chain = [field for field in own if field.op[0] == PUSHED_CHAIN]
        printed = (
            compile_format(event.layout, words, visible) if event.layout is not None else None
        )
        if printed is not None:
            made += [*printed, *self._values(chain, words, " ")]
        elif event.is_program:
            columns = {column.field: column for column in columns_of(event)}
            by_name = {field.name: field for field in own}
            gap = ""
            for name, column in columns.items():
                made += [
                    words.literal(f"{gap}{visible(name)}="),
                    *_shown(column, by_name, words, self._hosts),
                ]
                gap = " "
        else:
            made += self._values(own, words)
        return [*made, words.literal(_END)]

    def _values(self, fields: Sequence[Pushed], words: Words, gap: str = "") -> Ops:
        made: Ops = []
        for field in fields:
            made.append(words.literal(f"{gap}{field.name}="))
            if not self._named or field.addresses is None:
                made += field.plain
            elif field.kind == "array":
                made += [words.literal("["), *place_of(field.addresses, words), words.literal("]")]
            else:
                made += place_of(field.addresses, words)
            gap = " "
        return made

    def unknown(self, words: Words) -> Ops:
        """Return what shows a record whose event the file does not describe."""
        return [
            *_head(words),
            op("mark"),
            words.literal(f"{UNKNOWN}:"),
            *TYPE,
            op("plain"),
            words.literal(":"),
            op("pad", c=self._name_width + 1),
            *self._values([rest("data", DATA_AT)], words),
            words.literal(_END),
        ]

    def loss(self, words: Words, how: str) -> Ops:
        """Return the text of a loss that comes before the next record of a ring."""
        return loss_line(words, how)


class Table:
    """A table of the records of a program, which are all that is shown."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._titled: tuple[ColumnConfig, ...] | None = None

    def titles(self, event: FileEvent) -> str:
        """Return the titles if they are not those that were printed last."""
        columns = columns_of(event)
        if columns == self._titled:
            return ""
        self._titled = columns
        titles = [visible(column.title) for column in columns]
        widths = [_TIME_WIDTH, *map(_width, columns, titles)]
        rights = [True, *(column.show in _FIGURES for column in columns)]
        cells = (
            title.rjust(width) if right else title.ljust(width)
            for title, width, right in zip(["TIME", *titles], widths, rights, strict=True)
        )
        return "  ".join(cells).rstrip()

    def program(self, event: FileEvent, fields: Sequence[Pushed], words: Words) -> Ops:
        """Return what shows a record of an event."""
        by_name = {field.name: field for field in fields}
        made: Ops = [op("mark"), *_TIME, op("column", 1, c=words.width(_TIME_WIDTH))]
        for column in columns_of(event):
            width = words.width(_width(column, visible(column.title)))
            made += [words.literal("  "), op("mark")]
            made += _shown(column, by_name, words, self._hosts)
            made.append(op("column", int(column.show in _FIGURES), c=width))
        return [*made, op("trim"), words.literal(_END)]

    def unknown(self, words: Words) -> Ops:
        """Return nothing: such a record has no columns."""
        del words
        return []

    def loss(self, words: Words, how: str) -> Ops:
        """Return the text of a loss that comes before the next record of a ring."""
        return loss_line(words, how)


_TIME: Final[Ops] = [op("stamp"), op("seconds")]
TYPE: Final[Ops] = [
    op("inline", 2),
    op("jump_missing", c=1),
    op("jump", c=2),
    op("pop"),
    op("number"),
]


def _head(words: Words) -> Ops:
    """Return what appends the time, the CPU and the task."""
    return [
        op("mark"), *_TIME, op("pad", 1, c=_TIME_WIDTH), words.literal(" ["),
        op("cpu"), op("print", ord("d"), PRINT_ZERO, 3), words.literal("] "),
        op("mark"), op("comm"), op("plain"), words.literal("-"), op("tid"), op("plain"),
        op("pad", c=_TASK_WIDTH), words.literal(" "),
    ]  # fmt: skip


def loss_line(words: Words, how: str) -> Ops:
    """Return what appends a line about a loss; `how` it came, such as "lost"."""
    plural, single = f" events {how}\n", f" event {how}\n"
    return [
        words.literal("CPU "), op("cpu"), op("plain"), words.literal(":"),
        LOST, op("jump_missing", c=10),
        op("pop"), words.literal(" "), LOST, op("plain"),
        LOST, op("number", d=1), op("=="), op("jump_zero", c=2),
        words.literal(single), op("jump", c=1), words.literal(plural),
    ]  # fmt: skip


def _width(column: ColumnConfig, title: str) -> int:
    return max(len(title), _FIGURES.get(column.show, 0), _WIDTHS.get(column.show, 0))


def _shown(column: ColumnConfig, fields: Mapping[str, Pushed], words: Words, hosts: Hosts) -> Ops:
    """Return what appends a value of a program in the way that its column says."""
    field = fields.get(column.field)
    if field is None:
        return [words.literal("?")]
    how = column.show
    if how == "ip":
        return [
            field.op,
            op("address", field.op[1] if field.op[0] == "inline" else 0),
            op("plain"),
        ]
    if how == "port_be" and field.kind == "number":
        byte, shift = op("number", d=0xFF), op("number", d=8)
        high = [field.op, byte, op("&"), shift, op("<<")]
        return [*high, field.op, shift, op(">>"), byte, op("&"), op("|"), op("plain")]
    if field.kind != "number":
        is_text = how == bpf_show.TEXT and field.kind == "array" and field.op[2] == 1
        push: Op = ("span", 3, *field.op[2:]) if is_text else field.op
        return [push, op("plain", int(how == "hex"))]
    return [field.op, *_number(how, words, hosts), op("plain", int(how == "hex"))]


def _number(how: str, words: Words, hosts: Hosts) -> Ops:
    """Return what makes a number the text of a form of `codec.bpf_show.SHOWS`."""
    match how:
        case "errno":
            names = ((-number, name) for number, name in errno.errorcode.items())
            return [op("errno", c=words.symbols(names))]
        case "duration" | "bytes":
            return [op("units", int(how == "bytes"))]
        case "ifindex":
            return [op("symbol", DECIMAL, c=words.symbols(hosts.interfaces().items()))]
        case "device":
            return [op("symbol", DEVICE, c=words.symbols(hosts.devices().items()))]
        case "signal" | "tcp_state":
            known = {number: bpf_show.show(number, how, hosts) for number in _NUMBERED}
            return [op("symbol", DECIMAL, c=words.symbols(known.items()))]
    return []
