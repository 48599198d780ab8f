# SPDX-License-Identifier: Apache-2.0
"""The end of sessions: what one fails with keeps neither its own data nor the others from it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig
from collectord.daemon.daemon import Daemon
from collectord.errors import KernelError, UsageError
from collectord.kernel.linux import LinuxKernel
from collectord.model import Reason, Stage
from collectord.plan.build import build
from collectord.plan.ftrace_plan import FtracePlan
from collectord.session import drain_loop
from collectord.session.accounting import Accounting
from collectord.session.counter_reader import CounterReader
from collectord.session.coverage_file import Unnoted
from collectord.session.drain_loop import Drain
from collectord.session.health import Health
from collectord.session.ringless_session import RinglessSession
from collectord.session.session import Session
from collectord.session.session_factory import Contains, Progress, SessionContext
from collectord.session.session_parts import SessionParts
from collectord.session.task_group import TaskGroup
from collectord.sink.state_dir import StateDir
from collectord.source.base import Abilities
from collectord.text.units import NS_PER_SECOND
from tests.support.configs import perf_source, tracefs_source
from tests.support.hanging import hanging_ring
from tests.support.hosts import host
from tests.support.sessions import parts_of

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import AsyncExitStack

    from collectord._native._core import Stream
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.model import ClockReading
    from collectord.plan.plan import Plan
    from collectord.plan.session_plan import SessionPlan


class Source:
    """Without rings; it cannot be stopped, or not be asked who else is about."""

    rings = target_fds = ()

    def __init__(self, *, stops: bool = True, tells: bool = True) -> None:
        self._stops = stops
        self._tells = tells
        self.stopped = 0
        self.dropped = 0

    @property
    def abilities(self) -> Abilities:
        """It may lose records, and its events may be hidden."""
        return Abilities(shared=(self,), suppressible=(self,))

    def enable(self) -> None:
        """Do nothing."""

    def disable(self) -> None:
        """Count the call, and fail if the test wants that."""
        self.stopped += 1
        if not self._stops:
            raise KernelError("cannot disable an event")

    def shared_losses(self) -> dict[Any, int]:
        """Return the losses that the test sets."""
        return {(Stage.KERNEL_RING, Reason.DROPPED): self.dropped}

    def suppressed_by(self, event_index: int) -> tuple[int, ...]:
        """Return no program, or fail if the test wants that."""
        del event_index
        if not self._tells:
            raise KernelError("cannot list a tracepoint's programs")
        return ()


class Sink:
    """A sink that made no file."""

    closed = False

    def close(self) -> None:
        """Note it."""
        self.closed = True


def config(state: Path, *names: str) -> Config:
    """Return a configuration with sessions of these names."""
    source = perf_source("sched:sched_switch")
    sessions = tuple(SessionConfig(name=name, source=(source,)) for name in names)
    return Config(daemon=DaemonConfig(state_dir=str(state)), session=sessions)


def planned(state: Path) -> tuple[Plan, SessionPlan]:
    """Plan one session, whose folder is there."""
    whole = build(config(state, "calls"), host())
    (plan,) = whole.sessions
    Path(plan.sink.directory).mkdir()
    return whole, plan


def session_of(
    plan: SessionPlan,
    source: Any,  # noqa: ANN401 - a stand-in, as the next
    sink: Any,  # noqa: ANN401
    drain: Drain,
    worker: Executor,
    *,
    stream: Stream | None = None,
) -> Session:
    """Make a session without rings, of a stream of its own if none is given."""
    stream = stream or drain.core.add_stream()
    counter_reader = CounterReader(source, (), plan.events)
    parts = SessionParts(
        plan=plan,
        source=source,
        rings=(),
        stream=stream,
        drain=drain.of(stream),
        counter_reader=counter_reader,
        sink=sink,
        state_dir=StateDir(Path(plan.sink.directory).parent, plan.sink.retention),
        kernel=LinuxKernel(),
        health=Health(plan, source.abilities.tracing, counter_reader),
        tasks=TaskGroup(worker),
        covered=Unnoted(),
    )
    return Session(parts, drain)


async def ended_session(
    state: Path,
    source: Any,  # noqa: ANN401 - a stand-in, as the next
    sink: Any,  # noqa: ANN401
    quiet: list[bool] | None = None,
) -> Session:
    """Return a session that ticked once, and was closed; `quiet` gets whether it was that."""
    whole, plan = planned(state)
    with Drain(whole.core, LinuxKernel()) as drain, ThreadPoolExecutor(1) as worker:
        session = session_of(plan, source, sink, drain, worker)
        ticked = session.tick(LinuxKernel().clocks, lambda _: ())
        if quiet is not None:
            quiet.append(ticked)
        await session.close()
    return session


def test_balances_have_what_the_plan_promises(tmp_path: Path) -> None:
    """The class, with rings and without, and the window that rings are to hold."""
    session = SessionConfig(
        name="calls",
        loss_class="must-not-lose",
        source=(tracefs_source("sched:sched_switch"),),
    )
    whole = build(Config(daemon=DaemonConfig(state_dir=str(tmp_path)), session=(session,)), host())
    (plan,) = whole.sessions
    assert isinstance(plan.payload, FtracePlan)
    # A flight recorder's, without all else that one needs.
    plan = replace(plan, payload=replace(plan.payload, keep_ns=7 * NS_PER_SECOND))
    source: Any = Source()

    async def scenario() -> SessionBalance:
        with Drain(whole.core, LinuxKernel()) as drain, ThreadPoolExecutor(1) as worker:
            return session_of(plan, source, Sink(), drain, worker).balance()

    balance = asyncio.run(scenario())
    assert (balance.loss_class, balance.keep_ns) == ("must-not-lose", 7 * NS_PER_SECOND)
    assert RinglessSession(plan, source).balance().loss_class == "must-not-lose"


def test_a_drain_thread_that_stands_still_keeps_no_session_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data are not stored, which is reported; all else of the end is done."""
    monkeypatch.setattr(drain_loop, "_ANSWER_S", 0.05)
    whole, plan = planned(tmp_path)
    sink = Sink()

    async def scenario() -> SessionBalance:
        with (
            ExitStack() as stack,
            Drain(whole.core, LinuxKernel()) as drain,
            ThreadPoolExecutor(1) as worker,
        ):
            stream, _, hanging = hanging_ring(drain, stack)
            with hanging:
                session = session_of(plan, Source(), sink, drain, worker, stream=stream)
                async with asyncio.timeout(30):
                    await session.close()
                return session.balance()

    balance = asyncio.run(scenario())
    assert sink.closed
    assert balance.state == "stopped"
    (reason,) = balance.degraded_reasons
    assert reason.startswith("drain thread drain/0 did not answer for 0.05 s; ")


