# SPDX-License-Identifier: Apache-2.0
"""A stream of a running core, with its files, as the property tests of the drain need it."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from hypothesis.stateful import RuleBasedStateMachine, rule

from collectord._native import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

_WAIT_MS: Final = 10_000
_FLUSH_NS: Final = 2_000_000
_SIDEBAND_BYTES: Final = 65536


class Closing(Protocol):
    """Something that is closed at the end: the producer of a ring, or a mapping of one."""

    def close(self) -> None:
        """Close it."""


class Drained(RuleBasedStateMachine):
    """A core that drains into one stream, whose segments are files in memory.

    Subclasses call `start` and `prepare` in their beginning, open rings between them, and define
    `await_end` and `compare`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[int, int] = {}
        self.closed: dict[int, _core.SegmentClosed] = {}

    def start(
        self, *, shards: int, chunks: int, chunk_bytes: int, floor_bytes: int, limit_bytes: int
    ) -> None:
        """Make the core and its stream."""
        self.limit_bytes = limit_bytes
        self.core = _core.Core(
            shards=shards,
            chunks=chunks,
            chunk_bytes=chunk_bytes,
            flush_ns=_FLUSH_NS,
            floor_bytes=floor_bytes,
        )
        self.stream = self.core.add_stream(sideband_bytes=_SIDEBAND_BYTES)

    def prepare(self) -> None:
        """Give the stream its next file."""
        token = len(self.files)
        self.files[token] = os.memfd_create("segment")
        with suppress(BrokenPipeError):  # the stream was finished meanwhile
            self.stream.prepare(token, self.files[token], 0, self.limit_bytes)

    def serve(self) -> None:
        """Wait for a notice of the core, and do what it asks."""
        notify_fd = self.core.notify_fd
        poll = select.poll()
        poll.register(notify_fd, select.POLLIN)
        assert poll.poll(_WAIT_MS), f"the core is silent: {self.core.counters()}"
        os.eventfd_read(notify_fd)
        for event in self.core.events():
            match event:
                case _core.SegmentWanted():
                    self.prepare()
                case _core.SegmentClosed():
                    self.closed[event.token] = event
                case _:
                    raise AssertionError(event)

    def await_generation(self) -> int:
        """Ask for a generation, wait until it is written, and return it."""
        generation = self.core.request_flush()
        while self.stream.written_generation() < generation:
            self.serve()
        return generation

    @rule()
    def rotate(self) -> None:
        """The next chunk goes to a new segment."""
        self.stream.rotate()

    def end(self, maps: Sequence[Closing], producers: Sequence[Closing]) -> None:
        """Finish the stream, compare, and close all; the mappings before what they map."""
        try:
            self.await_end()
            self.core.stop()
            self.compare()
        finally:
            self.core.stop()
            for one in (*maps, *producers):
                one.close()
            for fd in self.files.values():
                os.close(fd)
            del self.core, self.stream

    def await_end(self) -> None:
        """Finish the stream, and wait until its last segment is closed."""
        raise NotImplementedError

    def compare(self) -> None:
        """Compare the files with what was produced."""
        raise NotImplementedError
