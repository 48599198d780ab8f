# SPDX-License-Identifier: Apache-2.0
"""BPF programs by their text: parameters as C; what is counted, hidden, needed, contradictory."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectord.errors import UsageError
from collectord.facts.kernel_facts import BpfFacts
from collectord.plan.facts_document import read_facts
from collectord.programs import bpf_program
from collectord.programs.manifest_text import load_manifest
from collectord.programs.parameter import values_of
from tests.support.bpf_pairs import MANIFEST, SOURCE, program
from tests.support.hosts import host

TYPED: Final = """
[parameter.flag]
type = "bool"
default = true
help = "h"
[parameter.least]
type = "duration"
default = "10ms"
help = "at least so long"
[parameter.room]
type = "bytes"
default = "4KiB"
help = "h"
[parameter.word]
type = "string"
default = "a"
max_bytes = 8
help = "h"
"""
USES: Final = (
    "int x = PARAMETER_FLAG + PARAMETER_LEAST + PARAMETER_ROOM + sizeof(PARAMETER_WORD);\n"
)
TYPED_PROGRAM: Final = program(SOURCE + USES, MANIFEST + TYPED)


def test_defaults_are_values() -> None:
    """Every parameter has a value, in ns, bytes, 0 or 1, or text."""
    assert values_of("switches", TYPED_PROGRAM.manifest.parameter, {}) == {
        "pid": 0,
        "flag": 1,
        "least": 10_000_000,
        "room": 4096,
        "word": "a",
    }


def test_given_values_win() -> None:
    """A given value replaces the default."""
    given = {"pid": "0x10", "least": "1s", "flag": "no", "word": "x=y"}
    values = values_of("switches", TYPED_PROGRAM.manifest.parameter, given)
    assert values == {"pid": 16, "flag": 0, "least": 10**9, "room": 4096, "word": "x=y"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pdi": "1"}, 'did you mean "pid"'),
        ({"zzzz": "1"}, "it has pid, flag, least, room, word"),
        ({"pid": "x"}, "'x' is not an integer"),
        ({"pid": "-1"}, "below 0; only switches to this process (default 0 pid)"),
        ({"pid": "1 2"}, "not an integer"),
        ({"least": "5"}, "has no unit"),
        ({"least": "5"}, "at least so long (default 10ms)"),
        ({"flag": "maybe"}, "neither true nor false"),
        ({"word": "too long!"}, "9 bytes are more than 8"),
        ({"word": "a\0b"}, "NUL"),
    ],
)
def test_wrong_values_name_the_parameter_and_its_default(
    given: dict[str, str], words: str
) -> None:
    """The error is one line with the allowed values."""
    with pytest.raises(UsageError) as caught:
        values_of("switches", TYPED_PROGRAM.manifest.parameter, given)
    assert words in str(caught.value)
    assert str(caught.value).startswith("switches")


def defined(**values: int | str) -> dict[str, str]:
    """Return the macros of TYPED_PROGRAM with these values."""
    whole = values_of("switches", TYPED_PROGRAM.manifest.parameter, {}) | values
    lines = bpf_program.defines(TYPED_PROGRAM, whole).splitlines()
    assert len(lines) == len(whole)
    matches = [re.fullmatch(r"#define PARAMETER_([A-Z_]+) (.+)", line) for line in lines]
    return {match[1]: match[2] for match in matches if match}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-1, "(-1)"),
        ((1 << 31) - 1, "2147483647"),
        (1 << 31, "2147483648LL"),
        ((1 << 63) - 1, "9223372036854775807LL"),
        (1 << 63, "9223372036854775808ULL"),
        ((1 << 64) - 1, "18446744073709551615ULL"),
        (-(1 << 63), "(-9223372036854775807LL - 1)"),
    ],
)
def test_integers_are_c_of_the_right_width(value: int, text: str) -> None:
    """No literal overflows, and a sign cannot stick to what stands before."""
    assert defined(pid=value)["PID"] == text


def test_times_and_sizes_are_unsigned_and_wide() -> None:
    """Multiplying them in the program does not overflow an int."""
    macros = defined(least=10**9)
    assert (macros["LEAST"], macros["ROOM"], macros["FLAG"]) == ("1000000000ULL", "4096ULL", "1")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
def test_strings_are_literals_whatever_they_hold(text: str) -> None:
    """A string is one literal in one line, with octal escapes, which C and Python read alike."""
    whole = values_of("switches", TYPED_PROGRAM.manifest.parameter, {}) | {"word": text}
    line = bpf_program.defines(TYPED_PROGRAM, whole).splitlines()[-1]
    literal = line.removeprefix("#define PARAMETER_WORD ")
    assert re.fullmatch(r'"(?:[A-Za-z0-9 _./,:+=@-]|\\[0-7]{3})*"', literal)
    assert ast.literal_eval("b" + literal) == text.encode()


def test_a_string_that_was_no_utf8_keeps_its_bytes() -> None:
    """A command line may hold any byte."""
    assert defined(word="\udcff")["WORD"] == r'"\377"'


@pytest.mark.parametrize(
    ("source", "counts", "outputs"),
    [
        (SOURCE, True, ("collectord_ring",)),
        (SOURCE.replace('#include "coll', '// #include "coll'), False, ()),
        (SOURCE.replace("#define COLL", "/* #define COLL */ //"), False, ()),
        (SOURCE + "// ring.perf_submit(ctx)\n", True, ("collectord_ring",)),
        (SOURCE + 'char s[] = "perf_submit";\n', True, ("collectord_ring",)),
        (
            SOURCE + "BPF_PERF_OUTPUT(more);\nvoid f(void *c) { more.perf_submit(c, c, 1); }\n",
            False,
            ("collectord_ring", "more"),
        ),
        ("BPF_PERF_OUTPUT(own);\n", False, ("own",)),
        ("// BPF_PERF_OUTPUT(own);\n", False, ()),
        ("#define P(x) BPF_PERF_OUTPUT(x)\n", False, ()),
        ('#\\\ninclude "collectord.h"\n#define COLLECTORD_EVENT struct e\n', True, None),
    ],
)
def test_what_is_declared(source: str, counts: bool, outputs: tuple[str, ...] | None) -> None:
    """Only a sole output of collectord_submit(), and nothing that is a comment or a string."""
    assert bpf_program.declares_counted(source) is counts
    assert outputs is None or bpf_program.outputs(source) == outputs


def found(source: str = SOURCE, manifest: str = MANIFEST) -> dict[str, str]:
    """Return problems by key."""
    return {
        problem.key: f"{problem.message}; {problem.hint}"
        for problem in bpf_program.problems(program(source, manifest))
    }


def test_a_pair_that_agrees() -> None:
    """No problem is found, whether the probe is a macro or a function's name."""
    assert found() == {}
    named = SOURCE.replace(
        "TRACEPOINT_PROBE(sched, sched_switch)", "int tracepoint__sched__sched_switch(void *args)"
    )
    assert named != SOURCE
    assert found(named) == {}


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        (
            "sched, sched_switch",
            "sched, sched_wakeup",
            "tracepoints",
            "does not attach to sched:sched_switch",
        ),
        ('["sched:sched_switch"]', "[]", "tracepoints", "attaches to sched:sched_switch"),
        (
            "BPF_HISTOGRAM(latency",
            "BPF_HISTOGRAM(latencies",
            "metric[0].table",
            'did you mean "latencies"',
        ),
        ("PARAMETER_PID", "PARAMETER_PIT", "parameter", "uses PARAMETER_PIT"),
        ("PARAMETER_PID", "0", "parameter.pid", "does not use PARAMETER_PID"),
        ("#define COLLECTORD_EVENT struct event\n", "", "event", "does not define its event"),
        ('#include "collectord.h"\n', "", "event", "submits no event"),
        (
            "tracepoints =",
            'raw_tracepoints = ["sys_exit"]\ntracepoints =',
            "raw_tracepoints",
            "does not attach to sys_exit",
        ),
        (
            "[event]",
            '[[attach]]\nkind = "kprobe"\nfunction = "mine"\nplace = "f"\n[event]',
            "attach[0].function",
            "no function 'mine'",
        ),
    ],
)
def test_a_pair_that_contradicts_itself(old: str, new: str, key: str, words: str) -> None:
    """A misspelling is told before anything is compiled."""
    assert (old in SOURCE) or (old in MANIFEST)
    told = found(SOURCE.replace(old, new), MANIFEST.replace(old, new))
    assert words in told[key]


