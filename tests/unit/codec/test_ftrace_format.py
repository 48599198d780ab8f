# SPDX-License-Identifier: Apache-2.0
"""Format texts of tracefs, and records decoded by them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import pytest

from collectord.codec.ftrace_format import (
    Field,
    KnownEvent,
    Placement,
    bind,
    id_of,
    known_events,
    parse_format,
    parse_header_page,
    pid_of,
    unknown_event,
    value_of,
    value_text,
)
from collectord.codec.record_filter import Term, parse_filter
from collectord.codec.trace_dat_head import Metadata
from collectord.errors import CodecError, UsageError
from tests.support.ftrace_records import decode
from tests.support.header_events import HeaderEvent, parse_header_event
from tests.support.trace_segments import GOLDEN

KERNEL: Final = Path(__file__).parents[2] / "golden/kernel-6.18"
COMMON: Final = struct.Struct("<HBBi")
COMMON_TEXT: Final = (
    b"\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
    b"\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n"
    b"\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n"
    b"\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
)
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


def _text(*fields: str) -> bytes:
    lines = "".join(f"\tfield:{field};\n" for field in fields)
    return b"name: made\nID: 7\nformat:\n" + COMMON_TEXT + lines.encode() + b'\nprint fmt: ""\n'


def _own(field: str) -> Field:
    (found,) = parse_format(_text(field)).fields
    return found


def _value(field: str, data: bytes) -> object:
    """Return the value in a record whose only own field is `field`, with the bytes `data`."""
    layout = parse_format(_text(field))
    return decode(COMMON.pack(7, 0, 0, 1) + data, layout)[layout.fields[0].name]


def test_sched_switch() -> None:
    """A format of the kernel becomes a table of its fields."""
    layout = parse_format((KERNEL / "sched_switch.format").read_bytes())
    assert layout.name == "sched_switch"
    assert layout.id > 0
    names = ["common_type", "common_flags", "common_preempt_count", "common_pid"]
    assert [field.name for field in layout.common] == names
    inline = Placement.INLINE
    assert layout.fields[:3] == (
        Field("prev_comm", "char", 8, 16, False, inline, 1, 16),  # noqa: FBT003
        Field("prev_pid", "pid_t", 24, 4, True, inline, 0, None),  # noqa: FBT003
        Field("prev_prio", "int", 28, 4, True, inline, 0, None),  # noqa: FBT003
    )


def test_record_of_sched_switch() -> None:
    """Text ends at its first NUL, and numbers have their sign."""
    layout = parse_format((KERNEL / "sched_switch.format").read_bytes())
    body = struct.pack("<16siiq16sii", b"a\xff\0junk", 5, -1, -2, b"b", 0, 120)
    assert decode(COMMON.pack(layout.id, 1, 2, -3) + body, layout) == {
        "common_type": layout.id,
        "common_flags": 1,
        "common_preempt_count": 2,
        "common_pid": -3,
        "prev_comm": "a\\xff",
        "prev_pid": 5,
        "prev_prio": -1,
        "prev_state": -2,
        "next_comm": "b",
        "next_pid": 0,
        "next_prio": 120,
    }


def test_text_elsewhere_in_the_record() -> None:
    """A __data_loc field gives what it points to."""
    layout = parse_format((KERNEL / "sched_process_exec.format").read_bytes())
    record = COMMON.pack(layout.id, 0, 0, 9) + struct.pack("<Iii", 8 << 16 | 20, 9, 8)
    assert decode(record + b"/bin/sh\0", layout)["filename"] == "/bin/sh"
    with pytest.raises(CodecError, match="short"):
        decode(record + b"/bin/sh", layout)


def test_text_to_the_end_of_the_record() -> None:
    """A field of size 0 is what is left of the record, or nothing."""
    layout = parse_format((KERNEL / "print.format").read_bytes())
    record = COMMON.pack(layout.id, 0, 0, 9) + struct.pack("<Q", 1)
    assert decode(record + b"mark\n\0\0\0", layout)["buf"] == "mark\n"
    assert decode(record, layout)["buf"] == ""


def test_stack_of_less_depth_than_told() -> None:
    """kernel_stack tells of 8 callers, and its records hold those that there were."""
    layout = parse_format((KERNEL / "kernel_stack.format").read_bytes())
    record = COMMON.pack(layout.id, 0, 0, 9) + struct.pack("<iiQQ", 2, 0, 11, 22)
    assert decode(record, layout)["caller"] == (11, 22)
    assert decode(record[:16], layout)["caller"] == ()


@pytest.mark.parametrize(
    ("field", "data", "value"),
    [
        ("__rel_loc char[] s;\toffset:8;\tsize:4;\tsigned:0", b"\4\0\3\0....abc", "abc"),
        ("__data_loc u64[] a;\toffset:8;\tsize:4;\tsigned:0", b"\x0c\0\x10\0" + bytes(15), None),
        (
            "__data_loc u64[] a;\toffset:8;\tsize:4;\tsigned:0",
            b"\x0c\0\x08\0\x05" + bytes(7),
            (5,),
        ),
        (
            "__data_loc s16[] a;\toffset:8;\tsize:4;\tsigned:0",
            b"\x0c\0\5\0\xff\xff\1\0\7",
            (-1, 1),
        ),
        ("__data_loc u8[] a;\toffset:8;\tsize:4;\tsigned:0", b"\x0c\0\2\0\1\0", b"\1\0"),
        ("__data_loc cpumask_t m;\toffset:8;\tsize:4;\tsigned:0", b"\x0c\0\1\0\3", b"\3"),
        ("__rel_loc char[] s;\toffset:8;\tsize:4;\tsigned:0", b"\xff\xff\1\0", None),
        ("__data_loc char[] s;\toffset:8;\tsize:4;\tsigned:0", bytes(4), ""),
        ("__data_loc char[] s;\toffset:8;\tsize:4;\tsigned:0", bytes(3), None),
        ("const char name[4];\toffset:8;\tsize:4;\tsigned:0", b"ab\0d", "ab"),
        ("char name[4];\toffset:8;\tsize:4;\tsigned:0", b"ab\0", None),
        ("__u8 saddr[4];\toffset:8;\tsize:4;\tsigned:0", b"\1\2\3\4", b"\1\2\3\4"),
        ("long a[2];\toffset:8;\tsize:16;\tsigned:1", struct.pack("<qq", -1, 2), (-1, 2)),
        ("u32 a[N_MAX];\toffset:8;\tsize:8;\tsigned:0", struct.pack("<II", 1, 2), (1, 2)),
        ("u32 buf[];\toffset:8;\tsize:0;\tsigned:0", b"\1\0\0\0\2\0", (1,)),
        ("struct thing x;\toffset:8;\tsize:12;\tsigned:0", bytes(12), bytes(12)),
        ("struct thing x[2];\toffset:8;\tsize:24;\tsigned:0", bytes(24), bytes(24)),
        ("u16 odd[2];\toffset:8;\tsize:5;\tsigned:0", b"\1\2\3\4\5", b"\1\2\3\4\5"),
        ("void (*f)(struct a *);\toffset:8;\tsize:8;\tsigned:0", b"\1" + bytes(7), 1),
        ("bool yes;\toffset:8;\tsize:1;\tsigned:0", b"\1", 1),
        ("s8 low;\toffset:8;\tsize:1;\tsigned:1", b"\xff", -1),
        ("u64 x;\toffset:8;\tsize:8;\tsigned:0", b"\xff" * 8, 2**64 - 1),
        ("u64 x;\toffset:8;\tsize:8;\tsigned:0", b"\xff" * 7, None),
        ("int x;\toffset:8;\tsize:4", b"\1\0\0\0", 1),
        ("int x;\toffset:8;\tsize:4;\tsigned:1;\tlater:1", b"\1\0\0\0", 1),
    ],
)
def test_kinds_of_fields(field: str, data: bytes, value: object) -> None:
    """Each kind of field gives its value; None: its bytes, or what it points to, are cut."""
    if value is None:
        with pytest.raises(CodecError, match="short"):
            _value(field, data)
    else:
        assert _value(field, data) == value


def test_pointer_to_a_function() -> None:
    """The name stands within the declaration."""
    field = _own("void (*func)(int, char *);\toffset:8;\tsize:8;\tsigned:0")
    assert (field.name, field.type) == ("func", "void (int, char *)")


@pytest.mark.parametrize(("file", "size"), [("header_page", 4096), ("header_page-64KiB", 65536)])
def test_header_page(file: str, size: int) -> None:
    """The text tells the size of the instance's sub-buffers."""
    page = parse_header_page((KERNEL / file).read_bytes())
    assert page.sub_buffer_bytes == size
    assert (page.timestamp.offset, page.commit.offset, page.data.offset) == (0, 8, 16)


