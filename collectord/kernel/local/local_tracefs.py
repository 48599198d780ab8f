# SPDX-License-Identifier: Apache-2.0
"""Instances of tracefs, made and kept by this process."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

from collectord.errors import NoSuchTarget
from collectord.kernel.host import errno_mapping, targets
from collectord.kernel.host.lockdown import CONFIDENTIALITY, read_lockdown
from collectord.kernel.local.local_host import LocalHost, Places
from collectord.kernel.tracefs import instance_lock, instance_note, left_rings, trace_probes
from collectord.kernel.tracefs.instance import Instance
from collectord.kernel.values.instance_settings import ASIDE_MARK, PREFIX, OpenedInstance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from collectord.codec.trace_dat_head import Metadata
    from collectord.kernel.values.host import Holder
    from collectord.kernel.values.instance_settings import InstanceSettings, TraceEvent
    from collectord.kernel.values.left_instance import LeftInstance
    from collectord.kernel.values.ring_files import RingFiles


class LocalTracefs(LocalHost):
    """See `TracefsPort`."""

    note_instance = staticmethod(instance_note.write_note)
    noted_instance = staticmethod(instance_note.read_note)
    forget_instance = staticmethod(instance_note.remove_note)

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self._instances: dict[int, tuple[Instance, ExitStack]] = {}
        self._numbers = count(1)

    def create_instance(self, settings: InstanceSettings) -> OpenedInstance:
        """See `Kernel.create_instance`."""
        if read_lockdown(self.sys) == CONFIDENTIALITY:
            raise errno_mapping.tracefs_locked_down()
        self.tracefs.ensure_mounted()
        return self._opened(settings, Instance.create)

    def resume_instance(self, settings: InstanceSettings) -> OpenedInstance:
        """See `Kernel.resume_instance`."""
        if not self.tracefs.mounted:
            raise NoSuchTarget("tracefs is not mounted")
        return self._opened(settings, Instance.resume)

    def _opened(self, settings: InstanceSettings, way: Callable[..., Instance]) -> OpenedInstance:
        with ExitStack() as own:
            instance = way(self.tracefs, settings, own, proc=self.proc)
            effective, cpus = instance.effective(), instance.cpus()
            number = next(self._numbers)
            self._instances[number] = instance, own.pop_all()
        return OpenedInstance(number, instance.name, effective, cpus, instance.probe_events)

    def leave_instance(self, instance: int) -> None:
        """See `Kernel.leave_instance`."""
        left, stack = self._instances.pop(instance)
        left.keep()
        stack.close()

    def remove_instance(self, instance: int) -> None:
        """See `Kernel.remove_instance`."""
        _, stack = self._instances.pop(instance)
        stack.close()

    def open_instance_ring(self, instance: int, cpu: int) -> RingFiles:
        """See `Kernel.open_instance_ring`."""
        with ExitStack() as own:
            files = self._instances[instance][0].open_ring(cpu, own)
            own.pop_all()
        return files

    def follow_threads(self, instance: int, pids: Sequence[int]) -> int:
        """See `Kernel.follow_threads`."""
        return self._instances[instance][0].follow(lambda: targets.threads_of_all(pids, self.proc))

    def choose_events(self, instance: int, events: Sequence[TraceEvent]) -> None:
        """See `Kernel.choose_events`."""
        self._instances[instance][0].choose(events)

    def enable_instance(self, instance: int) -> None:
        """See `Kernel.enable_instance`."""
        self._instances[instance][0].enable()

    def disable_instance(self, instance: int) -> None:
        """See `Kernel.disable_instance`."""
        self._instances[instance][0].disable()

    def freeze_on(self, instance: int, event: TraceEvent) -> None:
        """See `Kernel.freeze_on`."""
        self._instances[instance][0].freeze_on(event)

    def is_recording(self, instance: int) -> bool:
        """See `Kernel.is_recording`."""
        return self._instances[instance][0].is_on

    def resume_recording(self, instance: int) -> None:
        """See `Kernel.resume_recording`."""
        self._instances[instance][0].turn_on()

    def resize_ring(self, instance: int, cpu: int, buffer_bytes: int) -> None:
        """See `Kernel.resize_ring`."""
        self._instances[instance][0].resize(buffer_bytes, cpu)

    def instance_stats(self, instance: int, cpu: int) -> bytes:
        """See `Kernel.instance_stats`."""
        return self._instances[instance][0].stats(cpu)

    def mark_instance(self, instance: int, text: str) -> int:
        """See `Kernel.mark_instance`."""
        return self._instances[instance][0].mark(text)

    def instance_users(self, instance: int) -> tuple[Holder, ...]:
        """See `Kernel.instance_users`."""
        return self._instances[instance][0].other_users()

    def trace_metadata(self, instance: int) -> Metadata:
        """See `Kernel.trace_metadata`."""
        return self._instances[instance][0].metadata()

    def task_comms(self, instance: int) -> Mapping[int, bytes]:
        """See `Kernel.task_comms`."""
        return self._instances[instance][0].comms()

    def learn_comms(self, instance: int) -> None:
        """See `Kernel.learn_comms`."""
        self._instances[instance][0].learn_comms()

    def check_instance(self, session: str) -> None:
        """See `Kernel.check_instance`."""
        if self.tracefs.mounted:
            for name in (session, session + ASIDE_MARK):
                if not self.holds_instance(name):
                    instance_lock.check_unheld(self.tracefs.root, PREFIX + name, proc=self.proc)

    def holds_instance(self, session: str) -> bool:
        """See `Kernel.holds_instance`."""
        held = tuple(self._instances.values())  # another thread may be opening one
        return any(instance.session == session for instance, _ in held)

    def is_being_salvaged(self, session: str) -> bool:
        """See `Kernel.is_being_salvaged`."""
        name = PREFIX + session
        return self.tracefs.mounted and instance_lock.is_being_salvaged(
            self.tracefs.root, name, proc=self.proc
        )

    def leftover_instances(self) -> tuple[str, ...]:
        """See `Kernel.leftover_instances`."""
        if not self.tracefs.mounted:
            return ()
        return instance_lock.find_leftovers(self.tracefs.root, proc=self.proc)

    def adopt_instance(self, name: str) -> LeftInstance:
        """See `Kernel.adopt_instance`."""
        with ExitStack() as own:
            instance = Instance.adopt(self.tracefs, name, own, proc=self.proc)
            self.reserve_files(2 * len(instance.cpus()))
            note = self.noted_instance(name)
            left = left_rings.open_left(instance, next(self._numbers), note)
            self._instances[left.id] = instance, own.pop_all()
        return left

    def release_left(self, instance: int, *, remove: bool) -> None:
        """See `Kernel.release_left`."""
        if remove:
            self.remove_instance(instance)
        else:
            self.leave_instance(instance)

    def remove_orphan_probes(self) -> None:
        """See `Kernel.remove_orphan_probes`."""
        if self.tracefs.mounted:
            trace_probes.remove_orphans(self.tracefs, proc=self.proc)
