# SPDX-License-Identifier: Apache-2.0
"""Filters of records that BPF programs submit."""

from __future__ import annotations

import pytest

from collectord.codec.bpf_struct import Field, Layout, decoder
from collectord.codec.record_filter import bind, parse_filter
from collectord.errors import UsageError

LAYOUT = Layout(
    "x",
    40,
    (
        Field("pid", "unsigned int", 0, 4, 0, "uint"),
        Field("ret", "int", 4, 4, 0, "int"),
        Field("ok", "_Bool", 8, 1, 0, "bool"),
        Field("comm", "char", 9, 7, 7, "char"),
        Field("mac", "unsigned char", 16, 6, 6, "bytes"),
        Field("in.list[0].a", "int", 24, 4, 0, "int"),
        Field("load", "double", 32, 8, 0, "float"),
    ),
)
RECORD = (
    (42).to_bytes(4, "little") + (-2).to_bytes(4, "little", signed=True) + b"\1nginx\0\0"
    + bytes(8) + (7).to_bytes(4, "little") + bytes(12)
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("pid == 42", True),
        ("pid & 0x2 && pid != 43", True),
        ("ret < 0 && ret == -2", True),
        ("ret >= 0", False),
        ("ok == 1", True),
        ('comm ~ "ng*"', True),
        ("comm == nginx && pid == 1", False),
        ("comm != nginx", False),
        ("in.list[0].a == 7", True),
    ],
)
def test_filters(text: str, fits: bool) -> None:  # a parameter
    """A record fits if each comparison holds; members of nested structs are named in full."""
    assert bind(parse_filter(text), LAYOUT)(decoder(LAYOUT)(RECORD)) is fits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("comm > 1", "is text"),
        ("pid ~ 1", "is a number"),
        ("pid == x", "'x' is not"),
        ("mac == 1", "is an array"),
        ("load == 1", "is an array"),
    ],
)
def test_comparisons_that_there_are_not(text: str, message: str) -> None:
    """Unsupported comparisons are refused when the filter is bound."""
    with pytest.raises(UsageError, match=message):
        bind(parse_filter(text), LAYOUT)
