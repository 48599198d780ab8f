# SPDX-License-Identifier: Apache-2.0
"""The conditions of triggers that are looked at once per flush interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from collectord.ledger.record_ledger import FILL_BUCKETS
from collectord.model import Reason, RingRole
from collectord.session.ring_snapshot import Snapshot, Trigger
from collectord.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.config.schema_trigger import TriggerConfig
    from collectord.daemon.session_set import SessionSet
    from collectord.kernel.port import Kernel
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.session.session_factory import AnySession

_STEPS: Final = 10  # of fill_buckets between empty and full


class TriggerWatch:
    """A condition that comes and goes; one of its own kind is never met, as a request tells of it.

    Attributes:
        trouble: why the condition cannot be watched as it should be, "" if it can.
        stored: snapshots that the condition itself has made.
    """

    trouble: str = ""
    stored: tuple[Snapshot, ...] = ()

    def poll(self) -> str:
        """Return in words what was met since the last look, "" for nothing."""
        return ""

    def close(self) -> None:
        """End the watch."""


class _Growth:
    """Totals that rise; one that falls is another counter's, and begins anew."""

    def __init__(self) -> None:
        self._before: dict[object, int] = {}

    def of(self, key: object, total: int) -> int:
        """Return by how much a total has risen since the last look, 0 at the first one."""
        before = self._before.get(key, total)
        self._before[key] = total
        return max(0, total - before)


class LossesWatch(TriggerWatch):
    """Records that a session, or any, loses.

    Records of a snapshot's pause do not count: that is what the snapshot costs.
    """

    def __init__(self, config: TriggerConfig, sessions: SessionSet) -> None:
        self._config = config
        self._sessions = sessions
        self._growth = _Growth()
        self.poll()

    def poll(self) -> str:
        """See `TriggerWatch`."""
        found = []
        for session in _watched(self._sessions, self._config.session):
            balance = session.balance()
            lost = {
                name: self._growth.of((balance.name, balance.source, name), total)
                for name, total in balance.lost.items()
                if not name.endswith(f"/{Reason.PAUSED}")
            }
            if sum(lost.values()) >= self._config.lost:
                causes = ", ".join(name for name, count in lost.items() if count)
                records = counted(sum(lost.values()), "record")
                found.append(f"{balance.name} lost {records} ({causes})")
        return "; ".join(found)


class FillWatch(TriggerWatch):
    """Rings of a session, or of any, that are fuller than a share when they are drained."""

    def __init__(self, config: TriggerConfig, sessions: SessionSet) -> None:
        self._config = config
        self._sessions = sessions
        self._growth = _Growth()
        # Rounded up: the last step is of rings that are full.
        self._from = min(math.ceil(config.fill.percent / 100 * _STEPS), FILL_BUCKETS - 1)
        self.poll()

    def poll(self) -> str:
        """See `TriggerWatch`."""
        found = []
        for session in _watched(self._sessions, self._config.session):
            balance = session.balance()
            rings = [one for one in balance.rings if one.label.role is RingRole.DATA]
            passes = sum(sum(one.counters.fill_buckets[self._from :]) for one in rings)
            times = self._growth.of((balance.name, balance.source), passes)
            if times:
                share = f"{self._from * _STEPS}%"
                found.append(
                    f"rings of {balance.name} were above {share} {counted(times, 'time')}"
                )
        return "; ".join(found)


class FreezeWatch(TriggerWatch):
    """The event of `freeze_on`, which has stopped the rings of a flight recorder."""

    def __init__(self, config: TriggerConfig, sessions: SessionSet) -> None:
        self._name = config.session
        self._sessions = sessions
        self._seen: dict[tuple[str, str], int] = {}
        self.poll()
        self.stored = ()

    def poll(self) -> str:
        """See `TriggerWatch`."""
        sessions = [*_watched(self._sessions, self._name)]
        new = [one for session in sessions for one in self._new(session)]
        if not new:
            return ""
        self.stored = tuple(new)
        return f"the event of freeze_on has stopped the rings of {self._name}"

    def _new(self, session: AnySession) -> Iterator[Snapshot]:
        """Yield the snapshots of freezes that were not seen yet."""
        made = session.recorder.snapshots if session.recorder is not None else ()
        key = session.plan.key
        last = self._seen.get(key, 0)
        for one in made:
            if one.trigger == Trigger.FREEZE and one.last_ns > last:
                self._seen[key] = one.last_ns
                yield one


class EventWatch(TriggerWatch):
    """Events that a session records, or that a BPF program counts in a map.

    No record is looked at: the ledger has the number of those that came, and the map the count.
    """

    def __init__(self, config: TriggerConfig, sessions: SessionSet) -> None:
        self._config = config
        self._sessions = sessions
        self._growth = _Growth()
        self.poll()

    def poll(self) -> str:
        """See `TriggerWatch`."""
        name, metric = self._config.session, self._config.metric
        if metric:
            came = self._counted(name, metric)
            what = f"{metric} of {name} has risen by {came:,}"
        else:
            came = self._recorded(name)
            what = f"{counted(came, 'event')} of {name} came"
        return f"{what} within a flush interval" if came >= self._config.count else ""

    def _recorded(self, name: str) -> int:
        balances = [session.balance() for session in _watched(self._sessions, name)]
        return sum(self._growth.of((one.name, one.source), _come(one)) for one in balances)

    def _counted(self, name: str, metric: str) -> int:
        """Return by how much the counters of a metric have grown in all."""
        found = [
            sum(series.value or 0 for series in one.series)
            for status in self._sessions.programs()
            if status.session == name
            for one in status.metrics
            if (one.name, one.type) == (metric, "counter")
        ]
        self.trouble = "" if found else f"no BPF program of {name} has the counter {metric}"
        return self._growth.of(metric, round(sum(found))) if found else 0


def _come(balance: SessionBalance) -> int:
    """Return how many records have come so far, those of a flight recorder's rings included."""
    if balance.produced is not None:
        return balance.produced
    lost = sum(balance.lost.values())
    return balance.stored + lost + (balance.overwritten or 0) + balance.in_flight


class OomWatch(TriggerWatch):
    """Processes that the kernel kills for lack of memory."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._growth = _Growth()
        self.poll()

    def poll(self) -> str:
        """See `TriggerWatch`."""
        total = self._kernel.oom_kills()
        killed = self._growth.of("", total) if total is not None else 0
        noun = "process" if killed == 1 else "processes"
        return f"the kernel killed {killed:,} {noun} for lack of memory" if killed else ""


def _watched(sessions: Iterable[AnySession], name: str) -> Iterator[AnySession]:
    return (one for one in sessions if name in {"", one.plan.name})
