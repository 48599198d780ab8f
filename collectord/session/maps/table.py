# SPDX-License-Identifier: Apache-2.0
"""Tables of BPF programs: maps with the C types of their keys and leaves, read and decoded."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from collectord.codec import bpf_struct
from collectord.codec.bpf_struct import Layout
from collectord.errors import BpfError, CodecError
from collectord.kernel.values.bpf_objects import ENTRIES_MAX, MapType
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from collectord.codec.bpf_struct import Field
    from collectord.kernel.values.bpf_objects import Entries, MapInfo, ProgramInfo

# A field of a key; hashable.
Value = int | float | bool | str | bytes | tuple[float, ...]

_CODES: Final = {1: "b", 2: "h", 4: "i", 8: "q"}
_FLOAT_CODES: Final = {4: "f", 8: "d"}


class Table(Protocol):
    """The parts of `source.loaded_program.LoadedTable` that are used here."""

    @property
    def name(self) -> str:
        """The table's name in the program's text."""

    @property
    def fd(self) -> int:
        """The descriptor of the map."""

    @property
    def key(self) -> object:
        """BCC's description of the keys' C type."""

    @property
    def leaf(self) -> object:
        """BCC's description of the leaves' C type."""


class BpfKernel(Protocol):
    """The parts of `kernel.port.Kernel` that are used here."""

    def map_info(self, fd: int) -> MapInfo:
        """Return the sizes of a BPF map."""

    def map_entries(self, fd: int, *, info: MapInfo, limit: int = ENTRIES_MAX) -> Entries:
        """Return all entries of a BPF map, or the first ones."""

    def program_info(self, fd: int) -> ProgramInfo:
        """Return the kernel's counts of a BPF program."""


@dataclass(frozen=True, slots=True)
class TableType:
    """A table's sizes and types, which never change.

    Attributes:
        program: the program that the table belongs to.
        name: in the program's text.
        fd: of the map.
        info: sizes of the map.
        key: type of the keys; without fields for stacks, which have none.
        leaf: type of the leaves; without fields for stacks too.
    """

    program: str
    name: str
    fd: int
    info: MapInfo
    key: Layout
    leaf: Layout

    def key_field(self, name: str) -> Field:
        """Return a field of the keys. Raises BpfError if there is none."""
        return self._field(self.key, name, "key")

    def leaf_field(self, name: str) -> Field:
        """Return a field of the leaves. Raises BpfError if there is none."""
        return self._field(self.leaf, name, "leaf")

    def number(self, name: str) -> Field:
        """Return a field of the leaves that is one number. Raises BpfError if there is none."""
        field = self.leaf_field(name)
        if not is_number(field):
            raise self.wrong(f"{field.name or 'its leaf'} ({field.ctype}) is not a number")
        return field

    def has_key_field(self, name: str) -> bool:
        """Whether the keys have such a field."""
        return any(field.name == name for field in self.key.fields)

    def wrong(self, message: str, hint: str = "") -> BpfError:
        """Return the error for a manifest that contradicts this table."""
        return BpfError(
            f"{self.program}: table {self.name}: {message}",
            program=self.program,
            step="describe",
            hint=hint,
        )

    def _field(self, layout: Layout, name: str, what: str) -> Field:
        for field in layout.fields:
            if field.name == name:
                return field
        known = [field.name for field in layout.fields if field.name]
        if not name:
            raise self.wrong(f"its {what} is a struct, so a field of it must be named")
        if not known:
            raise self.wrong(f"its {what} is one number and has no field {name!r}")
        raise self.wrong(
            f"its {what} has no field {name!r}", did_you_mean(name, known) or ", ".join(known)
        )


