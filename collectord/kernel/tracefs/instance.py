# SPDX-License-Identifier: Apache-2.0
"""A tracefs instance of one's own: ftrace rings apart from the top level and from other users.

The order matters. Sub-buffers are sized before any ring is opened, because resizing races with
readers in many kernels; writing a clock, even the same one, resets the rings; epoll reads
buffer_percent when a ring is added. So: `Instance.create`, `open_ring` for each CPU, map and
epoll, `choose` the events, `enable`; and back: `disable`, drain, unmap, and the ExitStack closes
the files, removes the instance and then its probes.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from collectord.codec.tracepoint import Tracepoint
from collectord.errors import KernelError, NoSuchTarget, UsageError
from collectord.folders.trust import PROC
from collectord.kernel.host.task_comms import TaskComms
from collectord.kernel.tracefs import instance_events, instance_lock
from collectord.kernel.tracefs.control_files import ControlFolder
from collectord.kernel.tracefs.trace_metadata import read_metadata
from collectord.kernel.tracefs.trace_probes import TraceProbes
from collectord.kernel.values.instance_settings import PREFIX, Effective, TraceEvent, cpu_mask
from collectord.kernel.values.ring_files import RingFiles
from collectord.text.units import KIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from collectord.codec.trace_dat_head import Metadata
    from collectord.kernel.tracefs.mount import Tracefs
    from collectord.kernel.values.host import Holder
    from collectord.kernel.values.instance_settings import InstanceSettings

_CLOCK: Final = "mono"
_ALWAYS: Final = "common_pid >= 0"
# A process that starts threads all the time must not keep the scan going for ever.
_SCANS_MAX: Final = 50
# A new instance has the top level's options. These add entries of their own or refuse markers.
_OPTIONS: Final = {
    "stacktrace": False,
    "userstacktrace": False,
    "pause-on-trace": False,
    "markers": True,
}
_PAGE_FIELD: Final = re.compile(
    rb"field: *(?P<type>[^;]*?)\b(?P<name>\w+);\s*offset:(?P<offset>\d+);\s*size:(?P<size>\d+);"
)


class Instance:
    """An instance that this process holds; see `create`, `resume` and `adopt`."""

    def __init__(self, tracefs: Tracefs, session: str, stack: ExitStack, proc: Path) -> None:
        self.session = session
        self.name = PREFIX + session
        self.path = tracefs.root / "instances" / self.name
        self.events: tuple[TraceEvent, ...] = ()
        self._tracefs = tracefs
        self._stack = stack
        self._proc = proc
        self._files = ControlFolder(self.path, proc=proc)
        self._probes = TraceProbes(tracefs, session, proc=proc)
        self._cpus: frozenset[int] = frozenset()
        self._comms = TaskComms(tracefs.root, proc)
        self._marker_fd = -1
        self._kept = False
        self._resumed = False

    @classmethod
    def create(
        cls,
        tracefs: Tracefs,
        settings: InstanceSettings,
        stack: ExitStack,
        *,
        proc: Path = PROC,
    ) -> Instance:
        """Make and size an instance; nothing is recorded before `enable`.

        Args:
            tracefs: the tree, mounted.
            settings: settings of the instance.
            stack: removes all of it again, on error too.
            proc: root of procfs, to name processes that keep the instance.

        Raises:
            MissingPrivilege, MissingFeature, NoSuchTarget, UsageError.
            KernelError: EEXIST, the session runs already, or what a crash left of it waits to be
                salvaged; others.
        """
        instance = cls(tracefs, settings.session, stack, proc)
        lock_fd = instance_lock.make_locked(tracefs.root, instance.name, proc=proc)
        stack.callback(os.close, lock_fd)
        stack.callback(instance._remove_unless_kept)
        instance._set_up(settings)
        return instance

    @classmethod
    def resume(
        cls,
        tracefs: Tracefs,
        settings: InstanceSettings,
        stack: ExitStack,
        *,
        proc: Path = PROC,
    ) -> Instance:
        """Go on with an instance that a process has left with `keep`; it records meanwhile.

        Args:
            tracefs: the tree.
            settings: with which the instance was made; it has no probes.
            stack: removes all of it, unless an error unwinds it or `keep` was called.
            proc: root of procfs, to name processes that keep the instance.

        Raises:
            NoSuchTarget: there is none of that name, or another process holds it.
            MissingPrivilege, KernelError: it cannot be opened.
        """
        instance = cls(tracefs, settings.session, stack, proc)
        lock_fd = instance_lock.resume_locked(tracefs.root, instance.name, proc=proc)
        stack.callback(os.close, lock_fd)
        stack.push(instance._remove_unless_failed)
        instance._cpus = frozenset(settings.cpus)
        instance._resumed = True
        instance._open_marker()
        return instance

    @classmethod
    def adopt(
        cls, tracefs: Tracefs, name: str, stack: ExitStack, *, proc: Path = PROC
    ) -> Instance:
        """Take over an instance that a crash left, and stop it: the content of its rings is final.

        `events` are those that were enabled. Open its rings, salvage them, and let the stack
        remove it. An error that unwinds the stack keeps it for the next try, with all that was not
        taken out of its rings, its events and its probes; only the lock is given up.

        Args:
            tracefs: the tree.
            name: as `instance_lock.find_leftovers` gives it.
            stack: removes the instance and the probes of its session, unless an error unwinds it
                or `keep` was called.
            proc: root of procfs, to name processes that keep it.

        Raises:
            NoSuchTarget: there is none of that name, or another process salvages it.
            KernelError: EBUSY, its process lives; others.
        """
        instance = cls(tracefs, name.removeprefix(PREFIX), stack, proc)
        lock_fd = instance_lock.take_over(tracefs.root, name, proc=proc)
        stack.callback(os.close, lock_fd)
        stack.push(instance._remove_unless_failed)
        instance._probes.adopt()
        instance.events = tuple(
            TraceEvent(*Tracepoint.parse(event))
            for event in instance._files.read_text("set_event").split()
            if event.count(":") == 1
        )
        # Its events stay as they are: a later try has to know them too.
        instance._files.write("tracing_on", "0")
        return instance

    def _remove(self) -> None:
        """Stop everything, and remove the instance, then its probes."""
        with ExitStack() as end:
            end.callback(self._probes.remove)
            end.callback(
                instance_lock.remove_locked, self._tracefs.root, self.name, proc=self._proc
            )
            end.callback(self.disable)

    def _remove_unless_failed(
        self,
        failed: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if failed is None:
            self._remove_unless_kept()

    def _remove_unless_kept(self) -> None:
        if not self._kept:
            self._remove()

    def keep(self) -> None:
        """Leave the instance as it is to a later process: its stack gives up the lock alone."""
        self._kept = True

    def _set_up(self, settings: InstanceSettings) -> None:
        write = self._files.write
        write("tracing_on", "0")
        subbuf_kib = -(-settings.subbuf_bytes // KIB)
        if subbuf_kib * KIB != self.effective().subbuf_bytes:
            write("buffer_subbuf_size_kb", str(subbuf_kib))
        write("buffer_size_kb", str(-(-settings.buffer_bytes // KIB)))
        write("trace_clock", _CLOCK)
        for option, on in {**_OPTIONS, "overwrite": settings.overwrite}.items():
            self._set_option(option, on=on)
        write("buffer_percent", str(settings.buffer_percent))
        if settings.cpus:
            self._set_cpus(settings.cpus)
        if settings.pids:
            # First, so that what a thread starts from now on is not missed.
            self._set_option("event-fork", on=settings.follow_forks)
            write("set_event_pid", " ".join(map(str, settings.pids)))
        self._probes.make(settings.probes)
        self._open_marker()

    def _open_marker(self) -> None:
        self._marker_fd = self._files.open("trace_marker", os.O_WRONLY)
        self._stack.callback(os.close, self._marker_fd)

    def _set_option(self, option: str, *, on: bool) -> None:
        leaf = f"options/{option}"
        if on or self._files.has(leaf):  # an option that does not exist is off
            self._files.write(leaf, "1" if on else "0")

    def _set_cpus(self, cpus: tuple[int, ...]) -> None:
        for cpu in cpus:
            self._check_cpu(cpu)
        self._files.write("tracing_cpumask", cpu_mask(cpus))
        self._cpus = frozenset(cpus)

    def _check_cpu(self, cpu: int) -> None:
        if not self._files.has(f"per_cpu/cpu{cpu}"):
            raise NoSuchTarget(f"no CPU {cpu} in tracefs")

    @property
    def probe_events(self) -> tuple[TraceEvent, ...]:
        """The events of the session's probes."""
        return self._probes.events

    def effective(self) -> Effective:
        """Read back the effective settings. Raises KernelError."""
        fields = {
            match["name"]: (int(match["offset"]), int(match["size"]))
            for match in _PAGE_FIELD.finditer(self.header_page())
        }
        start, data_bytes = fields[b"data"]
        # The kernel reports the room for events, in whole KiB.
        kib = max(self._ring_kib())
        clock = re.search(r"\[(\S+)\]", self._files.read_text("trace_clock"))
        return Effective(
            subbuf_bytes=start + data_bytes,
            subbufs=-(-kib * KIB // data_bytes),
            overwrite=self._files.read_text("options/overwrite") == "1",
            buffer_percent=int(self._files.read_text("buffer_percent")),
            clock=clock[1] if clock else "",
        )

    def _ring_kib(self) -> list[int]:
        """Return the rings' sizes: one figure while they are alike, "X" once they differ."""
        told = self._files.read_text("buffer_size_kb").split()[0]
        if told.isdigit():
            return [int(told)]
        leaves = [f"per_cpu/cpu{cpu}/buffer_size_kb" for cpu in self.cpus()]
        return [int(self._files.read_text(leaf).split()[0]) for leaf in leaves]

    def header_page(self) -> bytes:
        """Return the layout of this instance's sub-buffers; the top level may differ."""
        return self._files.read("events/header_page")

    def cpus(self) -> tuple[int, ...]:
        """Return the CPUs that have a ring, or may get one, and are in the mask."""
        every = {int(path.name[3:]) for path in (self.path / "per_cpu").glob("cpu*")}
        return tuple(sorted(every & self._cpus if self._cpus else every))

    def open_ring(self, cpu: int, stack: ExitStack | None = None) -> RingFiles:
        """Open one CPU's ring.

        Args:
            cpu: the ring's CPU.
            stack: closes it, before the instance's stack does, which is the default during
                opening.

        Raises:
            NoSuchTarget, MissingPrivilege, KernelError: it cannot be opened.
        """
        self._check_cpu(cpu)
        closes = stack if stack is not None else self._stack
        flags = os.O_RDONLY | os.O_NONBLOCK
        raw_fd = self._files.open(f"per_cpu/cpu{cpu}/trace_pipe_raw", flags)
        closes.callback(os.close, raw_fd)
        stats_fd = self._files.open(f"per_cpu/cpu{cpu}/stats", os.O_RDONLY)
        closes.callback(os.close, stats_fd)
        return RingFiles(cpu, raw_fd, stats_fd)

    def stats(self, cpu: int) -> bytes:
        """Return the text of a CPU's counters, whose ring need not be open or exist.

        Raises:
            KernelError: it cannot be read.
        """
        return self._files.read(f"per_cpu/cpu{cpu}/stats")

    def follow(self, scan: Callable[[], Iterable[int]]) -> int:
        """Trace the threads that `scan` finds, until it finds no more; return how many.

        Threads that run already are not followed by their process's pid.
        """
        seen: set[int] = set()
        for _ in range(_SCANS_MAX):
            new = sorted(set(scan()) - seen)
            if not new:
                break
            self._files.write("set_event_pid", " ".join(map(str, new)))
            seen.update(new)
        return len(seen)

    def resize(self, buffer_bytes: int, cpu: int | None = None) -> None:
        """Resize a CPU's ring, or each, while it records. Growing keeps all, shrinking overwrites.

        Raises:
            KernelError: EBUSY while a ring is mapped, with the process that maps it; ENOMEM.
        """
        folder = "" if cpu is None else f"per_cpu/cpu{cpu}/"
        self._files.write(f"{folder}buffer_size_kb", str(-(-buffer_bytes // KIB)))

    def other_users(self) -> tuple[Holder, ...]:
        """Return other processes that keep its files open: they may read its rings too."""
        return self._files.users(but=os.getpid())

    def metadata(self) -> Metadata:
        """Return the metadata of a trace.dat of its rings. Raises KernelError."""
        clock = self.effective().clock
        return read_metadata(
            self._tracefs, self.header_page(), self.events, clock, proc=self._proc
        )

    def comms(self) -> Mapping[int, bytes]:
        """Return names of tasks, more with each call; see `TaskComms.read`."""
        return self._comms.read()

    def learn_comms(self) -> None:
        """Keep the names that the kernel has now; see `TaskComms.learn`."""
        self._comms.learn()

    def choose(self, events: Iterable[TraceEvent]) -> None:
        """Choose the events that `enable` enables, and set the filters.

        Raises:
            UnknownEvent: with the nearest name.
            UsageError: the kernel refuses a filter; with its reason.
            MissingPrivilege, KernelError: the filter cannot be written.
        """
        chosen = tuple(events)
        for event in chosen:
            instance_events.check_known(self._files, event, self._tracefs.available_events)
            instance_events.set_filter(self._files, event, replaces=self._resumed)
        self.events = chosen

    def enable(self) -> None:
        """Start recording the chosen events, all at one moment.

        Raises:
            UsageError: a probe cannot be placed.
            MissingPrivilege, KernelError: an event cannot be enabled.
        """
        for event in self.events:
            try:
                self._files.put(event.leaf("enable"), "1")
            except OSError as error:
                refused = self._files.refused(error, self.path / event.leaf("enable"), "1")
                raise self._probes.not_placed(event, error) or refused from error
        self._files.write("tracing_on", "1")

    def disable(self) -> None:
        """Stop all rings at one moment; the counters are final. Raises KernelError."""
        self._files.write("tracing_on", "0")
        self._files.write("events/enable", "0")

    def freeze_on(self, event: TraceEvent) -> None:
        """Make the instance stop itself, on all CPUs, when an event passes its filter.

        Without a condition the trigger runs before its event is recorded, with one after that
        (trace_event_buffer_commit()): so there is always a condition, and the event is the last
        one.

        Raises:
            UsageError: the kernel refuses the condition.
            MissingPrivilege, MissingFeature, KernelError: the trigger cannot be set.
        """
        condition = event.filter or _ALWAYS
        try:
            self._files.put(event.leaf("trigger"), f"traceoff if {condition}")
        except OSError as error:
            path = self.path / event.leaf("trigger")
            if error.errno == errno.EINVAL:
                raise UsageError(
                    f"the kernel refuses to freeze on {event} if {condition!r}",
                    hint="use the condition as a filter of the event: the kernel then gives a "
                    "reason",
                ) from error
            raise self._files.refused(error, path, condition) from error

    @property
    def is_on(self) -> bool:
        """Whether the instance records. Raises KernelError."""
        return self._files.read_text("tracing_on") == "1"

    def turn_on(self) -> None:
        """Resume after a freeze. Raises KernelError."""
        self._files.write("tracing_on", "1")

    def mark(self, text: str) -> int:
        """Write a marker (`ftrace:print`) into the ring of a CPU that is traced.

        Returns:
            bytes of it that were taken: the kernel cuts at a sub-buffer or 4 KiB.

        Raises:
            KernelError: nothing is recorded, or the ring is full and does not overwrite.
        """
        try:
            with _running_on(self._cpus):
                return os.write(self._marker_fd, os.fsencode(text))
        except OSError as error:
            raise KernelError(
                f"the marker was not written into session {self.session}",
                syscall="write",
                errno=error.errno or 0,
                hint="recording is off, the ring is full, or this process may run on none of the "
                "traced CPUs",
            ) from error


@contextmanager
def _running_on(cpus: frozenset[int]) -> Iterator[None]:
    """Run the calling thread on one of these CPUs, if any are named."""
    before = os.sched_getaffinity(0)
    if not cpus or before <= cpus:
        yield
        return
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
