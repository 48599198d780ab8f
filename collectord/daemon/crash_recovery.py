# SPDX-License-Identifier: Apache-2.0
"""Recover stage, before the first ring is opened: what killed processes left is sealed."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from collectord.daemon.async_waits import answered
from collectord.daemon.claims import await_salvages
from collectord.plan.held_resources import block_digest
from collectord.plan.relay_source import RelayPlan
from collectord.recovery.predecessor import Leftovers, salvage_traces
from collectord.session.lone_call import lone_call
from collectord.source.trace_end import left_instance

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from collectord.daemon.staging_memory import StagingMemory
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.host import Host
    from collectord.plan.plan import Plan


class CrashRecovery:
    """The remains of killed processes: unsealed segments, staging, rings of ftrace, block traces.

    Args:
        kernel: has the rings.
        plan: has the sessions.
        state: the state directory.
        host: for the manifests.
        staging: what the opener keeps of it.
        room_for: see `salvage_traces`.

    Attributes:
        segments: those that were unsealed; some are sealed while their rings are drained.
        records: those of block traces that are in no segment.
    """

    def __init__(
        self,
        kernel: Kernel,
        plan: Plan,
        state: Path,
        *,
        host: Host,
        staging: StagingMemory,
        room_for: Callable[[Path], Callable[[int], bool]],
    ) -> None:
        self._kernel = kernel
        self._plan = plan
        self._state = state
        self._host = host
        self._staging = staging
        self._room_for = room_for
        self.segments = Leftovers(plan, state)
        self.records = 0

    async def recover(self, stop: asyncio.Event, *, everything: bool) -> bool:
        """Seal and salvage it; a stop does not wait for hung disks.

        Args:
            stop: ends the wait.
            everything: salvage the rings of sessions too that are not the plan's.

        Returns:
            whether that is done; if not, a thread waits for a disk still.
        """
        job = lone_call(partial(self._salvage, everything=everything))
        await answered([job], stop, None)
        if not job.done():
            return False
        job.result()
        await await_salvages(self._plan, self._kernel, stop)  # those that began meanwhile
        return True

    def _salvage(self, *, everything: bool) -> None:
        with ExitStack() as stack:
            staging = stack.enter_context(self._staging.left())
            traces = self._kernel.kept_trace_memories() if staging is not None else {}
            for memory in traces.values():
                stack.callback(self._kernel.close, memory)
            self.segments.begin(staging, traces)
        noted = self._kernel.noted_instance
        left = [left_instance(session, noted) for session in self._plan.sessions]
        self.records = salvage_traces(
            self._plan,
            self._state,
            kernel=self._kernel,
            host=self._host,
            room_for=self._room_for,
            everything=everything,
            resumable=[name for name, _ in filter(None, left)],
            lasting=[
                block_digest(session)
                for session in self._plan.sessions
                if isinstance(session.payload, RelayPlan) and session.payload.lasts
            ],
        )
