# SPDX-License-Identifier: Apache-2.0
"""Threads for file work: neither the event loop nor another session waits for a disk."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from collectord.session.short_calls import ShortCalls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

_THREADS: Final = 2  # one prepares the next segment while the other seals the last
_OTHERS: Final = 0  # the file system of work without a session, or of a single file


class FileWorkers:
    """Two threads for each file system, and two for work that belongs to none.

    All run once it is entered, so that their ids are known.

    Args:
        devices: the file system of each session, by its name.
    """

    def __init__(self, devices: Mapping[str, int]) -> None:
        self._devices = {**devices}
        self._workers: dict[int, ThreadPoolExecutor] = {}
        self._short: dict[int, ShortCalls] = {}
        self._abandoned: set[int] = set()

    def __enter__(self) -> Self:
        self._start({_OTHERS, *self._devices.values()})
        return self

    def add(self, devices: Mapping[str, int]) -> None:
        """Set the file systems of sessions that are about to be opened."""
        self._devices.update(devices)
        self._start({*devices.values()} - self._workers.keys())

    def _start(self, devices: Iterable[int]) -> None:
        for device in devices:
            worker = ThreadPoolExecutor(_THREADS, "sink")
            all_running = threading.Barrier(_THREADS + 1)
            for _ in range(_THREADS):
                worker.submit(all_running.wait)
            all_running.wait()
            self._workers[device] = worker
            self._short[device] = ShortCalls(worker)

    def __exit__(self, *_: object) -> None:
        for device, worker in self._workers.items():
            worker.shutdown(wait=device not in self._abandoned)

    def abandon(self, session: str) -> None:
        """Do not wait at the end for the threads of a session's file system: they may hang."""
        self._abandoned.add(self._device_of(session))

    @property
    def devices(self) -> frozenset[int]:
        """The file systems of all sessions (st_dev)."""
        return frozenset(self._devices.values())

    def of(self, session: str = "") -> Executor:
        """Return the threads of a session's file system; without a session, those of no disk."""
        return self._workers[self._device_of(session)]

    def on(self, device: int) -> Executor:
        """Return the threads of a file system; of one that no session writes to, those of none."""
        return self._workers.get(device, self._workers[_OTHERS])

    def short(self, session: str) -> ShortCalls:
        """Return the short calls of a session's file system."""
        return self._short[self._device_of(session)]

    def _device_of(self, session: str) -> int:
        return self._devices.get(session, _OTHERS)
