# SPDX-License-Identifier: Apache-2.0
"""The status of a daemon and its sessions, for metrics, the control API and the live line."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collectord.session.cost_meter import Cost
from collectord.session.incident_status import IncidentsStatus
from collectord.session.running_threads import RunningThreads
from collectord.sink.ship_note import Shipping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord._native._core import CoreCounters
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.model import ClockReading
    from collectord.session.maps.program_status import BpfStatus


@dataclass(frozen=True, slots=True)
class ReloadStatus:
    """The result of the last reload; the start counts as one.

    Attributes:
        successful: it was carried out.
        succeeded_ns: Unix time of the last one that was.
    """

    successful: bool = True
    succeeded_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """All values that metrics, the control API and the live line show.

    Attributes:
        beginning: the balances of sessions that are wanted and do not record yet.
        ending: the balances of sessions that are not wanted any more, and have not ended yet.
        before: sums over the sessions that present ones have followed under the same name.
        uncovered_ns: time that CPUs were without what they should have had, added up.
        log_lines_dropped: lines of the log for which there was no room, since nobody took them.
        shipping: what was put into the store, and what waits.
        uncovered_by_session: the same for each session, by name and source.
    """

    sessions: tuple[SessionBalance, ...]
    core: CoreCounters
    clocks: ClockReading
    started_ns: int
    config_sha256: str
    cpus_online: int
    cpus_covered: int
    uncovered_ns: int
    unclean_stops: int
    damaged_files: int
    left_records: int
    store_limit_bytes: int
    uncovered_by_session: Mapping[tuple[str, str], int] = field(default_factory=dict)
    log_lines_dropped: int = 0
    bpf: tuple[BpfStatus, ...] = ()
    drain: RunningThreads = field(default_factory=RunningThreads)
    cost: Cost = field(default_factory=Cost)
    beginning: tuple[SessionBalance, ...] = ()
    ending: tuple[SessionBalance, ...] = ()
    before: tuple[SessionBalance, ...] = ()
    reload: ReloadStatus = field(default_factory=ReloadStatus)
    incidents: IncidentsStatus = field(default_factory=IncidentsStatus)
    shipping: Shipping = field(default_factory=Shipping)
