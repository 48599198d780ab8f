# SPDX-License-Identifier: Apache-2.0
"""tracefs: its mount, found or made when allowed, and its descriptions of tracepoints.

All paths lie below one root, so that a copy of the tree serves as well as the kernel's.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from collectord._native import _syscalls
from collectord.codec.tracepoint import Tracepoint
from collectord.errors import KernelError, MissingFeature, MissingPrivilege
from collectord.kernel.host import errno_mapping
from collectord.kernel.tracefs import instance_lock
from collectord.kernel.values.instance_settings import PREFIX
from collectord.kernel.values.trace_filter import FILTER_REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterator


class Tracefs:
    """One tracefs tree.

    Args:
        root: its mount point.
        mountable: `root` is where the kernel expects the mount, so that it may be made.
        place: what users know as its mount point, if that is another path.
    """

    def __init__(self, root: Path, *, mountable: bool = False, place: Path | None = None) -> None:
        self.root = root
        self.place = place or root
        self._mountable = mountable

    @classmethod
    def below(cls, sys: Path) -> Tracefs:
        """Return the tree below a root of sysfs: `kernel/tracing`, else debugfs's view of it."""
        own, through_debugfs = sys / "kernel/tracing", sys / "kernel/debug/tracing"
        if not _is_tracefs(own) and _is_tracefs(through_debugfs):
            return cls(through_debugfs)
        return cls(own, mountable=True)

    @property
    def mounted(self) -> bool:
        """Whether the tree is there. False as well where its directory cannot be searched."""
        return _is_tracefs(self.root)

    def ensure_mounted(self) -> None:
        """Mount tracefs if it is not, as perf does. The mount stays: other tools use it too.

        Raises:
            MissingPrivilege: mounting needs CAP_SYS_ADMIN, or the tree cannot be searched.
            MissingFeature: the kernel has no tracefs.
        """
        if self.mounted:
            return
        self._check_place()
        try:
            _syscalls.mount(b"tracefs", os.fsencode(self.root), b"tracefs")
        except OSError as error:
            code = error.errno or 0
            if code == errno.EBUSY and self.mounted:  # mounted by someone else just now
                return
            if code == errno.EPERM:
                raise self._unmounted(code) from error
            if code == errno.ENODEV:
                raise self._absent() from error
            message = f"cannot mount tracefs at {self.root}"
            raise KernelError(message, syscall="mount", errno=code) from error

    def check_mounted(self) -> None:
        """Raise the errors of `ensure_mounted`, and never mount."""
        if not self.mounted:
            self._check_place()
            raise self._unmounted()

    @contextmanager
    def seen(self) -> Iterator[Tracefs]:
        """Give the tree as it would be if it were mounted, and change nothing that others see.

        If it is not, a mount that ends with this leads to it: only this process has it. If that is
        refused, or there is no tracefs, the tree stays unmounted.
        """
        with ExitStack() as own:
            tree = self
            if not self.mounted:
                with suppress(KernelError, OSError):
                    self._check_place()
                    fd = _syscalls.mount_detached(b"tracefs")
                    own.callback(os.close, fd)
                    tree = Tracefs(Path(f"/proc/self/fd/{fd}"), place=self.root)
            yield tree

    def _check_place(self) -> None:
        """Raise the reason why nothing can be mounted at the root, or nothing seen there."""
        try:
            next(self.root.iterdir(), None)
        except PermissionError as error:
            raise self._refused(error, self.root) from error
        except FileNotFoundError as error:
            raise self._absent() from error
        if not self._mountable:
            raise self._absent()

    def _unmounted(self, refused: int = 0) -> MissingPrivilege:
        """Return the error; `refused` is the errno of an attempt, 0 if there was none."""
        by_itself = "" if refused else "the daemon and `record` mount it; "
        return MissingPrivilege(
            "tracefs is not mounted",
            need="CAP_SYS_ADMIN",
            syscall="mount",
            errno=refused,
            hint=f"{by_itself}as root: mount -t tracefs tracefs {self.root}",
        )

    def _absent(self) -> MissingFeature:
        return MissingFeature(
            f"no tracefs at {self.root}",
            feature="tracefs",
            hint="the kernel needs CONFIG_FTRACE, and sysfs must be mounted",
        )

    def available_events(self) -> tuple[Tracepoint, ...]:
        """Return all tracepoints, in the kernel's order.

        Raises:
            MissingPrivilege, KernelError: the list cannot be read.
        """
        names = self._read(self.root / "available_events").decode().split()
        return tuple(map(Tracepoint.parse, names))

    def event_id(self, tracepoint: Tracepoint) -> int:
        """Return the `config` of a TRACEPOINT event.

        Raises:
            MissingFeature: this kernel has no such tracepoint.
            MissingPrivilege, KernelError: its description cannot be read.
        """
        return int(self._event(tracepoint, "id"))

    def event_format(self, tracepoint: Tracepoint) -> bytes:
        """Return a tracepoint's `format` file, as perf.data holds it. Raises as `event_id`."""
        return self._event(tracepoint, "format")

    def ftrace_formats(self) -> dict[str, bytes]:
        """Return the formats of ftrace's own entries, by name."""
        folder = self.root / "events/ftrace"
        return {
            entry.name: self._read(entry / "format")
            for entry in _subfolders(folder)
            if (entry / "format").exists()
        }

    def header_page(self) -> bytes:
        """Return the layout of a ring page. Raises as `available_events`."""
        return self._read(self.root / "events/header_page")

    def header_event(self) -> bytes:
        """Return the layout of an entry's header. Raises as `available_events`."""
        return self._read(self.root / "events/header_event")

    def filter_refusal(self, tracepoint: Tracepoint, text: str) -> str:
        """Return why the kernel refuses a filter; "" if it takes it or cannot be asked.

        PERF_EVENT_IOC_SET_FILTER fails with EINVAL alone. A tracefs instance gives words: its
        `filter` file shows the refused text with a mark and a reason. The instance belongs to this
        call, locked so that nobody takes it for one that a crash left, and is removed after it: no
        other user's filters or buffers are touched.
        """
        instance = f"{PREFIX}filter-{os.getpid()}"
        try:
            lock_fd = instance_lock.make_locked(self.root, instance)
        except KernelError:
            return ""
        path = self.root.joinpath("instances", instance, "events", *tracepoint, "filter")
        try:
            return _refusal_words(path, text)
        finally:
            with suppress(KernelError):  # a reader of the instance keeps it; it holds no data
                instance_lock.remove_locked(self.root, instance)
            os.close(lock_fd)

    def _event(self, tracepoint: Tracepoint, leaf: str) -> bytes:
        path = self.root.joinpath("events", *tracepoint, leaf)
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise MissingFeature(f"no tracepoint {tracepoint}", feature=str(tracepoint)) from error
        except OSError as error:
            raise self._refused(error, path) from error

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise self._refused(error, path) from error

    def _refused(self, error: OSError, path: Path) -> KernelError:
        try:
            root = self.root.stat()
        except OSError:
            root = None
        return errno_mapping.path_refused(error, str(path), root=root)


def _is_tracefs(path: Path) -> bool:
    # The effective ids: a service has capabilities that its real user id does not show.
    return os.access(path / "events", os.F_OK, effective_ids=True)


def _subfolders(folder: Path) -> Iterator[Path]:
    yield from sorted(entry for entry in folder.iterdir() if entry.is_dir())


def _refusal_words(path: Path, text: str) -> str:
    """Write a filter to a `filter` file and return the reason that it then shows."""
    try:
        with path.open("wb", buffering=0) as file:
            file.write(text.encode())
    except OSError as refused:
        if refused.errno not in FILTER_REFUSALS or not path.exists():
            return ""
        shown = path.read_text(errors="replace")
        _, found, reason = shown.partition("parse_error:")
        return reason.strip() if found else ""
    return ""
