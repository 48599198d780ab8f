# SPDX-License-Identifier: Apache-2.0
"""Rings that a crash left in a tracefs instance: they are whole, only their reader is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.kernel.tracefs.reader_page import handed_out
from collectord.kernel.values.instance_settings import InstanceName
from collectord.kernel.values.left_instance import LeftInstance, LeftRing

if TYPE_CHECKING:
    from collectord.kernel.tracefs.instance import Instance
    from collectord.kernel.values.left_instance import InstanceNote
    from collectord.kernel.values.ring_files import RingFiles
    from collectord.kernel.values.ring_stats import CpuStats


def open_left(instance: Instance, number: int, note: InstanceNote | None) -> LeftInstance:
    """Open the rings of an adopted instance; the instance's stack closes them.

    `Instance.adopt` has stopped the instance, so all counters are final.

    Raises:
        KernelError: a ring cannot be opened, or its counters cannot be read.
    """
    effective = instance.effective()
    # chmod(2) changes one of the two.
    status = instance.path.stat()
    taken = note.taken if note is not None else {}
    rings = [_look_at(instance.open_ring(cpu), taken.get(cpu)) for cpu in instance.cpus()]
    made_ns = min(status.st_mtime_ns, status.st_ctime_ns)
    return LeftInstance(
        id=number,
        name=instance.name,
        session=InstanceName.parse(instance.name).session,
        created_ns=max(made_ns, note.since_ns if note is not None else 0),
        buffer_bytes=effective.buffer_bytes,
        subbuf_bytes=effective.subbuf_bytes,
        buffer_percent=effective.buffer_percent,
        rings={ring.files.cpu: ring for ring in rings if _was_used(ring)},
    )


def _look_at(files: RingFiles, taken: CpuStats | None) -> LeftRing:
    return LeftRing(files, files.stats().since(taken), handed_out(files.raw_fd))


def _was_used(ring: LeftRing) -> bool:
    stats = ring.stats
    return bool(stats.written or stats.dropped or stats.commit_overrun)