def test_a_program_without_events_asks_for_the_gate() -> None:
    """The header has it without an event too; what is said of events needs one."""
    source = (
        '#include "collectord.h"\nBPF_HISTOGRAM(latency);\n'
        "RAW_TRACEPOINT_PROBE(sys_enter)\n"
        "{ if (collectord_open()) latency.increment(0); return 0; }\n"
    )
    manifest = """
summary = "s"
license = "GPL"
raw_tracepoints = ["sys_enter"]
[[answer]]
kind = "histogram"
title = "t"
table = "latency"
scale = "log2"
unit = "us"
"""
    assert found(source, manifest) == {}
    assert bpf_program.outputs(source) == ()
    assert not bpf_program.declares_counted(source)
    event = '[event]\ncolumns = [{ field = "pid", title = "PID" }]\n'
    assert "does not define its event" in found(source, manifest + event)["event"]
    submits = source.replace("return 0;", "collectord_submit(ctx, 0); return 0;")
    assert "does not define its event" in found(submits, manifest)["event"]
    assert found(source + "// collectord_submit()\n", manifest) == {}


def test_the_event_is_defined_before_the_header() -> None:
    """The header uses it."""
    lines = SOURCE.replace("#define COLLECTORD_EVENT struct event\n", "")
    late = lines.replace(
        '"collectord.h"\n', '"collectord.h"\n#define COLLECTORD_EVENT struct event\n'
    )
    assert "before #include" in found(late)["event"]


