# SPDX-License-Identifier: Apache-2.0
"""BPF programs that are loaded: where their code lies and what the kernel calls it.

Programs loaded later announce themselves by KSYMBOL records; these are the ones before.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.errors import KernelError
from collectord.kernel import bpf
from collectord.kernel.bpf import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

# struct bpf_prog_info of include/uapi/linux/bpf.h, up to and with `prog_tags`.
_INFO_BYTES: Final = 192
_TAG_AT: Final = 8
_TAG_BYTES: Final = 8
_NAME_AT: Final = 64
_NAME_BYTES: Final = 16
_KSYMS_AT: Final = (104, 112)  # count, array of u64
_LENGTHS_AT: Final = (108, 120)  # count, array of u32
_TAGS_AT: Final = (180, 184)  # count, array of tags
_LISTED: Final = b"\t[bpf]\n"
_FUNCTIONS_MAX: Final = 256  # BPF_MAX_SUBPROGS


@dataclass(frozen=True, slots=True)
class BpfFunction:
    """One function of a program; address and length in bytes."""

    name: bytes
    addr: int
    length: int


def loaded_functions(proc: Path = Path("/proc")) -> Iterator[BpfFunction]:
    """Functions of all loaded programs; none without CAP_SYS_ADMIN or without a JIT.

    Args:
        proc: root of procfs, whose kallsyms has the names that are longer than a program tells.
    """
    try:
        ids = bpf.program_ids()
    except KernelError:
        return
    names = _Names(proc / "kallsyms")
    for program_id in ids:
        fd = bpf.call(Command.PROG_GET_FD_BY_ID, bytearray(struct.pack("<I", program_id)))
        if fd < 0:
            continue  # unloaded since its id was given
        try:
            yield from _functions(fd, names)
        finally:
            os.close(fd)


class _Names:
    """Names of programs' functions by address, read when first asked for."""

    def __init__(self, kallsyms: Path) -> None:
        self._kallsyms = kallsyms
        self._found: dict[int, bytes] | None = None

    def at(self, addr: int) -> bytes:
        """The name there, or none."""
        if self._found is None:
            self._found = {}
            with suppress(OSError), self._kallsyms.open("rb") as lines:
                for line in lines:
                    if line.endswith(_LISTED):
                        address, _, name = line.removesuffix(_LISTED).split()
                        self._found[int(address, 16)] = name
        return self._found.get(addr, b"")


def _functions(fd: int, names: _Names) -> Iterator[BpfFunction]:
    ksyms = (ctypes.c_uint64 * _FUNCTIONS_MAX)()
    lengths = (ctypes.c_uint32 * _FUNCTIONS_MAX)()
    tags = (ctypes.c_char * (_TAG_BYTES * _FUNCTIONS_MAX))()
    info = (ctypes.c_char * _INFO_BYTES)()
    for (count_at, array_at), array in (
        (_KSYMS_AT, ksyms),
        (_LENGTHS_AT, lengths),
        (_TAGS_AT, tags),
    ):
        struct.pack_into("<I", info, count_at, _FUNCTIONS_MAX)
        struct.pack_into("<Q", info, array_at, ctypes.addressof(array))
    attr = bytearray(struct.pack("<IIQ", fd, _INFO_BYTES, ctypes.addressof(info)))
    if bpf.call(Command.OBJ_GET_INFO_BY_FD, attr) < 0:
        return
    (count,) = struct.unpack_from("<I", info, _KSYMS_AT[0])
    raw = info.raw
    name = raw[_NAME_AT : _NAME_AT + _NAME_BYTES].partition(b"\0")[0]
    for index in range(min(count, _FUNCTIONS_MAX)):
        if not ksyms[index]:  # no JIT, or kernel.kptr_restrict
            continue
        tag = tags.raw[index * _TAG_BYTES : (index + 1) * _TAG_BYTES]
        # "F" is a function that only BTF would name, and BTF may have more of a cut name.
        known = name if count == 1 else b"F"
        if not any(tag):
            tag = raw[_TAG_AT : _TAG_AT + _TAG_BYTES]
        label = b"_".join(filter(None, (b"bpf_prog", tag.hex().encode(), known)))
        if count > 1 or len(name) == _NAME_BYTES - 1:
            label = names.at(ksyms[index]) or label
        yield BpfFunction(label, ksyms[index], lengths[index])
