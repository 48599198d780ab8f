# SPDX-License-Identifier: Apache-2.0
"""Each errno becomes the error that names what is missing, and the least that would give it."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Final

import pytest

from collectord.codec.perf_attr import EventType, PerfEventAttr
from collectord.errors import (
    KernelError,
    MissingFeature,
    MissingPrivilege,
    NoSuchTarget,
)
from collectord.kernel.host import errno_mapping
from collectord.kernel.values.limits import Limits, Purpose

NOBODY: Final = Limits(
    euid=65534,
    capabilities=frozenset(),
    nofile=(1024, 4096),
    memlock_bytes=8 << 20,
    paranoid=2,
    mlock_kb=516,
    max_sample_rate=100_000,
    max_stack=127,
)
TRACEPOINT: Final = PerfEventAttr(type=EventType.TRACEPOINT, config=7)
CYCLES: Final = PerfEventAttr(type=EventType.HARDWARE)


def _refused(
    code: int,
    attr: PerfEventAttr = TRACEPOINT,
    limits: Limits = NOBODY,
    *,
    cpu: int = 0,
    planned_fds: int = 0,
) -> KernelError:
    purpose = Purpose("a:b", planned_fds)
    return errno_mapping.open_refused(
        code, attr, purpose, limits, pid=42, cpu=cpu, online=(0, 1, 3)
    )


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_denial_names_perfmon(code: int) -> None:
    """A process without privileges is told CAP_PERFMON."""
    error = _refused(code)
    assert isinstance(error, MissingPrivilege)
    assert error.need == "CAP_PERFMON"
    assert "a:b" in str(error)


def test_debians_closed_level_names_sys_admin() -> None:
    """At paranoid 3 CAP_PERFMON does not help, so CAP_SYS_ADMIN is named, with the reason."""
    limits = replace(NOBODY, paranoid=3, capabilities=frozenset({"CAP_PERFMON"}))
    error = _refused(errno.EACCES, limits=limits)
    assert isinstance(error, MissingPrivilege)
    assert error.need.startswith("CAP_SYS_ADMIN, as kernel.perf_event_paranoid is 3")


def test_denial_despite_privilege_names_other_gates() -> None:
    """With the capability in hand, seccomp or a security module is to blame."""
    limits = replace(NOBODY, capabilities=frozenset({"CAP_PERFMON"}))
    assert "seccomp" in str(_refused(errno.EPERM, limits=limits))


@pytest.mark.parametrize("code", [errno.ENODEV, errno.EINVAL])
def test_offline_cpu_is_named(code: int) -> None:
    """A refusal on a CPU that is not online is about that CPU."""
    error = _refused(code, cpu=2)
    assert isinstance(error, NoSuchTarget)
    assert str(error).startswith("CPU 2 is offline or absent")
    assert str(error).endswith("CPUs online: 0-1,3")


def test_dead_process_is_named() -> None:
    """ESRCH names the pid."""
    error = _refused(errno.ESRCH)
    assert isinstance(error, NoSuchTarget)
    assert "pid 42" in str(error)


def test_descriptor_limit_tells_have_and_need() -> None:
    """EMFILE gives both limits and the number that the session needs."""
    text = str(_refused(errno.EMFILE, planned_fds=9000))
    assert "limit is 1024 (hard 4096)" in text
    assert "about 9000 are needed" in text
    assert "RLIMIT_NOFILE" in text
    assert "fs.file-max" in str(_refused(errno.ENFILE))


def test_frequency_above_the_limit_is_told() -> None:
    """EINVAL of a frequency above the sysctl gives the sysctl's value."""
    attr = PerfEventAttr(type=EventType.SOFTWARE, freq=True, sample_period=200_000)
    assert "max_sample_rate, 100000 now" in str(_refused(errno.EINVAL, attr))
    assert "max_sample_rate" not in str(_refused(errno.EINVAL))


