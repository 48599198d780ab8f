# SPDX-License-Identifier: Apache-2.0
"""Directories with sealed and with open segments of every format, to be damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.sink.pack import pack_steps
from collectord.sink.segment import group_files
from collectord.sink.segment_steps import run
from tests.support import bpf_segments, relay_segments, trace_segments
from tests.support import segments as perf_segments
from tests.support.aux_files import AuxFile
from tests.support.relay_records import record
from tests.support.segments import killed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def make_templates(root: Path) -> None:
    """Write directories with sealed and with open segments, of every format."""
    for kind, (seal, leave) in _KINDS.items():
        directory = root / kind / kind
        directory.mkdir(parents=True)
        seal(directory)
        killed(lambda directory=directory, leave=leave: leave(directory))  # type: ignore[misc]


def _seal_perf(directory: Path) -> None:
    sink = perf_segments.make_sink(directory)
    for token in (1, 2):
        perf_segments.write_segment(sink, token, samples=60)
    sink.close()


def _leave_perf(directory: Path) -> None:
    sink = perf_segments.make_sink(directory)
    perf_segments.fill(sink.next_segment(1, perf_segments.OPENING), 60)


def _bpf_chunks() -> list[bytes]:
    made = [
        bpf_segments.sample(bpf_segments.S_NS + n, bpf_segments.opened(500 + n)) for n in range(8)
    ]
    comm = bpf_segments.comm(1, 500, b"task")
    lost = bpf_segments.lost(bpf_segments.S_NS + 9, 3)
    exits = bpf_segments.sample(
        bpf_segments.S_NS + 10, bpf_segments.exited(1), event=bpf_segments.EXITS
    )
    return [bpf_segments.chunk(comm, *made, lost, exits, ends_round=True)] * 2


def _seal_bpf(directory: Path) -> None:
    bpf_segments.write(directory, *_bpf_chunks(), lost_samples={11: 3})


def _leave_bpf(directory: Path) -> None:
    bpf_segments.Writer(directory).write(*_bpf_chunks())


def _trace_options() -> dict[str, Any]:
    return {"segment_bytes": 16 << 10}


def _seal_trace(directory: Path) -> None:
    sink = trace_segments.make_sink(directory, **_trace_options())
    for token in (1, 2):
        trace_segments.write_segment(sink, token)
    sink.close()


def _leave_trace(directory: Path) -> None:
    sink = trace_segments.make_sink(directory, **_trace_options())
    trace_segments.fill(sink.next_segment(1, trace_segments.opening()))


def _relay(form: str) -> tuple[Callable[[Path], None], Callable[[Path], None]]:
    def seal(directory: Path) -> None:
        sink = relay_segments.make_sink(directory, form)
        relay_segments.seal(sink, 1, relay_segments.DATA)

    def leave(directory: Path) -> None:
        relay_segments.filled(relay_segments.make_sink(directory, form), 1, relay_segments.DATA)

    return seal, leave


def _seal_aux(directory: Path) -> None:
    file = AuxFile()
    pieces = [file.piece(bytes(range(256)) * n, offset=n, cpu=n % 2) for n in (1, 2, 3)]
    (directory / "aux.perf.data").write_bytes(file.build([file.sample(1_000), *pieces]))


def _packed(seal: Callable[[Path], object]) -> Callable[[Path], None]:
    def seal_and_pack(directory: Path) -> None:
        seal(directory)
        with open_folder(directory, Trust.WRITE) as folder:
            for group in group_files(folder):
                run(pack_steps(folder, group.paths))

    return seal_and_pack


def _seal_much_perf(directory: Path) -> None:
    perf_segments.write_segment(perf_segments.make_sink(directory), samples=500)


def _seal_much_trace(directory: Path) -> None:
    trace_segments.write_segment(trace_segments.make_sink(directory), counts=(80, 2))


def _seal_much_blktrace(directory: Path) -> None:
    data = {4: b"".join(map(record, range(1, 300))), 5: record(1)}
    relay_segments.seal(relay_segments.make_sink(directory), 1, data)


def _leave_nothing(directory: Path) -> None:
    del directory


_KINDS: Final = {
    "perf": (_seal_perf, _leave_perf),
    "bpf": (_seal_bpf, _leave_bpf),
    "trace": (_seal_trace, _leave_trace),
    "blktrace": _relay("blktrace"),
    "relay": _relay("relay"),
    "aux": (_seal_aux, _leave_nothing),
    "packed perf": (_packed(_seal_much_perf), _leave_nothing),
    "packed trace": (_packed(_seal_much_trace), _leave_nothing),
    "packed blktrace": (_packed(_seal_much_blktrace), _leave_nothing),
}
