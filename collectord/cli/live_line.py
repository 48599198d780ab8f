# SPDX-License-Identifier: Apache-2.0
"""The live line of a recording, by rich. Loaded only on a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from collectord.cli.output import bytes_text, count_text
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collectord.session.daemon_status import DaemonStatus

_FILL_WARNING: Final = 0.8


class LiveLine:
    """A line on stderr with time, rates, fill and loss, redrawn at each `update`."""

    def __init__(self) -> None:
        self._live = Live(
            console=Console(stderr=True, highlight=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
        )
        self._started_ns = time.monotonic_ns()
        self._last: tuple[int, int, int] | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, status: DaemonStatus) -> None:
        """Redraw from the daemon's counters."""
        self._live.update(self._line(status, time.monotonic_ns()), refresh=True)

    def _line(self, status: DaemonStatus, now_ns: int) -> Text:
        rings = [ring for session in status.sessions for ring in session.rings]
        records = sum(r.counters.records for r in rings if r.label.has_data)
        size_bytes = sum(ring.counters.bytes for ring in rings)
        lost = sum(sum(session.lost.values()) for session in status.sessions)
        fill = max((r.used_bytes / r.capacity_bytes for r in rings), default=0.0)
        peak = max((r.peak_fill for r in rings), default=0.0)
        last_ns, last_records, last_bytes = self._last or (self._started_ns, 0, 0)
        seconds = max(now_ns - last_ns, 1) / NS_PER_SECOND
        self._last = (now_ns, records, size_bytes)
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{(now_ns - self._started_ns) / NS_PER_SECOND:6.1f}s  ")
        line.append(f"{count_text((records - last_records) / seconds)} rec/s  ")
        line.append(f"{bytes_text((size_bytes - last_bytes) / seconds)}/s  ")
        line.append(f"{count_text(records)} records  ")
        line.append(f"fill {fill:.0%} ", style="yellow" if fill > _FILL_WARNING else "")
        line.append(f"(peak {peak:.0%})  ", style="yellow" if peak > _FILL_WARNING else "")
        line.append(f"lost {lost}", style="bold red" if lost else "green")
        losing = sum(place.per_second for s in status.sessions for place in s.losing)
        if losing:
            line.append(f"  losing {count_text(losing)}/s", style="bold red")
        return line
