# SPDX-License-Identifier: Apache-2.0
"""The part of the kernel's port for BPF programs and their maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from collectord.codec.bpf_symbols import BpfSymbols
    from collectord.codec.perf_bpf import LoadedBpf
    from collectord.kernel.values.bpf_objects import Entries, MapInfo, ProgramInfo
    from collectord.programs.bpf_program import BpfProgram


class BpfPort(Protocol):
    """See `Kernel`."""

    def query_bpf(self, fd: int) -> tuple[int, ...] | None:
        """Return ids of the BPF programs on the event's tracepoint that may hide its events.

        Those that a live process of this program has loaded, and that hide none, are left out.

        Returns:
            None if that cannot be told yet of some program, and no other one may hide events.
        """

    def begin_loading(self) -> int:
        """Tell other processes that this one loads programs; return the number of their batch.

        Until `end_loading` nobody can tell whose a new program is. `forget_programs` is due even
        if nothing is loaded.
        """

    def end_loading(self, batch: int) -> None:
        """Tell other processes that the programs of a batch are loaded, or are not to be."""

    def may_hide_events(self, fd: int) -> bool:
        """Whether a BPF program may hide events of its tracepoint, by its own instructions."""

    def own_programs(self, batch: int, programs: Mapping[int, int]) -> None:
        """Make `query_bpf` leave out those of these programs that hide no event.

        That ends with `disown_programs`. Other processes of this program leave them out, too,
        until `forget_programs`. The instructions of a program decide, by what they may return; a
        program whose run the kernel skipped even once, which hides the event, is not left out
        either.

        Args:
            batch: the one that is being loaded.
            programs: a descriptor of each, by its id.
        """

    def disown_programs(self, programs: Collection[int]) -> None:
        """Stop using the descriptors of these programs; they are about to be closed."""

    def forget_programs(self, batch: int) -> None:
        """Remove the notes of a batch from where other processes look; it is unloaded."""

    def map_info(self, fd: int) -> MapInfo:
        """Return the sizes of a BPF map."""

    def map_lookup(self, fd: int, key: bytes, *, info: MapInfo) -> bytes | None:
        """Return the value of a key in a BPF map; see `bpf_calls.map_lookup`."""

    def map_update(
        self, fd: int, key: bytes, value: bytes | Sequence[bytes], *, info: MapInfo
    ) -> None:
        """Set the value of a key in a BPF map; see `bpf_calls.map_update`."""

    def map_entries(self, fd: int, *, info: MapInfo, limit: int = ...) -> Entries:
        """Return the entries of a BPF map, or the first ones; see `bpf_entries.map_entries`."""

    def program_info(self, fd: int) -> ProgramInfo:
        """Return the kernel's info and counters of a BPF program."""

    def enable_bpf_stats(self) -> int:
        """Have the kernel count the cost of BPF programs while the descriptor is open."""

    def bpf_program(self, name: str, local: Path) -> BpfProgram:
        """Return a program of the catalogue, shipped or in the host's own directory `local`.

        Raises:
            UsageError: there is no such program; the hint names the nearest.
            ConfigError: its files make no program, or others can change them.
        """

    def bpf_library(self, members: tuple[str, ...]) -> str:
        """Return the text of collectord.h, which programs of the catalogue may include.

        Args:
            members: STRUCT.MEMBER of each member whose place in the running kernel's structs it
                defines.

        Raises:
            MissingFeature: this kernel has no such member, or does not describe its types.
        """

    def bpf_headers(self, named: str, cache: str) -> str:
        """Return the kernel headers to compile BPF programs with.

        Args:
            named: a tree, "" to find one.
            cache: folder where a tree is put together that the host has in parts.

        Raises:
            MissingFeature: there are none; the hint names the package that has them.
        """

    def loaded_bpf(self, ids: Sequence[int] | None, room_bytes: int) -> LoadedBpf:
        """Return code and types of these BPF programs, or all, as far as there is room.

        Those that are gone are left out; without CAP_SYS_ADMIN there are none.
        """

    def bpf_program_ids(self, after: int) -> tuple[int, ...]:
        """Return the kernel's numbers of the loaded BPF programs, ascending, beyond `after`.

        Raises:
            MissingPrivilege, KernelError: they cannot be listed.
        """

    def bpf_symbols(self, ids: Sequence[int]) -> tuple[BpfSymbols, ...]:
        """Return the functions of these BPF programs; programs that are gone are left out."""
