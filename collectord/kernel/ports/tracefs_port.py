# SPDX-License-Identifier: Apache-2.0
"""The part of the kernel's port for instances of tracefs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.codec.trace_dat_head import Metadata
    from collectord.kernel.values.host import Holder
    from collectord.kernel.values.instance_settings import (
        InstanceSettings,
        OpenedInstance,
        TraceEvent,
    )
    from collectord.kernel.values.left_instance import InstanceNote, LeftInstance
    from collectord.kernel.values.ring_files import RingFiles


class TracefsPort(Protocol):
    """See `Kernel`."""

    def create_instance(self, settings: InstanceSettings) -> OpenedInstance:
        """Create a tracefs instance, mounting tracefs if necessary; nothing is recorded yet.

        It is there until `remove_instance`.

        Raises:
            MissingPrivilege: tracefs is closed, by permission or by kernel lockdown.
            MissingFeature, NoSuchTarget, UsageError: a setting is not possible.
            KernelError: EEXIST, the session runs already, or what a crash left of it waits to be
                salvaged; others.
        """

    def resume_instance(self, settings: InstanceSettings) -> OpenedInstance:
        """Go on with an instance that a process has left, as it is: it records.

        It has been made with these settings, without probes. It is there until `remove_instance`
        or `leave_instance`.

        Raises:
            NoSuchTarget: there is none, or another process holds it.
            MissingPrivilege, KernelError: it cannot be opened.
        """

    def leave_instance(self, instance: int) -> None:
        """Close an instance, by its id, which records on; its rings must be closed."""

    def remove_instance(self, instance: int) -> None:
        """Stop an instance, by its id, and remove it and its probes; its rings must be closed.

        Raises:
            KernelError: EBUSY, with the process that keeps it; others.
        """

    def open_instance_ring(self, instance: int, cpu: int) -> RingFiles:
        """Open the ring of a CPU; the caller closes its two files.

        Raises:
            NoSuchTarget, MissingPrivilege, KernelError: it cannot be opened.
        """

    def follow_threads(self, instance: int, pids: Sequence[int]) -> int:
        """Trace every thread that these processes have now, and return how many there are.

        The kernel itself adds later ones. Processes that have exited are left out.
        """

    def choose_events(self, instance: int, events: Sequence[TraceEvent]) -> None:
        """Choose the events that `enable_instance` enables, and set their filters.

        Raises:
            UnknownEvent: with the nearest name.
            UsageError: the kernel refuses a filter; with its reason.
            MissingPrivilege, KernelError: the filter cannot be written.
        """

    def enable_instance(self, instance: int) -> None:
        """Start recording the chosen events, all at one moment.

        Raises:
            UsageError: a probe cannot be placed.
            MissingPrivilege, KernelError: an event cannot be enabled.
        """

    def disable_instance(self, instance: int) -> None:
        """Stop all rings at one moment; the counters are final. Raises KernelError."""

    def freeze_on(self, instance: int, event: TraceEvent) -> None:
        """Make an instance stop itself, on all CPUs, when an event passes its filter.

        Raises:
            UsageError: the kernel refuses the condition.
            MissingPrivilege, MissingFeature, KernelError: the trigger cannot be set.
        """

    def is_recording(self, instance: int) -> bool:
        """Whether an instance records: it has not stopped itself. Raises KernelError."""

    def resume_recording(self, instance: int) -> None:
        """Resume an instance that has stopped itself. Raises KernelError."""

    def resize_ring(self, instance: int, cpu: int, buffer_bytes: int) -> None:
        """Resize a CPU's ring while it records. Growing keeps all, shrinking overwrites.

        Raises:
            KernelError: EBUSY while a ring is mapped, with the process that maps it;
                ENOMEM; others.
        """

    def instance_stats(self, instance: int, cpu: int) -> bytes:
        """Return the text of a CPU's counters, whose ring need not be open or exist.

        Raises:
            KernelError: it cannot be read.
        """

    def mark_instance(self, instance: int, text: str) -> int:
        """Write a marker (`ftrace:print`) into the ring of a CPU that is traced.

        Returns:
            bytes of it that were taken: the kernel cuts at a sub-buffer or 4 KiB.

        Raises:
            KernelError: nothing is recorded, or the ring is full and does not overwrite.
        """

    def instance_users(self, instance: int) -> tuple[Holder, ...]:
        """Return other processes that keep its files open: they may read its rings too."""

    def trace_metadata(self, instance: int) -> Metadata:
        """Return the metadata of a trace.dat of an instance's rings. Raises KernelError."""

    def task_comms(self, instance: int) -> Mapping[int, bytes]:
        """Return names of tasks by thread id, as many as were seen until now; reads files."""

    def learn_comms(self, instance: int) -> None:
        """Keep the names that the kernel has now, for later `task_comms`; reads one file."""

    def check_instance(self, session: str) -> None:
        """Raise KernelError, EEXIST, if another process holds this session's instance."""

    def holds_instance(self, session: str) -> bool:
        """Whether this process has an instance for a session of this name."""

    def is_being_salvaged(self, session: str) -> bool:
        """Whether a process salvages what a crash left of this session's instance."""

    def leftover_instances(self) -> tuple[str, ...]:
        """Return names of tracefs instances that a crash left; none if tracefs is not mounted.

        Raises:
            MissingPrivilege, MissingFeature: instances cannot be listed.
        """

    def adopt_instance(self, name: str) -> LeftInstance:
        """Take over an instance that a crash left, and stop it, until `release_left`.

        Raises:
            NoSuchTarget: the instance is gone, or another process salvages it.
            KernelError: EBUSY, its process lives; others.
        """

    def release_left(self, instance: int, *, remove: bool) -> None:
        """Close an adopted instance and its rings, by its id, and remove it and its probes.

        Args:
            instance: its id.
            remove: otherwise it stays for a later try, with all that was not taken out of its
                rings, its events and its probes.

        Raises:
            KernelError: it cannot be removed, and stays; EBUSY, with the process that keeps it.
        """

    def note_instance(self, instance: str, note: InstanceNote) -> None:
        """Write the note about an instance for the next process, after a crash too.

        Raises:
            KernelError: it cannot be written.
            UnsafePath: others can write there.
        """

    def noted_instance(self, instance: str) -> InstanceNote | None:
        """Return the note about an instance, None without one that can be read."""

    def forget_instance(self, instance: str) -> None:
        """Remove the note of an instance that is gone; the note may be gone, too."""

    def remove_orphan_probes(self) -> None:
        """Remove probes that a crash left; leftover instances must be gone.

        Raises:
            KernelError: another process has enabled one; the others are removed.
        """