def test_probes_under_a_condition_need_not_be_listed() -> None:
    """They may not exist on this architecture; listed they are looked up, and that is allowed."""
    more = "#ifdef __x86_64__\nTRACEPOINT_PROBE(syscalls, sys_enter_open) { return 1; }\n#endif\n"
    assert found(SOURCE + more) == {}
    listed = MANIFEST.replace('switch"]', 'switch", "syscalls:sys_enter_open"]')
    assert found(SOURCE + more, listed) == {}
    assert "tracepoints" in found(SOURCE, listed)


def test_a_program_for_nothing() -> None:
    """A program that attaches to nothing and exports nothing is reported as such."""
    told = found("int x;\n", 'summary = "s"\nlicense = "GPL"\n')
    assert told["attach"].startswith("the program attaches to nothing")
    assert told["answer"].startswith("the program exports nothing")


@pytest.mark.parametrize(
    ("source", "manifest", "needed"),
    [
        (SOURCE, MANIFEST, ()),
        (SOURCE, 'requires = ["btf", "stacks"]\n' + MANIFEST, ("btf", "stacks")),
        (SOURCE + "int kprobe__f(void *ctx) { return 0; }", MANIFEST, ("kprobes",)),
        (SOURCE + "int kretprobe__f(void *ctx) { return 0; }", MANIFEST, ("kprobes",)),
        (SOURCE + "// int kprobe__f(void *ctx)", MANIFEST, ()),
        (SOURCE + "KFUNC_PROBE(f) { return 0; }", MANIFEST, ("fentry",)),
        (SOURCE + "KRETFUNC_PROBE(f) { return 0; }", MANIFEST, ("fentry",)),
        (
            SOURCE,
            MANIFEST + '[[attach]]\nkind = "usdt"\nfunction = "f"\nplace = "/a:b:c"\n',
            ("uprobes",),
        ),
    ],
)
def test_what_a_program_needs(source: str, manifest: str, needed: tuple[str, ...]) -> None:
    """By its manifest, its attachments and the names of its functions."""
    assert bpf_program.needs(program(source, manifest)) == needed


