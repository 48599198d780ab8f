# SPDX-License-Identifier: Apache-2.0
"""Probes of one session: made in its group and removed from it through `dynamic_events`.

A definition names a place in the kernel, in a program or in another event; the kernel makes an
event of it, `GROUP/NAME`, which every instance can enable. Removing one clears the rings of each
instance that ever enabled it, so that it comes after the last drain and the instance's end.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from collectord.config.trace_probe import NAME_MAX, Probe, ProbeKind
from collectord.errors import KernelError, MissingFeature, UsageError
from collectord.kernel.tracefs.control_files import ControlFolder
from collectord.kernel.tracefs.instance_lock import find_live
from collectord.kernel.values.instance_settings import PREFIX, TraceEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from collectord.kernel.tracefs.mount import Tracefs

GROUP_PREFIX: Final = "collectord_"
_LISTED: Final = re.compile(r"[a-z]\d*:(?P<group>[^/\s]+)/(?P<name>\S+)")
_CONTROL: Final = "dynamic_events"
_ERROR_LOG: Final = "error_log"
_COMMAND: Final = "  Command: "


# The file that only a kernel with this kind has; what builds it. Event probes have no file of
# their own, and the kernel's help names them from 6.17 on even where it lacks them: `_refused`
# tells.
_KERNEL: Final[dict[ProbeKind, tuple[str, str]]] = {
    ProbeKind.KPROBE: ("kprobe_events", "CONFIG_KPROBE_EVENTS"),
    ProbeKind.KRETPROBE: ("kprobe_events", "CONFIG_KPROBE_EVENTS"),
    ProbeKind.UPROBE: ("uprobe_events", "CONFIG_UPROBE_EVENTS"),
    ProbeKind.URETPROBE: ("uprobe_events", "CONFIG_UPROBE_EVENTS"),
    ProbeKind.EPROBE: ("", "Linux 5.15, and CONFIG_EPROBE_EVENTS from 6.17 on"),
}


def group_of(session: str) -> str:
    """Return the group of a session's probes: C letters only, so "." and "-" become "_"."""
    return GROUP_PREFIX + _c_name(session)


class TraceProbes:
    """The probes of one session.

    Args:
        tracefs: the tree.
        session: its name, which gives the group.
        proc: root of procfs.
    """

    def __init__(self, tracefs: Tracefs, session: str, *, proc: Path) -> None:
        self.group = group_of(session)
        self._folder = ControlFolder(tracefs.root, proc=proc)
        self._made: dict[str, Probe] = {}
        self._left: list[str] = []

    def make(self, probes: Iterable[Probe]) -> None:
        """Make probes; those before a refused one stay until `remove`.

        Raises:
            MissingFeature: this kernel has no probes of the kind.
            UsageError: the definition is refused, with the kernel's reason; or the session's name
                is too long for a group.
            MissingPrivilege, KernelError: `dynamic_events` cannot be written.
        """
        for probe in probes:
            if len(self.group) > NAME_MAX:
                raise probe.unusable(
                    "its session's name is too long",
                    f"at most {NAME_MAX - len(GROUP_PREFIX)} characters with probes",
                )
            definition = probe.definition(self.group)
            marker, wanted = _KERNEL[probe.kind]
            if marker and not self._folder.has(marker):
                raise _lacking(probe, wanted)
            try:
                self._folder.put(_CONTROL, definition)
            except OSError as error:
                raise self._refused(error, probe, definition) from error
            self._made[probe.name] = probe

    @property
    def events(self) -> tuple[TraceEvent, ...]:
        """The events of the probes made."""
        return tuple(TraceEvent(self.group, name) for name in self._made)

    def not_placed(self, event: TraceEvent, error: OSError) -> UsageError | None:
        """Return why an event cannot be enabled, if it is a probe and its place is to blame.

        Only then is the place of a uprobe checked.
        """
        probe = self._made.get(event.name) if event.system == self.group else None
        if probe is None or error.errno in (errno.EACCES, errno.EPERM, errno.ENOMEM):
            return None
        return UsageError(
            f"cannot place {probe.kind} {probe.name} at {probe.place}: {error.strerror}",
            hint="is it the start of an instruction?",
        )

    def remove(self) -> None:
        """Remove the probes of `make`. Their instance must be gone, or its rings are cleared.

        Raises:
            KernelError: another process has enabled one; the others are removed.
        """
        names = [*self._made, *self._left]
        self._made, self._left = {}, []
        _remove(self._folder, [f"{self.group}/{name}" for name in names])

    def adopt(self) -> None:
        """Take over the probes that a crash left in the group: `remove` removes them."""
        self._left = [name for group, name in _listed(self._folder) if group == self.group]

    def _refused(self, error: OSError, probe: Probe, definition: str) -> KernelError | UsageError:
        code = error.errno or 0
        if code in (errno.EACCES, errno.EPERM):
            path = self._folder.path / _CONTROL
            return self._folder.refused(error, path, definition)
        reason = last_reason(self._folder.read(_ERROR_LOG).decode(errors="replace"), definition)
        hint = ""
        if not reason and code == errno.EINVAL and probe.kind is ProbeKind.EPROBE:
            # Linux 6.12 logs every reason about event probes but a fault in a filter.
            if not (probe.filter and self._takes(replace(probe, filter=""))):
                return _lacking(probe, _KERNEL[probe.kind][1])
            hint = f"its filter {probe.filter!r} must use the fields of {probe.place}"
        return UsageError(
            f"cannot place {probe.kind} {probe.name} at {probe.place}: "
            + (reason or os.strerror(code)),
            hint=hint,
        )

    def _takes(self, probe: Probe) -> bool:
        try:
            self._folder.put(_CONTROL, probe.definition(self.group))
        except OSError:
            return False
        _remove(self._folder, [f"{self.group}/{probe.name}"])
        return True


