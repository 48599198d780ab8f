# SPDX-License-Identifier: Apache-2.0
"""Kernel features that a test may require; a kernel without one is the only reason to skip."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from _pytest.outcomes import Skipped  # pytest.skip.Exception, as a type

if TYPE_CHECKING:
    from collections.abc import Callable

PMU_DEVICES: Final = Path("/sys/bus/event_source/devices")
_PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}
_TYPE_HARDWARE: Final = 0
_TYPE_BREAKPOINT: Final = 5
_ATTR_BYTES: Final = 128
_FORMAT_LOST: Final = 1 << 4
_EXCLUDE_KERNEL: Final = 1 << 5


class MissingFeature(Skipped):
    """The only skip that is not a failure: this kernel lacks the tested feature."""


def _refusal(
    *, kind: int = 1, config: int = 0, read_format: int = 0, flags: int = 0
) -> str | None:
    """Return why perf_event_open refuses this attr for the calling thread, None if it does not."""
    attr = bytearray(_ATTR_BYTES)
    struct.pack_into("=IIQQQQQ", attr, 0, kind, _ATTR_BYTES, config, 0, 0, read_format, flags)
    if kind == _TYPE_BREAKPOINT:
        target = ctypes.c_uint64()
        # bp_type WRITE, bp_addr, bp_len 8
        struct.pack_into("=I", attr, 52, 2)
        struct.pack_into("=QQ", attr, 56, ctypes.addressof(target), 8)
    libc = ctypes.CDLL(None, use_errno=True)
    number = _PERF_EVENT_OPEN[platform.machine()]
    buffer = (ctypes.c_char * len(attr)).from_buffer(attr)
    fd: int = libc.syscall(number, buffer, 0, -1, -1, 0)
    if fd < 0:
        code = ctypes.get_errno()
        if code in {errno.EPERM, errno.EACCES, errno.EMFILE}:
            # a privilege or a limit is no feature of the kernel
            raise OSError(code, os.strerror(code), "perf_event_open")
        return os.strerror(code)
    os.close(fd)
    return None


def _hardware() -> str | None:
    return _refusal(kind=_TYPE_HARDWARE, flags=_EXCLUDE_KERNEL)


def _two_cpus() -> str | None:
    return None if len(os.sched_getaffinity(0)) > 1 else "one CPU"


def _cpu_switch() -> str | None:
    switches = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/online")
    return None if any(switches) else "no CPU can be taken offline"


def _in_tracefs(name: str) -> str | None:
    for root in (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing")):
        if (root / name).exists():
            return None
    return f"no {name} in tracefs"


def _mapped_rings() -> str | None:
    """Return whether trace_pipe_raw can be mapped (Linux 6.10), which tracefs does not show."""
    major, minor = (int(word) for word in re.findall(r"\d+", platform.release())[:2])
    return None if (major, minor) >= (6, 10) else "before 6.10"


class MemoryCgroups(NamedTuple):
    """A directory for cgroups with a memory limit, and the names of their files.

    Attributes:
        root: the directory to make them in.
        limit: name of the file for the limit in bytes.
        swap_limit: name of the file that prevents swapping, and its value.
    """

    root: Path
    limit: str
    swap_limit: tuple[str, str]


class WriteCgroups(NamedTuple):
    """A directory for cgroups with limits of writes and reads, and the files that set them.

    Attributes:
        root: the directory to make them in.
        limit: name of the file for the limit of writes, and the format of a device's entry.
        read_limit: likewise for reads.
    """

    root: Path
    limit: tuple[str, str]
    read_limit: tuple[str, str]


def memory_cgroups() -> MemoryCgroups | None:
    """Return where cgroups have the memory controller on this host, None if nowhere."""
    root, unified = _controller("memory", "memory")
    if root is None:
        return None
    if unified:
        return MemoryCgroups(root, "memory.max", ("memory.swap.max", "0"))
    return MemoryCgroups(root, "memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", "{limit}"))


def write_cgroups() -> WriteCgroups | None:
    """Return where cgroups limit writes to a block device on this host, None if nowhere."""
    root, unified = _controller("blkio", "io")
    if root is None:
        return None
    if unified:
        files = [("io.max", f"{{device}} {key}={{limit}}") for key in ("wbps", "rbps")]
    else:
        names = [f"blkio.throttle.{kind}_bps_device" for kind in ("write", "read")]
        files = [(name, "{device} {limit}") for name in names]
    return WriteCgroups(root, *files)


def _controller(name: str, unified_name: str) -> tuple[Path | None, bool]:
    """Return the directory for new cgroups with a controller, and whether it is of v2.

    Args:
        name: of the controller where it has a hierarchy of its own.
        unified_name: of the controller in version 2.
    """
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        root = Path(place.split()[4])
        type_name, _, options = kind.split(" ", 2)
        if type_name == "cgroup" and name in options.split(","):
            return root, False
        if type_name == "cgroup2":
            handed_down = (root / "cgroup.subtree_control").read_text().split()
            if unified_name in handed_down:
                return root, True
    return None, False


def _ipv6_loopback() -> str | None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return str(error)
    return None


FEATURES: Final[dict[str, Callable[[], str | None]]] = {
    "hardware events": _hardware,
    "breakpoint events": lambda: _refusal(kind=_TYPE_BREAKPOINT, flags=_EXCLUDE_KERNEL),
    "PERF_FORMAT_LOST": lambda: _refusal(read_format=_FORMAT_LOST),
    "raw_syscalls tracepoints": lambda: _in_tracefs("events/raw_syscalls/sys_enter/id"),
    "page fault tracepoints": lambda: _in_tracefs("events/exceptions/page_fault_kernel/id"),
    "page cache tracepoints": lambda: _in_tracefs("events/filemap/mm_filemap_get_pages/id"),
    "mapped ftrace rings": _mapped_rings,
    "sub-buffer sizes": lambda: _in_tracefs("buffer_subbuf_size_kb"),
    "two CPUs": _two_cpus,
    "CPU hotplug": _cpu_switch,
    "cgroup v2": lambda: (
        None if " - cgroup2 " in Path("/proc/self/mountinfo").read_text() else "none mounted"
    ),
    "pressure": lambda: None if Path("/proc/pressure/cpu").exists() else "no /proc/pressure",
    "BPF": lambda: None if Path("/proc/sys/kernel/bpf_stats_enabled").exists() else "no bpf()",
    "BTF": lambda: None if Path("/sys/kernel/btf/vmlinux").exists() else "no BTF of vmlinux",
    "loop devices": lambda: None if Path("/dev/loop-control").exists() else "no loop-control",
    "IPv6": _ipv6_loopback,
    "memory cgroups": lambda: None if memory_cgroups() else "no controller for new cgroups",
    "write cgroups": lambda: None if write_cgroups() else "no controller for new cgroups",
    "dynamic PMU msr": lambda: None if (PMU_DEVICES / "msr").exists() else "no such PMU",
}


def require(feature: str) -> None:
    """Skip the calling test if this kernel lacks `feature`, a key of `FEATURES`."""
    lack = FEATURES[feature]()
    if lack is not None:
        message = f"this kernel lacks {feature}: {lack}"
        raise MissingFeature(message)
