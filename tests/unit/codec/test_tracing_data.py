# SPDX-License-Identifier: Apache-2.0
"""The TRACING_DATA section, against the one that perf 6.1 wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from collectord.codec.tracing_data import MAGIC, TracingData, build, merge
from collectord.codec.tracing_data import parse as codec_parse
from collectord.errors import CodecError
from tests.support.tracing_data import parse

PERF: Final = Path(__file__).parents[2] / "golden/perf-6.1/tracing_data.bin"
SMALL: Final = TracingData(
    header_page=b"page",
    header_event=b"event",
    page_size_bytes=4096,
    events={"sched": (b"name: a\n", b"name: b\n"), "irq": ()},
    ftrace_events=(b"name: function\n",),
    printk_formats=b'0x1 : "x"\n',
    saved_cmdlines=b"1 init\n",
)
LAYOUT: Final = (
    b"\x17\x08Dtracing0.6\0\0\x08\0\x10\0\0"
    b"header_page\0\4\0\0\0\0\0\0\0page"
    b"header_event\0\5\0\0\0\0\0\0\0event"
    b"\1\0\0\0\x0f\0\0\0\0\0\0\0name: function\n"
    b"\2\0\0\0sched\0\2\0\0\0\x08\0\0\0\0\0\0\0name: a\n\x08\0\0\0\0\0\0\0name: b\n"
    b"irq\0\0\0\0\0"
    b"\0\0\0\0"
    b'\x0a\0\0\0\x30x1 : "x"\n'
    b"\x07\0\0\0\0\0\0\0\x31 init\n"
)


def test_layout() -> None:
    """Every part stands where the format has it, in both directions."""
    assert build(SMALL) == LAYOUT
    assert parse(LAYOUT) == SMALL


def test_section_that_perf_wrote() -> None:
    """The section that perf wrote is read, and built again to the same bytes."""
    raw = PERF.read_bytes()
    tracing = parse(raw)
    assert (tracing.page_size_bytes, tracing.long_size_bytes) == (4096, 8)
    (text,) = tracing.events["sched"]
    assert text.startswith(b"name: sched_switch\nID: ")
    assert tracing.header_page.startswith(b"\tfield: u64 timestamp;")
    assert build(tracing) == raw


def test_sections_before_saved_cmdlines() -> None:
    """Version 0.5 ends before the command lines."""
    old = LAYOUT[:-15].replace(b"0.6", b"0.5")
    assert parse(old).saved_cmdlines == b""


@pytest.mark.parametrize("end", range(len(LAYOUT)))
def test_every_cut_is_noticed(end: int) -> None:
    """A section that ends anywhere before its end is refused."""
    with pytest.raises(CodecError) as caught:
        parse(LAYOUT[:end])
    assert caught.value.reason in {"short", "string", "magic"}
    assert caught.value.offset <= end


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"x", "magic"),
        (len(MAGIC) + 4, b"\1", "byte_order"),
        (20, b"x", "magic"),
        (32, b"\xff" * 8, "short"),
    ],
)
def test_damaged_sections(at: int, value: bytes, reason: str) -> None:
    """Another kind of data, another byte order and impossible sizes are refused."""
    raw = LAYOUT[:at] + value + LAYOUT[at + len(value) :]
    with pytest.raises(CodecError) as caught:
        parse(raw)
    assert caught.value.reason == reason


@pytest.mark.parametrize("events", [{"": (b"x",)}, {"a\0b": (b"x",)}, {"a": (b"",)}])
def test_contents_that_readers_refuse(events: dict[str, tuple[bytes, ...]]) -> None:
    """A system needs a name, and an event a format."""
    with pytest.raises(CodecError):
        build(TracingData(b"", b"", 4096, events))


def test_sections_of_several_files_become_one() -> None:
    """It has each format, each name of a string and each command line once."""
    more = replace(
        SMALL,
        events={"sched": (b"name: b\n", b"name: c\nID: 3\n"), "block": (b"name: d\nID: 4\n",)},
        printk_formats=b'0x1 : "x"\n0x2 : "y"\n',
        saved_cmdlines=b"2 other\n",
    )
    merged = parse(merge([LAYOUT, build(more)]))
    assert merged == replace(
        SMALL,
        events={
            "sched": (b"name: a\n", b"name: b\n", b"name: c\nID: 3\n"),
            "irq": (),
            "block": (b"name: d\nID: 4\n",),
        },
        printk_formats=b'0x1 : "x"\n0x2 : "y"\n',
        saved_cmdlines=b"1 init\n2 other\n",
    )
    assert merge([LAYOUT, LAYOUT]) == LAYOUT
    assert codec_parse(LAYOUT) == SMALL
    assert codec_parse(LAYOUT[:-15].replace(b"0.6", b"0.5")).saved_cmdlines == b""


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (replace(SMALL, events={"sched": (b"name: a\nID: 1\n",)}), "two layouts of sched:a"),
        (replace(SMALL, page_size_bytes=65536), "pages"),
    ],
)
def test_sections_that_contradict_each_other(other: TracingData, why: str) -> None:
    """One file cannot have both."""
    with pytest.raises(CodecError, match=why):
        merge([LAYOUT, build(other)])


def test_one_number_is_one_event() -> None:
    """Numbers of events are another kernel's after each boot."""
    sections = [
        build(replace(SMALL, events={system: (b"name: %b\nID: 7\n" % system.encode(),)}))
        for system in ("a", "b")
    ]
    with pytest.raises(CodecError, match="two events with id 7"):
        merge(sections)