def remove_orphans(tracefs: Tracefs, prefix: str = PREFIX, *, proc: Path) -> None:
    """Remove probes of our groups whose session has no instance that a process holds.

    A crash between the end of an instance and that of its probes leaves such ones. Instances that
    a crash left must be gone.

    Args:
        tracefs: the tree.
        prefix: prefix of the instances, and with "_" for "-" of the groups.
        proc: root of procfs.

    Raises:
        KernelError: another process has enabled one; the others are removed.
    """
    folder = ControlFolder(tracefs.root, proc=proc)
    live = {
        group_of(name.removeprefix(PREFIX)) for name in find_live(tracefs.root, prefix, proc=proc)
    }
    ours = _c_name(prefix)
    _remove(
        folder,
        [
            f"{group}/{name}"
            for group, name in _listed(folder)
            if group.startswith(ours) and group not in live
        ],
    )


def last_reason(log: str, command: str) -> str:
    """Return the kernel's reason for refusing a command, in one line with the place; "" if none.

    An entry of `error_log` is "[ TIME] WHO: error: REASON", "  Command: COMMAND", and a caret.
    """
    lines = log.splitlines()
    for number in range(len(lines) - 2, 0, -1):
        if lines[number] == _COMMAND + command:
            reason = lines[number - 1].partition(": error: ")[2]
            caret = lines[number + 1].find("^") - len(_COMMAND)
            if caret < 0:
                return reason
            word = command[caret:].partition(" ")[0]
            return f"{reason}, at character {caret + 1}: {word!r}"
    return ""


def _c_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def _listed(folder: ControlFolder) -> Iterator[tuple[str, str]]:
    for line in folder.read_text(_CONTROL).splitlines():
        match = _LISTED.match(line)
        if match:
            yield match["group"], match["name"]


def _remove(folder: ControlFolder, events: list[str]) -> None:
    busy = []
    for event in events:
        try:
            folder.put(_CONTROL, f"-:{event}")
        except FileNotFoundError:  # an administrator removed it
            continue
        except OSError as error:
            busy.append((event, error))
    if busy:
        names = ", ".join(event for event, _ in busy)
        raise KernelError(
            f"cannot remove probe {names}",
            syscall="write",
            errno=busy[0][1].errno or 0,
            hint="another instance, or perf, has enabled it",
        ) from busy[0][1]


def _lacking(probe: Probe, wanted: str) -> MissingFeature:
    return MissingFeature(
        f"cannot place {probe.kind} {probe.name}: this kernel has no {probe.kind}s",
        feature=f"{probe.kind}s",
        hint=f"it needs {wanted}",
    )
