# SPDX-License-Identifier: Apache-2.0
"""Answers of BPF programs: what is made of their maps, and how it looks."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli.summary import print_answers
from collectord.errors import BpfError
from collectord.kernel.values.bpf_objects import MapType
from collectord.programs.program_manifest import AnswerConfig, ColumnConfig
from collectord.session.maps.answers import (
    HistogramAnswer,
    TableAnswer,
    describe_tables,
    make_answer,
    read_tables,
)
from collectord.session.maps.folded_answer import FoldedAnswer
from collectord.text.foreign import encode_json
from tests.support.bpf_tables import S32, U32, U64, FakeMaps, FakeNames, key_struct, u32, u64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.session.maps.answers import Answer

DEVICE: Final = ColumnConfig(field="dev", title="device", show="device")
DEV_SLOT: Final = (key_struct(["dev", U32], ["slot", U32]), 8)
STACK: Final = (key_struct(["ip", U64, [4]]), 32)
STACK_KEY: Final = (
    key_struct(["pid", U32], ["kernel", S32], ["user", S32], ["comm", "char", [8]]),
    20,
)
FOLDED: Final = AnswerConfig(
    kind="folded",
    table="t",
    title="time off CPU",
    unit="us",
    stacks="stacks",
    kernel_stack="kernel",
    user_stack="user",
    pid="pid",
    frames_first=("comm",),
)


def symbols(requests: Sequence[tuple[int, Sequence[int]]]) -> list[list[str]]:
    """Name each address by its process and itself; the one of 0xbad is unknown."""
    return [
        ["" if at == 0xBAD else f"{'k' if pid < 0 else f'p{pid}'}_{at:x}" for at in addresses]
        for pid, addresses in requests
    ]


def answer(maps: FakeMaps, config: AnswerConfig) -> Answer:
    """Return the answers of the program `p`."""
    tables = describe_tables(maps, "p", maps.tables, [config])
    return make_answer(config, read_tables(maps, tables), FakeNames(), symbols)


def printed(made: Answer, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return lines on stdout."""
    print_answers("p", [made])
    return capsys.readouterr().out.splitlines()


def histogram(**more: Any) -> AnswerConfig:  # noqa: ANN401  # of AnswerConfig
    """Return a histogram of table `t`."""
    return AnswerConfig(**{"kind": "histogram", "table": "t", "scale": "log2", **more})


def table(**more: Any) -> AnswerConfig:  # noqa: ANN401  # of AnswerConfig
    """Return a table of table `t`."""
    return AnswerConfig(**{"kind": "table", "table": "t", **more})


def test_log2_histogram(capsys: pytest.CaptureFixture[str]) -> None:
    """Exact bounds, empty slots between full ones, bars by the fullest, none empty that counts."""
    maps = FakeMaps()
    slots = maps.add("t", MapType.PERCPU_ARRAY, (U32, 4), entries=64, cpus=2)
    slots |= {u32(slot): u64(0, 0) for slot in range(64)}
    slots |= {u32(3): u64(30, 50), u32(5): u64(40, 0), u32(11): u64(0, 1)}
    made = answer(maps, histogram(title="latency", unit="us"))
    assert printed(made, capsys) == [
        "latency, us",
        "   4 ..    7  80  " + "#" * 40,
        "   8 ..   15   0",
        "  16 ..   31  40  " + "#" * 20,
        "  32 ..   63   0",
        "  64 ..  127   0",
        " 128 ..  255   0",
        " 256 ..  511   0",
        " 512 .. 1023   0",
        "1024 .. 2047   1  #",
        "",
    ]


def test_linear_histogram_by_device(capsys: pytest.CaptureFixture[str]) -> None:
    """A histogram for each value, the fullest first."""
    maps = FakeMaps()
    slots = maps.add("t", MapType.HASH, DEV_SLOT)
    slots |= {u32(1, 0): u64(1), u32(2, 3): u64(9), u32(2, 4): u64(9), u32(3, 1): u64(0)}
    made = answer(
        maps, histogram(title="size", scale="linear", step=10, slot="slot", by=(DEVICE,))
    )
    assert printed(made, capsys) == [
        "size",
        "device sd2",
        "30 .. 39  9  " + "#" * 40,
        "40 .. 49  9  " + "#" * 40,
        "device sd1",
        "0 .. 9  1  " + "#" * 40,
        "",
    ]
    assert json.loads(encode_json(made.to_dict())) == {
        "kind": "histogram",
        "title": "size",
        "unit": "count",
        "sections": [
            {
                "by": {"device": "sd2"},
                "slots": [
                    {"low": 30, "high": 39, "count": 9},
                    {"low": 40, "high": 49, "count": 9},
                ],
            },
            {"by": {"device": "sd1"}, "slots": [{"low": 0, "high": 9, "count": 1}]},
        ],
        "complete": True,
    }


