# SPDX-License-Identifier: Apache-2.0
"""System calls that the standard library lacks, with typed arguments and results.

Each function raises OSError with the errno of a call that fails, and releases the GIL while it
is in the kernel. Descriptors that a call makes are close-on-exec. Sizes are not checked: the
kernel writes as many bytes as the object in question holds.
"""

from collections.abc import Iterable
from mmap import mmap
from typing import Literal

def perf_event_open(attr: bytes, pid: int, cpu: int, group_fd: int = -1, flags: int = 0) -> int:
    """Open an event and return its descriptor. Raises ValueError if `attr` is not whole."""

def perf_enable(fd: int) -> None:
    """Enable an event (PERF_EVENT_IOC_ENABLE)."""

def perf_disable(fd: int) -> None:
    """Disable an event (PERF_EVENT_IOC_DISABLE)."""

def perf_refresh(fd: int, overflows: int) -> None:
    """Enable an event until it has overflowed so often (PERF_EVENT_IOC_REFRESH)."""

def perf_set_period(fd: int, period: int) -> None:
    """Set the period of an event (PERF_EVENT_IOC_PERIOD)."""

def perf_set_output(fd: int, ring_fd: int) -> None:
    """Redirect an event's records into another event's ring (PERF_EVENT_IOC_SET_OUTPUT)."""

def perf_set_filter(fd: int, text: bytes) -> None:
    """Set the filter of an event (PERF_EVENT_IOC_SET_FILTER)."""

def perf_event_id(fd: int) -> int:
    """Return the id of an event (PERF_EVENT_IOC_ID)."""

def perf_pause_output(fd: int, paused: bool) -> None:
    """Stop or resume writing into a ring (PERF_EVENT_IOC_PAUSE_OUTPUT)."""

def perf_query_bpf(fd: int) -> tuple[int, ...]:
    """Return ids of the programs attached to a tracepoint (PERF_EVENT_IOC_QUERY_BPF)."""

def blktrace_setup(fd: int, setup: bytes) -> bytes:
    """Set up a block trace (BLKTRACESETUP); return the struct as the kernel filled it in."""

def blktrace_start(fd: int) -> None:
    """Start a block trace (BLKTRACESTART)."""

def blktrace_stop(fd: int) -> None:
    """Stop a block trace (BLKTRACESTOP)."""

def blktrace_teardown(fd: int) -> None:
    """Remove a block trace (BLKTRACETEARDOWN)."""

def ftrace_next_reader(fd: int) -> None:
    """Have a mapped ring hand out its next sub-buffer (TRACE_MMAP_IOCTL_GET_READER)."""

def copy_mapped(fd: int, at: int, size: int) -> bytes:
    """Map a file from its beginning, and copy `size` bytes from `at` on.

    The mmap module refuses files whose reported size is 0.
    """

def touch_between_clocks(page: mmap | None) -> tuple[int, int, int, int]:
    """Read MONOTONIC, write to the first byte of a page, read REALTIME and MONOTONIC.

    Returns:
        The three readings in ns, and the address that was written to.
    """

def clock_discipline() -> tuple[bool, int, int]:
    """Read the state of the wall clock (adjtimex, which changes nothing without a mode).

    Returns:
        Whether it is synchronized, and the largest and the estimated error in us.
    """

def membarrier_global() -> None:
    """Wait until no CPU runs code that it ran before this call (MEMBARRIER_CMD_GLOBAL)."""

def mount(source: bytes, target: bytes, kind: bytes) -> None:
    """Mount a file system of a kind, without flags or options."""

def mount_detached(kind: bytes) -> int:
    """Mount a file system of a kind where no path leads to it (fsmount; Linux 5.2).

    Returns:
        A descriptor of its root, with whose last user the mount ends.
    """

def bpf_map_lookup(fd: int, key: bytes, value_bytes: int) -> bytes:
    """Return the value of a key in a map, for all CPUs. Raises ENOENT if the key is absent."""

def bpf_map_update(fd: int, key: bytes, value: bytes) -> None:
    """Set the value of a key in a map."""

def bpf_map_next_key(fd: int, key: bytes | None, key_bytes: int) -> bytes:
    """Return the key after this one in a map, or its first one. Raises ENOENT after the last."""

def bpf_map_batch(
    fd: int, position: bytes | None, key_bytes: int, value_bytes: int, entries: int
) -> tuple[bytes, bytes, bytes | None]:
    """Read entries of a map from a position on, None for its beginning.

    Returns:
        Keys, values, and the position of the next batch; None after the last one.
    """

def bpf_next_id(kind: Literal["program", "map", "link"], after: int) -> int | None:
    """Return the least id of an object beyond `after`; None if there is none."""

def bpf_open_id(kind: Literal["program", "btf"], number: int) -> int:
    """Return a descriptor of the object with an id."""

def bpf_object_info(
    fd: int, asked: bytes = b"", arrays: Iterable[tuple[int, int]] = ()
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the struct that describes a map, program or BTF, as long as this kernel has it.

    Args:
        fd: descriptor of the object.
        asked: initial contents of the struct.
        arrays: arrays for the kernel to fill: the offsets of their pointers in the struct, and
            their sizes, which `asked` must agree with.

    Returns:
        The struct, and the arrays; bytes that the kernel did not write are 0.
    """

def bpf_load_program(
    kind: int, instructions: bytes, *, name: bytes = b"", attach_type: int = 0, btf_id: int = 0
) -> int:
    """Load a program under the GPL and return its descriptor.

    Args:
        kind: enum bpf_prog_type.
        instructions: 8 bytes each.
        name: at most 15 bytes.
        attach_type: enum bpf_attach_type.
        btf_id: the type of the kernel function that it will be attached to.
    """

def bpf_attach_tracing(program_fd: int) -> int:
    """Attach a program to the function that it was loaded for, while the descriptor is open."""

def bpf_count_runs() -> int:
    """Have the kernel count runs and run time of all programs while the descriptor is open."""
