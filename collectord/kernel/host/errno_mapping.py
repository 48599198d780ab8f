# SPDX-License-Identifier: Apache-2.0
"""errno to typed error: the refused call, and the least privilege or setting that would permit it.

The rules are those of `kernel/events/core.c`. Debian's kernels add a level: with
perf_event_paranoid at 3 or more, opening any event takes CAP_SYS_ADMIN.
"""

from __future__ import annotations

import errno
import grp
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.perf_attr import EventType
from collectord.errors import KernelError, MissingFeature, MissingPrivilege, NoSuchTarget
from collectord.kernel.host import lockdown
from collectord.text import cpu_list

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.kernel.values.limits import Limits, Purpose

_SYSCALL: Final = "perf_event_open"
DENIED: Final = (errno.EPERM, errno.EACCES)
# Upstream stops at 2; from here on Debian's patch requires CAP_SYS_ADMIN for every event.
PARANOID_SYS_ADMIN: Final = 3


class Meaning(NamedTuple):
    """The meaning of some errnos of a call.

    Attributes:
        codes: the errnos.
        need: the least privilege that would permit the call, "" if it lacks none.
        feature: what this kernel or machine lacks, "" if nothing.
        message: what failed, where that is not what the call is for.
        hint: what to do.
    """

    codes: Collection[int]
    need: str = ""
    feature: str = ""
    message: str = ""
    hint: str = ""


def refused(code: int, message: str, syscall: str, *meanings: Meaning) -> KernelError:
    """Return the error for a call that failed: of the first meaning with its errno, if any."""
    found = next((one for one in meanings if code in one.codes), Meaning(()))
    text, hint = found.message or message, found.hint
    if found.need:
        return MissingPrivilege(text, need=found.need, syscall=syscall, errno=code, hint=hint)
    if found.feature:
        return MissingFeature(text, feature=found.feature, syscall=syscall, errno=code, hint=hint)
    return KernelError(text, syscall=syscall, errno=code, hint=hint)


def perf_need(limits: Limits) -> str:
    """Return the least privilege that opens any event, "" where the process already has it."""
    caps = limits.capabilities
    if "CAP_SYS_ADMIN" in caps:
        return ""
    if limits.paranoid is not None and limits.paranoid >= PARANOID_SYS_ADMIN:
        return (
            "CAP_SYS_ADMIN, as kernel.perf_event_paranoid is "
            f"{limits.paranoid}; at 2 or less CAP_PERFMON is enough"
        )
    return "" if "CAP_PERFMON" in caps else "CAP_PERFMON"


def task_gone(pid: int) -> NoSuchTarget:
    """Return the error for a task that has exited, or is about to."""
    return NoSuchTarget(f"pid {pid} does not exist any more", errno=errno.ESRCH)


def open_refused(
    code: int,
    attr: PerfEventAttr,
    purpose: Purpose,
    limits: Limits,
    *,
    pid: int,
    cpu: int,
    online: tuple[int, ...],
) -> KernelError:
    """Return the error for a refused perf_event_open.

    Args:
        code: the errno.
        attr: the requested attributes.
        purpose: what the event was for.
        limits: privileges and limits of the caller.
        pid: target of the call.
        cpu: CPU of the call, -1 for any.
        online: CPUs online after the refusal.
    """
    event = purpose.event
    if cpu >= 0 and cpu not in online and code in (errno.ENODEV, errno.EINVAL, errno.ENXIO):
        return NoSuchTarget(
            f"CPU {cpu} is offline or absent",
            errno=code,
            hint=f"CPUs online: {cpu_list.render(online)}",
        )
    if code == errno.ESRCH:
        return task_gone(pid)
    if code in (errno.EMFILE, errno.ENFILE):
        return _no_descriptors(code, purpose, limits)
    return refused(
        code,
        f"cannot open {event}",
        _SYSCALL,
        _open_denied(limits),
        Meaning(
            (errno.EINVAL, errno.EOVERFLOW),
            message=f"the kernel refuses the attributes of {event}",
            hint=_attribute_hint(code, attr, limits),
        ),
        Meaning(
            (errno.EBUSY,),
            message=f"{event} is in use",
            hint="another user holds this PMU exclusively; stop that one first",
        ),
        Meaning(
            (errno.ENOSPC,) if attr.type == EventType.BREAKPOINT else (),
            message=f"no free debug register for {event}",
            hint="ask for fewer breakpoints, or stop the debugger that holds them",
        ),
        _open_lacking(code, event, attr),
    )


def _open_denied(limits: Limits) -> Meaning:
    if need := perf_need(limits):
        return Meaning(DENIED, need)
    hint = "the capabilities suffice, so a seccomp filter, a security module or lockdown denies"
    return Meaning(DENIED, "a rule of the seccomp filter or security module", hint=hint)


def _no_descriptors(code: int, purpose: Purpose, limits: Limits) -> KernelError:
    soft, hard = limits.nofile
    planned = purpose.planned_fds
    wanted = f"about {planned} are needed for this session; " if planned else ""
    message = f"out of file descriptors at {purpose.event}: the limit is {soft} (hard {hard})"
    own = "raise RLIMIT_NOFILE (LimitNOFILE= of the unit, ulimit -n)"
    hint = wanted + ("raise the sysctl fs.file-max" if code == errno.ENFILE else own)
    return KernelError(message, syscall=_SYSCALL, errno=code, hint=hint)


