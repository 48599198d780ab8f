# SPDX-License-Identifier: Apache-2.0
"""How often a trigger may make an incident: a cool-down, and so many within 24 hours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from collectord.session.incident_status import Suppression
from collectord.text.foreign import decode_json, encode_json
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

_DAY_NS: Final = 86_400 * NS_PER_SECOND
# No trigger may have more a day.
_FIRED_MAX: Final = 1000


class Counted(msgspec.Struct):
    """The history of a trigger, which outlives the daemon.

    Attributes:
        fired_ns: UTC of its incidents within the last 24 hours.
        made: its incidents.
        suppressed: times that it made none, by cause.
        since: the same since its last incident.
        alerts: the newest that have an incident: the fingerprint, and since when it fired.
    """

    fired_ns: list[int] = []
    made: int = 0
    suppressed: dict[str, int] = {}
    since: dict[str, int] = {}
    alerts: dict[str, str] = {}


class TriggerGate:
    """Decides whether a trigger makes an incident, and counts.

    Args:
        cooldown_ns: the time after an incident in which there is no other.
        per_day: the most within 24 hours.
        counted: its history.
    """

    def __init__(self, cooldown_ns: int, per_day: int, counted: Counted | None = None) -> None:
        self._cooldown_ns = cooldown_ns
        self._per_day = per_day
        self.counted = counted or Counted()

    def refusal(self, now_ns: int, *, busy: bool) -> Suppression | None:
        """Return why the trigger makes no incident now, and count that; None if it makes one.

        Args:
            now_ns: UTC. Times behind it are of a clock that was set back, and do not count.
            busy: an incident is being made.
        """
        counted = self.counted
        self._forget(now_ns)
        cause = None
        if busy:
            cause = Suppression.BUSY
        elif counted.fired_ns and now_ns - counted.fired_ns[-1] < self._cooldown_ns:
            cause = Suppression.COOLDOWN
        elif len(counted.fired_ns) >= self._per_day:
            cause = Suppression.PER_DAY
        if cause is not None:
            for sums in (counted.suppressed, counted.since):
                sums[cause] = sums.get(cause, 0) + 1
        return cause

    def note(self, now_ns: int) -> dict[str, int]:
        """Count an incident; return what was suppressed since the last one."""
        self._forget(now_ns)
        counted = self.counted
        counted.fired_ns.append(now_ns)
        counted.made += 1
        since, counted.since = counted.since, {}
        return since

    def _forget(self, now_ns: int) -> None:
        """Forget incidents older than a day, and all but the last thousand within it."""
        fired = self.counted.fired_ns
        kept = [at for at in fired if now_ns - _DAY_NS < at <= now_ns]
        self.counted.fired_ns = kept[-_FIRED_MAX:]


def encode_counts(counts: Mapping[str, Counted]) -> bytes:
    """Return the histories of all triggers as JSON."""
    return encode_json(counts)


def decode_counts(data: bytes) -> dict[str, Counted]:
    """Return what `encode_counts` was given; nothing if it is damaged."""
    try:
        return decode_json(data, dict[str, Counted]) if data else {}
    except msgspec.MsgspecError:
        return {}
