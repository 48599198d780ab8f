# SPDX-License-Identifier: Apache-2.0
"""A program of BPF that is loaded and attached: its maps, functions and descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.codec import bpf_struct
from collectord.errors import BpfError, CodecError
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord.codec.bpf_struct import Layout
    from collectord.programs.bpf_program import BpfProgram

# The table of collectord.h whose leaf is the event; it holds nothing.
_EVENT_TABLE: Final = "collectord_event"


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A map of a program. Numbers are the kernel's, the description of its types is bcc's.

    Attributes:
        name: its name in the program.
        fd: descriptor of the map; the stack given to `load` closes it.
        id: the kernel's number of the map.
        type: enum bpf_map_type.
        key_bytes, leaf_bytes: sizes; in a per-CPU map, of one CPU's value.
        max_entries: how many entries fit.
        key, leaf: the types as bcc describes them in JSON, None where there is none.
    """

    name: str
    fd: int
    id: int
    type: int
    key_bytes: int
    leaf_bytes: int
    max_entries: int
    key: object
    leaf: object


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A function that the kernel runs.

    Attributes:
        function: its name in C.
        fd: descriptor of the program; the stack given to `load` closes it.
        id: the kernel's number of the program.
        attachments: its places, e.g. "tracepoint sched:sched_switch".
        counted: each event that it submits, by its instructions; see `bcc_submissions`.
    """

    function: str
    fd: int
    id: int
    attachments: tuple[str, ...]
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A program that runs for as long as its attachments are open.

    Attributes:
        tables: maps by name.
        programs: its functions.
        attachment_fds: events and links that make the functions run.
        messages: warnings of the compiler.
        described: all this in JSON, with numbers of descriptors instead of them, see `handed_on`.
        fds: all descriptors, in the order of these numbers.
    """

    tables: dict[str, LoadedTable]
    programs: tuple[LoadedProgram, ...]
    attachment_fds: tuple[int, ...]
    messages: str
    described: bytes = b""
    fds: tuple[int, ...] = ()

    @property
    def counts_submissions(self) -> bool:
        """Whether every event goes through collectord_submit(), which counts it."""
        return all(one.counted for one in self.programs)


def event_layout(program: BpfProgram, tables: Mapping[str, LoadedTable]) -> Layout | None:
    """Return the layout of collectord_submit()'s event, None if the program does not call it.

    Raises:
        BpfError: it cannot be described, or lacks a field that the manifest's [event] shows.
    """
    table = tables.get(_EVENT_TABLE)
    if table is None:
        return None
    try:
        layout = bpf_struct.from_bcc(table.leaf, table.leaf_bytes, program.name)
    except CodecError as error:
        raise BpfError(
            f"{program.name}: its event cannot be described: {error.message}",
            program=program.name,
            step="describe",
            text=str(error),
            hint="use integers, char arrays and arrays of integers",
        ) from error
    known = [field.name for field in layout.fields]
    for index, column in enumerate(program.manifest.columns):
        if column.field not in known:
            raise BpfError(
                f"{program.name}.toml: event.columns[{index}].field: the event has no field "
                f"{column.field!r}",
                program=program.name,
                step="describe",
                hint=did_you_mean(column.field, known) or f"it has {', '.join(known)}",
            )
    return layout