def _attribute_hint(code: int, attr: PerfEventAttr, limits: Limits) -> str:
    if attr.freq and attr.sample_period > limits.max_sample_rate:
        return (
            f"{attr.sample_period} samples a second are more than "
            f"kernel.perf_event_max_sample_rate, {limits.max_sample_rate} now"
        )
    if code == errno.EOVERFLOW:
        return (
            f"{attr.sample_max_stack} stack frames are more than "
            f"kernel.perf_event_max_stack, {limits.max_stack}"
        )
    return ""


def _open_lacking(code: int, event: str, attr: PerfEventAttr) -> Meaning:
    if code == errno.E2BIG:
        feature, why = "perf_event_attr", "this kernel does not know all its attributes"
    elif code == errno.ENOSYS:
        feature, why = "perf_event_open", "this kernel is built without perf events"
    elif attr.type in (EventType.HARDWARE, EventType.HW_CACHE, EventType.RAW):
        feature = "hardware counters"
        why = "this machine, or its hypervisor, offers no such counter; try cpu-clock"
    elif code == errno.EOPNOTSUPP and attr.precise_ip:
        feature, why = "precise_ip", "this event has no such precision; leave out :p"
    else:
        feature, why = event, "no driver on this machine provides it in this form"
    codes = (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.ENOSYS, errno.E2BIG)
    return Meaning(codes, feature=feature, hint=why)


def map_refused(code: int, data_bytes: int, limits: Limits, *, what: str = "ring") -> KernelError:
    """Return the error for a refused mmap of a ring or of its AUX area."""
    size = f"{what} of {data_bytes >> 10} KiB"
    memlock = "none" if limits.memlock_bytes < 0 else f"{limits.memlock_bytes >> 10} KiB"
    over_budget = Meaning(
        (errno.EPERM,),
        "CAP_IPC_LOCK",
        message=f"{size} exceeds the budget of locked memory",
        hint=f"needs CAP_IPC_LOCK, or a larger RLIMIT_MEMLOCK (now {memlock}), or a larger "
        f"kernel.perf_event_mlock_kb (now {limits.mlock_kb}, per CPU and user)",
    )
    return refused(code, f"cannot map {size}", "mmap", over_budget)


def no_aux(code: int) -> MissingFeature:
    """Return the error where an event's PMU has no AUX area."""
    return MissingFeature(
        "the event's PMU has no AUX area",
        feature="AUX",
        syscall="mmap",
        errno=code,
        hint="leave out the AUX size; `collectord list` shows the PMUs that have one",
    )


def pages_refused(code: int, path: str, kept_by: str) -> KernelError:
    """Return the error for a refused mmap of an ftrace ring.

    Args:
        code: the errno.
        path: path of its `trace_pipe_raw`.
        kept_by: who else has the instance open, in words.
    """
    unknown = "its meta page is laid out in an unknown way"
    needs = "it needs Linux 6.10 and a ring in plain memory"
    why = f'{unknown if code == errno.EPROTO else needs}; transport "read" works always'
    denied = 'a security module denies it; transport "read" needs no mapping'
    return refused(
        code,
        f"cannot map {path}",
        "mmap",
        Meaning((errno.ENODEV, errno.ENOTTY, errno.EPROTO), feature="ftrace mmap", hint=why),
        Meaning((errno.EBUSY,), hint=kept_by),
        Meaning(DENIED, "a rule of the security module", hint=denied),
    )


def tracefs_locked_down() -> MissingPrivilege:
    """Return the error where kernel lockdown has emptied tracefs."""
    return MissingPrivilege(
        "kernel lockdown (confidentiality) closes tracefs",
        need=lockdown.NEED,
        errno=errno.EPERM,
        hint="no capability opens it; boot with lockdown=integrity or none",
    )


def call_refused(code: int, syscall: str, message: str) -> KernelError:
    """Return the error for an ioctl, read or query that failed."""
    lacking = Meaning((errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS), feature=syscall)
    return refused(code, message, syscall, Meaning(DENIED, "CAP_PERFMON"), lacking)


def path_refused(error: OSError, path: str, *, root: os.stat_result | None) -> KernelError:
    """Return the error for a file of tracefs, where access is plain file permission.

    Args:
        error: the exception of the call.
        path: the file.
        root: status of the mount's root, for its group; None if that cannot be read either.
    """
    closed = Meaning(
        (errno.EPERM,),
        lockdown.NEED,
        message=f"cannot open {path}",
        hint="kernel lockdown closes tracefs; no capability opens it",
    )
    denied = Meaning((errno.EACCES,), tracefs_need(root))
    return refused(error.errno or 0, f"cannot read {path}", "open", denied, closed)


def tracefs_need(root: os.stat_result | None) -> str:
    """Return the least that gives read access to tracefs (CAP_SYS_ADMIN does not)."""
    group_may_read = stat.S_IRGRP | stat.S_IXGRP
    if root is not None and root.st_gid != 0 and root.st_mode & group_may_read == group_may_read:
        return f"membership of group {_group_name(root.st_gid)}, or CAP_DAC_READ_SEARCH"
    return (
        "a group that may read tracefs (mount -o remount,gid=GROUP,mode=750 /sys/kernel/tracing),"
        " or CAP_DAC_READ_SEARCH"
    )


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