class Counted(ThreadPoolExecutor):
    """A worker that counts its calls."""

    given = 0

    def submit(self, *args: Any, **words: Any) -> Any:  # noqa: ANN401 - as it is declared
        """Count it."""
        self.given += 1
        return super().submit(*args, **words)


def test_a_session_in_which_nothing_happened_only_looks(tmp_path: Path) -> None:
    """At a tick of it no thread has work, and no clock is read."""
    read: list[ClockReading] = []
    given: list[int] = []
    quiet: list[bool] = []

    async def scenario() -> None:
        whole, plan = planned(tmp_path)
        kernel, source = LinuxKernel(), Source()

        def clocks() -> ClockReading:
            read.append(kernel.clocks())
            return read[-1]

        with Drain(whole.core, LinuxKernel()) as drain, Counted(1) as worker:
            session = session_of(plan, source, Sink(), drain, worker)
            for dropped in (*[0] * 16, *range(1, 9), *[8] * 8):
                source.dropped = dropped
                quiet.append(session.tick(clocks, lambda _: ()))
                given.append(len(read))
            assert worker.given == 0
            session.note("cpus", "CPU 3: offline")
            quiet.append(session.tick(clocks, lambda _: ()))
            await session.close()

    asyncio.run(scenario())
    assert given == [0] * 23 + [1] * 9  # at the eighth flush with news
    # It is quiet but while it loses records, which is over after five looks, and in trouble.
    assert quiet == [True] * 16 + [False] * 12 + [True] * 4 + [False]


class Traced(Source):
    """A stream of ftrace."""

    @property
    def abilities(self) -> Abilities:
        """The abilities, with an instance."""
        tracing: Any = SimpleNamespace()
        return Abilities(tracing=(tracing,))


def test_a_stream_of_ftrace_is_looked_at_at_each_flush(tmp_path: Path) -> None:
    """Else its running file would not show what was written until then."""
    quiet: list[bool] = []
    asyncio.run(ended_session(tmp_path, Traced(), Sink(), quiet))
    assert quiet == [False]


def test_the_last_reading_is_final(tmp_path: Path) -> None:
    """A seal that began before the end asks for a reading after the last one: it gets none."""
    whole = build(config(tmp_path, "calls"), host())
    (plan,) = whole.sessions
    source: Any = Source()
    counter_reader = CounterReader(source, (), plan.events)

    async def scenario() -> None:
        with Drain(whole.core, LinuxKernel()) as drain:
            one: Any = LinuxKernel()
            stream, health = drain.core.add_stream(), Health(plan, (), counter_reader)
            parts = parts_of(
                plan,
                one,
                source=source,
                stream=stream,
                counter_reader=counter_reader,
                health=health,
            )
            accounting = Accounting(parts)
            source.dropped = 1
            assert accounting.measure(last=True)
            source.dropped = 2
            assert not accounting.measure()

    asyncio.run(scenario())
    assert sum(counter_reader.shared_losses.values()) == 1


