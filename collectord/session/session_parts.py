# SPDX-License-Identifier: Apache-2.0
"""The objects that the parts of one session share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from collectord._native._core import Stream
    from collectord.kernel.port import Kernel
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.counter_reader import CounterReader, Drained
    from collectord.session.coverage_file import Unnoted
    from collectord.session.drain_loop import StreamDrain
    from collectord.session.health import Health
    from collectord.session.lasting_account import LastingAccount
    from collectord.session.task_group import TaskGroup
    from collectord.sink.base import Sink
    from collectord.sink.state_dir import StateDir
    from collectord.source.base import OpenSource


async def _nothing_left() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """An opened plan, and all that its session works with.

    Attributes:
        plan: the plan.
        source: its events, still disabled.
        rings: its rings, which the core already drains.
        stream: the stream of these rings.
        drain: empties the rings of that stream.
        counter_reader: reads the counters of the rings.
        sink: creates and seals the stream's files.
        state_dir: makes room when the disk is full.
        kernel: reads the clocks, and the counters that no source reads.
        health: notes troubles.
        tasks: runs file work, so that the event loop never waits for a disk.
        covered: notes the time that the rings are open.
        lasting: keep account of rings that outlive this process.
        recover: seals what earlier processes left in the folder, unless that is done.
    """

    plan: SessionPlan
    source: OpenSource
    rings: tuple[Drained, ...]
    stream: Stream
    drain: StreamDrain
    counter_reader: CounterReader
    sink: Sink
    state_dir: StateDir
    kernel: Kernel
    health: Health
    tasks: TaskGroup
    covered: Unnoted
    lasting: tuple[LastingAccount, ...] = ()
    recover: Callable[[], Awaitable[None]] = _nothing_left