def test_what_is_said_of_a_missing_feature() -> None:
    """Only of one that the program needs, and something."""
    kprobe = SOURCE + "int kprobe__f(void *ctx) { return 0; }"
    hint = 'instead = { kprobes = "use another one" }\n'
    assert found(kprobe, hint + MANIFEST) == {}
    assert "that the program needs" in found(SOURCE, hint + MANIFEST)["instead.kprobes"]
    empty = 'instead = { kprobes = "" }\n'
    assert "instead.kprobes" in found(kprobe, empty + MANIFEST)


def test_a_parameter_that_only_chooses_a_place_is_used() -> None:
    """The program's text need not name it."""
    manifest = """
[parameter.which]
type = "string"
default = "a"
choices = ["a", "b"]
help = "h"
[[attach]]
kind = "kprobe"
function = "mine"
"""
    chosen = 'parameter = "which"\nplaces = { a = "f", b = "g" }\n'
    source = SOURCE + "int mine(void *ctx) { return 0; }\n"
    assert found(source, MANIFEST + manifest + chosen) == {}
    told = found(source, MANIFEST + manifest + 'place = "f"\n')
    assert "does not use PARAMETER_WHICH" in told["parameter.which"]


def test_programs_are_facts() -> None:
    """Another host can plan with the programs of this one, and old facts have none."""
    facts = host(bpf=BpfFacts(programs={"switches": TYPED_PROGRAM}, program_problems={"x": "y"}))
    assert read_facts(facts.to_json()) == facts
    document = msgspec.json.decode(facts.to_json())
    document["bpf"]["programs"]["switches"]["manifest"]["later"] = 1
    assert read_facts(msgspec.json.encode(document)) == facts
    del document["bpf"]
    assert read_facts(msgspec.json.encode(document)).bpf == BpfFacts()


def _filtering(text: str) -> list[str]:
    """Return the lines that define the filters of a program, of whose comm `text` is wanted."""
    head = b'summary = "s"\nlicense = "GPL-2.0-only"\nfilters = ["pid", "comm"]\n'
    program = replace(TYPED_PROGRAM, manifest=load_manifest(head, "x.toml"))
    lines = bpf_program.defines(program, {"pid": 1, "comm": text}).splitlines()
    return [line for line in lines if "FILTER" in line]


def test_filters_are_compared_in_numbers() -> None:
    """A text is compared with its NUL, unless more may follow; an empty one lets all pass."""

    def compared(text: str) -> str:
        line = _filtering(text)[1]
        found = re.fullmatch(r"#define COLLECTORD_FILTER_COMM\(text\) \((.*)\)", line)
        assert found
        return found[1]

    assert _filtering("")[0] == "#define COLLECTORD_FILTER_PID 1"
    assert (compared(""), compared("*")) == ("1", "1")
    byte = "*(volatile u8 *)((text) + {}) == {}".format
    assert compared("sh") == " && ".join([byte(0, 115), byte(1, 104), byte(2, 0)])
    assert compared('"*') == byte(0, 34)


def test_a_filter_that_nothing_compares_with() -> None:
    """The program must ask collectord.h, or compare with the parameter itself."""
    head = b'summary = "s"\nlicense = "GPL-2.0-only"\nfilters = ["comm"]\nmembers = ["a.b"]\n'
    program = replace(TYPED_PROGRAM, manifest=load_manifest(head, "x.toml"))
    found = [problem for problem in bpf_program.problems(program) if "COMM" in problem.message]
    assert [problem.key for problem in found] == ["parameter.comm"]
    assert "btf" in bpf_program.needs(program)
    for word in ("collectord_wanted()", "collectord_comm_wanted(x)", "PARAMETER_COMM"):
        asks = replace(program, source=f"{program.source}\nint f(void) {{ return {word}; }}\n")
        assert not [one for one in bpf_program.problems(asks) if "COMM" in one.message]
