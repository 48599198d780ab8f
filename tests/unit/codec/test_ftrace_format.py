# SPDX-License-Identifier: Apache-2.0
"""Format texts of tracefs, and records decoded by them."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from collectord.codec.ftrace_format import (
    Field,
    Placement,
    parse_format,
    parse_header_page,
)
from collectord.errors import CodecError
from tests.support.ftrace_records import decode
from tests.support.golden import GOLDEN
from tests.support.header_events import HeaderEvent, parse_header_event

COMMON: Final = struct.Struct("<HBBi")
COMMON_TEXT: Final = (
    b"\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
    b"\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n"
    b"\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n"
    b"\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
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
    layout = parse_format((GOLDEN / "sched_switch.format").read_bytes())
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
    layout = parse_format((GOLDEN / "sched_switch.format").read_bytes())
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
    layout = parse_format((GOLDEN / "sched_process_exec.format").read_bytes())
    record = COMMON.pack(layout.id, 0, 0, 9) + struct.pack("<Iii", 8 << 16 | 20, 9, 8)
    assert decode(record + b"/bin/sh\0", layout)["filename"] == "/bin/sh"
    with pytest.raises(CodecError, match="short"):
        decode(record + b"/bin/sh", layout)


def test_text_to_the_end_of_the_record() -> None:
    """A field of size 0 is what is left of the record, or nothing."""
    layout = parse_format((GOLDEN / "print.format").read_bytes())
    record = COMMON.pack(layout.id, 0, 0, 9) + struct.pack("<Q", 1)
    assert decode(record + b"mark\n\0\0\0", layout)["buf"] == "mark\n"
    assert decode(record, layout)["buf"] == ""


def test_stack_of_less_depth_than_told() -> None:
    """kernel_stack tells of 8 callers, and its records hold those that there were."""
    layout = parse_format((GOLDEN / "kernel_stack.format").read_bytes())
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
    page = parse_header_page((GOLDEN / file).read_bytes())
    assert page.sub_buffer_bytes == size
    assert (page.timestamp.offset, page.commit.offset, page.data.offset) == (0, 8, 16)


def test_header_event() -> None:
    """The text tells the special types; kernels before 4.16 have none for absolute stamps."""
    text = (GOLDEN / "header_event").read_bytes()
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
    text = (GOLDEN / "sched_switch.format").read_bytes()
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
        parse_header_page((GOLDEN / "header_page").read_bytes() + b"what\n")
