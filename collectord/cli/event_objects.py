# SPDX-License-Identifier: Apache-2.0
"""How `collectord events` shows records to other programs: as JSON or CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from collectord.cli.event_styles import (
    DATA_AT,
    LOST,
    PUSHED_CHAIN,
    TYPE,
    UNKNOWN,
    fields_of,
)
from collectord.codec.ftrace_columns import CGROUP, own_name
from collectord.codec.line_ops import op, place_of, rest
from collectord.codec.perf_columns import has_cgroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.codec.line_ops import Ops, Pushed, Words
    from collectord.reader.event_file import FileEvent

_FRAMES: Final = "frames"


class Objects:
    """A JSON object for each record.

    Args:
        named: places are made of addresses of functions, for names.
    """

    def __init__(self, *, named: bool = False) -> None:
        self._named = named

    def program(self, event: FileEvent, fields: Sequence[Pushed], words: Words) -> Ops:
        """Return what shows a record of an event."""
        name = _json(event.full_name)
        made = _object_head(words, in_ftrace=event.sample_type is None)
        if has_cgroup(event.sample_type or 0):
            made += [words.literal(b',"cgroup":'), *_quoted(CGROUP)]
        made.append(words.literal(b',"event":' + name + b',"fields":{'))
        gap = b""
        for field in fields:
            if field.op[0] != PUSHED_CHAIN:
                made += [words.literal(gap + _json(field.name) + b":"), *field.quoted]
                gap = b","
        made.append(words.literal(b"}"))
        if event.has_chain:
            made += [words.literal(b',"callchain":'), op(PUSHED_CHAIN), op("quoted")]
        place = _place(fields, words) if self._named else []
        if place:
            made += [words.literal(b',"frames":'), *place]
        return [*made, words.literal(b"}\n")]

    def unknown(self, words: Words) -> Ops:
        """Return what shows a record whose event the file does not describe."""
        return [
            *_object_head(words, in_ftrace=True),
            words.literal(b',"event":"' + UNKNOWN.encode() + b":"),
            *TYPE,
            op("plain"),
            words.literal(b'","fields":{"common_pid":'),
            op("tid"),
            op("quoted"),
            words.literal(b',"data":'),
            *rest("data", DATA_AT).quoted,
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
            LOST,
            op("quoted"),
            words.literal(b"}\n"),
        ]


class Cells:
    """A line of CSV for each record: what it is of, and the fields of all events shown.

    Args:
        events: that are shown.
        named: places are made of addresses of functions, for names.
    """

    def __init__(self, events: Sequence[FileEvent], *, named: bool = False) -> None:
        names = (field.name for event in events for field in fields_of(event) if not field.common)
        self._names = tuple(dict.fromkeys(names))
        self._named = named and any(event.is_placed for event in events)
        self._has_cgroups = any(has_cgroup(event.sample_type or 0) for event in events)

    @property
    def titles(self) -> tuple[str, ...]:
        """The names of the columns."""
        own = (*map(own_name, self._names), *((_FRAMES,) if self._named else ()))
        cgroup = (CGROUP,) if self._has_cgroups else ()
        return ("time_ns", "cpu", "pid", "tid", "comm", "event", *cgroup, *own)

    def program(self, event: FileEvent, fields: Sequence[Pushed], words: Words) -> Ops:
        """Return what shows a record of an event."""
        by_name = {field.name: field for field in fields}
        comma = words.literal(",")
        made: Ops = []
        for name in ("stamp", "cpu", "pid", "tid", "comm"):
            made += [op(name), op("cell"), comma]
        made += [op("text", c=words.text(event.full_name)), op("cell")]
        if self._has_cgroups:
            has_one = has_cgroup(event.sample_type or 0)
            made += [comma, *([op(CGROUP), op("cell")] if has_one else ())]
        for name in self._names:
            made += [comma, *(by_name[name].cell if name in by_name else ())]
        if self._named:
            made += [comma, *_place(fields, words)]
        return [*made, words.literal("\r\n")]

    def unknown(self, words: Words) -> Ops:
        """Return nothing: such a record has no columns."""
        del words
        return []

    def loss(self, words: Words, how: str) -> Ops:
        """Return nothing: a loss has no columns, and is told on stderr."""
        del words, how
        return []


def _object_head(words: Words, *, in_ftrace: bool) -> Ops:
    made = [words.literal(b'{"time_ns":'), *_quoted("stamp"), words.literal(b',"cpu":')]
    made += [*_quoted("cpu"), words.literal(b',"pid":')]
    if in_ftrace:  # which records threads
        made += _quoted("tid")
    else:
        made += [*_quoted("pid"), words.literal(b',"tid":'), *_quoted("tid")]
    return [*made, words.literal(b',"comm":'), *_quoted("comm")]


def _place(fields: Sequence[Pushed], words: Words) -> Ops:
    """Leave a place for names of the functions in a record, if it has any."""
    for field in fields:
        if field.addresses is not None:
            return place_of(field.addresses, words)
    return []


def _quoted(name: str) -> Ops:
    return [op(name), op("quoted")]


def _json(text: str) -> bytes:
    return msgspec.json.encode(text)
