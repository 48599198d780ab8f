# SPDX-License-Identifier: Apache-2.0
"""Salvage of ftrace rings, which outlive a killed process: their events go into a last segment.

With it the balance of the killed session is complete, because the kernel counted on:

- produced = stored in segments + salvaged now + lost in the ring + gone with the process

The last are events that the kernel had handed out and that are in no segment. If anybody reset a
ring, its counters began anew: less was handed out than stored, and `produced` is unknown.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from collectord.codec.file_formats import TRACE_DAT
from collectord.errors import CodecError, KernelError, NoSuchTarget, SinkError
from collectord.folders.folder import opened
from collectord.folders.walk import open_folder
from collectord.kernel.values.instance_settings import InstanceName
from collectord.kernel.values.ring_stats import stats_text
from collectord.ledger.manifest_balance import final_balance
from collectord.model import (
    LOSS_PAIRS,
    RECORD_SESSION,
    RING_DROPPED,
    RING_OVERRUN,
    Reason,
    RingRole,
    Stage,
)
from collectord.plan.trace_source import RECORDER_PERCENT
from collectord.recovery.left_pages import pages_by_cpu
from collectord.recovery.page_segment import salvage
from collectord.sink.base import Closing, Opening
from collectord.sink.manifest import Identity, Manifest, RingEntry, decode
from collectord.sink.packing import unpacked
from collectord.sink.segment import group_files, read_other_manifest, sink_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from collectord.folders.folder import Folder
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.host import Host
    from collectord.kernel.values.left_instance import LeftInstance
    from collectord.kernel.values.ring_stats import CpuStats
    from collectord.ledger.manifest_balance import ManifestBalance

_LOG: Final = structlog.get_logger()
SOURCE: Final = "tracefs"


class Salvaged(NamedTuple):
    """An instance that was removed; `path` is None if its rings were empty."""

    instance: str
    path: Path | None
    ledger: ManifestBalance


def salvage_leftovers(
    kernel: Kernel,
    host: Host,
    place: Callable[[str, str], Path | None],
    room_for: Callable[[Path], Callable[[int], bool]],
) -> list[Salvaged]:
    """Salvage the instances that killed processes left, and remove them.

    An instance that cannot be salvaged and removed now is reported and left for the next start:
    its rings keep what was not taken; what was taken is in a segment, sealed or left to the
    repair.

    Args:
        kernel: finds and adopts them.
        host: this host.
        place: called with the names of an instance and its session; returns the directory of its
            segments after the repair of those of the killed process, or None if the instance is
            not ours to salvage.
        room_for: returns a function that makes room in such a directory, see `FileSink`.

    Raises:
        KernelError: instances cannot be listed, or probes not removed.
    """
    done: list[Salvaged] = []
    for name in kernel.leftover_instances():
        session, is_owned = InstanceName.parse(name)
        # Apart from recordings only trials have their process id in the name, and trials hold no
        # events.
        trial = is_owned and session != RECORD_SESSION
        salvaged = None
        try:
            directory = None if trial else place(name, session)
            if directory is None and not trial:
                continue
            with ExitStack() as stack:
                try:
                    left = stack.enter_context(_adopted(kernel, name))
                except NoSuchTarget as error:
                    _LOG.info("instance_salvaged_elsewhere", instance=name, reason=str(error))
                    continue
                if directory is not None:
                    room = room_for(directory)
                    salvaged = _salvage(kernel, host, left, directory, room)
        except (CodecError, KernelError, SinkError) as error:
            _LOG.error("instance_not_salvaged", instance=name, error=str(error))
            continue
        if salvaged is not None:
            done.append(salvaged)
    # Removing the probes of an instance that still exists would clear its rings.
    if done and not kernel.leftover_instances():
        kernel.remove_orphan_probes()
    return done


@contextmanager
def _adopted(kernel: Kernel, name: str) -> Iterator[LeftInstance]:
    """Provide an instance that a crash left, and remove it; an error keeps it."""
    left = kernel.adopt_instance(name)
    try:
        yield left
    except BaseException:
        kernel.release_left(left.id, remove=False)
        raise
    kernel.release_left(left.id, remove=True)


def _salvage(
    kernel: Kernel,
    host: Host,
    left: LeftInstance,
    directory: Path,
    make_room: Callable[[int], bool],
) -> Salvaged:
    before = {cpu: ring.stats for cpu, ring in left.rings.items()}
    prior_run = read_prior_run(
        directory,
        session=left.session,
        boot_id=host.boot_id,
        since_ns=left.created_ns,
        subbuf_bytes=left.subbuf_bytes,
    )
    recorder = left.buffer_percent == RECORDER_PERCENT
    ledger = balance(before, prior_run, 0, recorder=recorder)

    if not left.rings:
        return Salvaged(left.name, None, ledger)

    def closing(salvaged: Mapping[int, int]) -> Closing:
        nonlocal ledger
        ledger = balance(before, prior_run, sum(salvaged.values()), recorder=recorder)
        return Closing(
            clock=kernel.clocks(),
            rings=rings,
            ledger=ledger.to_json(),
            ring_stats={cpu: stats_text(cpu, r.files.stats_fd) for cpu, r in left.rings.items()},
            recovered=True,
        )

    rings = tuple(
        RingEntry(
            ring=cpu,
            role=str(RingRole.DATA),
            cpu=cpu,
            data_bytes=left.buffer_bytes,
            watermark_bytes=0,
            stored_total=prior_run.stored_by_cpu.get(cpu, 0),
        )
        for cpu in left.rings
    )
    info = salvage(
        directory,
        Identity(
            host=host.hostname,
            boot_id=host.boot_id,
            kernel=host.release,
            session=left.session,
            source=SOURCE,
            scope=prior_run.scope,
        ),
        kernel.trace_metadata(left.id),
        pages_by_cpu(left, prior_run.last_pages, prior_run.stored_by_cpu),
        opening=Opening(
            clock=kernel.clocks(), rings=rings, run=prior_run.run, stored_before=prior_run.stored
        ),
        closing=closing,
        comms=lambda: kernel.task_comms(left.id),
        make_room=make_room,
    )
    return Salvaged(left.name, info.path if info is not None else None, ledger)


def balance(
    stats: Mapping[int, CpuStats], prior_run: PriorRun, salvaged: int, *, recorder: bool
) -> ManifestBalance:
    """Return the final balance of a killed session, from the kernel's counters and its files.

    It is `exact` unless a ring was reset, after which the counters show only losses.

    Args:
        stats: of each ring, read when it was found, before anything was salvaged.
        prior_run: the segments of the killed process.
        salvaged: events that were still in the rings.
        recorder: it was a flight recorder, whose rings overwrite by design.
    """
    counters = stats.values()
    lost = dict.fromkeys(LOSS_PAIRS[SOURCE], 0)
    overrun = sum(s.overrun for s in counters)
    lost[RING_OVERRUN] = 0 if recorder else overrun
    lost[Stage.KERNEL_RING, Reason.COMMIT_OVERRUN] = sum(s.commit_overrun for s in counters)
    lost[RING_DROPPED] = sum(s.dropped for s in counters)
    handed_out = sum(s.read_events for s in counters)
    unread = sum(s.entries for s in counters)
    # The sub-buffer that was handed out last can still be there.
    rescued = max(0, salvaged - unread)
    gone = handed_out - prior_run.stored - rescued
    lost[Stage.STAGING, Reason.DROPPED] = max(0, gone)
    exact = gone >= 0 and not _was_reset(stats, prior_run)
    produced = sum(s.written + s.dropped + s.commit_overrun for s in counters) if exact else None
    return final_balance(
        produced=produced,
        stored=prior_run.stored + salvaged,
        lost=lost,
        overwritten=overrun if recorder else 0,
    )


def _was_reset(stats: Mapping[int, CpuStats], prior_run: PriorRun) -> bool:
    """Whether more of a ring is stored than its kernel counters say was handed out."""
    handed_out = {cpu: ring.read_events for cpu, ring in stats.items()}
    return any(n > handed_out.get(cpu, 0) for cpu, n in prior_run.stored_by_cpu.items())


class PriorRun(NamedTuple):
    """The total contents of one process's segments, including those that retention deleted.

    Attributes:
        run: of the manifests, "" if there is no segment.
        stored: number of events.
        scope: the observed scope, "" if there is no segment.
        last_pages: CPU to the last stored sub-buffer of its ring, from segments that still exist.
        stored_by_cpu: CPU to the events of its ring; a CPU that never had any may be missing.
    """

    run: str
    stored: int
    scope: str
    last_pages: Mapping[int, bytes]
    stored_by_cpu: Mapping[int, int]


def read_prior_run(
    directory: Path, *, session: str, boot_id: str, since_ns: int, subbuf_bytes: int
) -> PriorRun:
    """Find the sealed segments of the process that wrote as `session`, and their totals.

    It is the first process whose segments are all of that time: recordings of the same name may
    have run beside it, or since.

    Args:
        directory: of the session; already repaired.
        session: the name.
        boot_id: of this boot.
        since_ns: REALTIME; a process with an older segment is a different one.
        subbuf_bytes: size of a sub-buffer.

    Raises:
        SinkError: a manifest or a segment cannot be read.
    """
    with sink_errors("cannot read the directory", directory, reading=True):
        try:
            place = open_folder(directory)
        except (FileNotFoundError, NotADirectoryError):
            return PriorRun("", 0, "", {}, {})
    with place as folder:
        return _read_totals(folder, (session, boot_id), since_ns, subbuf_bytes)


def _read_totals(
    folder: Folder, process: tuple[str, str], since_ns: int, step_bytes: int
) -> PriorRun:
    found: list[tuple[Path, Manifest]] = []
    for group in group_files(folder):
        if group.paths.format != TRACE_DAT or not group.sealed:
            continue
        with sink_errors("cannot read the manifest", group.paths.manifest, reading=True):
            manifest = decode(read_other_manifest(folder, group.paths.manifest), Manifest)
        if manifest is not None and (manifest.session, manifest.boot_id) == process:
            found.append((group.paths.data, manifest))
    others = {manifest.run for _, manifest in found if manifest.started_ns < since_ns}
    found = [(path, manifest) for path, manifest in found if manifest.run not in others]
    if not found:
        return PriorRun("", 0, "", {}, {})
    _, first = min(found, key=lambda one: one[1].started_ns)
    stored = 0
    pages: dict[int, bytes] = {}
    by_cpu: Counter[int] = Counter()
    for path, manifest in reversed(found):
        if manifest.run == first.run:
            stored = max(stored, manifest.stored_before + manifest.samples)
            pages |= _last_pages(folder, path, manifest, step_bytes, known=pages)
            for ring in manifest.rings:
                by_cpu[ring.cpu] = max(by_cpu[ring.cpu], ring.stored_total)
    return PriorRun(first.run, stored, first.scope, pages, by_cpu)


def _last_pages(
    folder: Folder,
    path: Path,
    manifest: Manifest,
    step_bytes: int,
    known: Collection[int],
) -> dict[int, bytes]:
    """Return the last page of each ring in a segment that is not known from a later one."""
    rings = [r for r in manifest.rings if r.bytes >= step_bytes and r.cpu not in known]
    if not rings:
        return {}
    with (
        sink_errors("cannot read the segment", path, reading=True),
        opened(folder.open(path.name)) as fd,
    ):
        try:
            with unpacked(fd) as plain:
                return {
                    ring.cpu: os.pread(plain, step_bytes, ring.offset + ring.bytes - step_bytes)
                    for ring in rings
                }
        except CodecError:  # `segments verify` reports it
            return {}
