# SPDX-License-Identifier: Apache-2.0
"""Sessions that begin and end in one process leave nothing of themselves in it.

glibc keeps what a thread has freed for its next allocations, some hundred KiB in the end, and
counts it as allocated. So the sessions live in a process of their own that has it keep none.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import PerfSourceConfig, SessionConfig, TracefsSourceConfig
from collectord.daemon.host_facts import host_facts
from collectord.kernel.linux import LinuxKernel
from collectord.plan.build import build
from collectord.plan.sink_plan import RetentionPlan
from collectord.session.drain_loop import Drain
from collectord.session.file_workers import FileWorkers
from collectord.session.maps.map_watch import BpfWatch
from collectord.session.opening_thread import OpeningThread
from collectord.session.session import Session
from collectord.session.session_factory import SessionContext, contained
from collectord.sink.state_dir import StateDir
from tests.support.configs import perf_source, tracefs_source

if TYPE_CHECKING:
    from collectord.plan.session_plan import SessionPlan

SESSIONS: Final = 30  # of each kind: together more than the core takes at a time
BETWEEN: Final = 6  # of each kind, from one look to the next
GROWTH_BYTES: Final = 4 << 10  # of eighteen sessions

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.timeout(300)]


class Heap(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


@dataclass(frozen=True, slots=True)
class Held:
    """The resources of this process: allocated bytes, mappings, descriptors.

    Pages of staging memory stay with the process once used, and are left out.
    """

    heap_bytes: int
    mappings: int
    fds: int


def held_by_process() -> Held:
    """Return the resources of this process."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Heap
    heap = mallinfo2()
    return Held(
        heap.uordblks + heap.hblkhd,
        len(Path("/proc/self/maps").read_text().splitlines()),
        len(list(Path("/proc/self/fd").iterdir())),
    )


async def live(context: SessionContext, plan: SessionPlan) -> None:
    """Run one session from its opening to its end, with something to record."""
    async with AsyncExitStack() as own:
        nobody = SimpleNamespace(opening=lambda: None, loading=lambda: None)
        session = await context.open(plan, own, contained, nobody)
        assert isinstance(session, Session)
        await session.begin()
        await asyncio.sleep(0.001)
        await session.close()
        balance = session.balance()
        assert balance.state == "stopped"
        assert balance.segments


def lives(directory: Path) -> list[Held]:
    """Sessions of each kind, one after the other; returns what was held after some of them."""
    source: dict[str, PerfSourceConfig | TracefsSourceConfig] = {
        "calls": perf_source("sched:sched_switch"),
        "window": perf_source("sched:sched_switch"),
        f"trace-{os.getpid()}": tracefs_source("sched:sched_switch"),
    }
    sessions = tuple(
        SessionConfig(
            name=name,
            mode="flight-recorder" if name == "window" else "stream",
            source=(one,),
        )
        for name, one in source.items()
    )
    config = Config(daemon=DaemonConfig(state_dir=str(directory)), session=sessions)
    kernel = LinuxKernel()
    facts = host_facts(kernel, config, mount=True)
    whole = build(config, facts)

    async def scenario() -> list[Held]:
        held = []
        with (
            Drain(whole.core, kernel) as drain,
            FileWorkers({}) as workers,
            OpeningThread() as opening,
        ):
            context = SessionContext(
                kernel=kernel,
                drain=drain,
                host=kernel.host(),
                facts=facts,
                clock=kernel.clocks(),
                state_dir=StateDir(directory, RetentionPlan()),
                workers=workers,
                watch=BpfWatch(),
                opening=opening,
                repair=lambda _directory: None,
                stats=False,
                child=None,
            )
            for number in range(SESSIONS):
                for plan in whole.sessions:
                    await live(context, plan)
                if number % BETWEEN == BETWEEN - 1:
                    held.append(held_by_process())
        return held

    return asyncio.run(scenario())


def test_sessions_come_and_go_and_leave_nothing(tmp_path: Path) -> None:
    """However many there were, memory, mappings and descriptors are those of a few."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernel.test_lives", tmp_path],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    held = [Held(*one) for one in json.loads(done.stdout.splitlines()[-1])]
    assert len(held) == SESSIONS // BETWEEN
    assert len({one.fds for one in held}) == 1
    assert held[-1].mappings < held[0].mappings + SESSIONS - BETWEEN
    # Memory that is allocated once, and not by each session, comes in one step or two.
    assert min(b.heap_bytes - a.heap_bytes for a, b in pairwise(held)) < GROWTH_BYTES


if __name__ == "__main__":
    sys.stdout.write(json.dumps([astuple(one) for one in lives(Path(sys.argv[1]))]))
