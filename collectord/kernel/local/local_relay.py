# SPDX-License-Identifier: Apache-2.0
"""Block traces and relay channels, opened by this process."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from collectord.kernel.local.local_host import LocalHost, Places
from collectord.kernel.relay import block_trace, left_block_traces, relay_channel
from collectord.kernel.values.relay_files import OpenedTrace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from collectord.codec.blktrace import Setup
    from collectord.kernel.values.relay_files import Keep, LeftTrace, RelayFile


class LocalRelay(LocalHost):
    """See `RelayPort`."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self._traces: dict[int, tuple[block_trace.Blktrace, ExitStack]] = {}
        self._trace_numbers = count(1)

    def open_blktrace(self, device: str, setup: Setup, keep: Keep) -> OpenedTrace:
        """See `Kernel.open_blktrace`."""
        with ExitStack() as own:
            trace = block_trace.open_trace(device, setup, keep, own, proc=self.proc, sys=self.sys)
            number = next(self._trace_numbers)
            self._traces[number] = trace, own.pop_all()
        return OpenedTrace(number, trace.files, trace.kept, trace.resumed)

    def start_blktrace(self, trace: int) -> None:
        """See `Kernel.start_blktrace`."""
        self._traces[trace][0].start()

    def quiet_blktrace(self, trace: int) -> None:
        """See `Kernel.quiet_blktrace`."""
        self._traces[trace][0].quiet()

    def blktrace_dropped(self, trace: int) -> int:
        """See `Kernel.blktrace_dropped`."""
        return self._traces[trace][0].dropped()

    def open_late_file(self, trace: int, cpu: int) -> RelayFile:
        """See `Kernel.open_late_file`."""
        return self._traces[trace][0].open_late(cpu)

    def close_late_file(self, trace: int, cpu: int) -> None:
        """See `Kernel.close_late_file`."""
        self._traces[trace][0].close_late(cpu)

    def take_late_records(self, trace: int) -> Mapping[int, int]:
        """See `Kernel.take_late_records`."""
        return self._traces[trace][0].take_late()

    def close_blktrace(self, trace: int) -> None:
        """See `Kernel.close_blktrace`."""
        _, stack = self._traces.pop(trace)
        stack.close()

    def leave_blktrace(self, trace: int) -> None:
        """See `Kernel.leave_blktrace`."""
        left, stack = self._traces.pop(trace)
        left.leave()
        stack.close()

    def end_left_traces(self, spared: Collection[str] = ()) -> Sequence[LeftTrace]:
        """See `Kernel.end_left_traces`."""
        return left_block_traces.end_leftovers(
            self.proc, self.sys, lambda note: not note.digest or note.digest not in spared
        )

    def end_lasting_traces(self) -> Sequence[LeftTrace]:
        """See `Kernel.end_lasting_traces`."""
        return left_block_traces.end_leftovers(self.proc, self.sys, lambda note: bool(note.digest))

    def kept_trace_memories(self) -> Mapping[str, int]:
        """See `Kernel.kept_trace_memories`."""
        return left_block_traces.kept_memories(self.proc)

    def open_channel(self, path: str) -> tuple[RelayFile, ...]:
        """See `Kernel.open_channel`."""
        return relay_channel.open_channel(Path(path))
