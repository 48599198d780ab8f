# SPDX-License-Identifier: Apache-2.0
"""The kernel's print formats: what they make of records, by the rules of C and the kernel."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from collectord.codec.ftrace_format import parse_format
from collectord.codec.line_ops import Words
from collectord.codec.print_format import compile_format
from tests.support.event_lines import shown
from tests.support.golden import GOLDEN

COMMON: Final = (
    b"\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
    b"\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n"
    b"\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n"
    b"\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
)
FIELDS: Final = (
    "int i;\toffset:8;\tsize:4;\tsigned:1;",
    "unsigned int u;\toffset:12;\tsize:4;\tsigned:0;",
    "long l;\toffset:16;\tsize:8;\tsigned:1;",
    "dev_t dev;\toffset:24;\tsize:4;\tsigned:0;",
    "u8 byte;\toffset:28;\tsize:1;\tsigned:0;",
    "s8 small;\toffset:29;\tsize:1;\tsigned:1;",
    "char name[8];\toffset:32;\tsize:8;\tsigned:0;",
    "__u8 addr[4];\toffset:40;\tsize:4;\tsigned:0;",
    "__data_loc char[] path;\toffset:44;\tsize:4;\tsigned:0;",
    "__data_loc u32[] list;\toffset:48;\tsize:4;\tsigned:0;",
    "void * p;\toffset:56;\tsize:8;\tsigned:0;",
    "u32 words[2];\toffset:64;\tsize:8;\tsigned:0;",
)
RECORD: Final = (
    struct.pack("<HBBi", 7, 0, 0, 5)
    + struct.pack("<iIqIBb2x", -3, 0xFFFFFFFF, -1, 253 << 20 | 5, 200, -100)
    + struct.pack("<8s4B", b"na\x1bme", 10, 0, 0, 1)
    + struct.pack("<II4xQ2I", 5 << 16 | 72, 8 << 16 | 80, 0xFFFF8880_00001000, 7, 9)
    + b"/etc\0\0\0\0"
    + struct.pack("<2I", 1, 0x20)
)
# The macros MAJOR() and MINOR() look so in a format.
MAJOR: Final = "((unsigned int) ((REC->dev) >> 20))"
MINOR: Final = "((unsigned int) ((REC->dev) & ((1U << 20) - 1)))"


def printed(text: str, record: bytes = RECORD) -> str | None:
    """Return what a format makes of a record, None if it cannot be carried out."""
    lines = "".join(f"\tfield:{field}\n" for field in FIELDS).encode()
    layout = parse_format(
        b"name: made\nID: 7\nformat:\n" + COMMON + lines + b"\nprint fmt: " + text.encode() + b"\n"
    )
    if compile_format(layout, Words()) is None:
        return None
    (line,) = shown([record], lambda words: compile_format(layout, words) or [])
    return line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"%d %u %x %X %o %ld", REC->i, REC->i, REC->i, REC->u, REC->byte, REC->l',
         "-3 4294967293 fffffffd FFFFFFFF 310 -1"),
        ('"%5d|%-5d|%05d|%+d|% d|%#x|%.3d|%5.2d", 42, 42, 42, 42, 42, 42, 7, 7',
         "   42|42   |00042|+42| 42|0x2a|007|   07"),
        ('"%s|%8s|%-6s|%.2s|%*s|%.*s", REC->name, "ab", "ab", "abcd", 4, "x", 1, "yz"',
         r"na\x1bme|      ab|ab    |ab|   x|y"),
        ('"%hhd %hhu %hd %c%%", REC->byte, REC->small, REC->u, 65', "-56 156 -1 A%"),
        ('"%p %p %lx", REC->p, (void *)0, (unsigned long)REC->p',
         "0xffff888000001000 0x0 ffff888000001000"),
        (f'"%d,%d", {MAJOR}, {MINOR}', "253,5"),
        ('"%s %s", __get_str(path), REC->i < 0 ? "below" : "above"', "/etc below"),
        ('"%d %d %d %d", REC->u > 0, REC->i > REC->u, REC->l < 0UL, REC->small < 0', "1 0 0 1"),
        ('"%d %d %d", REC->i / 2, REC->i % 2, REC->i >> 1', "-1 -1 -2"),
        ('"%lu %d %x", REC->u + 1L, REC->u + 1 == 0, ~REC->byte', "4294967296 1 ffffff37"),
        ('"%d %d %d", 2 + 3 * 4, (2 + 3) * 4, 1 ? 2 : 3', "14 20 2"),
        ('"%d %d", !REC->i, REC->i && REC->u || 0', "0 1"),
        ('"%u %u %u", REC->words[0], REC->words[1], REC->words[REC->byte == 200]', "7 9 9"),
        ('"%pI4 %pM %s", REC->addr, REC->addr, __print_hex(REC->addr, 3)',
         "10.0.0.1 0a:00:00:01 0a 00 00"),
        ('"%s %d", __print_array(__get_dynamic_array(list), 2, 4), __get_dynamic_array_len(list)',
         "{0x1,0x20} 8"),
        ('"%u", ((u32 *)__get_dynamic_array(list))[1]', "?"),
        ('"a" "b\\"%s" , "c" "d"', 'ab"cd'),
        ('"%s", "\\x41\\101"', "AA"),
        ('"%d", 1 / 0', "?"),
        ('"%s", 5', "0x5"),
        ('"%d %d", 1', "1 ?"),
    ],
)  # fmt: skip
def test_formats(text: str, line: str) -> None:
    """Numbers have C's widths and signs, texts are safe to show, functions are the kernel's."""
    assert printed(text) == line


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, ""), (1, "A"), (5, "A|C"), (6, "BC"), (7, "A|BC"), (0x11, "A|0x10"), (0x10, "0x10")],
)
def test_flags(value: int, text: str) -> None:
    """Bits are named in the order of the format; those without a name are a number at the end."""
    told = f'"%s", __print_flags({value}, "|", {{ 1, "A" }}, {{ 6, "BC" }}, {{ 4, "C" }})'
    assert printed(told) == text


@pytest.mark.parametrize(
    ("value", "text"), [("1", "one"), ("-1", "less"), ("3", "0x3"), ("REC->byte - 199", "one")]
)
def test_symbols(value: str, text: str) -> None:
    """The first entry that fits names a number; one without a name is hexadecimal."""
    told = f'"%s", __print_symbolic({value}, {{ 1, "one" }}, {{ -1, "less" }}, {{ 1, "again" }})'
    assert printed(told) == text


def test_names_that_the_kernel_left_in_its_formats() -> None:
    """Those of enums that never change are known; an entry with another name is left out."""
    told = '{ IOPRIO_CLASS_BE, "be" }, { SOMETHING, "no" }, { 3, "idle" }'
    assert (
        printed(f'"%s %s", __print_symbolic(2, {told}), __print_symbolic(3, {told})') == "be idle"
    )
    assert printed('"%lx %d", ((struct page *)vmemmap_base) + REC->i, REC->i') == "? -3"
    assert printed('"%d %d", what(REC->i, ")"), 5') == "? 5"


@pytest.mark.parametrize(
    "text",
    ["", "REC->i", '"%d", REC->i REC->i', '"a\\nb"', '"%d", (', '"%d", `',
     '"%d", 08', '"%d", ' + "9" * 5000, '"%d", REC->words[0xffffffff]',
     '"' + "%d" * 200 + '"', '"%d", ' + "(" * 200 + "1" + ")" * 200,
     '"%q"', '"%s", __print_flags(REC->i, 5, { 1, "A" })'],
)  # fmt: skip
def test_formats_that_are_left_alone(text: str) -> None:
    """Another kind of format is not guessed: the fields are shown by their names."""
    assert printed(text) is None


def test_parts_that_cannot_be_worked_out() -> None:
    """Each of them is a question mark, and the others are shown: too deep, and not known."""
    deep = "REC->i+(" * 40 + "1" + ")" * 40
    assert printed(f'"%d %d", {deep}, 1') == "? ?"
    names = ", ".join(f'{{ FOO{number}, "x" }}' for number in range(100))
    assert printed('"%' + "0" * 60000 + '!"') == "%" + "0" * 60000 + "!"
    assert printed(f'"%s", __print_symbolic(REC->i, {names}, {{ -3, "less" }})') == "less"


def test_record_that_is_cut() -> None:
    """A value behind the end of a record is a question mark, and the rest is shown."""
    assert printed('"%d %u %s", REC->i, REC->u, __get_str(path)', RECORD[:12]) == "-3 ? ?"


def test_formats_of_this_kernel() -> None:
    """The formats of real events are carried out."""
    switch = parse_format((GOLDEN / "sched_switch.format").read_bytes())
    body = struct.pack("<16siiq16sii", b"a", 1, 120, 0x81, b"b", 2, 100)
    record = struct.pack("<HBBi", switch.id, 0, 0, 1) + body
    (line,) = shown([record], lambda words: compile_format(switch, words) or [])
    assert line.split() == [
        "prev_comm=a", "prev_pid=1", "prev_prio=120", "prev_state=S|I", "==>",
        "next_comm=b", "next_pid=2", "next_prio=100",
    ]  # fmt: skip
