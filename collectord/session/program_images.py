# SPDX-License-Identifier: Apache-2.0
"""Code and types of the BPF programs that a stream was told of, as its files give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.codec.perf_bpf import LoadedBpf

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from collectord.codec.perf_bpf import BpfImage, Btf
    from collectord.kernel.port import Kernel

# Of one stream: each of its files has them.
ROOM_BYTES: Final = 4 << 20


class ProgramImages:
    """Programs that run in the file that is written, or have run in it.

    Args:
        kernel: reads them.
        room_bytes: for all of them; those that come when there is none left are not kept.
    """

    def __init__(self, kernel: Kernel, room_bytes: int = ROOM_BYTES) -> None:
        self._kernel = kernel
        self._room_bytes = room_bytes
        self._programs: dict[int, BpfImage] = {}
        self._types: dict[int, Btf] = {}

    def learn(self, ids: Iterable[int]) -> None:
        """Read programs as long as they are loaded."""
        held = LoadedBpf(tuple(self._programs.values()), tuple(self._types.values()))
        new = [number for number in ids if number not in self._programs]
        if not new:
            return
        read = self._kernel.loaded_bpf(new, self._room_bytes - held.size_bytes)
        self._programs |= {image.id: image for image in read.programs}
        self._types |= {btf.id: btf for btf in read.types}

    def loaded(self, running: Collection[int]) -> LoadedBpf:
        """Give what ran in a file that ends now; the next one has those that run on."""
        told = LoadedBpf(tuple(self._programs.values()), tuple(self._types.values()))
        self._programs = {i: image for i, image in self._programs.items() if i in running}
        types = {image.btf_id for image in self._programs.values()}
        self._types = {i: btf for i, btf in self._types.items() if i in types}
        return told