def test_header_event() -> None:
    """The text tells the special types; kernels before 4.16 have none for absolute stamps."""
    text = (KERNEL / "header_event").read_bytes()
    assert parse_header_event(text) == HeaderEvent(5, 27, 32, 29, 30, 31, 28)
    old = b"".join(line for line in text.splitlines(keepends=True) if b"time_stamp" not in line)
    assert parse_header_event(old).time_stamp is None
    with pytest.raises(CodecError, match="no event header"):
        parse_header_event(text[:-4])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "format"),
        (_text("int x;\toffset:8;\tsize:4").replace(b"ID: 7", b"ID: x"), "format"),
        (_text("int x;\toffset:8;\tsize:4").replace(b"\n\n", b"\n"), "format"),
        (_text("int x;\toffset:-8;\tsize:4"), "format"),
        (_text("int x;\toffset:8;\tsize:4", "int x;\toffset:12;\tsize:4"), "duplicate"),
        (_text("int;\toffset:8;\tsize:4"), "declaration"),
        (_text("__data_loc char[] s;\toffset:8;\tsize:8"), "size"),
    ],
)
def test_texts_that_are_no_format(text: bytes, reason: str) -> None:
    """A text that is not what the kernel writes is refused, with the reason."""
    with pytest.raises(CodecError) as caught:
        parse_format(text)
    assert caught.value.reason == reason


def test_cut_format() -> None:
    """A format that was cut before its print fmt is refused."""
    text = (KERNEL / "sched_switch.format").read_bytes()
    for end in range(text.index(b"print fmt: ") + len("print fmt: ")):
        with pytest.raises(CodecError):
            parse_format(text[:end])


@pytest.mark.parametrize(
    "broken", [b"", b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\n", b"what\n"]
)
def test_cut_header_page(broken: bytes) -> None:
    """A header page without one of its fields, or with a line of another kind, is refused."""
    with pytest.raises(CodecError):
        parse_header_page(broken)
    with pytest.raises(CodecError):
        parse_header_page((KERNEL / "header_page").read_bytes() + b"what\n")


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
