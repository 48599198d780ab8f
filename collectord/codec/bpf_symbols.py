# SPDX-License-Identifier: Apache-2.0
"""Functions of a loaded BPF program, under the names that perf and kallsyms use."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.codec import btf
from collectord.codec.perf_bpf import ARRAY_PLACES, BpfArray
from collectord.codec.perf_sideband import BpfEvent, BpfEventType, Ksymbol, KsymbolType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.codec.perf_bpf import BpfImage, Btf

# struct bpf_prog_info of include/uapi/linux/bpf.h.
_TAG_AT: Final = 8
_TAG_BYTES: Final = 8
_LOAD_TIME: Final = struct.Struct("<40xQ")
_NAME: Final = struct.Struct("<64x16s")
_UNNAMED: Final = b"F"  # perf's name for a function that only types would name
_NAME_MAX_BYTES: Final = 511  # KSYM_NAME_LEN without its NUL


@dataclass(frozen=True, slots=True)
class BpfFunction:
    """A function's place in the kernel; address and length in bytes."""

    name: bytes
    addr: int
    length: int


@dataclass(frozen=True, slots=True)
class BpfSymbols:
    """The identity of a loaded program.

    Attributes:
        id: the kernel's number of the program.
        tag: of its code.
        loaded_ns: CLOCK_BOOTTIME.
        functions: empty without a JIT, or if addresses are hidden.
    """

    id: int
    tag: bytes
    loaded_ns: int
    functions: tuple[BpfFunction, ...]

    def records(self) -> Iterator[Ksymbol | BpfEvent]:
        """Yield the records that the kernel writes when the program is loaded."""
        for function in self.functions:
            yield Ksymbol(function.addr, function.length, KsymbolType.BPF, 0, function.name)
        yield BpfEvent(BpfEventType.LOAD, 0, self.id, self.tag)


def symbols_of(image: BpfImage, types: Btf | None) -> BpfSymbols:
    """Name the functions of a program, as synthesize_bpf_prog_name() of perf does.

    The name is `bpf_prog_TAG_NAME`, with the function's own tag and its name in the types; without
    types NAME is the program's name, if it has a single function.
    """
    addresses = _numbers(image, BpfArray.JITED_KSYMS, "Q")
    lengths = _numbers(image, BpfArray.JITED_FUNC_LENS, "I")
    tags = image.arrays.get(BpfArray.PROG_TAGS, b"")
    own = image.info[_TAG_AT : _TAG_AT + _TAG_BYTES]
    names = _names(image, types, len(addresses))
    functions = []
    for index, (addr, length) in enumerate(zip(addresses, lengths, strict=False)):
        tag = tags[index * _TAG_BYTES : (index + 1) * _TAG_BYTES] or own
        parts = (b"bpf_prog", tag.hex().encode(), names[index])
        if addr:
            name = b"_".join(filter(None, parts))[:_NAME_MAX_BYTES]
            functions.append(BpfFunction(name, addr, length))
    (loaded_ns,) = _LOAD_TIME.unpack_from(image.info)
    return BpfSymbols(image.id, own, loaded_ns, tuple(functions))


def _names(image: BpfImage, types: Btf | None, count: int) -> list[bytes]:
    if types is not None:
        numbers = _type_numbers(image)
        known = btf.type_names(types.data, set(numbers))
        found = [known.get(number, b"") for number in numbers]
        if found:
            return (found + [b""] * count)[:count]
    if count == 1:
        return [_NAME.unpack_from(image.info)[0].partition(b"\0")[0]]
    return [_UNNAMED] * count


def _type_numbers(image: BpfImage) -> list[int]:
    """Return the type of each function; struct bpf_func_info has an instruction and a type."""
    place = ARRAY_PLACES[BpfArray.FUNC_INFO]
    (size,) = struct.unpack_from("<I", image.info, place.size_at)
    data = image.arrays.get(BpfArray.FUNC_INFO, b"")
    whole = len(data) // size if size >= struct.calcsize("<II") else 0
    return [struct.unpack_from("<II", data, index * size)[1] for index in range(whole)]


def _numbers(image: BpfImage, array: BpfArray, kind: str) -> tuple[int, ...]:
    data = image.arrays.get(array, b"")
    return struct.unpack(f"<{len(data) // struct.calcsize(kind)}{kind}", data)
