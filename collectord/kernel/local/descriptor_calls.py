# SPDX-License-Identifier: Apache-2.0
"""Calls that whoever holds an event's descriptor may make."""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from collectord._native import _syscalls
from collectord.codec.perf_attr import ReadFormat
from collectord.errors import KernelError
from collectord.kernel.host import errno_mapping
from collectord.kernel.values.counter_reading import CounterReading

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")
_COUNTER_BYTES: Final = 40


@cache
def _figures(read_format: int) -> tuple[bool, ...]:
    """Return which figures follow the value that read(2) gives, in its order."""
    return tuple(
        bool(read_format & int(bit))
        for bit in (
            ReadFormat.TOTAL_TIME_ENABLED,
            ReadFormat.TOTAL_TIME_RUNNING,
            ReadFormat.ID,
            ReadFormat.LOST,
        )
    )


def control(
    message: str, call: Callable[[*_Arguments], _Result], *arguments: *_Arguments
) -> _Result:
    """Carry out an ioctl. Raises KernelError with the message."""
    try:
        return call(*arguments)
    except OSError as error:
        raise errno_mapping.call_refused(error.errno or 0, "ioctl", message) from error


class DescriptorCalls:
    """Calls on the descriptors of events, which take no privilege."""

    def close(self, fd: int) -> None:
        """See `Kernel.close`."""
        os.close(fd)

    def enable(self, fd: int) -> None:
        """See `Kernel.enable`."""
        control("cannot enable an event", _syscalls.perf_enable, fd)

    def disable(self, fd: int) -> None:
        """See `Kernel.disable`."""
        control("cannot disable an event", _syscalls.perf_disable, fd)

    def refresh(self, fd: int) -> None:
        """See `Kernel.refresh`.

        Newer kernels stop the event at its last overflow and disable it later. Enabling it again
        does not start it (perf_trace_add(), Linux 6.18): setting its period, to its present value,
        does.
        """
        control("cannot arm an event", _syscalls.perf_refresh, fd, 1)
        control("cannot start an event again", _syscalls.perf_set_period, fd, 1)

    def set_filter(self, fd: int, text: str) -> None:
        """See `Kernel.set_filter`."""
        message = "the kernel refuses the filter"
        control(message, _syscalls.perf_set_filter, fd, os.fsencode(text))

    def set_output(self, fd: int, ring_fd: int) -> None:
        """See `Kernel.set_output`."""
        control("cannot share a ring", _syscalls.perf_set_output, fd, ring_fd)

    def event_id(self, fd: int) -> int:
        """See `Kernel.event_id`."""
        return control("cannot read an event's id", _syscalls.perf_event_id, fd)

    def read_counter(self, fd: int, read_format: int) -> CounterReading:
        """See `Kernel.read_counter`. Order: value, time_enabled, time_running, id, lost."""
        try:
            data = os.read(fd, _COUNTER_BYTES)
        except OSError as error:
            code = error.errno or 0
            raise errno_mapping.call_refused(code, "read", "cannot read a counter") from error
        wanted = _figures(int(read_format))
        if len(data) != 8 * (1 + sum(wanted)):
            # An event in error state (its pinned PMU slot is gone) reads as end of file.
            raise KernelError("the event has no counter any more", syscall="read")
        words = iter(struct.unpack(f"<{len(data) // 8}Q", data))
        value = next(words)
        enabled, running, event_id, lost = (next(words) if bit else None for bit in wanted)
        return CounterReading(value, enabled or 0, running or 0, event_id or 0, lost)

    def pause_output(self, fd: int, *, paused: bool) -> None:
        """See `Kernel.pause_output`."""
        control("cannot pause a ring", _syscalls.perf_pause_output, fd, paused)
