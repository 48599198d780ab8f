# SPDX-License-Identifier: Apache-2.0
"""trace.dat files of known records for queries, and what the tests' own decoder reads in them."""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Final

from collectord.codec.ftrace_format import parse_format
from collectord.codec.ftrace_page import Walk
from collectord.codec.trace_dat import build_head
from collectord.codec.trace_dat_head import Metadata, Place
from collectord.sink.trace_file import read_head
from tests.support.ftrace_pages import event, page
from tests.support.ftrace_records import decode_field
from tests.support.golden import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.support.ftrace_records import Value

PAGE_BYTES: Final = 4096
COMM: Final = "shell"
TID: Final = 77
_SWITCH: Final = struct.Struct("<HBBi16siiq16sii")


def metadata() -> Metadata:
    """Return the layouts of events of several kinds of fields."""

    def texts(*names: str) -> list[bytes]:
        return [(GOLDEN / f"{name}.format").read_bytes() for name in names]

    return Metadata(
        header_page=(GOLDEN / "header_page").read_bytes(),
        header_event=(GOLDEN / "header_event").read_bytes(),
        events={
            "raw_syscalls": texts("sys_enter", "sys_exit"),
            "sched": texts("sched_switch", "sched_process_exec"),
        },
        ftrace_events=texts("kernel_stack", "print"),
    )


def write_trace(path: Path, pages: Mapping[int, Sequence[bytes]]) -> None:
    """Write a file with these sub-buffers of each CPU."""
    most = max(map(len, pages.values()))
    head = build_head(metadata(), sorted(pages), PAGE_BYTES * max(most, 1))
    places = {
        cpu: Place(head.extents[cpu].offset, PAGE_BYTES * len(all_of))
        for cpu, all_of in pages.items()
    }
    names = head.cmdlines_patch([(TID, COMM.encode())])
    with path.open("wb") as file:
        file.write(head.image)
        for patch in (head.places_patch(places), names):
            file.seek(patch.offset)
            file.write(patch.data)
        for cpu, all_of in pages.items():
            file.seek(places[cpu].offset)
            file.write(b"".join(all_of))
        file.truncate(head.file_bytes)


def switch(next_pid: int, *, comm: bytes = b"shell", next_comm: bytes = b"next") -> bytes:
    """Return the record of a task switch."""
    return _SWITCH.pack(_switch_id(), 0, 0, TID, comm, TID, 120, -1, next_comm, next_pid, 100)


@cache
def _switch_id() -> int:
    return parse_format((GOLDEN / "sched_switch.format").read_bytes()).id


def switches(start_ns: int, *pids: int, lost: int | None = 0) -> bytes:
    """Return a sub-buffer of task switches, 10 ns apart."""
    events = [event(switch(pid), 10) for pid in pids]
    return page(start_ns, *events, lost=lost)


def decoded(path: Path) -> list[tuple[str, int, int, dict[str, Value]]]:
    """Return {event, stamp, CPU, own fields} of all records, as the codecs decode them."""
    found: list[tuple[str, int, int, dict[str, Value]]] = []
    with path.open("rb") as file:
        head = read_head(file.fileno())
        texts = [text for all_of in head.metadata.events.values() for text in all_of]
        layouts = [*map(parse_format, [*texts, *head.metadata.ftrace_events])]
        events = {layout.id: layout for layout in layouts}
        for cpu, extent in head.extents.items():
            file.seek(extent.offset)
            data = file.read(extent.size_bytes)
            for at in range(0, len(data), head.sub_buffer_bytes):
                one = data[at : at + head.sub_buffer_bytes]
                for stamp_ns, offset, size in Walk(one):
                    record = one[offset : offset + size]
                    layout = events[int.from_bytes(record[:2], "little")]
                    fields = {field.name: decode_field(record, field) for field in layout.fields}
                    found.append((layout.name, stamp_ns, cpu, fields))
    return found
