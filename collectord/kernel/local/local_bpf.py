# SPDX-License-Identifier: Apache-2.0
"""BPF programs and their maps, by this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from collectord._native import _syscalls
from collectord.codec.perf_bpf import LoadedBpf
from collectord.errors import KernelError
from collectord.kernel.bpf import (
    bpf_calls,
    bpf_entries,
    catalogue,
    kernel_headers,
    kernel_members,
    program_image,
)
from collectord.kernel.bpf.program_notes import ProgramNotes
from collectord.kernel.bpf.program_returns import may_hide_events
from collectord.kernel.local.descriptor_calls import control
from collectord.kernel.local.local_host import LocalHost, Places

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from collectord.codec.bpf_symbols import BpfSymbols
    from collectord.programs.bpf_program import BpfProgram


class LocalBpf(LocalHost):
    """See `BpfPort`."""

    may_hide_events = staticmethod(may_hide_events)
    map_info = staticmethod(bpf_calls.map_info)
    map_lookup = staticmethod(bpf_calls.map_lookup)
    map_update = staticmethod(bpf_calls.map_update)
    map_entries = staticmethod(bpf_entries.map_entries)
    program_info = staticmethod(bpf_calls.program_info)
    enable_bpf_stats = staticmethod(bpf_calls.enable_stats)

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self._own_programs: dict[int, int] = {}  # descriptor of each event, by id
        self._program_notes = ProgramNotes(places.run)
        self._loaded = program_image.LoadedPrograms()

    def query_bpf(self, fd: int) -> tuple[int, ...] | None:
        """See `Kernel.query_bpf`."""
        message = "cannot list a tracepoint's programs"
        programs = control(message, _syscalls.perf_query_bpf, fd)
        passing = {program: self._passes(program) for program in programs}
        foreign = tuple(program for program, passes in passing.items() if passes is False)
        return foreign if foreign or None not in passing.values() else None

    def _passes(self, program: int) -> bool | None:
        """Whether a program hides no event; None if unknown.

        One of ours hides an event only where the kernel skips its run: trace_call_bpf() then
        returns 0, as if the program had, and counts it.
        """
        fd = self._own_programs.get(program)
        if fd is None:
            return self._program_notes.passes(program)
        return bpf_calls.program_info(fd).recursion_misses == 0

    def begin_loading(self) -> int:
        """See `Kernel.begin_loading`."""
        return self._program_notes.begin()

    def end_loading(self, batch: int) -> None:
        """See `Kernel.end_loading`."""
        self._program_notes.end(batch)

    def own_programs(self, batch: int, programs: Mapping[int, int]) -> None:
        """See `Kernel.own_programs`."""
        passing = {number: fd for number, fd in programs.items() if not may_hide_events(fd)}
        self._own_programs.update(passing)
        self._program_notes.add(batch, map(bpf_calls.program_info, passing.values()))

    def disown_programs(self, programs: Collection[int]) -> None:
        """See `Kernel.disown_programs`."""
        for program in programs:
            self._own_programs.pop(program, None)

    def forget_programs(self, batch: int) -> None:
        """See `Kernel.forget_programs`."""
        self._program_notes.forget(batch)

    def bpf_program(self, name: str, local: Path) -> BpfProgram:
        """See `Kernel.bpf_program`."""
        return catalogue.load(name, local)

    def bpf_library(self, members: tuple[str, ...]) -> str:
        """See `Kernel.bpf_library`."""
        return kernel_members.defines(members, self.sys) + catalogue.library_text()

    def bpf_headers(self, named: str, cache: str) -> str:
        """See `Kernel.bpf_headers`."""
        if named:
            return named
        release = os.uname().release
        tree = kernel_headers.find_headers(release)
        if tree is None:
            raise kernel_headers.missing(release)
        return str(kernel_headers.make_headers(tree, Path(cache)))

    def loaded_bpf(self, ids: Sequence[int] | None, room_bytes: int) -> LoadedBpf:
        """See `Kernel.loaded_bpf`."""
        try:
            return self._loaded.read(bpf_calls.program_ids() if ids is None else ids, room_bytes)
        except KernelError:
            return LoadedBpf()

    def bpf_program_ids(self, after: int) -> tuple[int, ...]:
        """See `Kernel.bpf_program_ids`."""
        return bpf_calls.program_ids(after)

    def bpf_symbols(self, ids: Sequence[int]) -> tuple[BpfSymbols, ...]:
        """See `Kernel.bpf_symbols`."""
        return tuple(program_image.symbols(ids))
