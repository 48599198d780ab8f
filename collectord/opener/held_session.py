# SPDX-License-Identifier: Apache-2.0
"""The rings and BPF programs of one session, held whoever drains them.

A ring lives as long as one mapping of it: with its descriptor alone the kernel frees the ring, and
counts nothing that it refuses then. A program runs as long as its attachments are open.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from collectord.errors import KernelError
from collectord.kernel.values.kept_rings import (
    EVENTS_MAX,
    HidingAnswer,
    KeptEvent,
    KeptPart,
    KeptRing,
    Prior,
)
from collectord.model import RING_FULL, RING_PAUSED, Produced, loss_name
from collectord.opener.held_staging import SEALS, sealed_memory
from collectord.source import SOURCES
from collectord.source.bpf_kept import noted_missed
from collectord.source.kept_memory import Gone, KeptMemory, has_areas, memory_bytes
from collectord.source.kept_ring import TRUNCATED_NAME
from collectord.source.open_bpf import OpenBpf
from collectord.source.perf_kept import digest_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from collectord.kernel.port import Kernel
    from collectord.kernel.values.kept_rings import AskHiding
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.ring import AuxHandle, CounterFd, RingHandle

_FULL: Final = loss_name(RING_FULL)
_PAUSED: Final = loss_name(RING_PAUSED)


class Priors(NamedTuple):
    """Knowledge of a session's rings that were drained before, and of their AUX areas."""

    events: Prior = Prior()
    trace: Prior = Prior()


