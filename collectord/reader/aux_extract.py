# SPDX-License-Identifier: Apache-2.0
"""Read stage: write the AUX traces of a segment to raw files, for decoders other than perf."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from collectord.codec.aux_record import iter_pieces
from collectord.errors import CodecError, SinkError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_file, open_folder
from collectord.sink.perf_file import PerfFile
from collectord.sink.scan import mapped
from collectord.sink.segment import DIRECTORY_MODE, PARTIAL, sink_errors

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.codec.aux_record import AuxPiece
    from collectord.folders.folder import Folder

_UNSEALED_HINT: Final = (
    "a running session seals it in time, otherwise `collectord segments repair` does"
)


@dataclass(slots=True)
class AuxTrace:
    """The trace of one AUX area in a segment.

    Attributes:
        path: of the raw file: the pieces one after the other, without their framing.
        cpu: -1 if the area belongs to a thread.
        tid: -1 if it belongs to a CPU.
        offset: position of its first byte in the trace, which began before the segment.
        bytes: size of the file.
        pieces: number of pieces.
        gaps: number of places where the trace does not continue at its last position.
        missing_bytes: bytes skipped there; none if the trace begins anew.
        end: position behind its last byte.
    """

    path: Path
    cpu: int
    tid: int
    offset: int
    bytes: int = 0
    pieces: int = 0
    gaps: int = 0
    missing_bytes: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Extraction:
    """The traces of a segment. `damage` says where its data stop being readable, "" if nowhere."""

    traces: tuple[AuxTrace, ...]
    damage: str = ""


def extract(segment: Path, directory: Path) -> Extraction:
    """Write a file for each AUX area whose trace is in a sealed segment.

    Files of the same names are replaced. If it fails, no file is left. The directory is made once
    there is something to write.

    Raises:
        SinkError: the segment is not sealed, is not perf.data, or cannot be read, or the directory
            cannot be written.
    """
    with ExitStack() as stack:
        with sink_errors("cannot read the segment", segment, reading=True):
            fd = open_file(segment)
        stack.callback(os.close, fd)
        file = _open(fd, segment)
        traces = _Traces(stack.enter_context(ExitStack()), segment.name, directory)
        damage = ""
        with sink_errors("cannot extract AUX traces", directory):
            end = min(file.data_offset + file.data_bytes, os.fstat(fd).st_size)
            with mapped(fd, end) as view:
                try:
                    with view[file.data_offset :] as data:
                        for piece in iter_pieces(data):
                            with data[piece.at : piece.at + piece.size] as payload:
                                traces.take(piece, payload)
                except CodecError as error:
                    at = file.data_offset + error.offset
                    damage = f"no record at byte {at} ({error.reason})"
            found = traces.finish()
    return Extraction(found, damage)


def _open(fd: int, segment: Path) -> PerfFile:
    try:
        file = PerfFile(fd)
    except CodecError as error:
        hint = "AUX traces are in perf.data segments"
        raise SinkError(
            f"not a perf.data file: {error.message}", path=str(segment), hint=hint
        ) from error
    if not file.data_bytes or segment.name.endswith(PARTIAL):
        raise SinkError("it is not sealed", path=str(segment), hint=_UNSEALED_HINT)
    return file


class _Traces:
    """Raw files, one for each area, which are removed again unless they are finished."""

    def __init__(self, stack: ExitStack, name: str, directory: Path) -> None:
        self._undo = stack
        self._folder: Folder | None = None
        self._name = name
        self._directory = directory
        self._found: dict[tuple[int, int], tuple[AuxTrace, IO[bytes]]] = {}

    def take(self, piece: AuxPiece, payload: memoryview) -> None:
        """Add a piece. Raises OSError."""
        key = piece.cpu, piece.tid
        if key not in self._found:
            self._found[key] = self._begin(piece)
        trace, file = self._found[key]
        if piece.offset != trace.end:
            trace.gaps += 1
            trace.missing_bytes += max(piece.offset - trace.end, 0)
        trace.end = piece.offset + piece.size
        file.write(payload)
        trace.bytes += len(payload)
        trace.pieces += 1

    def finish(self) -> tuple[AuxTrace, ...]:
        """Keep what was written; traces of CPUs come first. Raises OSError."""
        for _, file in self._found.values():
            file.close()
        self._undo.pop_all()
        if self._folder is not None:
            self._folder.close()
        traces = [trace for trace, _ in self._found.values()]
        return tuple(sorted(traces, key=lambda t: (t.tid, t.cpu)))

    def _begin(self, piece: AuxPiece) -> tuple[AuxTrace, IO[bytes]]:
        if self._folder is None:
            made = open_folder(self._directory, Trust.WRITE, make_mode=DIRECTORY_MODE)
            self._folder = self._undo.enter_context(made)
        parts = [f"cpu{piece.cpu}"] if piece.cpu >= 0 else []
        parts += [f"tid{piece.tid}"] if piece.tid >= 0 else []
        path = self._directory / ".".join((self._name, "aux", *parts))
        file = os.fdopen(self._folder.replace(path.name), "wb")
        self._undo.callback(self._folder.remove, path.name, missing_ok=True)
        self._undo.callback(file.close)
        return AuxTrace(path, piece.cpu, piece.tid, piece.offset, end=piece.offset), file
