# SPDX-License-Identifier: Apache-2.0
"""Sink stage: open a segment of any format to read its events."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from collectord.codec.perf_data import MAGIC as PERF_MAGIC
from collectord.folders.folder import opened
from collectord.folders.walk import open_file
from collectord.reader.perf_events import BpfSegment
from collectord.reader.relay_events import RelaySegment, files_of
from collectord.reader.trace_events import TraceSegment
from collectord.sink.packing import plain_errors, unpacked
from collectord.sink.segment import sink_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def open_events(path: Path) -> Iterator[BpfSegment | TraceSegment | RelaySegment]:
    """Open a segment for the duration of a block; for a set, one file or all.

    Raises as `BpfSegment`, `TraceSegment` and `RelaySegment`.
    """
    files = files_of(path)
    if files:
        with ExitStack() as stack:
            yield RelaySegment(path, files, stack)
        return
    with sink_errors("cannot read the segment", path, reading=True):
        fd = open_file(path)
    with ExitStack() as stack:
        stack.enter_context(opened(fd))
        with plain_errors(path):
            plain = stack.enter_context(unpacked(fd))
        with sink_errors("cannot read the segment", path, reading=True):
            is_perf = os.pread(plain, len(PERF_MAGIC), 0) == PERF_MAGIC
        yield BpfSegment(plain, path) if is_perf else TraceSegment(plain, path)