def test_a_slot_that_no_value_has() -> None:
    """A program that puts nonsense into a key makes neither a long output nor a wide one."""
    maps = FakeMaps()
    slots = maps.add("t", MapType.HASH, (U64, 8))
    slots |= {u64(1): u64(1), u64(1 << 63): u64(1)}
    for scale in ("linear", "log2"):
        made = answer(maps, histogram(scale=scale))
        assert isinstance(made, HistogramAnswer)
        assert len(made.sections[0].slots) == 2


def test_nothing_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty map is said to be empty, under the program's name if there is no title."""
    maps = FakeMaps()
    maps.add("t", MapType.HASH, (U32, 4))
    maps.add("stacks", MapType.STACK_TRACE, (U32, 4), STACK)
    columns = (ColumnConfig(field="key", title="K"),)
    assert printed(answer(maps, histogram()), capsys) == ["p", "nothing was counted", ""]
    made = answer(maps, table(columns=columns))
    assert printed(made, capsys) == ["p", "nothing was counted", ""]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Fields of key and leaf; the largest first, the rest counted; figures to the right."""
    maps = FakeMaps()
    key = (key_struct(["pid", U32], ["comm", "char", [8]]), 12)
    leaf = (key_struct(["calls", U64], ["ns", U64]), 16)
    rows = maps.add("t", MapType.PERCPU_HASH, key, leaf, cpus=2)
    rows[u32(1) + b"a\x1b[2J\0\0\0"] = u64(3, 1_500_000) + u64(4, 500_000)
    rows[u32(20) + b"bash\0\0\0\0"] = u64(1, 9_000) + u64(0, 0)
    rows[u32(3) + b"\xff\0\0\0\0\0\0\0"] = u64(1, 10_000_000) + u64(0, 1)
    columns = (
        ColumnConfig(field="pid", title="PID"),
        ColumnConfig(field="comm", title="COMM", show="text"),
        ColumnConfig(field="calls", title="CALLS"),
        ColumnConfig(field="value.ns", title="TIME", show="duration"),
    )
    made = answer(maps, table(title="calls", columns=columns, sort="ns", limit=2))
    assert printed(made, capsys) == [
        "calls",
        "PID  COMM      CALLS  TIME",
        "  3  \\xff          1  10ms",
        "  1  a\\x1b[2J      7   2ms",
        "(and 1 more)",
        "",
    ]
    told = json.loads(encode_json(made.to_dict()))
    assert told["left_out"] == 1
    assert [row["value.ns"] for row in told["rows"]] == [10_000_001, 2_000_000]
    assert [row["pid"] for row in told["rows"]] == [3, 1]


def test_table_without_structs(capsys: pytest.CaptureFixture[str]) -> None:
    """Keys and leaves that are plain numbers are the fields `key` and `value`."""
    maps = FakeMaps()
    maps.add("t", MapType.HASH, (U32, 4)).update({u32(5): u64(1), u32(6): u64(2)})
    columns = (ColumnConfig(field="key", title="K"), ColumnConfig(field="value", title="V"))
    for sort, limit, first in (("", 0, "5"), ("value", 1, "6"), ("key", 1, "6")):
        made = answer(maps, table(columns=columns, sort=sort, limit=limit))
        assert isinstance(made, TableAnswer)
        assert made.rows[0][0] == first
        assert len(made.rows) == (limit or 2)
    maps.incomplete.add("t")
    lines = printed(answer(maps, table(columns=columns)), capsys)
    assert "(incomplete: the map has more entries than are read)" in lines


def stacks_of(maps: FakeMaps, known: dict[int, tuple[int, ...]]) -> None:
    """A map of stacks, each from the innermost frame outwards."""
    content = maps.add("stacks", MapType.STACK_TRACE, (U32, 4), STACK)
    for number, addresses in known.items():
        content[u32(number)] = u64(*addresses, *[0] * (4 - len(addresses)))


def key(pid: int, kernel: int, user: int, comm: bytes) -> bytes:
    """Return a key of STACK_KEY."""
    return struct.pack("<Iii8s", pid, kernel, user, comm)


def test_folded(capsys: pytest.CaptureFixture[str]) -> None:
    """Each stack is one line: the first fields, user frames and kernel frames from outside in."""
    maps = FakeMaps()
    stacks_of(maps, {1: (0x1A, 0x1B), 2: (0x2A, 0xBAD, 0x2C, 0x2D)})
    rows = maps.add("t", MapType.HASH, STACK_KEY)
    rows[key(7, 1, 2, b"sh")] = u64(10)
    rows[key(8, 1, -14, b"kworker")] = u64(20)
    rows[key(9, -17, 2, b"lost")] = u64(1)
    rows[key(9, -14, 77, b"gone")] = u64(2)
    rows[key(9, 1, 1, b"none")] = u64(0)
    made = answer(maps, FOLDED)
    assert printed(made, capsys) == [
        "time off CPU, us",
        "kworker;k_1b_[k];k_1a_[k] 20",
        "sh;p7_2d;p7_2c;0xbad;p7_2a;k_1b_[k];k_1a_[k] 10",
        "gone;[lost stack] 2",
        "lost;p9_2d;p9_2c;0xbad;p9_2a;[lost stack]_[k] 1",
        "",
    ]
    told = json.loads(encode_json(made.to_dict()))
    assert told["stacks"][0] == {"frames": ["kworker", "k_1b_[k]", "k_1a_[k]"], "value": 20}


def test_folded_stacks_that_read_alike_are_one() -> None:
    """Threads of one name with one stack are added up; foreign text keeps the form."""
    maps = FakeMaps()
    stacks_of(maps, {1: (0x1A,)})
    rows = maps.add("t", MapType.HASH, STACK_KEY)
    rows[key(7, 1, -14, b"a;b\n")] = u64(10)
    rows[key(8, 1, -14, b"a;b\n")] = u64(5)
    made = answer(maps, FOLDED)
    assert isinstance(made, FoldedAnswer)
    assert made.stacks == (((r"a:b\n", "k_1a_[k]"), 15),)


def test_stack_ids_that_the_program_calls_unsigned() -> None:
    """An id that is minus an errno is that, whatever the field's type."""
    maps = FakeMaps()
    stacks_of(maps, {1: (0x1A,)})
    fields = key_struct(["pid", U32], ["kernel", U64], ["user", U32], ["comm", "char", [4]])
    rows = maps.add("t", MapType.HASH, (fields, 20))
    rows[struct.pack("<IQi4s", 7, 1, -14, b"a")] = u64(1)
    rows[struct.pack("<Iqi4s", 7, -14, -17, b"b")] = u64(1)
    made = answer(maps, FOLDED)
    assert isinstance(made, FoldedAnswer)
    assert [frames for frames, _ in made.stacks] == [("a", "k_1a_[k]"), ("b", "[lost stack]")]


