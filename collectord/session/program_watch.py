# SPDX-License-Identifier: Apache-2.0
"""BPF programs that are loaded and unloaded while a session records, and their code.

The kernel could report them, but this would harm other listeners (see
`plan.event_attrs.sideband_event`), so each poll of the daemon lists them. A program that comes and
goes between two polls is not seen.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from collectord.codec.perf_bpf import LoadedBpf
from collectord.codec.perf_record import SampleId
from collectord.codec.perf_sideband import (
    KERNEL_PID,
    KSYMBOL_UNREGISTER,
    BpfEvent,
    BpfEventType,
    Ksymbol,
)
from collectord.codec.perf_sideband import encode as encode_record
from collectord.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from collectord._native._core import RingMap
    from collectord.codec.bpf_symbols import BpfFunction, BpfSymbols
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.perf_bpf import BpfImage, Btf
    from collectord.kernel.port import Kernel

    # Returns the ids greater than a given one, oldest first.
    ListPrograms = Callable[[int], Sequence[int]]

# Room for the code and types of programs of a stream: each of its files has them.
ROOM_BYTES: Final = 4 << 20

_LOG: Final = structlog.get_logger()
_PROGRAMS_MAX: Final = 4096
# All ids are listed this often, or when there are new ones; else only whether there are.
_LOOKS_PER_LIST: Final = 16


class ProgramWatch:
    """The programs that one stream's records describe. The calls may come from any thread.

    Args:
        kernel: lists the programs.
        ring: takes the records.
        attr: of the event that the records belong to.
        event_id: the id of that event.
        round_ns: returns how far readers that sort may have come; see `Stream.round_ns`.
        perf_clock: the stream's times are of perf's clock, not of CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        kernel: Kernel,
        ring: RingMap,
        attr: PerfEventAttr,
        event_id: int,
        round_ns: Callable[[], int],
        *,
        perf_clock: bool,
    ) -> None:
        self._kernel = kernel
        self._ring = ring
        self._attr = attr
        self._id = event_id
        self._round_ns = round_ns
        self._perf_clock = perf_clock
        self._lock = threading.Lock()
        self._images = ProgramImages(kernel)
        self._known: dict[int, BpfSymbols] = {}
        self._looks = 0
        self._looked_ns = 0
        self._may_list = True

    def running(self) -> bytes:
        """Return records of time 0 for the loaded programs; polls add later changes."""
        with self._lock:
            self._looked_ns = time.monotonic_ns()
            found = self._symbols(self._ids(0))
            self._known = {symbols.id: symbols for symbols in found}
            self._images.learn(self._known)
            return b"".join(self._encoded(symbols, 0) for symbols in found)

    def poll(self) -> None:
        """Add records for the programs that were loaded or unloaded since the last poll."""
        with self._lock:
            now_ns = time.monotonic_ns()
            self._looks += 1
            if self._beyond(self._ids) or not self._looks % _LOOKS_PER_LIST:
                self._pass_on(self._ids(0), now_ns)
            self._looked_ns = now_ns

    def pass_over(self, ids: ListPrograms) -> bool:
        """Check without waiting whether `poll` has anything to do.

        Args:
            ids: lists programs beyond an id, once for all streams. Raises KernelError.

        Returns:
            False if `poll` has to be called.
        """
        if not self._lock.acquire(blocking=False):
            return True  # a poll is in progress
        try:
            if not (self._looks + 1) % _LOOKS_PER_LIST:
                return False
            now_ns = time.monotonic_ns()
            if self._beyond(lambda after: self._listed(ids, after)):
                return False
            self._looks += 1
            self._looked_ns = now_ns
        finally:
            self._lock.release()
        return True

    def images(self) -> LoadedBpf:
        """Return code and types of the programs that a file describes, which ends now."""
        with self._lock:
            return self._images.loaded(self._known)

    def _beyond(self, ids: ListPrograms) -> bool:
        """Whether there are programs newer than the last known one."""
        return bool(ids(max(self._known, default=0)))

    def _ids(self, after: int) -> Sequence[int]:
        return self._listed(self._kernel.bpf_program_ids, after)

    def _listed(self, ids: ListPrograms, after: int) -> Sequence[int]:
        if not self._may_list:
            return ()
        try:
            return ids(after)[:_PROGRAMS_MAX]
        except KernelError as error:
            self._may_list = False
            _LOG.debug("bpf_programs_not_listed", error=str(error))
            return ()

    def _symbols(self, ids: Iterable[int]) -> list[BpfSymbols]:
        return list(self._kernel.bpf_symbols([i for i in ids if i not in self._known]))

    def _earliest_ns(self) -> int:
        """Return the earliest time that a record may have if it is fed now, for readers that sort.

        They go by the ends of rounds: at each they hand out what is no later than all that is
        before the previous end. The record will be before the next end.
        """
        return max(self._round_ns() or time.monotonic_ns(), self._looked_ns)

    def _pass_on(self, ids: Sequence[int], looked_ns: int) -> None:
        if not self._may_list:
            return
        new = self._symbols(ids)
        self._images.learn(symbols.id for symbols in new)
        earliest_ns = self._earliest_ns()
        now_ns = max(looked_ns, earliest_ns)
        booted_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        times = {
            # Not before the poll that did not see it, even if the host's sleep changed the clocks.
            symbols.id: min(max(symbols.loaded_ns - booted_ns, earliest_ns), now_ns)
            for symbols in new
        }
        for gone in [known for number, known in self._known.items() if number not in set(ids)]:
            # Another program may be in its place by now.
            after = [
                times[symbols.id]
                for symbols in new
                if any(_overlap(a, b) for a in symbols.functions for b in gone.functions)
            ]
            gone_ns = max(min([now_ns, *after]) - 1, earliest_ns)
            if not self._ring.feed(self._encoded(gone, gone_ns, gone=True)):
                return  # the next poll reports it, and what follows
            del self._known[gone.id]
        for symbols in new:
            if not self._ring.feed(self._encoded(symbols, times[symbols.id])):
                return
            self._known[symbols.id] = symbols

    def _encoded(self, symbols: BpfSymbols, time_ns: int, *, gone: bool = False) -> bytes:
        """Encode a program's records at a CLOCK_MONOTONIC time; readers take 0 at once."""
        if time_ns and self._perf_clock:
            clocks = self._kernel.clocks()
            time_ns += clocks.perf_ns - clocks.monotonic_ns
        ids = SampleId(pid=KERNEL_PID, tid=0, time_ns=time_ns, id=self._id, stream_id=self._id)
        records = (_gone(record) if gone else record for record in symbols.records())
        return b"".join(encode_record(record, self._attr, ids) for record in records)


