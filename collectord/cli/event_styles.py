# SPDX-License-Identifier: Apache-2.0
"""How `collectord events` shows records: the programs that make text, JSON or CSV of them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from collectord.codec import bpf_show
from collectord.codec.ftrace_columns import own_name
from collectord.codec.line_ops import (
    DECIMAL,
    DEVICE,
    PRINT_ZERO,
    Pushed,
    member,
    op,
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
_DATA_AT: Final = 8  # behind the fields that all events of ftrace have
_LOST: Final = op("inline", 8, 0, 8)  # in `struct incident` of the core
_END: Final = "\n"
# Formats of numbers, which are aligned to the right, with the initial width of their columns.
_FIGURES: Final = {"decimal": 6, "hex": 10, "errno": 6, "duration": 7, "bytes": 8}
_WIDTHS: Final = {"text": 16, "ip": 15, "ifindex": 6, "device": 6, "tcp_state": 11}
_KINDS: Final = {"char": bpf_show.TEXT}
_NUMBERED: Final = range(1, 65)  # signals, and more than there are states of TCP
_CHAIN: Final = "callchain"
_PUSHED_CHAIN: Final = "chain"
_UNKNOWN: Final = "unknown"


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
    words = (
        (name, word_offset(event.sample_type or 0, bit))
        for name, bit in (("ip", SampleType.IP), ("addr", SampleType.ADDR),
                          ("period", SampleType.PERIOD))
    )  # fmt: skip
    shown = (
        Pushed(name, op("inline", 8, 0, offset), "number", is_hex=name != "period")
        for name, offset in words
        if offset
    )
    return (*shown, *_chain(event))


def _chain(event: FileEvent) -> tuple[Pushed, ...]:
    if not event.has_chain:
        return ()
    return (Pushed(_CHAIN, op(_PUSHED_CHAIN), "array", is_hex=True),)


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
    """

    def __init__(self, events: Sequence[FileEvent], hosts: Hosts) -> None:
        self._hosts = hosts
        longest = max((len(event.full_name) for event in events), default=0)
        self._name_width = min(longest, _NAME_MAX) + 1

    def program(self, event: FileEvent, fields: Sequence[Pushed], words: Words) -> Ops:
        """Return what shows a record of an event."""
        made = [
            *_head(words),
            words.literal(f"{visible(event.full_name) + ':':<{self._name_width}} "),
        ]
        own = [field for field in fields if not field.common]
        chain = [field for field in own if field.op[0] == _PUSHED_CHAIN]
        printed = (
            compile_format(event.layout, words, visible) if event.layout is not None else None
        )
        if printed is not None:
            made += [*printed, *_named(chain, words, " ")]
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
            made += _named(own, words)
        return [*made, words.literal(_END)]

    def unknown(self, words: Words) -> Ops:
        """Return what shows a record whose event the file does not describe."""
        return [
            *_head(words),
            op("mark"),
            words.literal(f"{_UNKNOWN}:"),
            *_TYPE,
            op("plain"),
            words.literal(":"),
            op("pad", c=self._name_width + 1),
            *_named([rest("data", _DATA_AT)], words),
            words.literal(_END),
        ]

    def loss(self, words: Words, how: str) -> Ops:
        """Return what shows a loss before the next record of a ring."""
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
        """Return what shows a loss before the next record of a ring."""
        return loss_line(words, how)


