# SPDX-License-Identifier: Apache-2.0
"""Incidents in a store: those of several hosts that have one id are one incident of the fleet.

A host that asks others for theirs does so by Alertmanager, which hands each of them the alert and
its fingerprint: that is what their incidents have in common. One without it stands alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from collectord.errors import StoreError
from collectord.fleet.store_keys import incidents_prefix, parse_incident_key
from collectord.sink.alert import Alert  # noqa: TC001 - msgspec reads annotations
from collectord.sink.incident_folder import NOTE
from collectord.sink.segment import time_of_name
from collectord.text.foreign import decode_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from collectord.fleet.selection import Wanted
    from collectord.fleet.store import Store

_NOTE_MAX_BYTES: Final = 16 << 20


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an incident's note that is read; anybody may have written it."""

    id: str = ""
    trigger: str = ""
    kind: str = ""
    reason: str = ""
    hostname: str = ""
    fired_ns: int = 0
    taken_ns: int = 0
    alerts: tuple[Alert, ...] = ()

    @property
    def shared(self) -> tuple[str, str]:
        """The first alert, which all hosts have: fingerprint, and since when; "" if there is none.

        An alert that fires again, later, is another one of the same fingerprint.
        """
        return (self.alerts[0].fingerprint, self.alerts[0].starts_at) if self.alerts else ("", "")


@dataclass(slots=True)
class HostIncident:
    """An incident of one host.

    Attributes:
        note: None if it was not finished, or cannot be read.
        files: keys of its files, with their bytes.
        problem: why there is no note.
    """

    host: str
    id: str
    note: Note | None = None
    files: dict[str, int] = field(default_factory=dict)
    problem: str = ""

    @property
    def full_id(self) -> str:
        """The name among all hosts: those of folders tell hosts apart only by their time."""
        return f"{self.id}@{self.host}"

    @property
    def key(self) -> str:
        """The key of its note."""
        return next((key for key in self.files if key.endswith(f"/{NOTE}")), "")


@dataclass(slots=True)
class FleetIncident:
    """Incidents of one id: of one host, or of several."""

    id: str
    parts: list[HostIncident] = field(default_factory=list)

    @property
    def first(self) -> HostIncident:
        """The one that was made first."""
        return min(self.parts, key=lambda one: one.note.fired_ns if one.note else 1 << 63)

    def to_json(self) -> dict[str, Any]:
        """Return the form in JSON output."""
        return {
            "id": self.id,
            "hosts": [
                {
                    "host": one.host,
                    "incident": one.id,
                    "note": one.note,
                    "problem": one.problem,
                    "bytes": sum(one.files.values()),
                    "files": sorted(one.files),
                }
                for one in self.parts
            ],
        }


def fleet_incidents(
    store: Store, wanted: Wanted, hosts: Collection[str] | None = None
) -> list[FleetIncident]:
    """Return the incidents in a store, the newest first, and those without a note behind them.

    Args:
        store: that is read.
        wanted: the time, and the names of hosts.
        hosts: only of these, which have the labels that are asked for; None: of all.

    Raises:
        StoreError: the store cannot be read.
    """
    found: dict[tuple[str, str], HostIncident] = {}
    for info in chain.from_iterable(map(store.objects, map(incidents_prefix, wanted.names))):
        parts = parse_incident_key(info.key)
        if parts is None or not wanted.may_have(parts.host):
            continue
        if hosts is not None and parts.host not in hosts:
            continue
        one = found.setdefault((parts.host, parts.id), HostIncident(parts.host, parts.id))
        one.files[info.key] = info.bytes
    joined: dict[tuple[str, str], FleetIncident] = {}
    for one in _with_notes(store, found.values()):
        if not _is_within(one, wanted):
            continue
        name, since = one.note.shared if one.note else ("", "")
        key = (name, since) if name else (one.full_id, "")
        joined.setdefault(key, FleetIncident(key[0])).parts.append(one)
    times = Counter(name for name, _ in joined)
    for (name, since), whole in joined.items():
        if times[name] > 1:
            whole.id = f"{name}@{since}"
        whole.parts.sort(key=lambda one: (one.note.fired_ns if one.note else 1 << 63, one.host))
    return sorted(joined.values(), key=lambda one: (-_fired(one), one.id))


def _with_notes(store: Store, found: Iterable[HostIncident]) -> Iterator[HostIncident]:
    for one in found:
        if not one.key:
            one.problem = "it was not shipped to its end"
        else:
            try:
                one.note = decode_json(store.get(one.key, _NOTE_MAX_BYTES), Note)
            except (StoreError, msgspec.DecodeError) as error:
                one.problem = f"its note cannot be read: {error}"
        yield one


def _is_within(one: HostIncident, wanted: Wanted) -> bool:
    since_ns, until_ns = wanted.window
    fired = time_of_name(one.id) if one.note is None else one.note.fired_ns
    if fired is None:
        return True  # nothing tells that it is of another time
    return (since_ns is None or fired >= since_ns) and (until_ns is None or fired <= until_ns)


def _fired(one: FleetIncident) -> int:
    note = one.first.note
    return note.fired_ns if note else 0
