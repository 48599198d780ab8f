# SPDX-License-Identifier: Apache-2.0
"""AUX areas of the `perf` source: resuming events, and the flush for CoreSight.

CoreSight's ETR and ETB have no interrupt (drivers/hwtracing/coresight): their trace arrives when
the event is stopped. A CPU-wide event is never stopped, so it is stopped and started again at an
interval.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from collectord.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.kernel.port import Kernel
    from collectord.source.ring import AuxHandle, CounterFd, RingHandle

# Each reading is an interrupt of the event's CPU, about 20 us; the timer takes 10 us. A CPU whose
# thread the kernel does not observe (PID 1 on some hosted kernels) takes longer, so pauses follow.
_RESUME_READS: Final = 100
_RESUME_PAUSES: Final = 2_000
_RESUME_PAUSE_S: Final = 0.001


def await_resumed(kernel: Kernel, resumer: CounterFd) -> None:
    """Wait until an AUX area that an event has paused is resumed by the event armed for that.

    The resuming event disables itself at its only overflow, on its CPU, and its time stands still
    from then on.

    Raises:
        KernelError: its CPU takes no timer.
    """
    last_ns = -1
    for pause_s in (*[0.0] * _RESUME_READS, *[_RESUME_PAUSE_S] * _RESUME_PAUSES):
        if pause_s:
            time.sleep(pause_s)
        reading = kernel.read_counter(resumer.fd, resumer.read_format)
        if reading.time_enabled_ns == last_ns:
            return
        last_ns = reading.time_enabled_ns
    raise KernelError("a paused AUX area does not resume", hint="check the load of its CPU")


def flush_interval_ns(rings: Iterable[RingHandle]) -> int:
    """Return the time between two flushes, 0 where none of these rings' AUX areas needs them."""
    return min((area.plan.flush_ns for area in _flushed(rings)), default=0)


def flush(kernel: Kernel, rings: Iterable[RingHandle]) -> None:
    """Stop and start each event whose trace arrives only when it stops, if it runs.

    An event that waits for exec has not been enabled yet, and must not be.

    Raises:
        KernelError: an event can be neither read nor stopped.
    """
    for area in _flushed(rings):
        for counter in area.counters:
            reading = kernel.read_counter(counter.fd, counter.read_format)
            if reading.time_enabled_ns:
                kernel.disable(counter.fd)
                kernel.enable(counter.fd)


def _flushed(rings: Iterable[RingHandle]) -> list[AuxHandle]:
    return [area for ring in rings for area in ring.areas if area.plan.flush_ns]