class Objects:
    """A JSON object for each record."""

    def program(self, event: FileEvent, fields: Sequence[Pushed], words: Words) -> Ops:
        """Return what shows a record of an event."""
        name = _json(event.full_name)
        made = [*_object_head(words, in_ftrace=event.sample_type is None)]
        made.append(words.literal(b',"event":' + name + b',"fields":{'))
        gap = b""
        for field in fields:
            if field.op[0] != _PUSHED_CHAIN:
                made += [words.literal(gap + _json(field.name) + b":"), *field.quoted]
                gap = b","
        end = b"}"
        if event.has_chain:
            made += [words.literal(b'},"callchain":'), op(_PUSHED_CHAIN), op("quoted")]
            end = b""
        return [*made, words.literal(end + b"}\n")]

    def unknown(self, words: Words) -> Ops:
        """Return what shows a record whose event the file does not describe."""
        return [
            *_object_head(words, in_ftrace=True),
            words.literal(b',"event":"' + _UNKNOWN.encode() + b":"),
            *_TYPE,
            op("plain"),
            words.literal(b'","fields":{"common_pid":'),
            op("tid"),
            op("quoted"),
            words.literal(b',"data":'),
            *rest("data", _DATA_AT).quoted,
            words.literal(b"}}\n"),
        ]

    def loss(self, words: Words, how: str) -> Ops:
        """Return what shows a loss before the next record of a ring."""
        return [
            words.literal(b'{"time_ns":'),
            *_quoted("stamp"),
            words.literal(b',"cpu":'),
            *_quoted("cpu"),
            words.literal(b',"' + how.encode() + b'":'),
            _LOST,
            op("quoted"),
            words.literal(b"}\n"),
        ]


class Cells:
    """A line of CSV for each record: what it is of, and the fields of all events shown."""

    def __init__(self, events: Sequence[FileEvent]) -> None:
        names = (field.name for event in events for field in fields_of(event) if not field.common)
        self._names = tuple(dict.fromkeys(names))

    @property
    def titles(self) -> tuple[str, ...]:
        """The names of the columns."""
        return ("time_ns", "cpu", "pid", "tid", "comm", "event", *map(own_name, self._names))

    def program(self, event: FileEvent, fields: Sequence[Pushed], words: Words) -> Ops:
        """Return what shows a record of an event."""
        by_name = {field.name: field for field in fields}
        comma = words.literal(",")
        made: Ops = []
        for name in ("stamp", "cpu", "pid", "tid", "comm"):
            made += [op(name), op("cell"), comma]
        made += [op("text", c=words.text(event.full_name)), op("cell")]
        for name in self._names:
            made += [comma, *(by_name[name].cell if name in by_name else ())]
        return [*made, words.literal("\r\n")]

    def unknown(self, words: Words) -> Ops:
        """Return nothing: such a record has no columns."""
        del words
        return []

    def loss(self, words: Words, how: str) -> Ops:
        """Return nothing: a loss has no columns, and is told on stderr."""
        del words, how
        return []


_TIME: Final[Ops] = [op("stamp"), op("seconds")]
_TYPE: Final[Ops] = [
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


def _named(fields: Sequence[Pushed], words: Words, gap: str = "") -> Ops:
    made: Ops = []
    for field in fields:
        made += [words.literal(f"{gap}{field.name}="), *field.plain]
        gap = " "
    return made


def loss_line(words: Words, how: str) -> Ops:
    """Return what appends a line about a loss; `how` it came, such as "lost"."""
    plural, single = f" events {how}\n", f" event {how}\n"
    return [
        words.literal("CPU "), op("cpu"), op("plain"), words.literal(":"),
        _LOST, op("jump_missing", c=10),
        op("pop"), words.literal(" "), _LOST, op("plain"),
        _LOST, op("number", d=1), op("=="), op("jump_zero", c=2),
        words.literal(single), op("jump", c=1), words.literal(plural),
    ]  # fmt: skip


def _object_head(words: Words, *, in_ftrace: bool) -> Ops:
    made = [words.literal(b'{"time_ns":'), *_quoted("stamp"), words.literal(b',"cpu":')]
    made += [*_quoted("cpu"), words.literal(b',"pid":')]
    if in_ftrace:  # which records threads
        made += _quoted("tid")
    else:
        made += [*_quoted("pid"), words.literal(b',"tid":'), *_quoted("tid")]
    return [*made, words.literal(b',"comm":'), *_quoted("comm")]


def _quoted(name: str) -> Ops:
    return [op(name), op("quoted")]


def _json(text: str) -> bytes:
    return msgspec.json.encode(text)


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
