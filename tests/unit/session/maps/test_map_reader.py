# SPDX-License-Identifier: Apache-2.0
"""A look at a session's programs: their cost, failures and maps, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pytest

from collectord.errors import BpfError
from collectord.kernel.values.bpf_objects import MapType, ProgramInfo
from collectord.plan.program_plan import ProgramPlan
from collectord.programs.bpf_program import BpfProgram
from collectord.programs.program_manifest import AnswerConfig, BpfManifest, MetricConfig
from collectord.session.maps.map_reader import BpfReader
from collectord.session.maps.program_status import FunctionRuns
from collectord.source.loaded_program import Loaded, LoadedProgram
from collectord.source.open_program import Counts, OpenProgram
from tests.support.bpf_tables import U32, FakeMaps, FakeNames, u32, u64

CALLS: Final = MetricConfig(name="calls_total", type="counter", help="Calls.", table="calls")
SIZES: Final = AnswerConfig(kind="histogram", table="sizes", scale="log2")
FUNCTION_FD: Final = 77


def program(maps: FakeMaps, name: str, *, answer: AnswerConfig = SIZES) -> OpenProgram:
    """Return a program that counts calls, with one function."""
    manifest = BpfManifest(summary="s", license="GPL-2.0-only", metric=(CALLS,), answer=(answer,))
    plan = ProgramPlan(
        BpfProgram(name=name, path=name, source="", manifest=manifest, origin="shipped"),
        values={},
        outputs=(),
        gated=True,
    )
    function = LoadedProgram("on_call", FUNCTION_FD, 9, ())
    return OpenProgram(plan, Loaded(maps.tables, (function,), (), ""), None)


@dataclass
class Source:
    """A stand-in for `source.open_bpf.OpenBpf`: programs, and counts of their submissions."""

    programs: tuple[OpenProgram, ...]
    submitted: dict[int, Counts] = field(default_factory=dict)

    def counts(self, program: OpenProgram) -> dict[int, Counts]:
        """Return the counts of every program."""
        del program
        return self.submitted


@pytest.fixture
def maps() -> FakeMaps:
    """The tables of the program."""
    made = FakeMaps()
    made.add("calls", MapType.PERCPU_ARRAY, (U32, 4), entries=1)[u32(0)] = u64(3, 4)
    made.add("sizes", MapType.ARRAY, (U32, 4), entries=4)[u32(1)] = u64(5)
    made.programs[FUNCTION_FD] = ProgramInfo(9, "on_call", 5, 1500, 20, 2)
    return made


def test_a_look(maps: FakeMaps) -> None:
    """All that metrics show of a program, and no map that they do not need."""
    source = Source((program(maps, "p"),), {0: Counts(9, 1, 0, 0, 0), 1: Counts(9, 2, 0, 0, 4)})
    (status,) = BpfReader(maps, "s", source, FakeNames(), stats=True).read()
    assert (status.session, status.program) == ("s", "p")
    assert status.functions == (FunctionRuns("on_call", 9, 20, 1500, 2),)
    assert status.submit_failures == {"ENOSPC": 3, "EBUSY": 0, "ENOENT": 0, "other": 4}
    assert [series.value for series in status.metrics[0].series] == [7]
    assert status.tables == {"calls": False}
    assert maps.reads == 1


def test_without_statistics(maps: FakeMaps) -> None:
    """The kernel's counts of runs are of other times then, and none are told."""
    (status,) = BpfReader(
        maps, "s", Source((program(maps, "p"),)), FakeNames(), stats=False
    ).read()
    assert status.functions == (FunctionRuns("on_call", 9, None, None, 2),)
    assert status.submit_failures is None


def test_each_program_has_its_own(maps: FakeMaps) -> None:
    """Programs of one session are told one by one, and keep what they counted."""
    source = Source((program(maps, "p"), program(maps, "q")))
    reader = BpfReader(maps, "s", source, FakeNames(), stats=False)
    reader.read()
    maps.maps["calls"][u32(0)] = u64(10, 10)
    statuses = reader.read()
    assert [status.program for status in statuses] == ["p", "q"]
    assert [status.metrics[0].series[0].value for status in statuses] == [20, 20]


def test_answers_are_read_when_asked_for(maps: FakeMaps) -> None:
    """Answers are read by program and table, at the time of the request."""
    reader = BpfReader(maps, "s", Source((program(maps, "p"),)), FakeNames(), stats=False)
    maps.maps["sizes"][u32(2)] = u64(6)
    contents = reader.read_answers()
    assert {name: list(tables) for name, tables in contents.items()} == {"p": ["sizes"]}
    assert contents["p"]["sizes"].entries.values == u64(5, 6)


def test_a_manifest_that_does_not_fit_is_refused_at_once(maps: FakeMaps) -> None:
    """An answer's mistake too: not only when it is to be given."""
    wrong = AnswerConfig(kind="histogram", table="size", scale="log2")
    with pytest.raises(BpfError, match=r'p: there is no table .* did you mean "sizes"'):
        BpfReader(maps, "s", Source((program(maps, "p", answer=wrong),)), FakeNames(), stats=False)