def test_symbols_are_asked_for_once() -> None:
    """All addresses of all processes in one request, none twice; of no stacks, no request."""
    maps = FakeMaps()
    stacks_of(maps, {1: (0x1A, 0x1B), 2: (0x2A, 0x1A)})
    rows = maps.add("t", MapType.HASH, STACK_KEY)
    contents = read_tables(maps, describe_tables(maps, "p", maps.tables, [FOLDED]))
    asked: list[Sequence[tuple[int, Sequence[int]]]] = []

    def resolve(requests: Sequence[tuple[int, Sequence[int]]]) -> list[list[str]]:
        asked.append(requests)
        return symbols(requests)

    make_answer(FOLDED, contents, FakeNames(), resolve)
    assert asked == []
    rows |= {key(7, 1, 2, b"x"): u64(1), key(7, 2, 2, b"y"): u64(1)}
    contents = read_tables(maps, describe_tables(maps, "p", maps.tables, [FOLDED]))
    make_answer(FOLDED, contents, FakeNames(), resolve)
    assert [{pid: tuple(at) for pid, at in requests} for requests in asked] == [
        {7: (0x2A, 0x1A), -1: (0x1A, 0x1B, 0x2A)}
    ]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (histogram(slot="slott"), r'key has no field \'slott\'; did you mean "slot"'),
        (histogram(slot="slot", by=(ColumnConfig(field="x", title="x"),)), "no field 'x'"),
        (table(columns=(ColumnConfig(field="x", title="x"),)), "no field 'x'; fields: dev, slot"),
        (table(columns=(DEVICE,), sort="y"), "no field 'y'"),
        (
            AnswerConfig(kind="folded", table="t", stacks="t", kernel_stack="dev"),
            "holds no stacks; declare it by BPF_STACK_TRACE",
        ),
    ],
)
def test_an_answer_that_does_not_fit_its_program(config: AnswerConfig, words: str) -> None:
    """It is told when the program is loaded, not at the end of a recording."""
    maps = FakeMaps()
    maps.add("t", MapType.HASH, DEV_SLOT)
    with pytest.raises(BpfError, match=words):
        describe_tables(maps, "p", maps.tables, [config])
