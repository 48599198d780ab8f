# SPDX-License-Identifier: Apache-2.0
"""Capabilities of ftrace, tried in an instance of one's own, and the cost of its transports.

The instance is small, has no events but markers, and is removed at the end. The cost of taking an
event from the ring depends on the kernel and the machine, by factors, so it is measured: the CPU
time that a few thousand markers take by each transport.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord._native import _core, _syscalls
from collectord.errors import KernelError, MissingFeature, MissingPrivilege
from collectord.facts.kernel_facts import FtraceFacts
from collectord.kernel.host import errno_mapping
from collectord.kernel.host.lockdown import CONFIDENTIALITY, read_lockdown
from collectord.kernel.mappings import map_pages
from collectord.kernel.tracefs.control_files import ControlFolder
from collectord.kernel.tracefs.instance import Instance
from collectord.kernel.values.instance_settings import OWNER_MARK, InstanceSettings
from collectord.model import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectord.kernel.probe.local_kernel import LocalKernel

_SPLICE_F_NONBLOCK: Final = 2  # include/linux/splice.h

_SUBBUF_BYTES: Final = 64 << 10
_RING_BYTES: Final = 512 << 10
_ROUNDS: Final = 2
# About 64 bytes each in the ring, as a tracepoint's event; together half the ring.
_MARKERS: Final = 4000
_MARKER: Final = b"x" * 40


def probe_ftrace(kernel: LocalKernel, *, measure: bool) -> FtraceFacts:
    """Probe what a tracefs source needs.

    Args:
        kernel: the kernel; its tracefs is not mounted by this.
        measure: whether to measure the costs of the transports too, in about 25 ms of CPU time.
    """
    folder = ControlFolder(kernel.tracefs.root, proc=kernel.proc)
    facts = FtraceFacts()
    with ExitStack() as stack:
        try:
            if read_lockdown(kernel.sys) == CONFIDENTIALITY:
                raise errno_mapping.tracefs_locked_down()
            kernel.tracefs.check_mounted()
            facts = replace(
                facts,
                subbuf_sizes=folder.has("buffer_subbuf_size_kb"),
                kprobes=folder.has("kprobe_events"),
                uprobes=folder.has("uprobe_events"),
                # Event probes have no file of their own; the kernel's help names the known kinds.
                eprobes="<attached-group>" in folder.read_text("README"),
                clock_mono="mono" in re.split(r"[\s\[\]]+", folder.read_text("trace_clock")),
            )
            cpu = stack.enter_context(_on_one_cpu(kernel))
            # All CPUs' rings are allocated: one is made larger, the others stay small.
            settings = InstanceSettings(
                session=f"probe{OWNER_MARK}{os.getpid()}",
                buffer_bytes=kernel.page_bytes,
                subbuf_bytes=_SUBBUF_BYTES if facts.subbuf_sizes else kernel.page_bytes,
                cpus=(cpu,),
            )
            instance = Instance.create(kernel.tracefs, settings, stack, proc=kernel.proc)
            return _tried(instance, cpu, facts, measure=measure)
        except MissingPrivilege as error:
            # A missing mount is not a missing privilege: a privileged process mounts it when
            # needed.
            need = "" if error.syscall == "mount" else error.need
            return replace(facts, instances=False, problem=error.message, need=need)
        except KernelError as error:
            return replace(facts, instances=False, problem=error.message)
        except OSError as error:
            problem = f"an instance cannot be used: {error.strerror}"
            return replace(facts, instances=False, problem=problem)


def _tried(instance: Instance, cpu: int, facts: FtraceFacts, *, measure: bool) -> FtraceFacts:
    with ExitStack() as stack:
        ring = _Ring(instance, cpu, stack)
        mmap, splice = ring.maps(), ring.splices()
        costs = ring.costs(mmap=mmap, splice=splice) if measure else {}
    return replace(facts, mmap=mmap, splice=splice, transport_ns=costs)


@contextmanager
def _on_one_cpu(kernel: LocalKernel) -> Iterator[int]:
    """Keep this thread on one CPU, whose ring receives its markers."""
    before = os.sched_getaffinity(0)
    cpu = min(before & set(kernel.online_cpus()))
    os.sched_setaffinity(0, {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, before)


class _Ring:
    """The ring of one CPU, filled with markers and emptied again."""

    def __init__(self, instance: Instance, cpu: int, stack: ExitStack) -> None:
        self._users = instance.other_users
        self._page = bytearray(instance.effective().subbuf_bytes)
        instance.resize(_RING_BYTES, cpu)
        self._raw_fd = instance.open_ring(cpu).raw_fd
        self._marker_fd = os.open(instance.path / "trace_marker", os.O_WRONLY | os.O_CLOEXEC)
        stack.callback(os.close, self._marker_fd)
        self._file_fd = os.memfd_create("collectord-probe", os.MFD_CLOEXEC)
        stack.callback(os.close, self._file_fd)
        self._pipe_fd, self._feed_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        stack.callback(os.close, self._pipe_fd)
        stack.callback(os.close, self._feed_fd)
        instance.enable()

    def maps(self) -> bool:
        """Whether the ring can be mapped, and sub-buffers be read by that."""
        try:
            page_map = map_pages(self._raw_fd, self._users)
        except MissingFeature:
            return False
        page_map.close()
        return True

    def splices(self) -> bool:
        """Whether whole sub-buffers can be spliced into a pipe."""
        try:
            fcntl.fcntl(self._feed_fd, fcntl.F_SETPIPE_SZ, len(self._page))
            return self._splice() >= 0
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM, errno.ENOSYS):
                return False
            raise KernelError(
                "cannot splice an ftrace ring", syscall="splice", errno=error.errno or 0
            ) from error

    def costs(self, *, mmap: bool, splice: bool) -> dict[str, float]:
        """Measure CPU ns per event of each available transport, the least of some rounds."""
        drains: dict[str, Callable[[], int]] = {Transport.READ: self._by_read}
        if mmap:
            drains[Transport.MMAP] = self._by_mmap
        if splice:
            drains[Transport.SPLICE] = self._by_splice
        rounds = [{name: drain() for name, drain in drains.items()} for _ in range(_ROUNDS)]
        return {str(name): min(one[name] for one in rounds) / _MARKERS for name in drains}

    def _by_read(self) -> int:
        """Read each sub-buffer, and walk its events."""
        self._fill()
        began = time.thread_time_ns()
        while self._read(self._page):
            _core.scan_pages(self._page, len(self._page))
        return time.thread_time_ns() - began

    def _by_mmap(self) -> int:
        """Have the kernel hand out each sub-buffer; copying another one stands for its copy."""
        self._fill()
        self._read(self._page)
        self._empty(bytearray(len(self._page)))
        self._fill()
        page_map = map_pages(self._raw_fd, self._users)
        try:
            began = time.thread_time_ns()
            read = -1
            while page_map.read != read:
                read = page_map.read
                _syscalls.ftrace_next_reader(self._raw_fd)
                _core.scan_pages(bytes(self._page), len(self._page))
            return time.thread_time_ns() - began
        finally:
            page_map.close()
            self._empty(self._page)

    def _by_splice(self) -> int:
        """Splice whole sub-buffers into a file; read and walk it again, as a seal does."""
        self._fill()
        os.lseek(self._file_fd, 0, os.SEEK_SET)
        began = time.thread_time_ns()
        size = 0
        while taken := self._splice():
            size += taken
        for at in range(0, size, len(self._page)):
            os.preadv(self._file_fd, [self._page], at)
            _core.scan_pages(self._page, len(self._page))
        taken_ns = time.thread_time_ns() - began
        self._empty(self._page)
        return taken_ns

    def _fill(self) -> None:
        for _ in range(_MARKERS):
            os.write(self._marker_fd, _MARKER)

    def _empty(self, page: bytearray) -> None:
        while self._read(page):
            pass

    def _read(self, page: bytearray) -> int:
        try:
            return os.readv(self._raw_fd, [page])
        except BlockingIOError:
            return 0

    def _splice(self) -> int:
        """Move a whole sub-buffer into the file, if there is one."""
        size = len(self._page)
        try:
            taken = os.splice(self._raw_fd, self._feed_fd, size, flags=_SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return 0
        left = taken
        while left:
            left -= os.splice(self._pipe_fd, self._file_fd, left)
        return taken
