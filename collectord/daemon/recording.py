# SPDX-License-Identifier: Apache-2.0
"""`record`: the daemon's path, ended by a command, its targets, a duration or a signal."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collectord.control import signals, workload
from collectord.daemon.daemon import Daemon
from collectord.session.ring_snapshot import Trigger
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from typing import Any

    from collectord.config.schema import Config
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.plan import Plan
    from collectord.session.daemon_status import DaemonStatus
    from collectord.session.maps.map_watch import Contents
    from collectord.session.maps.program_status import BpfStatus
    from collectord.session.ring_snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class RecordResult:
    """The result of `record`.

    Attributes:
        balances: of its sessions.
        command_status: negative for a signal, None if no command ran.
        plan: what was recorded.
        programs: the last status of BPF programs.
        snapshots: of flight recorders, including those at the end.
        counted: the tables for answers of BPF programs, by session.
    """

    balances: tuple[SessionBalance, ...]
    command_status: int | None
    plan: Plan
    programs: tuple[BpfStatus, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    counted: Mapping[str, Contents] = field(default_factory=dict)


async def record(
    kernel: Kernel,
    config: Config,
    facts: KernelFacts,
    *,
    command: Sequence[str] | None,
    duration_ns: int,
    on_tick: Callable[[DaemonStatus], None] | None,
    stop: asyncio.Event,
    abandon: Callable[[], None] = lambda: None,
    interval_ns: int = 0,
    on_counted: Callable[[Plan, Mapping[str, Contents]], None] | None = None,
) -> RecordResult:
    """Record until the command or the targets end, the duration is over, or `stop`.

    Args:
        kernel: of this host.
        config: one or more sessions; those of the `command` scope observe the command.
        facts: of this host.
        command: argv, or None.
        duration_ns: 0 for no limit.
        on_tick: see `Daemon.run`.
        stop: ends the recording, and the command with it.
        abandon: called if disks do not answer in the end, and threads wait for them still.
        interval_ns: time between two calls of `on_counted`.
        on_counted: called with the tables for answers of BPF programs while these run.

    Raises:
        CollectordError: see `Daemon.run`.
    """
    status = None
    async with AsyncExitStack() as stack:
        child = None
        if command:
            child = await stack.enter_async_context(workload.waiting(command))
        daemon = Daemon(
            kernel, config, facts=facts, child=child.pid if child is not None else None
        )
        stack.enter_context(
            signals.snapshots(lambda: daemon.commands.snapshot((), Trigger.SIGNAL))
        )

        if on_counted is not None:
            daemon.report_counted(interval_ns, lambda counted: on_counted(daemon.plan, counted))

        async def on_open() -> None:
            """Let the command run, now that all events count, and watch for the end."""
            if child is not None:
                child.go()
                stack.enter_context(_stop_after(child.wait(), stop))
            if duration_ns:
                stack.enter_context(_stop_after(asyncio.sleep(duration_ns / NS_PER_SECOND), stop))
            if daemon.target_fds:
                stack.enter_context(_stop_after(_all_readable(daemon.target_fds), stop))

        try:
            balances = await daemon.run(
                stop,
                on_open=on_open,
                on_tick=on_tick,
                salvage_all=False,
                keep_counted=True,
            )
        finally:
            if daemon.is_abandoned:
                abandon()
    if child is not None:
        status = child.status
    return RecordResult(
        balances,
        status,
        daemon.plan,
        programs=daemon.status().bpf,
        snapshots=tuple(daemon.commands.snapshots),
        counted=daemon.counted,
    )


@contextmanager
def _stop_after(end: Coroutine[Any, Any, object], stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` once `end` is over, unless the block ends first."""
    task = asyncio.ensure_future(end)
    task.add_done_callback(lambda _task: stop.set())
    try:
        yield
    finally:
        task.cancel()


async def _all_readable(fds: Sequence[int]) -> None:
    """Wait until each of the fds has been readable."""
    loop = asyncio.get_running_loop()
    waiting = {}
    for fd in fds:
        waiting[fd] = loop.create_future()
        loop.add_reader(fd, _done_once, waiting[fd])
    try:
        for fd, readable in waiting.items():
            await readable
            loop.remove_reader(fd)
    finally:
        for fd in fds:
            loop.remove_reader(fd)


def _done_once(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
