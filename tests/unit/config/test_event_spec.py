# SPDX-License-Identifier: Apache-2.0
"""The event syntax."""

from __future__ import annotations

import pytest

from collectord.codec.event_names import NAMED_EVENTS, NamedEvent, find_named
from collectord.codec.perf_attr import EventType
from collectord.codec.tracepoint import Tracepoint
from collectord.config.event_spec import (
    Alias,
    Breakpoint,
    EventSpec,
    Modifiers,
    PmuEvent,
    Raw,
    parse,
    parse_choices,
)
from collectord.errors import UsageError


def one(text: str) -> EventSpec:
    """Return the only event of a text."""
    ((group,),) = (parse(text),)
    (event,) = group.events
    return event


@pytest.mark.parametrize(
    ("text", "kind", "config"),
    [
        ("cycles", EventType.HARDWARE, 0),
        ("cpu-cycles", EventType.HARDWARE, 0),
        ("branch-misses", EventType.HARDWARE, 5),
        ("cpu-clock", EventType.SOFTWARE, 0),
        ("faults", EventType.SOFTWARE, 2),
        ("cs", EventType.SOFTWARE, 3),
        ("L1-dcache-load-misses", EventType.HW_CACHE, 0x10000),
        ("llc-store-misses", EventType.HW_CACHE, 0x10102),
        ("iTLB-loads", EventType.HW_CACHE, 4),
        ("node-prefetches", EventType.HW_CACHE, 0x206),
    ],
)
def test_named_events_have_the_kernels_numbers(text: str, kind: EventType, config: int) -> None:
    """Hardware, software and cache names give type and config of perf_event.h."""
    body = one(text).body
    assert isinstance(body, NamedEvent)
    assert (body.type, body.config) == (kind, config)


def test_every_listed_name_is_found_again() -> None:
    """Names printed by `list` are accepted as input."""
    assert all(find_named(event.name) == event for event in NAMED_EVENTS)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("r1a8", Raw(0x1A8)),
        ("rFFFFFFFFFFFFFFFF", Raw((1 << 64) - 1)),
        ("sched:sched_switch", Tracepoint("sched", "sched_switch")),
        ("sched:sched_*", Tracepoint("sched", "sched_*")),
        ("*:sys_enter", Tracepoint("*", "sys_enter")),
        ("mem:0x1000", Breakpoint(0x1000, 4, "rw")),
        ("mem:4096/1:w", Breakpoint(4096, 1, "w")),
        ("mem:0x1000:x", Breakpoint(0x1000, 8, "x")),
        ("mem:0x1000:u", Breakpoint(0x1000, 4, "rw")),
        ("cpu/event=0x3c,umask=1/", PmuEvent("cpu", (("event", "0x3c"), ("umask", "1")))),
        ("cpu/mem-loads,ldlat=30/p", PmuEvent("cpu", (("mem-loads", None), ("ldlat", "30")))),
        ("intel_pt//", PmuEvent("intel_pt", ())),
        ("mem-loads:u", Alias("mem-loads")),
        ("topdown-bad-spec", Alias("topdown-bad-spec")),
    ],
)
def test_every_kind_of_event_is_read(text: str, body: object) -> None:
    """Raw codes, tracepoints, breakpoints, PMU terms and aliases each have their tree."""
    assert one(text).body == body


def test_modifiers_are_read_after_colon_and_slash() -> None:
    """Letters name levels, precision and the rest, whatever the kind of event."""
    assert one("cycles:uppp").modifiers == Modifiers(user=True, precise=3)
    assert one("cpu/event=1/kh").modifiers == Modifiers(kernel=True, hv=True)
    assert one("cpu/event=1/:k").modifiers == Modifiers(kernel=True)
    assert one("sched:sched_switch:u").modifiers == Modifiers(user=True)
    assert one("mem:0x10/2:rw:uk").modifiers == Modifiers(user=True, kernel=True)
    assert one("mem:0x10:k").modifiers == Modifiers(kernel=True)
    assert one("r1:GHIDe").modifiers == Modifiers(
        guest=True, host=True, no_idle=True, pinned=True, exclusive=True
    )


def test_lists_and_groups_keep_their_order() -> None:
    """Commas part events outside of braces and PMU terms only."""
    groups = parse("cycles, {page-faults,cpu/event=1,umask=2/}:u,mem:0x10/4:w")
    assert [[event.text for event in group.events] for group in groups] == [
        ["cycles"],
        ["page-faults", "cpu/event=1,umask=2/"],
        ["mem:0x10/4:w"],
    ]
    assert [group.braced for group in groups] == [False, True, False]


def test_a_groups_modifiers_are_added_to_its_events() -> None:
    """`{a:k,b}:u` is `a:ku` and `b:u`."""
    (group,) = parse("{cycles:k,mem:0x10/4:w}:u")
    assert [event.modifiers for event in group.events] == [
        Modifiers(user=True, kernel=True),
        Modifiers(user=True),
    ]


def test_choices_are_parted_by_bars() -> None:
    """Each alternative is a list of its own."""
    choices = parse_choices("cycles:u|cpu-clock,page-faults")
    assert [[g.events[0].text for g in choice] for choice in choices] == [
        ["cycles:u"],
        ["cpu-clock", "page-faults"],
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cycles:x", "u user, k kernel"),
        ("cycles:uu", "repeated"),
        ("cycles:pppp", "repeated"),
        ("cycles:", "no modifier"),
        ("", "missing"),
        ("cycles,,cs", "missing"),
        ("{cycles", "unbalanced brace"),
        ("cycles}", "unbalanced brace"),
        ("{cycles,{cs}}", "within a group"),
        ("{cycles}u", "the group has no end"),
        ("{}", "missing"),
        ("cpu/event=1", "unbalanced slash"),
        ("cpu/=1/", "not a term"),
        ("cpu/event=/", "not a term"),
        ("cpu/a/b/c/", "not a PMU event"),
        ("mem:zz", "not a breakpoint"),
        ("mem:0x10/3", "length 3"),
        ("mem:0x10:q", "unknown access"),
        ("mem:0x10:rx", "cannot be combined"),
        ("mem:0x10:rr", "unknown access"),
        ("mem:0x10000000000000000", "64 bits"),
        ("a b", "not an event"),
        ("sched:sched switch", "not an event"),
        ("sched:", "no modifier"),
        ("sched:a:b:c", "unknown modifier"),
    ],
)
def test_what_does_not_parse_says_why(text: str, words: str) -> None:
    """Every refusal is a usage error with the reason in one line."""
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