def test_stack_depth_above_the_limit_is_told() -> None:
    """EOVERFLOW gives the depth and the sysctl's."""
    attr = PerfEventAttr(type=EventType.SOFTWARE, sample_max_stack=500)
    text = str(_refused(errno.EOVERFLOW, attr))
    assert "500" in text
    assert "perf_event_max_stack, 127" in text


@pytest.mark.parametrize(
    ("code", "attr", "feature"),
    [
        (errno.ENOENT, CYCLES, "hardware counters"),
        (errno.EOPNOTSUPP, CYCLES, "hardware counters"),
        (errno.ENOENT, TRACEPOINT, "a:b"),
        (errno.EOPNOTSUPP, PerfEventAttr(type=12, precise_ip=2), "precise_ip"),
        (errno.E2BIG, TRACEPOINT, "perf_event_attr"),
        (errno.ENOSYS, TRACEPOINT, "perf_event_open"),
    ],
)
def test_lacking_feature_is_named(code: int, attr: PerfEventAttr, feature: str) -> None:
    """The message names the feature that this machine lacks."""
    error = _refused(code, attr)
    assert isinstance(error, MissingFeature)
    assert error.feature == feature


def test_busy_and_exhausted_resources_are_told() -> None:
    """EBUSY and ENOSPC say who holds what is wanted."""
    breakpoint_attr = PerfEventAttr(type=EventType.BREAKPOINT)
    assert "exclusively" in str(_refused(errno.EBUSY))
    assert "no free debug register" in str(_refused(errno.ENOSPC, breakpoint_attr))


def test_unknown_errno_keeps_its_text() -> None:
    """An errno without a rule still names the event and the errno."""
    error = _refused(errno.EIO)
    assert type(error) is KernelError
    assert os.strerror(errno.EIO) in str(error)


def test_locked_memory_refusal_names_capability_and_limits() -> None:
    """EPERM of a ring's mmap names CAP_IPC_LOCK and both budgets."""
    error = errno_mapping.map_refused(errno.EPERM, 1 << 20, NOBODY)
    assert isinstance(error, MissingPrivilege)
    assert error.need == "CAP_IPC_LOCK"
    assert "8192 KiB" in str(error)
    assert "516" in str(error)


def test_closed_tracefs_names_group_before_capability() -> None:
    """Access to tracefs is by file permission: its group if it has one, then a capability."""
    mine = os.stat_result((0o040750, 0, 0, 0, 0, 12_345, 0, 0, 0, 0))
    closed = os.stat_result((0o040700, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    assert errno_mapping.tracefs_need(mine).startswith(
        "membership of group 12345, or CAP_DAC_READ"
    )
    assert "gid=GROUP" in errno_mapping.tracefs_need(closed)
    denied = errno_mapping.path_refused(PermissionError(errno.EACCES, "denied"), "/x", root=closed)
    assert isinstance(denied, MissingPrivilege)
    locked = errno_mapping.path_refused(PermissionError(errno.EPERM, "denied"), "/x", root=closed)
    assert "lockdown" in str(locked)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.ENODEV, MissingFeature, "Linux 6.10"),
        (errno.ENOTTY, MissingFeature, '"read" works'),
        (errno.EPROTO, MissingFeature, "unknown way"),
        (errno.EBUSY, KernelError, "kept by trace-cmd (pid 7)"),
        (errno.EPERM, MissingPrivilege, "security module"),
        (errno.ENOMEM, KernelError, "Cannot allocate memory"),
    ],
)
def test_mapping_an_ftrace_ring(code: int, kind: type[KernelError], words: str) -> None:
    """An old kernel, another user and want of memory are told apart, and the ring is named."""
    error = errno_mapping.pages_refused(code, "/t/per_cpu/cpu1/x", "kept by trace-cmd (pid 7)")
    assert type(error) is kind
    assert "cannot map /t/per_cpu/cpu1/x" in str(error)
    assert words in str(error)
    assert error.errno == code
