# SPDX-License-Identifier: Apache-2.0
"""Pages, records, format texts and heads of files: what was built is found, any bytes survive."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Final

from hypothesis import given
from hypothesis import strategies as st

from collectord.codec.ftrace_format import (
    EventFormat,
    parse_format,
    parse_header_page,
)
from collectord.codec.ftrace_page import PageEvent, Walk
from collectord.codec.line_ops import Words, filter_ops, tracepoint_field
from collectord.codec.print_format import compile_format
from collectord.codec.record_filter import OPERATORS, Term, parse_filter
from collectord.codec.trace_dat import build_head, head_bytes, parse_head
from collectord.codec.trace_dat_head import Metadata
from collectord.errors import CodecError, UsageError
from tests.support.event_lines import shown, written
from tests.support.ftrace_pages import (
    U64,
    UNUSED_REST,
    discarded,
    event,
    page,
    time_extend,
    time_stamp,
)
from tests.support.ftrace_records import decode
from tests.support.golden import GOLDEN
from tests.support.header_events import parse_header_event
from tests.support.trace_segments import cpustat

if TYPE_CHECKING:
    from collectord.codec.line_ops import Ops

# A loaded machine makes no example wrong.
U64S: Final = st.integers(0, 2**64 - 1)
DELTAS: Final = st.integers(0, 2**27 - 1)
PARTS: Final = st.one_of(
    st.tuples(st.just("event"), st.binary(min_size=1, max_size=200), DELTAS),
    st.tuples(st.just("discarded"), st.integers(1, 40), DELTAS),
    st.tuples(st.just("extend"), st.just(b""), st.integers(0, 2**59 - 1)),
    st.tuples(st.just("stamp"), st.just(b""), st.integers(0, 2**59 - 1)),
)
HEAD: Final = build_head(
    Metadata(
        header_page=(GOLDEN / "header_page").read_bytes(),
        header_event=(GOLDEN / "header_event").read_bytes(),
        events={"sched": [(GOLDEN / "sched_switch.format").read_bytes()]},
    ),
    (0, 1, 7),
    1 << 20,
    cmdlines_bytes=64,
    cpustat_bytes=32,
)
LAYOUTS: Final = [parse_format(path.read_bytes()) for path in sorted(GOLDEN.glob("*.format"))]


def _build(
    base: int, parts: list[tuple[str, bytes | int, int]]
) -> tuple[list[bytes], list[PageEvent]]:
    """Encoded parts, and the events that a walk must find in them."""
    encoded, expected, now, at = [], [], base, 16
    for kind, content, number in parts:
        if isinstance(content, int):
            data = discarded(4 * content, number or 1)
            now += number or 1
        elif kind == "event":
            data = event(content, number)
            now += number
            small = len(content) <= 112
            size = -(-len(content) // 4) * 4 if small else len(content)
            offset = at + (4 if small else 8)
            expected.append(PageEvent(now % 2**64, offset, size))
        elif kind == "extend":
            data = time_extend(number)
            now += number
        else:
            data = time_stamp(number)
            # the nearest time with these 59 bits that is not more than half their range earlier
            before, now = now, now // 2**59 * 2**59 + number
            if before - now > 2**58:
                now += 2**59
        now %= 2**64
        encoded.append(data)
        at += len(data)
    return encoded, expected


@given(U64S, st.lists(PARTS, max_size=15), st.sampled_from([0, 9, None]), st.data())
def test_walk_finds_what_was_built(
    base: int,
    parts: list[tuple[str, bytes | int, int]],
    lost: int | None,
    data: st.DataObject,
) -> None:
    """Every event is found once, at its time, also when the walk pauses after any part."""
    encoded, expected = _build(base, parts)
    built = page(base, *encoded, UNUSED_REST, lost=lost)
    walk = Walk(built)
    assert list(walk) == expected
    assert (walk.fault, walk.position.offset) == (None, walk.data_end)
    assert (walk.events_lost, walk.lost_events) == (lost != 0, lost)
    pause = data.draw(st.integers(0, len(encoded)))
    first = Walk(built, end=16 + sum(map(len, encoded[:pause])))
    begun = list(first)
    assert begun + list(Walk(built, start=first.position)) == expected


@given(st.binary(max_size=300), U64S, U64S)
def test_any_page_is_walked_to_an_end(raw: bytes, base: int, commit: int) -> None:
    """No bytes make a walk fail, loop, or name what lies outside of the data."""
    for built in (raw, U64.pack(base) + U64.pack(commit) + raw, page(base, raw)):
        walk = Walk(built)
        past = 16
        for one in walk:
            assert past < one.offset <= one.offset + one.size_bytes <= walk.data_end <= len(built)
            assert 0 <= one.timestamp_ns < 2**64
            past = one.offset + one.size_bytes
        came_to_its_end = walk.position.offset == walk.data_end >= 16
        assert (walk.fault is None) == came_to_its_end


@given(st.sampled_from(LAYOUTS), st.binary(max_size=160))
def test_any_record_is_decoded_or_refused(layout: EventFormat, record: bytes) -> None:
    """No bytes make a decoder fail otherwise than by CodecError, and text can be printed."""
    try:
        values = decode(record, layout)
    except CodecError:
        return
    for value in values.values():
        if isinstance(value, str):
            value.encode()


@given(st.data())
def test_any_text_is_parsed_or_refused(data: st.DataObject) -> None:
    """A text of tracefs that was damaged is refused by CodecError, if it is refused."""
    path = data.draw(st.sampled_from([*sorted(GOLDEN.glob("*.format")), GOLDEN / "header_page"]))
    text = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    for parse in (parse_format, parse_header_page, parse_header_event):
        try:
            parse(bytes(text))
        except CodecError:
            continue


@given(st.data())
def test_any_head_is_read_or_refused(data: st.DataObject) -> None:
    """A head that was damaged is refused by CodecError, or describes extents that lie in order."""
    image = bytearray(HEAD.image)
    end = image.rindex(b"strings")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, end))
        damage = data.draw(st.binary(min_size=1, max_size=8))
        image[at : at + len(damage)] = damage
    try:
        head_bytes(bytes(image[:4096]))
        head = parse_head(bytes(image))
    except CodecError:
        return
    past = len(head.image)
    for extent in head.extents.values():
        assert extent.offset >= past
        past = extent.offset + extent.capacity_bytes
    head.comms()
    for cpu in head.extents:
        cpustat(head, cpu)


@given(st.lists(st.tuples(st.integers(0, 2**22), st.binary(max_size=16))))
def test_any_names_of_tasks(comms: list[tuple[int, bytes]]) -> None:
    """Whatever the names are, the room keeps its size, and each stored pid has one line."""
    patch = HEAD.cmdlines_patch(comms)
    assert len(patch.data) == HEAD.cmdlines.size_bytes
    lines = [line for line in patch.data.split(b"\n") if line]
    assert [int(line.partition(b" ")[0]) for line in lines] == [p for p, _ in comms][: len(lines)]
    assert all(line.partition(b" ")[2].strip() for line in lines)


def _no_words(ops: Ops, _words: Words) -> Ops:
    return ops


@given(
    record=st.binary(max_size=150),
    layout=st.sampled_from(LAYOUTS),
    data=st.data(),
    value=st.text(st.characters(exclude_characters='"', codec="utf-8"), max_size=6)
    | st.integers().map(str),
)
def test_any_bytes_are_shown_and_filtered(
    record: bytes, layout: EventFormat, data: st.DataObject, value: str
) -> None:
    """Each field of any bytes has a text, and is one cell, which may hold the end of a line.

    A filter fits or not, or is refused beforehand.
    """
    fields = {one.name: tracepoint_field(one) for one in (*layout.common, *layout.fields)}
    for field in fields.values():
        assert len(shown([record], partial(_no_words, [*field.plain, *field.quoted]))) == 1
        cell = StringIO(written([record], partial(_no_words, field.cell)), newline="")
        assert len([*csv.reader(cell, strict=True)]) == 1
    assert len(shown([record], lambda words: compile_format(layout, words) or [])) == 1
    name = data.draw(st.sampled_from([*fields]))
    term = Term(name, data.draw(st.sampled_from(OPERATORS)), value)
    terms = parse_filter(f'{term.field}{term.operator}"{value}"')
    assert terms == (term,)
    try:
        filter_ops(terms, fields, Words())
    except UsageError:
        return
    assert shown([record], lambda words: filter_ops(terms, fields, words)) in ([], [""])


@given(
    text=st.text(alphabet='"%sdxp-*.0 REC->ab12(),{}?:+&|<[]', max_size=40)
    | st.lists(
        st.sampled_from(
            ['"%s %d"', '"%*.*s"', '"%pI4"', ",", "REC->next_comm", "REC->prev_pid", "(", ")", "1",
             "__print_flags", "__print_symbolic", '"|"', '{ 1, "x" }', "? 1 : 2", "+", "<<",
             "/", "-", "(u8)", "(long)", "~", "[0]", "__get_str(filename)", "vmemmap_base"]
        ),
        max_size=12,
    ).map(" ".join),
    record=st.binary(max_size=80),
)  # fmt: skip
def test_any_print_format_is_carried_out_or_left_alone(text: str, record: bytes) -> None:
    """Whatever a file has for a format, its record is a line."""
    layout = replace(LAYOUTS[-1], print_format=text.encode())
    assert len(shown([record], lambda words: compile_format(layout, words) or [])) == 1


@given(text=st.text(alphabet="ab=!<>&|~\"' 1*-", max_size=30))
def test_any_filter_is_read_or_refused(text: str) -> None:
    """A text is a filter whose terms have known operators, or a wrong command line."""
    try:
        terms = parse_filter(text)
    except UsageError:
        return
    assert terms
    assert all(term.field and term.operator in OPERATORS for term in terms)
