# SPDX-License-Identifier: Apache-2.0
"""BPF programs that run, and the rings into which they submit.

Rings are perf rings of events of type PERF_COUNT_SW_BPF_OUTPUT, whose descriptors go into the
program's BPF_PERF_OUTPUT, or BPF ring buffers, which are maps of the programs (`bpf_buffer`).
Everything past `open` drains them like any other.

A program that includes collectord.h has a gate on each CPU, which is opened when everything is
ready. Behind it the program counts each attempt to submit, with the errno of those that fail. Its
count is `produced`; what did not fit a perf ring is the kernel's own FORMAT_LOST, and what did not
fit a ring buffer the program's count. Runs that the kernel skipped because a program was running
on that CPU already (`recursion_misses`) belong to no CPU: a program's ring buffer includes them,
and of perf rings the first one, among its produced and its lost.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.model import RING_FULL, Basis, Produced, Reason, Stage
from collectord.plan.program_plan import RINGBUF
from collectord.programs.bpf_program import COUNTS
from collectord.source.base import Abilities
from collectord.source.bpf_reopening import BpfReopening
from collectord.source.bpf_slots import SlotRecording
from collectord.source.open_program import GATE, Counts, output_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from collectord._native._core import Core, Stream
    from collectord.kernel.port import Kernel
    from collectord.model import LossKey, RingLabel
    from collectord.plan.bpf_plan import BpfPlan
    from collectord.source.open_perf import OpenPerf
    from collectord.source.open_program import OpenProgram
    from collectord.source.ring import CounterFd, RingHandle

_ZERO: Final = struct.pack("=I", 0)


class _Total(NamedTuple):
    """The counts of a CPU by all programs that share perf rings.

    Attributes:
        counts: their counts.
        missed: runs that the kernel skipped on any CPU, on the first one.
    """

    counts: Counts = Counts()
    missed: int = 0


_COUNTS_FORMAT: Final = struct.Struct(f"={len(Counts._fields)}Q")


class OpenBpf:
    """Running programs and their rings. See `source.base.OpenSource` and `source.base.Bpf`."""

    def __init__(
        self,
        kernel: Kernel,
        plan: BpfPlan,
        programs: tuple[OpenProgram, ...],
        rings: OpenPerf,
    ) -> None:
        self._kernel = kernel
        self._perf = rings
        self._cpus = kernel.possible_cpus()
        self._missed_before: dict[str, int] = {}  # by program, until something is submitted
        self._missed: dict[str, int] = {}  # once no program submits any more
        self._counted: dict[str, dict[int, Counts]] = {}  # by program and CPU
        self._counted_for: set[int] = set()  # CPUs whose rings were read since then
        self._told: dict[int, _Total] = {}  # by CPU, as of the last reading of its perf ring
        self._told_before: dict[int, _Total] = {}  # likewise, of the rings that are gone
        self._recorded = set(plan.cpus)
        self._shut: set[int] = set()  # CPUs whose gates are closed
        self.programs = programs
        buffers = [(_weakened(ring, one), one) for one in programs for ring in one.buffers]
        self._buffers = {ring.label: one for ring, one in buffers}
        of_perf = tuple(map(self.shared, rings.rings))
        own: list[RingHandle] = [ring for ring, _ in buffers]
        own += [ring for one in programs for ring in one.slots]
        data = sum(ring.label.has_data for ring in of_perf)
        self._first_cpu = of_perf[0].label.cpu if data else -1
        self.rings: tuple[RingHandle, ...] = (*of_perf[:data], *own, *of_perf[data:])
        # The slots of each CPU, with their program where the runs that the kernel skipped count.
        self._slots = {
            ring.label: (ring, (one,) if ring is one.slots[0] else ())
            for one in programs
            for ring in one.slots
        }
        ids: dict[int, list[int]] = {}
        for ring in own:
            for counter in ring.counters:
                ids.setdefault(counter.event_index, []).append(counter.event_id)
        self.event_ids = {**rings.event_ids, **{n: tuple(each) for n, each in ids.items()}}
        self.target_fds = rings.target_fds

    def connect(self, cpu: int | None = None) -> None:
        """Give each program the perf rings that it submits to, on all CPUs or on one."""
        for program in self.programs:
            for output in program.plan.outputs:
                if output.transport == RINGBUF:
                    continue
                table = output_table(program.plan, program.loaded, output.table)
                info = self._kernel.map_info(table.fd)
                for ring, counter in self._counters(output.event_index):
                    if cpu not in (None, ring.label.cpu):
                        continue
                    key = struct.pack("=I", ring.label.cpu)
                    value = struct.pack("=I", counter.fd)
                    self._kernel.map_update(table.fd, key, value, info=info)

    def shared(self, ring: RingHandle) -> RingHandle:
        """Return a perf ring as all programs that submit into it let it be."""
        return _weakened(replace(ring, counts_on=True), *self._sharing())

    def _counters(self, event_index: int) -> Iterator[tuple[RingHandle, CounterFd]]:
        for ring in self._perf.rings:
            for counter in ring.counters:
                if counter.event_index == event_index:
                    yield ring, counter

    @property
    def abilities(self) -> Abilities:
        """See `source.base.OpenSource`."""
        return Abilities(
            sideband=(self._perf,),
            recording=(SlotRecording(),) if self._slots else (),
            programs=(self,),
            hotplug=tuple(BpfReopening(self, rings) for rings in self._perf.hotplug),
        )

    def add_stream(self, core: Core) -> Stream:
        """See `source.base.OpenSource`."""
        return core.add_stream(snapshots=True) if self._slots else self._perf.add_stream(core)

    def enable(self) -> None:
        """Open the gates, once the rings are ready for what passes them."""
        self._perf.enable()
        self._missed_before = self._begin_missed()
        self._set_gates(opened=True)

    def disable(self) -> None:
        """Close the gates. A submission that had passed its gate still reaches its ring."""
        self._set_gates(opened=False)
        self._missed = self._read_missed(self.programs)
        for program in self.programs:
            for output in program.plan.outputs:
                if not (output.counts and program.loaded.counts_submissions):
                    for _, counter in self._counters(output.event_index):
                        self._kernel.disable(counter.fd)
        self._perf.disable_sideband()

    def _begin_missed(self) -> dict[str, int]:
        """Return the skipped runs before the programs are let to count."""
        return self._read_missed(self.programs)

    def count_missed_from(self, before: Mapping[str, int]) -> None:
        """Take runs that were skipped since then as events, where another process has begun.

        Args:
            before: the skipped runs of each program that submits, by its name.
        """
        self._missed_before = dict(before)

    def _set_gates(self, *, opened: bool) -> None:
        sharing = {program.plan.name for program in self._sharing()}
        for program in self.programs:
            shut = self._shut if program.plan.name in sharing else frozenset[int]()
            cpus = self._recorded - shut if opened else ()
            states = [struct.pack("=Q", cpu in cpus) for cpu in self._cpus]
            if GATE in program.maps:
                table = program.loaded.tables[GATE]
                self._kernel.map_update(table.fd, _ZERO, states, info=program.maps[GATE])

    def _read_missed(self, programs: Iterable[OpenProgram]) -> dict[str, int]:
        """Return runs of submitting programs that the kernel skipped since they were loaded."""
        return {
            program.plan.name: sum(
                self._kernel.program_info(function.fd).recursion_misses or 0
                for function in program.loaded.programs
            )
            for program in programs
            if program.plan.outputs or program.plan.kept
        }

    def counts(self, program: OpenProgram) -> dict[int, Counts]:
        """Return a program's counts by CPU; empty if it does not count. Raises KernelError."""
        info = program.maps.get(COUNTS)
        if info is None:
            return {}
        value = self._kernel.map_lookup(program.loaded.tables[COUNTS].fd, _ZERO, info=info) or b""
        return {
            cpu: Counts(*_COUNTS_FORMAT.unpack_from(value, index * info.cpu_bytes))
            for index, cpu in enumerate(self._cpus)
        }

    def read_produced(self, ring: RingHandle) -> Produced:
        """Read the attempts on the ring's CPU, or for it on any, and their outcome."""
        own = self._buffers.get(ring.label)
        if own is not None:
            return self._read_buffer(ring, own)
        if ring.label in self._slots:
            slots, programs = self._slots[ring.label]
            return slots.read(self._missed_of(programs))
        reading = self._perf.read_produced(ring)
        if not ring.label.has_data:
            return reading
        # Before Linux 6.0 the programs' own count is as good, where all of them count.
        exact = ring.is_exact
        total, missed = self._since_opened(ring.label.cpu)
        full = total.no_space if reading.lost is None and exact else reading.lost
        found = _produced(total, missed, full=full, exact=exact)
        return replace(found, per_event=reading.per_event)

    def _read_buffer(self, ring: RingHandle, program: OpenProgram) -> Produced:
        """Return a program's attempts on all CPUs; only it counts what its ring buffer refuses."""
        total = _sum(self.counts(program).values())
        exact = ring.is_exact
        missed = self._missed_of((program,))
        found = _produced(total, missed, full=total.no_space, exact=exact)
        told = ((c.event_id, total.attempts, total.no_space) for c in ring.counters)
        return replace(found, per_event=tuple(told))

    def _sharing(self) -> Iterator[OpenProgram]:
        """Yield programs that submit into perf rings, which all programs share."""
        own = {one.plan.name for one in self._buffers.values()}
        return (program for program in self.programs if program.plan.name not in own)

    def _since_opened(self, cpu: int) -> _Total:
        """Return the counts since the perf ring of a CPU was opened."""
        missed = self._missed_of(self._sharing()) if cpu == self._first_cpu else 0
        self._told[cpu] = now = _Total(self._counts_of(cpu), missed)
        before = self._told_before.get(cpu, _Total())
        return _Total(Counts(*map(sub, now.counts, before.counts)), missed - before.missed)

    def has_slots(self, label: RingLabel) -> bool:
        """Return whether a ring is slots of a program, which no event of perf fills."""
        return label in self._slots

    def slots_of(self, cpu: int) -> list[RingHandle]:
        """Return the slots of a CPU that is back, which take what comes from now on."""
        found: list[RingHandle] = []
        for label, (ring, programs) in self._slots.items():
            if label.cpu == cpu:
                anew = ring.anew()
                self._slots[label] = anew, programs
                found.append(anew)
        return found

    def shut(self, cpu: int) -> None:
        """Close the gates of a CPU whose rings are to be replaced."""
        self._shut.add(cpu)
        self._set_gates(opened=True)

    def renew(self, cpu: int) -> None:
        """Let the next perf ring of a CPU count on from the end of the last one."""
        self._told_before[cpu] = self._told.get(cpu, _Total())
        self._counted = {}

    def admit(self, cpus: Iterable[int]) -> None:
        """Open the gates of CPUs that have new rings."""
        admitted = set(cpus)
        self._recorded |= admitted
        self._shut -= admitted
        self._set_gates(opened=True)
        self._counted = {}

    def _counts_of(self, cpu: int) -> Counts:
        """Return counts of all that share rings on a CPU, read for all CPUs at once.

        When a ring is read for the second time they are read again. `CounterReader` has the core's
        counters of all rings by then.
        """
        if not self._counted or cpu in self._counted_for:
            self._counted = {one.plan.name: self.counts(one) for one in self._sharing()}
            self._counted_for.clear()
        self._counted_for.add(cpu)
        return _sum(counts.get(cpu, Counts()) for counts in self._counted.values())

    def _missed_of(self, programs: Iterable[OpenProgram]) -> int:
        """Return runs that were skipped while these programs were to submit."""
        if not self._missed_before:
            return 0
        own = {program.plan.name: program for program in programs}
        now = self._missed or self._read_missed(own.values())
        before = self._missed_before
        return sum(now[name] - before.get(name, now[name]) for name in own.keys() & now.keys())


def _weakened(ring: RingHandle, *programs: OpenProgram) -> RingHandle:
    """Return a ring with the basis that the instructions of its programs leave it."""
    if not ring.label.has_data:
        return ring
    return replace(ring, basis=Basis.weakest([ring.basis, *(one.weakest for one in programs)]))


def _sum(counts: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*counts, strict=True)))


def _produced(total: Counts, missed: int, *, full: int | None, exact: bool) -> Produced:
    """Return a reading of attempts and of skipped runs; `full`: refused by a ring."""
    losses: dict[LossKey, int] = {
        (Stage.PROGRAM, Reason.RECURSION): total.busy + missed,
        (Stage.PROGRAM, Reason.DROPPED): total.no_ring + total.refused,
    }
    if full is not None:
        losses[RING_FULL] = full
    return Produced(
        value=total.attempts + missed if exact else None,
        lost=sum(losses.values()) if full is not None else None,
        losses=losses,
    )
