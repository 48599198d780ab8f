# SPDX-License-Identifier: Apache-2.0
"""Records of a file by its own formats: names, values, text for people, filters."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from collectord.codec.ftrace_decode import (
    KnownEvent,
    bind,
    id_of,
    known_events,
    pid_of,
    unknown_event,
    value_of,
    value_text,
)
from collectord.codec.ftrace_format import Field, Placement, parse_format
from collectord.codec.record_filter import Term, parse_filter
from collectord.codec.trace_dat_head import Metadata
from collectord.errors import CodecError, UsageError
from tests.support.trace_segments import GOLDEN

COMMON: Final = struct.Struct("<HBBi")
SWITCH: Final = next(
    iter(
        known_events(
            Metadata(b"", b"", {"sched": [(GOLDEN / "sched_switch.format").read_bytes()]})
        ).values()
    )
)
RECORD: Final = COMMON.pack(SWITCH.layout.id, 1, 2, 77) + struct.pack(
    "<16siiq16sii", b"my task", 77, 120, 1, b"kworker/0:1", 0, -3
)


def _field(of_type: str, *, element_bytes: int = 0) -> Field:
    return Field("x", of_type, 8, 8, False, Placement.INLINE, element_bytes, None)  # noqa: FBT003


def test_events_of_a_head() -> None:
    """Events have their system's name, ftrace's own ones too, and are found by id."""
    formats = [
        (GOLDEN / f"{name}.format").read_bytes() for name in ("sched_switch", "sched_process_exec")
    ]
    own = (GOLDEN / "print.format").read_bytes()
    found = known_events(Metadata(b"", b"", {"sched": formats}, ftrace_events=[own]))
    names = {"sched:sched_switch", "sched:sched_process_exec", "ftrace:print"}
    assert {event.name for event in found.values()} == names
    assert all(event.layout.id == number for number, event in found.items())
    (odd,) = known_events(Metadata(b"", b"", {"s\udcff": formats[:1]})).values()
    assert odd.name == "s\\xff:sched_switch"
    with pytest.raises(CodecError):
        known_events(Metadata(b"", b"", {"sched": [formats[0][:50]]}))


def test_task_of_a_record() -> None:
    """The thread comes from the field that the format names; of a cut record it is unknown."""
    assert (id_of(RECORD), pid_of(RECORD, SWITCH)) == (SWITCH.layout.id, 77)
    assert (id_of(b""), pid_of(RECORD[:6], SWITCH)) == (0, None)
    moved = (GOLDEN / "sched_switch.format").read_bytes()
    moved = moved.replace(b"common_pid;\toffset:4", b"common_pid;\toffset:24")
    layout = parse_format(moved)
    (event,) = known_events(Metadata(b"", b"", {"sched": [moved]})).values()
    assert pid_of(RECORD[:24] + struct.pack("<i", 9) + RECORD[28:], event) == 9
    assert event.layout == layout


def test_event_without_a_format() -> None:
    """Its records have a thread, and bytes."""
    event = unknown_event(999)
    record = COMMON.pack(999, 0, 0, 5) + b"\1\2\xff"
    assert event.name == "unknown:999"
    assert pid_of(record, event) == 5
    (data,) = event.layout.fields
    assert value_text(value_of(record, data), data) == "0102ff"


@pytest.mark.parametrize(
    ("value", "field", "text"),
    [
        (-5, _field("int"), "-5"),
        (255, _field("unsigned long"), "0xff"),
        (255, _field("struct page *"), "0xff"),
        (255, _field("u64"), "255"),
        ((1, 16), _field("unsigned long", element_bytes=8), "[0x1,0x10]"),
        ((-1, 16), _field("s32", element_bytes=4), "[-1,16]"),
        ((), _field("s32", element_bytes=4), "[]"),
        (b"\x7f\0\0\1", _field("u8", element_bytes=1), "7f000001"),
        ("a mark\n", _field("char", element_bytes=1), "a mark"),
        (None, _field("int"), "?"),
    ],
)
def test_text_of_values(value: object, field: Field, text: str) -> None:
    """Addresses are hexadecimal, bytes are digits, what is cut is a question mark."""
    assert value_text(value, field) == text  # type: ignore[arg-type]  # one of each


def test_cut_record() -> None:
    """Fields past a record's end have no value, and the others do."""
    values = [value_of(RECORD[:34], field) for field in SWITCH.layout.fields]
    assert values == ["my task", 77, 120, None, None, None, None]


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
    ],
)
def test_filters(text: str, fits: bool) -> None:  # a parameter
    """A record fits if each comparison holds."""
    terms = parse_filter(text)
    assert bind(terms, SWITCH)(RECORD) is fits


def test_cut_field_fits_nothing() -> None:
    """Neither a comparison nor its opposite holds for a field that is not there."""
    for compare in ("== 0", "!= 0"):
        assert not bind(parse_filter(f"next_pid {compare}"), SWITCH)(RECORD[:40])
    for compare in ("== x", "!= x"):
        assert not bind(parse_filter(f"next_comm {compare}"), SWITCH)(RECORD[:50])


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
        bind(parse_filter(text), KnownEvent(f"x:{event}", layout, layout.common[-1]))
    assert message in str(caught.value)