class HeldSession:
    """The rings and programs of one session, from their opening until `end`.

    Args:
        kernel: opens them.
        plan: says which.
        prior: what is known of rings that these replace.
        abort: a descriptor; once it is readable, a compiler is given up with an error.

    Raises:
        CollectordError: they cannot be opened; none is left open.
    """

    def __init__(self, kernel: Kernel, plan: SessionPlan, prior: Priors, *, abort: int) -> None:
        self._kernel = kernel
        self.digest = digest_of(kernel, plan)
        self.prior = prior
        self.is_drained = False
        self.is_over = False  # whoever drains it has said so
        self._gone: set[int] = set()
        # These are the samples by the notes, and the losses, of rings that new ones replaced.
        self._earlier: dict[int, Gone] = {}
        self.lost: Counter[str] = Counter()
        self._earlier_trace = Prior()  # likewise of their AUX areas
        self._tracepoints = [e.index for e in plan.events if e.tracepoint is not None]
        with ExitStack() as own:
            opened = SOURCES[plan.kind](kernel, replace(plan, opener=""), own, abort=abort)
            self._source = opened
            self._programs = [p for one in opened.abilities.programs for p in one.programs]
            self._described = [_sealed(one.loaded.described, own) for one in self._programs]
            self._has_areas = areas = has_areas(plan)
            size = memory_bytes(len(plan.rings), len(self._programs), areas=areas)
            # Whoever drains writes notes into it, and must not take them away.
            self.memory = sealed_memory("collectord-notes", size + -size % kernel.page_bytes)
            own.callback(os.close, self.memory)
            self._notes = KeptMemory(self.memory, len(plan.rings), own, areas=areas)
            self._labels = {n: ring.label for n, ring in enumerate(opened.rings)}
            # By the same numbers; without those of a CPU that could not get new ones.
            self._rings = dict(enumerate(opened.rings))
            self._stack = own.pop_all()

    def parts(self) -> Iterator[tuple[KeptRing | KeptPart, list[int]]]:
        """Yield rings and programs as they are handed out, with their descriptors.

        A BPF ring buffer is one of its program's maps.
        """
        yield from self._ring_parts(self._rings)
        for number, (program, described) in enumerate(
            zip(self._programs, self._described, strict=True)
        ):
            fds = [described, *program.loaded.fds]
            for at in range(0, len(fds), EVENTS_MAX):
                yield KeptPart(number), fds[at : at + EVENTS_MAX]

    def _ring_parts(self, numbers: Iterable[int]) -> Iterator[tuple[KeptRing, list[int]]]:
        for number in numbers:
            ring = self._rings[number]
            if ring.label.cpu < 0:
                continue
            kept = all(counter.fd != ring.fd for counter in ring.counters)
            keeper = [ring.fd] if kept else []
            for at in range(0, len(ring.counters), EVENTS_MAX - 1):
                some = ring.counters[at : at + EVENTS_MAX - 1]
                part = KeptRing(
                    number,
                    ring.geometry.data_bytes,
                    ring.geometry.watermark_bytes,
                    tuple(map(_event, some)),
                    *self._earlier.get(number, Gone()),
                    kept,
                    sum(area.map.data_bytes for area in ring.areas),
                )
                yield part, [*keeper, *(counter.fd for counter in some)]
                keeper = []

    def reopen(self, cpu: int) -> list[tuple[KeptRing, list[int]]]:
        """Replace the rings of a CPU that is back, and return the new ones, as `parts` does.

        Raises:
            KernelError: they cannot be opened, or it has none there.
        """
        numbers = [n for n, label in self._labels.items() if label.cpu == cpu]
        if not numbers or not self._source.abilities.hotplug:
            raise KernelError(f"the session has no rings on CPU {cpu}")
        self._gone.add(cpu)
        for number in numbers:
            ring = self._rings.pop(number, None)
            if ring is not None and not self._programs:  # these count on, whatever the ring
                self.lost.update(self._losses_of(ring))
            if ring is not None:
                self._earlier_trace = self._with_trace_of(number, ring, self._earlier_trace)
        for one in self._source.abilities.hotplug:
            one.leave(cpu)
            new = {ring.label: ring for ring in one.join(cpu)}
        for number in numbers:
            self._rings[number] = new[self._labels[number]]
            self._earlier[number] = self._notes.restart(number)
            if self._rings[number].areas:
                self._notes.restart_area(number)
        self._gone.discard(cpu)
        return list(self._ring_parts(numbers))

    def hiding(self, ask: AskHiding) -> HidingAnswer:
        """Return the BPF programs that may hide its events."""
        try:
            found = {
                index: one.suppressed_by(index)
                for one in self._source.abilities.suppressible
                for index in self._tracepoints
            }
        except KernelError as error:
            return HidingAnswer(ask.serial, refused=str(error))
        return HidingAnswer(ask.serial, found)

    @property
    def ring_count(self) -> int:
        """The number of its rings."""
        return len(self._labels)

    @property
    def program_count(self) -> int:
        """The number of its BPF programs."""
        return len(self._programs)

    def leave(self, cpus: Collection[int]) -> None:
        """Note that these CPUs were offline, whether or not they are back."""
        self._gone |= {label.cpu for label in self._labels.values() if label.cpu in cpus}

    @property
    def is_whole(self) -> bool:
        """Whether the CPUs of all its rings have been online since they were opened."""
        return not self._gone

    @property
    def trace(self) -> Prior:
        """The knowledge of AUX areas that were closed, for whoever drains the present ones."""
        state = self._notes.trace_text.state if self._has_areas else ""
        return structs.replace(self._earlier_trace, state=state) if state else self.prior.trace

    def _with_trace_of(self, number: int, ring: RingHandle, before: Prior) -> Prior:
        """Add what is known of the AUX area of a ring that ends, whose events are disabled."""
        lost = Counter(before.lost)
        taken, left = before.taken, before.left
        for area in ring.areas:
            gone = self._notes.gone_trace(number)
            head, traced = area.map.head, self._traced(area)
            # Whoever drained it may have noted anything.
            own = min(gone.taken, head)
            lost[TRUNCATED_NAME] += max(min(gone.counted, traced), traced - head, 0)
            taken += own
            left += head - own
        return Prior(before.state, taken, dict(lost), left)

    def _traced(self, area: AuxHandle) -> int:
        """Return the bytes that its PMU has counted, 0 if it does not count, or cannot be read."""
        if not area.plan.counts_bytes:
            return 0
        with suppress(KernelError):
            return sum(
                self._kernel.read_counter(one.fd, one.read_format).value for one in area.counters
            )
        return 0

    def end(self) -> Priors:
        """Close all; return what is known of it for what replaces it."""
        state = self._notes.text.state
        before = Prior(state) if state else self.prior.events
        trace = self.trace
        lost = Counter(before.lost) + self.lost
        taken, left, overwritten = before.taken, before.left, before.overwritten
        if isinstance(self._source, OpenBpf):
            missed = noted_missed(self._source.programs, self._notes)
            self._source.count_missed_from(missed)
        with suppress(KernelError):  # the CPU is gone, and the counter with it
            self._source.disable()
        for number, label in self._labels.items():
            if not label.has_data:
                continue
            gone = self._notes.gone(number)
            own = gone.taken
            taken += own
            overwritten += gone.counted
            ring = self._rings.get(number)
            if ring is None:
                continue
            trace = self._with_trace_of(number, ring, trace)
            if not self._programs:
                own -= self._earlier.get(number, Gone()).taken
            reading = self._last_reading(ring)
            lost.update(_losses(ring, reading))
            # A program counts on, in whatever ring its CPU has got since.
            counts_all = label.cpu in self._gone and bool(self._programs)
            if ring.is_exact and not counts_all:
                left += max(0, (reading.value or 0) - (reading.lost or 0) - own)
        self._stack.close()
        told = {name: n for name, n in lost.items() if n}
        return Priors(Prior(before.state, taken, told, left, overwritten), trace)

    def _losses_of(self, ring: RingHandle) -> dict[str, int]:
        return _losses(ring, self._last_reading(ring)) if ring.label.has_data else {}

    def _last_reading(self, ring: RingHandle) -> Produced:
        try:
            return self._source.read_produced(ring)
        except KernelError:
            return Produced(None, None)


def _event(counter: CounterFd) -> KeptEvent:
    return KeptEvent(counter.event_index, counter.event_id, counter.read_format, counter.kernel_id)


def _losses(ring: RingHandle, reading: Produced) -> dict[str, int]:
    """Return the losses of a reading by name; perf tells of one reason only."""
    if not reading.losses:
        return {_PAUSED if ring.has_window else _FULL: reading.lost or 0}
    return {loss_name(key): count for key, count in reading.losses.items()}


def _memory(name: str, size: int, own: ExitStack) -> int:
    """Return the descriptor of memory of this size, which can be sealed."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    own.callback(os.close, fd)
    os.ftruncate(fd, size)
    return fd


def _sealed(content: bytes, own: ExitStack) -> int:
    """Return the descriptor of sealed memory with this content."""
    fd = _memory("collectord-program", len(content), own)
    os.pwrite(fd, content, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_WRITE)
    return fd