@dataclass(frozen=True, slots=True)
class TableContents:
    """The contents of a table at one reading."""

    type: TableType
    entries: Entries

    def keys(self) -> list[bytes]:
        """Return the keys, in the order of the entries."""
        return _chunks(self.entries.keys, self.type.info.key_bytes)

    def leaves(self) -> list[bytes]:
        """Return the leaves of the first CPU, in the order of the entries."""
        info = self.type.info
        return [
            leaf[: info.value_bytes] for leaf in _chunks(self.entries.values, info.entry_bytes)
        ]

    def numbers(self, field: Field) -> list[float]:
        """Return a number field (`TableType.number`) of each leaf, added up over the CPUs."""
        unpacked = _per_cpu(self.type, field).iter_unpack(self.entries.values)
        if self.type.info.cpus == 1:
            return [value for (value,) in unpacked]
        return list(map(sum, unpacked))

    def positive(self, field: Field) -> Iterator[tuple[bytes, int]]:
        """Yield the keys of the entries whose number in a field is above 0, with that."""
        for key, value in zip(self.keys(), self.numbers(field), strict=True):
            if value > 0:
                yield key, int(value)


def describe_table(
    kernel: BpfKernel, program: str, tables: Mapping[str, Table], name: str
) -> TableType:
    """Return the description of a program's table.

    Raises:
        BpfError: there is no such table, or its types cannot be described.
        KernelError: the sizes of the map cannot be read.
    """
    table = tables.get(name)
    if table is None:
        raise BpfError(
            f"{program}: there is no table {name!r}",
            program=program,
            step="describe",
            hint=did_you_mean(name, tables) or f"tables: {', '.join(tables)}",
        )
    info = kernel.map_info(table.fd)
    if info.type == MapType.STACK_TRACE:
        empty = Layout(name, 0, ())
        return TableType(program, name, table.fd, info, empty, empty)
    try:
        key = bpf_struct.from_bcc(table.key, info.key_bytes, f"{name}, key")
        leaf = bpf_struct.from_bcc(table.leaf, info.value_bytes, f"{name}, leaf")
    except CodecError as error:
        raise BpfError(
            f"{program}: table {name} cannot be described: {error.message}",
            program=program,
            step="describe",
            text=str(error),
            hint="use integers, char arrays and arrays of integers",
        ) from error
    return TableType(program, name, table.fd, info, key, leaf)


def read_table(kernel: BpfKernel, table: TableType, *, limit: int = ENTRIES_MAX) -> TableContents:
    """Read a table's entries. Raises KernelError."""
    return TableContents(table, kernel.map_entries(table.fd, info=table.info, limit=limit))


def known_stacks(contents: TableContents) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield ids and addresses of a table of stacks, from the innermost frame outwards."""
    info = contents.type.info
    addresses = struct.Struct(f"<{info.value_bytes // 8}Q")
    for key, value in zip(
        contents.keys(), _chunks(contents.entries.values, info.entry_bytes), strict=True
    ):
        found = addresses.unpack(value)
        end = found.index(0) if 0 in found else len(found)
        yield int.from_bytes(key, "little"), found[:end]


class Picker:
    """Extracts some fields of keys or leaves.

    Args:
        layout: of the keys or leaves.
        fields: the fields, in the order in which they are returned.
    """

    def __init__(self, layout: Layout, fields: Sequence[Field]) -> None:
        self._names = [field.name for field in fields]
        chosen = tuple(field for field in layout.fields if field.name in self._names)
        self._decode = bpf_struct.decoder(msgspec.structs.replace(layout, fields=chosen))

    def __call__(self, content: bytes) -> tuple[Value, ...]:
        """Return the fields of one key or leaf; arrays as tuples, so that they are hashable."""
        values = self._decode(content)
        return tuple(
            tuple(value) if isinstance(value, list) else value
            for value in map(values.__getitem__, self._names)
        )


def is_number(field: Field) -> bool:
    """Whether the field is one number, not an array or text."""
    return _code(field) is not None


def _per_cpu(table: TableType, field: Field) -> struct.Struct:
    """Return the unpacker of one field of every CPU's leaf in an entry's value."""
    code = _code(field)
    after = table.info.cpu_bytes - field.offset - field.size
    return struct.Struct("<" + f"{field.offset}x{code}{after}x" * table.info.cpus)


def _code(field: Field) -> str | None:
    if field.count:
        return None
    match field.kind:
        case "int":
            return _CODES.get(field.size)
        case "uint":
            return _CODES.get(field.size, "").upper() or None
        case "float":
            return _FLOAT_CODES.get(field.size)
        case "bool":
            return "?"
    return None


def _chunks(content: bytes, size: int) -> list[bytes]:
    return [chunk for (chunk,) in struct.iter_unpack(f"{size}s", content)] if content else []
