# SPDX-License-Identifier: Apache-2.0
"""The troubles of single rings that the core reports: some pass, and some stay."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.session.health import Health

_LOG: Final = structlog.get_logger()
# The core forgets faults after as long: RING_FAULTS_NS.
_QUIET_NS: Final = 10 * NS_PER_SECOND


class RingTroubles:
    """Notes the troubles of a session's rings, by the core's number, and takes them back.

    A ring is read on behind a fault. One fault, or a few, degrade the session until the ring has
    had none for some time; the counters of faults and of skipped bytes stay. A ring that is
    quarantined, or that ended, stays a trouble until it is closed.

    Args:
        session: its name, for the log.
        health: has the notes.
        clock_ns: a monotonic clock.
    """

    def __init__(
        self, session: str, health: Health, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._health = health
        self._clock_ns = clock_ns
        self._log = _LOG.bind(session=session)
        self._faults: dict[int, tuple[int, str]] = {}  # time of the last one, and the ring's label

    def fault(
        self, ring: int, label: str, reason: str, position: int, *, quarantined: bool
    ) -> None:
        """Report a fault; a quarantined ring fills up, and the kernel counts what it refuses."""
        trouble = f"{'quarantined' if quarantined else 'had invalid contents'}: {reason}"
        self._note(ring, f"ring {label} {trouble}")
        if not quarantined:
            self._faults[ring] = self._clock_ns(), label
        event = "ring_quarantined" if quarantined else "ring_faulty"
        self._log.error(event, ring=label, reason=reason, position=position)

    def hang_up(self, ring: int, label: str, meaning: str) -> None:
        """Report that a ring's task, or its channel, is gone."""
        self._note(ring, f"ring {label}: {meaning}")
        self._log.warning("ring_hung_up", ring=label, meaning=meaning)

    def forget(self, ring: int) -> None:
        """Take back what was noted of a ring that is closed."""
        self._note(ring, "")

    def poll(self) -> None:
        """Take back faults after which the ring was read for some time without another one."""
        until_ns = self._clock_ns() - _QUIET_NS
        for ring, (fault_ns, label) in [*self._faults.items()]:
            if fault_ns <= until_ns:
                self._note(ring, "")
                self._log.info("ring_reads_on", ring=label)

    def _note(self, ring: int, trouble: str) -> None:
        self._faults.pop(ring, None)
        self._health.note(f"ring/{ring}", trouble)
