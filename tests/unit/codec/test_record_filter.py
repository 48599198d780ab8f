# SPDX-License-Identifier: Apache-2.0
"""Filters of records: their texts, and the records that the core keeps by them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.ftrace_format import parse_format
from collectord.codec.line_ops import Words, filter_ops, tracepoint_field
from collectord.codec.record_filter import Term, parse_filter
from collectord.errors import UsageError
from tests.support.event_lines import shown
from tests.support.golden import GOLDEN

if TYPE_CHECKING:
    from collectord.codec.ftrace_format import EventFormat
    from collectord.codec.line_ops import Pushed

SWITCH: Final = parse_format((GOLDEN / "sched_switch.format").read_bytes())
RECORD: Final = struct.pack("<HBBi", SWITCH.id, 1, 2, 77) + struct.pack(
    "<16siiq16sii", b"my task", 77, 120, 1, b"kworker/0:1", 0, -3
)


def fields_by_name(layout: EventFormat) -> dict[str, Pushed]:
    """Return the fields of an event."""
    return {field.name: tracepoint_field(field) for field in (*layout.common, *layout.fields)}


def kept(text: str, layout: EventFormat, record: bytes) -> bool:
    """Whether a filter keeps a record."""
    fields = fields_by_name(layout)
    return shown([record], lambda words: filter_ops(parse_filter(text), fields, words)) == [""]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("a == 1", [("a", "==", "1")]),
        ("a==-1&&b!=0x2a", [("a", "==", "-1"), ("b", "!=", "0x2a")]),
        (' a ~ "x && y*" && b&4 ', [("a", "~", "x && y*"), ("b", "&", "4")]),
        ("a ~ *x? && b >= 3", [("a", "~", "*x?"), ("b", ">=", "3")]),
        ("a == '' && b<3", [("a", "==", ""), ("b", "<", "3")]),
        ("a == 'say \"x\"'", [("a", "==", 'say "x"')]),
        ("a == a=b", [("a", "==", "a=b")]),
    ],
)
def test_filter_texts(text: str, terms: list[tuple[str, str, str]]) -> None:
    """Terms are joined by &&, with any white space, and quotes hold anything."""
    assert parse_filter(text) == tuple(Term(*term) for term in terms)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not parse at ''"),
        ("a", "does not parse at 'a'"),
        ("a ==", "does not parse"),
        ("a == 1 &&", "does not parse at ''"),
        ("a == 1 b == 2", "continues with 'b == 2'"),
        ("a == 1 || b == 2", "continues with '|| b == 2'; join terms by &&"),
        ('a == "x', "does not parse"),
        ("(a == 1)", "does not parse"),
        ("a = 1", "no operator '='; one of == != < <= > >= & ~"),
        ("a =~ x", "no operator '=~'"),
    ],
)
def test_filters_that_do_not_parse(text: str, message: str) -> None:
    """An invalid filter is refused, with the position and the expected syntax."""
    with pytest.raises(UsageError) as caught:
        parse_filter(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("prev_pid == 77", True),
        ("prev_pid != 77", False),
        ("prev_pid < 78", True),
        ("prev_pid < 77", False),
        ("prev_pid <= 77", True),
        ("prev_pid > 77", False),
        ("prev_pid >= 77", True),
        ("prev_pid & 0x4", True),
        ("prev_pid & 0x2", False),
        ("next_prio == -3", True),
        ("common_pid == 77 && common_flags == 1", True),
        ("prev_comm == 'my task'", True),
        ("prev_comm != 'my task'", False),
        ("prev_comm == my", False),
        ("next_comm ~ kworker*", True),
        ("next_comm ~ worker*", False),
        ("prev_pid == 77 && next_pid == 1", False),
        ("prev_pid == 76 && next_pid == 0", False),
        ("prev_pid < 100000000000000000000", True),
        ("prev_pid == -100000000000000000000", False),
        ("common_type >= -1", True),
        ("common_type < -1", False),
        ("next_prio < -2", True),
        ("next_prio > -2", False),
    ],
)
def test_filters(text: str, fits: bool) -> None:  # a parameter
    """A record fits if each comparison holds."""
    assert kept(text, SWITCH, RECORD) is fits


def test_cut_field_fits_nothing() -> None:
    """Neither a comparison nor its opposite holds for a field that is not there."""
    for compare in ("== 0", "!= 0"):
        assert not kept(f"next_pid {compare}", SWITCH, RECORD[:40])
    for compare in ("== x", "!= x"):
        assert not kept(f"next_comm {compare}", SWITCH, RECORD[:50])


@pytest.mark.parametrize(
    ("event", "text", "message"),
    [
        (
            "sched_switch",
            "prev_comm < 3",
            "prev_comm is text: < does not compare it; one of == !=",
        ),
        ("sched_switch", "prev_pid ~ 3*", "prev_pid is a number: ~ does not compare it"),
        ("sched_switch", "prev_pid == bash", "prev_pid is a number, 'bash' is not; such as 42"),
        ("sys_enter", "args == 1", "args is an array"),
        ("sched_process_exec", "filename & 1", "filename is text"),
    ],
)
def test_comparisons_that_a_format_lacks(event: str, text: str, message: str) -> None:
    """A field is compared only as its type allows, and with values of that type."""
    layout = parse_format((GOLDEN / f"{event}.format").read_bytes())
    with pytest.raises(UsageError) as caught:
        filter_ops(parse_filter(text), fields_by_name(layout), Words())
    assert message in str(caught.value)