def test_what_cannot_be_stopped_is_stored_all_the_same(tmp_path: Path) -> None:
    """The session ends as any other, its files are closed, and it says what went wrong."""
    sink = Sink()
    session = asyncio.run(ended_session(tmp_path, Source(stops=False), sink))
    balance = session.balance()
    assert sink.closed
    assert balance.state == "stopped"
    assert balance.degraded_reasons == ("not stopped: cannot disable an event",)


def test_a_look_that_fails_ends_nothing(tmp_path: Path) -> None:
    """Neighbours cannot be found: the session is degraded, and goes on."""
    session = asyncio.run(ended_session(tmp_path, Source(tells=False), Sink()))
    (reason,) = session.balance().degraded_reasons
    assert "cannot list a tracepoint's programs" in reason


def test_an_absent_flight_recorder_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one, and what it lacks, or what it failed with, is why there is no snapshot of it."""
    recorders = tuple(
        SessionConfig(
            name=name,
            mode="flight-recorder",
            source=(perf_source(*events, when="present", period=1),),
        )
        for name, events in {"pt": ("cycles",), "shut": ("sched:sched_switch",)}.items()
    )
    plain = config(tmp_path, "plain")
    opens = SessionContext.open

    async def open_or_fail(
        context: SessionContext,
        plan: SessionPlan,
        stack: AsyncExitStack,
        contains: Contains,
        progress: Progress,
    ) -> RinglessSession | Session:
        source: Any = Source()
        if plan.name == "plain":
            return RinglessSession(plan, source)
        if plan.name == "shut":
            return context.failed(plan, KernelError("no more memory"))
        return await opens(context, plan, stack, contains, progress)

    monkeypatch.setattr(SessionContext, "open", open_or_fail)
    whole = Config(daemon=plain.daemon, session=(*plain.session, *recorders))
    daemon = Daemon(LinuxKernel(), whole, facts=host(hardware_pmu=False))

    async def scenario() -> list[str]:
        stop, said = asyncio.Event(), []

        async def on_open() -> None:
            for names in (["pt"], ["shut"], ["plain"], []):
                with pytest.raises(UsageError) as refused:
                    await daemon.commands.snapshot(names)
                said.append(str(refused.value))
            stop.set()

        await daemon.run(stop, on_open=on_open, salvage_all=False)
        return said

    absent, failed, stream, both = asyncio.run(scenario())
    assert absent.startswith("flight recorder pt is degraded, its hardware is absent: perf: ")
    assert "no hardware counters" in absent
    assert failed == "flight recorder shut has failed: no more memory"
    assert stream.startswith(
        "there is no flight recorder among plain; flight recorders are sessions with mode = "
    )
    assert both == f"{absent}; {failed}"


def test_sessions_end_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that waits, for example for a hanging disk, does not delay others."""
    ended = asyncio.Event()

    class Waiting(RinglessSession):
        async def close(self) -> None:
            """Close it; the first waits for the second."""
            if self.plan.name == "second":
                ended.set()
            await ended.wait()
            await super().close()

    async def open_waiting(
        _context: SessionContext, plan: SessionPlan, _stack: object, *_: object
    ) -> RinglessSession:
        source: Any = Source()
        return Waiting(plan, source)

    monkeypatch.setattr(SessionContext, "open", open_waiting)
    daemon = Daemon(LinuxKernel(), config(tmp_path, "first", "second"), facts=host())

    async def scenario() -> Any:  # noqa: ANN401 - balances
        stop = asyncio.Event()

        async def on_open() -> None:
            stop.set()

        async with asyncio.timeout(30):
            return await daemon.run(stop, on_open=on_open, salvage_all=False)

    assert [balance.state for balance in asyncio.run(scenario())] == ["stopped", "stopped"]


def test_every_session_comes_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that cannot end says so, and the following ones end; all have balances."""
    sources = {"first": Source(stops=False), "second": Source()}

    async def open_ringless(
        _context: SessionContext, plan: SessionPlan, _stack: object, *_: object
    ) -> RinglessSession:
        source: Any = sources[plan.name]
        return RinglessSession(plan, source)

    monkeypatch.setattr(SessionContext, "open", open_ringless)
    daemon = Daemon(LinuxKernel(), config(tmp_path, *sources), facts=host())

    async def scenario() -> Any:  # noqa: ANN401 - balances
        stop = asyncio.Event()

        async def on_open() -> None:
            stop.set()

        return await daemon.run(stop, on_open=on_open, salvage_all=False)

    first, second = asyncio.run(scenario())
    assert (first.state, second.state) == ("stopped", "stopped")
    assert "not closed: cannot disable an event" in first.degraded_reasons
    assert [source.stopped for source in sources.values()] == [1, 1]
