# SPDX-License-Identifier: Apache-2.0
"""ftrace rings outlive a killed process: what is still in them goes into a last segment.

With it the balance of the killed session is complete, because the kernel counted on:

    produced = stored in segments + salvaged now + lost in the ring + gone with the process

The last are events that the kernel had handed out and that are in no segment.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from collectord.errors import KernelError, SinkError
from collectord.kernel.instance_lock import PREFIX
from collectord.kernel.salvage import OWNER_MARK
from collectord.ledger import loss_name
from collectord.model import LOSS_PAIRS, Basis, Reason, RingRole, Stage
from collectord.plan.trace_source import RECORDER_PERCENT
from collectord.sink.base import Closing, Opening
from collectord.sink.manifest import Identity, RingEntry
from collectord.sink.salvage import salvage
from collectord.sink.trail import read_trail
from collectord.source.tracefs import RECORD_SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from collectord.kernel.host import Host
    from collectord.kernel.port import Kernel
    from collectord.kernel.ring_stats import CpuStats
    from collectord.kernel.salvage import Leftover

_LOG: Final = structlog.get_logger()
_SOURCE: Final = "tracefs"


class Salvaged(NamedTuple):
    """An instance that is gone now; `path` is None where its rings were empty."""

    instance: str
    path: Path | None
    ledger: Mapping[str, Any]


def salvage_leftovers(
    kernel: Kernel,
    host: Host,
    place: Callable[[str], Path | None],
    make_room: Callable[[int], bool],
) -> list[Salvaged]:
    """Salvage the instances that killed processes left, and remove them.

    One that cannot be salvaged now is left, and told: the rings keep what they hold.

    Args:
        kernel: finds and adopts them.
        host: this host.
        place: the directory of a session's segments, those of the killed process repaired; None
            for a session that is somebody else's to salvage.
        make_room: see `FileSink`.

    Raises:
        KernelError: instances cannot be listed.
    """
    done = []
    for name in kernel.leftover_instances():
        session, owned, _ = name.removeprefix(PREFIX).partition(OWNER_MARK)
        # Beside recordings only trials have the number of their process: no events are in them.
        trial = bool(owned) and session != RECORD_SESSION
        directory = None if trial else place(session)
        if directory is None and not trial:
            continue
        try:
            with ExitStack() as stack:
                leftover = kernel.salvage(name, stack)
                if directory is not None:
                    done.append(_salvage(kernel, host, leftover, directory, make_room))
        except (KernelError, SinkError) as error:
            _LOG.error("instance_not_salvaged", instance=name, error=str(error))
    if done:
        kernel.remove_orphan_probes()
    return done


def _salvage(
    kernel: Kernel,
    host: Host,
    leftover: Leftover,
    directory: Path,
    make_room: Callable[[int], bool],
) -> Salvaged:
    before = {cpu: ring.stats for cpu, ring in leftover.rings.items()}
    trail = read_trail(
        directory,
        session=leftover.session,
        boot_id=host.boot_id,
        since_ns=leftover.created_ns,
        subbuf_bytes=leftover.subbuf_bytes,
    )
    recorder = leftover.instance.effective().buffer_percent == RECORDER_PERCENT
    ledger: Mapping[str, Any] = balance(before, trail.stored, 0, recorder=recorder)

    def closing(salvaged: Mapping[int, int]) -> Closing:
        nonlocal ledger
        ledger = balance(before, trail.stored, sum(salvaged.values()), recorder=recorder)
        return Closing(
            clock=kernel.clocks(),
            rings=rings,
            ledger=ledger,
            ring_stats=leftover.ring_stats(),
            recovered=True,
        )

    rings = tuple(
        RingEntry(
            ring=cpu,
            role=str(RingRole.DATA),
            cpu=cpu,
            data_bytes=leftover.buffer_bytes,
            watermark_bytes=0,
        )
        for cpu in leftover.rings
    )
    info = salvage(
        directory,
        Identity(
            host=host.hostname,
            boot_id=host.boot_id,
            kernel=host.release,
            session=leftover.session,
            source=_SOURCE,
            scope=trail.scope,
        ),
        leftover.instance.metadata(),
        leftover.pages_by_cpu(trail.last_pages),
        opening=Opening(
            clock=kernel.clocks(), rings=rings, run=trail.run, stored_before=trail.stored
        ),
        closing=closing,
        comms=leftover.instance.comms,
        make_room=make_room,
    )
    return Salvaged(leftover.name, info.path if info is not None else None, ledger)


def balance(
    stats: Mapping[int, CpuStats], stored: int, salvaged: int, *, recorder: bool
) -> dict[str, Any]:
    """The final balance of a killed session, from the kernel's counters and from its files.

    Args:
        stats: of each ring, read when it was found: nothing had been salvaged by then.
        stored: events in the segments of the killed process.
        salvaged: events that were still there.
        recorder: it was a flight recorder: overwriting was what its rings were for.
    """
    counters = stats.values()
    lost = dict.fromkeys(LOSS_PAIRS[_SOURCE], 0)
    overrun = sum(s.overrun for s in counters)
    lost[Stage.KERNEL_RING, Reason.OVERRUN] = 0 if recorder else overrun
    lost[Stage.KERNEL_RING, Reason.COMMIT_OVERRUN] = sum(s.commit_overrun for s in counters)
    lost[Stage.KERNEL_RING, Reason.DROPPED] = sum(s.dropped for s in counters)
    handed_out = sum(s.read_events for s in counters)
    unread = sum(s.entries for s in counters)
    # A sub-buffer that was handed out last can still be there.
    rescued = max(0, salvaged - unread)
    lost[Stage.STAGING, Reason.DROPPED] = handed_out - stored - rescued
    produced = sum(s.written + s.dropped + s.commit_overrun for s in counters)
    total = stored + salvaged
    return {
        "basis": str(Basis.EXACT),
        "closed": True,
        "produced": produced,
        "produced_before": produced,
        "produced_after": produced,
        "stored": total,
        "lost": {loss_name(key): count for key, count in lost.items()},
        "overwritten": overrun if recorder else 0,
        "in_flight": 0,
        "unaccounted": produced - total - sum(lost.values()) - (overrun if recorder else 0),
    }
