# SPDX-License-Identifier: Apache-2.0
"""The triggers of a daemon: what they watch, how often they may fire, and how often they have."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from collectord.daemon.incidents.stall_watch import StallWatch
from collectord.daemon.incidents.trigger_gate import (
    Counted,
    TriggerGate,
    decode_counts,
    encode_counts,
)
from collectord.daemon.incidents.trigger_watches import (
    EventWatch,
    FillWatch,
    FreezeWatch,
    LossesWatch,
    OomWatch,
    TriggerWatch,
)
from collectord.errors import UsageError
from collectord.session.incident_status import Suppression, TriggerStatus
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from collectord.config.schema_trigger import TriggerConfig
    from collectord.daemon.session_set import SessionSet
    from collectord.kernel.port import Kernel
    from collectord.session.ring_snapshot import Snapshot
    from collectord.sink.alert import Alert

MANUAL: Final = "manual"
SIGNAL: Final = "signal"
REQUEST: Final = "request"  # the kind of both
# The counts of what was suppressed are kept for the next daemon this often.
_SAVED_NS: Final = 60 * NS_PER_SECOND
_UNMATCHED: Final = "unmatched"
_ALERTS_MAX: Final = 1000  # that a trigger remembers


@dataclass(frozen=True, slots=True)
class Fired:
    """A trigger whose condition is met.

    Attributes:
        reason: what was met, in words.
        at_ns: UTC.
        delay_ns: the time to the snapshot.
        stored: snapshots that the condition itself has made.
        suppressed, alerts: see `IncidentNote`.
        config: of the trigger; None for a request.
    """

    name: str
    kind: str
    reason: str
    at_ns: int
    delay_ns: int = 0
    stored: tuple[Snapshot, ...] = ()
    suppressed: dict[str, int] = field(default_factory=dict)
    config: TriggerConfig | None = None
    alerts: tuple[Alert, ...] = ()


@dataclass(slots=True)
class _Live:
    """A trigger of the configuration."""

    config: TriggerConfig
    gate: TriggerGate
    watch: TriggerWatch


class Triggers:
    """Watches the triggers of a configuration.

    Args:
        kernel: tells what they watch.
        sessions: all of the daemon.
        fired: called with each trigger whose condition is met; returns why it makes no incident.
        opener: socket of the opener, "" for none.
    """

    def __init__(
        self,
        kernel: Kernel,
        sessions: SessionSet,
        fired: Callable[[Fired], Suppression | None],
        opener: str = "",
    ) -> None:
        self._kernel = kernel
        self._sessions = sessions
        self._fired = fired
        self._opener = opener
        self._live: dict[str, _Live] = {}
        self._counted: dict[str, Counted] = {name: Counted() for name in (MANUAL, SIGNAL)}
        self._changed = False
        self._saved_ns = time.monotonic_ns()

    def restore(self, data: bytes) -> None:
        """Go on with the histories that an earlier daemon has left."""
        self._counted |= decode_counts(data)

    def histories(self) -> bytes:
        """Return the histories, for the next daemon."""
        self._changed = False
        self._saved_ns = time.monotonic_ns()
        return encode_counts(self._counted)

    @property
    def have_changed(self) -> bool:
        """Whether the histories differ from those that were kept last."""
        return self._changed

    @property
    def are_due(self) -> bool:
        """Whether the histories have changed a while ago, and should be kept."""
        return self._changed and time.monotonic_ns() - self._saved_ns > _SAVED_NS

    def watch(self, configs: Sequence[TriggerConfig]) -> None:
        """Watch these triggers, and no others."""
        self.close()
        for config in configs:
            counted = self._counted.setdefault(config.name, Counted())
            gate = TriggerGate(config.cooldown, config.per_day, counted)
            self._live[config.name] = _Live(config, gate, self._watch_of(config))
        known = {*self._live, MANUAL, SIGNAL}
        self._counted = {name: one for name, one in self._counted.items() if name in known}

    def _watch_of(self, config: TriggerConfig) -> TriggerWatch:
        """Return what watches a condition."""
        if config.pressure is not None:
            name = config.name
            return StallWatch(
                config.pressure,
                self._kernel,
                lambda reason: self._met(name, reason),
                self._opener,
            )
        if config.kind == "oom-kill":
            return OomWatch(self._kernel)
        kinds: Mapping[str, Callable[[TriggerConfig, SessionSet], TriggerWatch]] = {
            "loss": LossesWatch,
            "ring-fill": FillWatch,
            "freeze": FreezeWatch,
            "event": EventWatch,
        }
        make = kinds.get(config.kind)
        return make(config, self._sessions) if make is not None else TriggerWatch()

    def close(self) -> None:
        """Watch nothing."""
        for live in self._live.values():
            live.watch.close()
        self._live.clear()

    def poll(self) -> None:
        """Check the conditions that nobody reports."""
        for name, live in tuple(self._live.items()):
            reason = live.watch.poll()
            if reason:
                self._met(name, reason)

    def _met(self, name: str, reason: str) -> None:
        live = self._live[name]
        self._fired(_fired(live, reason))

    def unit_failed(self, unit: str, *, is_busy: bool) -> Fired | Suppression:
        """Return the first trigger of a unit that may fire, or why none may.

        Raises:
            UsageError: no trigger is for this unit.
        """
        cause = None
        for live in self._live.values():
            if live.config.unit and fnmatchcase(unit, live.config.unit):
                fired = _fired(live, f"the unit {unit} has failed")
                cause = self.refusal(fired, is_busy=is_busy)
                if cause is None:
                    return fired
        if cause is None:
            raise UsageError(
                f"no trigger is for the unit {unit!r}",
                hint='a [[trigger]] with kind = "unit" and a matching unit',
            )
        return cause

    def alerted(self, alerts: Iterable[Alert]) -> dict[str, str]:
        """Fire for each alert that fires and is new, for the first trigger that may fire.

        Returns:
            what becomes of each, by its fingerprint: "accepted"; "resolved"; "repeated", for one
            that has an incident; "unmatched", if no trigger is for it; or a `Suppression`.
        """
        results: dict[str, str] = {}
        new: list[Alert] = []
        for alert in alerts:
            results[alert.fingerprint] = self._state(alert)
            if results[alert.fingerprint] == _UNMATCHED:
                new.append(alert)
        for live in tuple(self._live.values()):
            mine = [one for one in new if _is_for(live.config, one)]
            if mine:
                fired = replace(_fired(live, _reason(mine)), alerts=tuple(mine))
                cause = self._fired(fired)
                results |= {one.fingerprint: str(cause or "accepted") for one in mine}
                new = [one for one in new if cause is not None or one not in mine]
        return results

    def _state(self, alert: Alert) -> str:
        if alert.status == "resolved":
            return "resolved"
        known = (one.alerts.get(alert.fingerprint) for one in self._counted.values())
        return "repeated" if alert.starts_at in known else _UNMATCHED

    def note_alerts(self, fired: Fired) -> None:
        """Remember that alerts have an incident."""
        counted = self._counted.get(fired.name)
        if counted is None:  # a reload has removed the trigger
            return
        for alert in fired.alerts:
            counted.alerts.pop(alert.fingerprint, None)
            counted.alerts[alert.fingerprint] = alert.starts_at
            if len(counted.alerts) > _ALERTS_MAX:
                del counted.alerts[next(iter(counted.alerts))]

    def refusal(self, fired: Fired, *, is_busy: bool) -> Suppression | None:
        """Return why a trigger makes no incident now; None, and count it, if it makes one."""
        live = self._live[fired.name]
        self._changed = True
        cause = live.gate.refusal(fired.at_ns, busy=is_busy)
        if cause is None:
            fired.suppressed.update(live.gate.note(fired.at_ns))
        return cause

    def note_request(self, name: str, at_ns: int) -> None:
        """Count an incident that was asked for."""
        self._changed = True
        TriggerGate(0, 1, self._counted[name]).note(at_ns)

    def status(self) -> tuple[TriggerStatus, ...]:
        """Return all triggers, the triggers of requests first."""
        return (
            *(self._status_of(name, REQUEST) for name in (MANUAL, SIGNAL)),
            *self._configured(),
        )

    def _configured(self) -> list[TriggerStatus]:
        return [
            self._status_of(name, live.config.kind, live.watch.trouble)
            for name, live in self._live.items()
        ]

    def _status_of(self, name: str, kind: str, trouble: str = "") -> TriggerStatus:
        counted = self._counted[name]
        causes = () if kind == REQUEST else Suppression
        return TriggerStatus(
            name=name,
            kind=kind,
            made=counted.made,
            suppressed={str(cause): counted.suppressed.get(cause, 0) for cause in causes},
            fired_ns=counted.fired_ns[-1] if counted.fired_ns else 0,
            trouble=trouble,
        )


def _is_for(config: TriggerConfig, alert: Alert) -> bool:
    """Whether a trigger is for an alert: each of its patterns matches the label of that name."""
    return bool(config.labels) and all(
        fnmatchcase(alert.labels.get(name, ""), pattern) for name, pattern in config.labels.items()
    )


def _reason(alerts: Sequence[Alert]) -> str:
    more = f", and {len(alerts) - 1:,} more alerts" if len(alerts) > 1 else ""
    first = alerts[0]
    summary = first.annotations.get("summary", "")
    return f"the alert {first.name} fires{f': {summary}' if summary else ''}{more}"


def _fired(live: _Live, reason: str) -> Fired:
    return Fired(
        name=live.config.name,
        kind=live.config.kind,
        reason=reason,
        at_ns=time.time_ns(),
        delay_ns=live.config.delay,
        stored=live.watch.stored,
        config=live.config,
    )
