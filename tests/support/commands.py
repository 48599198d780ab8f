# SPDX-License-Identifier: Apache-2.0
"""A daemon's commands without a daemon: requests are recorded, answers are given by the test."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from collectord.config.listen_address import ListenAddress
from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig, TimedSessionConfig
from collectord.control.api import control_app
from collectord.control.health_pages import HealthPages
from collectord.control.listener import serve
from collectord.control.sockets import claim_tcp, claim_unix
from collectord.plan.build import build
from collectord.plan.difference import difference, document
from collectord.session.incident_status import Suppression
from collectord.session.ring_snapshot import Lost, Snapshot
from collectord.sink.incident_folder import IncidentNote
from collectord.text.foreign import plain
from collectord.text.units import Nanoseconds
from tests.support import balances
from tests.support.configs import perf_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

    from aiohttp import web

    from collectord.errors import CollectordError
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.plan import Plan
    from collectord.sink.base import SegmentInfo

# The end of a started session: Unix time.
ENDS_NS: Final = 1_700_000_000_000_000_000
# A request of each route that changes something.
CHANGES: Final[dict[str, dict[str, Any]]] = {
    "/v1/mark": {"text": "x", "session": "exec"},
    "/v1/snapshot": {"sessions": ["exec"]},
    "/v1/rotate": {"sessions": ["exec"]},
    "/v1/incident": {"reason": "x"},
    "/v1/sessions": {"name": "exec", "duration": "1s"},
    "/v1/sessions/exec/stop": {},
    "/v1/sessions/exec/pause": {},
    "/v1/sessions/exec/resume": {},
    "/v1/reload": {},
}


class Commands:
    """Answers `mark` with 2 sessions and `snapshot` with `made`, or fails with `error`.

    Args:
        segments: of the snapshot, unless `made` is given.
        sealed: by a rotation.
        error: is raised.
        made: the snapshots.
        after: the events of the session after a reload.
    """

    def __init__(
        self,
        *,
        segments: Sequence[str] = ("/s/1.trace.dat",),
        error: CollectordError | None = None,
        made: Sequence[Snapshot] | None = None,
        sealed: Sequence[SegmentInfo] = (),
        after: Sequence[str] = ("sched:sched_process_exec",),
    ) -> None:
        self.asked: list[object] = []
        self._made = [snapshot(tuple(segments))] if made is None else list(made)
        self._sealed = list(sealed)
        self._error = error
        self._after = after

    @property
    def plan(self) -> Plan:
        """The plan of one session of process starts."""
        return planned("sched:sched_process_exec")

    async def mark(self, text: str, session: str | None) -> int:
        """Set a mark, as `api.Commands.mark` does."""
        self._note((text, session))
        return 2

    async def snapshot(self, names: Sequence[str]) -> list[Snapshot]:
        """Make a snapshot, as `api.Commands.snapshot` does."""
        self._note(tuple(names))
        return self._made

    async def rotate(self, names: Sequence[str]) -> list[SegmentInfo]:
        """Rotate, as `api.Commands.rotate` does."""
        self._note(tuple(names))
        return self._sealed

    @property
    def timed(self) -> Commands:
        """The sessions that users start: itself."""
        return self

    async def start(self, document: Mapping[str, object]) -> TimedSessionConfig:
        """Start a session, as `api.Timed.start` does."""
        self._note(document)
        return TimedSessionConfig(
            name="timed-1", source=(), duration=Nanoseconds(1), ends_ns=ENDS_NS
        )

    async def stop(self, name: str) -> Sequence[SessionBalance]:
        """Stop a session, as `api.Timed.stop` does."""
        self._note(("stop", name))
        return [replace(balances.session(name), segments=("/s/1.perf.data",))]

    @property
    def incidents(self) -> Commands:
        """The maker of incidents: itself."""
        return self

    async def request(self, reason: str) -> IncidentNote:
        """Make an incident, as `api.Incidents.request` does."""
        self._note(("incident", reason))
        return incident_note(tuple(one.to_json() for one in self._made))

    async def unit_failed(self, unit: str) -> IncidentNote | Suppression:
        """Hold the trigger back, as `api.Incidents.unit_failed` may do."""
        self._note(("unit", unit))
        return Suppression.COOLDOWN

    async def pause(self, name: str) -> None:
        """Pause a session, as `api.Commands.pause` does."""
        self._note(("pause", name))

    async def resume(self, name: str) -> None:
        """Resume a session, as `api.Commands.resume` does."""
        self._note(("resume", name))

    async def reload(self) -> dict[str, Any]:
        """Reload nothing, as `api.Commands.reload` does."""
        self._note(())
        found = difference(document(self.plan), document(planned(*self._after)))
        return {
            **plain(found),
            "warnings": ["nothing is as it was"],
            "beginning": ["slow"],
            "ending": ["gone"],
        }

    def _note(self, asked: object) -> None:
        self.asked.append(asked)
        if self._error is not None:
            raise self._error


def planned(*events: str, **core: Any) -> Plan:  # noqa: ANN401  # of any key of [daemon]
    """Return the plan of one session with these events."""
    session = SessionConfig(name="exec", source=(perf_source(*events),))
    return build(Config(daemon=DaemonConfig(**core), session=(session,)), host())


def snapshot(segments: tuple[str, ...]) -> Snapshot:
    """Return 1,000 events of two seconds, 30 of which the previous snapshot has too."""
    return Snapshot(
        session="blackbox",
        source="perf",
        trigger="request",
        segments=segments,
        samples=1_000 if segments else 0,
        bytes=128_000,
        first_ns=1_000_000_000,
        last_ns=3_000_000_000,
        repeated=30,
        repeated_bytes=3_840,
        paused_ns=250_000,
        lost=lost(),
    )


def incident_note(
    snapshots: tuple[dict[str, Any], ...] = (), *, name: str = "20260102T030405Z-manual"
) -> IncidentNote:
    """Return an incident that somebody has asked for."""
    return IncidentNote(
        id=name,
        trigger=name.partition("-")[2],
        kind="request",
        reason="slow page",
        hostname="host",
        boot_id="b",
        release="6.12.0",
        fired_ns=1_700_000_000_000_000_000,
        taken_ns=1_700_000_000_000_000_000,
        snapshots=snapshots,
    )


def lost(*, full: int = 0, failed: int = 0, aux_full: int = 0) -> Lost:
    """Return a snapshot's loss: events on a full disk and in failed writes, and AUX bytes."""
    return Lost(
        {"sink/disk_full": full, "sink/dropped": failed},
        {"sink/disk_full": aux_full, "sink/dropped": 0},
    )


def pages(*silent: int, unready: str = "") -> HealthPages:
    """Return the health pages of a daemon with these silent drain threads."""

    async def look() -> tuple[int, ...]:
        return silent

    return HealthPages(look, lambda: unready)


@asynccontextmanager
async def serve_unix(app: web.Application, path: Path) -> AsyncIterator[None]:
    """Provide an app on a Unix socket."""
    with claim_unix(path) as bound:
        async with serve(app, bound, name="control"):
            yield


@asynccontextmanager
async def serve_tcp(
    app: web.Application, *, reserved_files: int = 0
) -> AsyncIterator[tuple[str, int]]:
    """Provide an app on a free port; returns the address."""
    with claim_tcp(ListenAddress("127.0.0.1", 0)) as bound:
        async with serve(app, bound, name="metrics", reserved_files=reserved_files):
            yield bound[0].getsockname()


@contextmanager
def served(commands: Commands, path: Path) -> Iterator[None]:
    """Provide the control API on a socket, in a thread of its own."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with serve_unix(control_app(balances.status, commands), path):
            ready.set()
            await stop.wait()

    def run() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
