# SPDX-License-Identifier: Apache-2.0
"""The times when foreign BPF programs were on a session's tracepoints and could hide events.

No counter of the kernel has hidden events. So nothing is claimed for the time from the last poll
without such programs to the first one without them again; before and after it the balance is
exact.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectord.session.recent_windows import RecentWindows
from collectord.text.foreign import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.plan.event_attrs import EventPlan
    from collectord.source.base import Suppressible


@dataclass(slots=True)
class HiddenWindow:
    """A time in which an event may have been hidden; `until_ns` is None while it lasts.

    Times are CLOCK_MONOTONIC. `programs` are ids, empty if the owners could not be determined.
    """

    event: EventPlan
    programs: tuple[int, ...]
    since_ns: int
    until_ns: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the window as in manifests and `--json`."""
        return {"event": self.event.name, **plain(self, "event")}


class Suppression:
    """The windows of one session, as `RecentWindows`.

    Args:
        sources: know which programs there are; without a source no event can be hidden.
        events: of the session; those that are tracepoints can be hidden.
    """

    def __init__(self, sources: Iterable[Suppressible], events: Iterable[EventPlan]) -> None:
        now_ns = time.monotonic_ns()
        points = [event for event in events if event.tracepoint is not None]
        self._sources = {event.index: source for source in sources for event in points}
        self._events = {event.index: event for event in points if event.index in self._sources}
        self._clean_ns = dict.fromkeys(self._events, now_ns)
        self._running: dict[int, HiddenWindow] = {}
        self._undecided: set[int] = set()
        self._windows = RecentWindows[HiddenWindow]()
        self._ever: set[int] = set()

    def poll(self) -> list[tuple[EventPlan, tuple[int, ...]]]:
        """Find the present foreign programs; return the changes. Raises KernelError."""
        changed = []
        for index, event in self._events.items():
            programs = self._sources[index].suppressed_by(index)
            now_ns = time.monotonic_ns()
            if programs is None:
                self._undecided.add(index)
                continue
            self._undecided.discard(index)
            if programs != self.programs([index]):
                self._change(index, programs, now_ns)
                changed.append((event, programs))
            if not programs:
                self._clean_ns[index] = now_ns
        return changed

    def end(self) -> None:
        """Make the final decision: a program whose owner is still unknown counts as foreign."""
        for index in self._undecided - self._running.keys():
            self._change(index, (), time.monotonic_ns())
        self._undecided.clear()

    def _change(self, index: int, programs: tuple[int, ...], now_ns: int) -> None:
        window = self._running.pop(index, None)
        since_ns = self._clean_ns[index]
        if window is not None:
            window.until_ns = since_ns = now_ns
            if not programs:
                return
        self._ever.add(index)
        self._running[index] = HiddenWindow(self._events[index], programs, since_ns)
        self._windows.add(self._running[index])

    def programs(self, indexes: Iterable[int]) -> tuple[int, ...]:
        """Return the ids of the programs that are on these events now."""
        running = (self._running[index] for index in set(indexes) if index in self._running)
        return tuple(sorted({program for window in running for program in window.programs}))

    def hid(self, indexes: Iterable[int], since_ns: int | None) -> bool:
        """Whether any of these events may have been hidden since then; None: may be now."""
        wanted = set(indexes)
        if since_ns is None:
            return not wanted.isdisjoint(self._running)
        if not since_ns:
            return not wanted.isdisjoint(self._ever)
        return any(window.event.index in wanted for window in self._windows.since(since_ns))

    def to_json(self, since_ns: int) -> list[dict[str, Any]]:
        """Return the windows that did not end before then."""
        return [window.to_json() for window in self._windows.since(since_ns)]
