# SPDX-License-Identifier: Apache-2.0
"""Slots of a BPF program: what its records are, and what became of them."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pytest

from collectord.config.schema import Config
from collectord.config.schema_session import BpfSourceConfig, SessionConfig
from collectord.errors import BpfError, KernelError
from collectord.ledger.record_ledger import NO_COUNTERS, Bracket
from collectord.model import Basis, Reason, Stage
from collectord.plan.bpf_plan import BpfPlan
from collectord.plan.build import build
from collectord.source import bpf_slots
from collectord.source.loaded_program import Loaded, LoadedProgram, LoadedTable
from collectord.source.open_bpf import OpenBpf
from collectord.source.open_program import OpenProgram
from tests.support.bpf_pairs import keeping_host

if TYPE_CHECKING:
    from contextlib import ExitStack

    from collectord.plan.session_plan import SessionPlan

CPUS: Final = 4
SLOTS: Final = 512
HEAD_BYTES: Final = 64
ONE: Final = [
    "one",
    [["pid", "int"], ["value", "unsigned int"], ["more", "unsigned int"]],
    "struct_packed",
]
OTHER: Final = [
    "other",
    [["sector", "unsigned long long"], ["words", "unsigned int", [6]]],
    "struct_packed",
]
TORN: Final = (Stage.KERNEL_RING, Reason.DROPPED)
MISSED: Final = (Stage.PROGRAM, Reason.RECURSION)


def planned() -> SessionPlan:
    """Return the plan of a flight recorder."""
    made = SessionConfig(
        name="s", mode="flight-recorder", source=(BpfSourceConfig(program="keeps"),)
    )
    return build(Config(session=(made,)), keeping_host()).sessions[0]


def table(
    stack: ExitStack, name: str, entries: int, leaf_bytes: int, leaf: object = None
) -> LoadedTable:
    """Return a file in the place of a table's memory."""
    fd = os.memfd_create(name)
    stack.callback(os.close, fd)
    os.ftruncate(fd, max(4096, -(-entries * leaf_bytes // 4096) * 4096))
    return LoadedTable(name, fd, 1, 2, 4, leaf_bytes, entries, None, leaf)


def loaded(stack: ExitStack, one: object = ONE, size: int = 12) -> Loaded:
    """Return a program with its tables."""
    tables = (
        table(stack, "collectord_heads", CPUS, HEAD_BYTES),
        table(stack, "collectord_slots", CPUS * SLOTS, 24),
        table(stack, "collectord_record_1", 1, size, one),
        table(stack, "collectord_record_2", 1, 32, OTHER),
    )
    return Loaded({each.name: each for each in tables}, (), (), "")


def opened(stack: ExitStack, program: Loaded) -> bpf_slots.Kept:
    """Return the slots of the program."""
    session = planned()
    (plan,) = session.payload_of(BpfPlan).programs
    rings = [ring for ring in session.rings if ring.slots]
    return bpf_slots.open_rings("s", plan, rings, program, stack)


def count(program: Loaded, cpu: int, records: int, missed: int) -> None:
    """Have the program count so many on a CPU."""
    head = struct.pack("=3Q", records, records, missed)
    os.pwrite(program.tables["collectord_heads"].fd, head, cpu * HEAD_BYTES)


def test_each_kind_has_an_id_on_each_cpu(stack: ExitStack) -> None:
    """Samples are told apart by them; a kind knows where its thread is."""
    rings, layouts = opened(stack, loaded(stack))
    assert [ring.label.cpu for ring in rings] == [*range(CPUS)]
    ids = [kind.id for ring in rings for kind in ring.kinds]
    assert len({*ids}) == 2 * CPUS
    assert [(kind.size_bytes, kind.task_at) for kind in rings[0].kinds] == [(12, 0), (32, None)]
    assert [counter.event_id for counter in rings[1].counters] == [
        one.id for one in rings[1].kinds
    ]
    assert {name: layout.size for name, layout in layouts.items()} == {
        "sched:sched_switch": 12,
        "block:block_rq_issue": 32,
    }


def test_what_a_program_counts_is_produced(stack: ExitStack) -> None:
    """Missed records are lost, torn ones too, and those that were overwritten are not."""
    program = loaded(stack)
    ring = opened(stack, program).slots[1]
    count(program, 1, 100, 3)
    reading = ring.read(2)
    assert (reading.value, reading.lost) == (105, 5)
    counters = NO_COUNTERS._replace(samples=30, stored=30, overwritten=66, lost_samples=4)
    found = ring.produced(reading, counters, 0)
    assert (found.losses[MISSED], found.losses[TORN], found.overwritten) == (5, 4, 66)
    bracket = Bracket(found, counters, found, closed=True)
    balance = ring.balance(bracket, Basis.EXACT)
    assert (balance.produced, balance.stored, balance.unaccounted) == (105, 30, 0)
    one_missing = counters._replace(stored=29)
    assert ring.balance(replace(bracket, counters=one_missing), Basis.EXACT).unaccounted == 1


def test_a_cpu_that_is_back_counts_from_then_on(stack: ExitStack) -> None:
    """Records that its slots had before are not its own."""
    program = loaded(stack)
    ring = opened(stack, program).slots[2]
    count(program, 2, 100, 3)
    again = ring.anew()
    count(program, 2, 110, 4)
    assert again.read(0).value == 11
    assert again.label == ring.label


@pytest.mark.parametrize(
    ("one", "size", "said"),
    [
        (ONE, 16, "has 16 bytes"),
        (["one", [["other", "int", [3]]], "struct_packed"], 12, "no field 'pid'"),
        (["one", [["pid", "int", [3]]], "struct_packed"], 12, "pid cannot name a thread"),
        (["one", [["pid", "void"]], "struct_packed"], 12, "cannot be described"),
    ],
)
def test_records_that_are_none_are_refused(
    stack: ExitStack, one: object, size: int, said: str
) -> None:
    """Sizes fill slots, and the manifest names what is there."""
    with pytest.raises(BpfError, match=said):
        opened(stack, loaded(stack, one, size))


def test_tables_that_are_missing_are_named(stack: ExitStack) -> None:
    """So are slots that cannot be mapped."""
    program = loaded(stack)
    with pytest.raises(BpfError, match="collectord_slots is not among"):
        opened(
            stack,
            replace(
                program,
                tables={n: t for n, t in program.tables.items() if n != "collectord_slots"},
            ),
        )
    odd = replace(program.tables["collectord_slots"], max_entries=CPUS * 500)
    with pytest.raises(KernelError, match="cannot be mapped"):
        opened(stack, replace(program, tables={**program.tables, odd.name: odd}))


def test_the_header_gets_its_sizes() -> None:
    """One region for each CPU that is possible."""
    ring = next(ring for ring in planned().rings if ring.slots)
    text = bpf_slots.defines(replace(ring, slots=SLOTS), 6)
    assert "COLLECTORD_CPUS 6\n" in text
    assert "COLLECTORD_SLOTS_EACH 512\n" in text
    assert f"COLLECTORD_SLOTS {6 * SLOTS}\n" in text


class Nobody:
    """Rings of perf that are none, and a kernel that has skipped runs of a program."""

    rings = ()
    hotplug = ()
    target_fds = ()
    event_ids: ClassVar[dict[int, tuple[int, ...]]] = {}
    misses = 5

    def possible_cpus(self) -> tuple[int, ...]:
        """See `Kernel`."""
        return tuple(range(CPUS))

    def program_info(self, _fd: int) -> SimpleNamespace:
        """See `Kernel`."""
        return SimpleNamespace(recursion_misses=self.misses)

    def enable(self) -> None:
        """See `OpenPerf`."""


def test_a_session_of_slots_takes_windows_and_counts_for_each_cpu(stack: ExitStack) -> None:
    """Runs that the kernel skipped count on one of them; a CPU that is back begins anew."""
    program = replace(loaded(stack), programs=(LoadedProgram("f", 7, 1, ()),))
    kept = opened(stack, program)
    session = planned()
    (plan,) = session.payload_of(BpfPlan).programs
    nobody: Any = Nobody()
    one = OpenProgram(plan, program, None, {}, (), *kept)
    source = OpenBpf(nobody, session.payload_of(BpfPlan), (one,), nobody)
    (recording,) = source.abilities.recording
    assert not recording.stands_still
    assert not recording.frozen()
    assert [ring.label.cpu for ring in source.rings] == [*range(CPUS)]
    assert {len(ids) for ids in source.event_ids.values()} == {CPUS}
    source.enable()
    nobody.misses = 7
    for cpu in range(CPUS):
        count(program, cpu, 10 * cpu, 1)
    found = [source.read_produced(ring).value for ring in source.rings]
    assert found == [3, 11, 21, 31]
    (again,) = source.slots_of(2)
    count(program, 2, 25, 1)
    assert source.read_produced(again).value == 5