def _gone(record: Ksymbol | BpfEvent) -> Ksymbol | BpfEvent:
    if isinstance(record, Ksymbol):
        return replace(record, flags=KSYMBOL_UNREGISTER)
    return replace(record, kind=BpfEventType.UNLOAD)


def _overlap(one: BpfFunction, other: BpfFunction) -> bool:
    return one.addr < other.addr + other.length and other.addr < one.addr + one.length


class ProgramImages:
    """The programs that run, or have run, while the current file is written.

    Args:
        kernel: reads the programs.
        room_bytes: for all of them; once it is used up, further programs are not kept.
    """

    def __init__(self, kernel: Kernel, room_bytes: int = ROOM_BYTES) -> None:
        self._kernel = kernel
        self._room_bytes = room_bytes
        self._programs: dict[int, BpfImage] = {}
        self._types: dict[int, Btf] = {}

    def learn(self, ids: Iterable[int]) -> None:
        """Read programs while they are loaded."""
        held = LoadedBpf(tuple(self._programs.values()), tuple(self._types.values()))
        new = [number for number in ids if number not in self._programs]
        if not new:
            return
        read = self._kernel.loaded_bpf(new, self._room_bytes - held.size_bytes)
        self._programs |= {image.id: image for image in read.programs}
        self._types |= {btf.id: btf for btf in read.types}

    def loaded(self, running: Collection[int]) -> LoadedBpf:
        """Return what ran in a file that ends now; those still running stay for the next one."""
        told = LoadedBpf(tuple(self._programs.values()), tuple(self._types.values()))
        self._programs = {i: image for i, image in self._programs.items() if i in running}
        types = {image.btf_id for image in self._programs.values()}
        self._types = {i: btf for i, btf in self._types.items() if i in types}
        return told
