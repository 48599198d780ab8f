# SPDX-License-Identifier: Apache-2.0
"""The layout of the event that a BPF program submits, once the program is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.codec import bpf_struct
from collectord.errors import BpfError, CodecError
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord.codec.bpf_struct import Layout
    from collectord.programs.bpf_program import BpfProgram
    from collectord.source.bcc_client import LoadedTable

# The table of collectord.h whose leaf is the event; it holds nothing.
TABLE: Final = "collectord_event"


def event_layout(program: BpfProgram, tables: Mapping[str, LoadedTable]) -> Layout | None:
    """Return the layout of collectord_submit()'s event, None if the program does not call it.

    Raises:
        BpfError: it cannot be described, or lacks a field that the manifest's [event] shows.
    """
    table = tables.get(TABLE)
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
