# SPDX-License-Identifier: Apache-2.0
"""The `perf` source: rings that are read by a shared mapping.

A streamed ring is written forward, and waits for its reader. A flight recorder's ring is written
backward, waits for nobody, and is read while it is paused (PERF_EVENT_IOC_PAUSE_OUTPUT); the
sideband of its session is streamed all the same.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from collectord.kernel.values.kept_rings import KeptRings
from collectord.model import FOLLOWING
from collectord.source.event_counts import OwnCounts
from collectord.source.kept_memory import KeptMemory, has_areas
from collectord.source.kept_ring import legacies
from collectord.source.open_kept import OpenKept
from collectord.source.open_perf import OpenPerf
from collectord.source.perf_following import PerfFollowing
from collectord.source.perf_kept import ask_opener, kept_session, own_given, without_opener
from collectord.source.perf_opening import Opening
from collectord.source.perf_reopening import KeptReopening, PerfReopening, can_reopen

if TYPE_CHECKING:
    from collectord.kernel.port import Kernel
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.kept_ring import Legacy
    from collectord.source.perf_kept import RingMaker
    from collectord.source.perf_opening import Opened


def open_session(
    kernel: Kernel,
    plan: SessionPlan,
    stack: ExitStack,
    *,
    exclude_tids: tuple[int, ...] = (),
    abort: int = -1,
) -> OpenPerf:
    """Open a session's rings and events, all disabled. See `source.base.Source`.

    Those that an opener holds are not disabled, if an earlier process drained them.
    """
    with ExitStack() as own:
        asked = ask_opener(kernel, plan, abort=abort) if plan.opener else None
        if isinstance(asked, KeptRings):
            own_given(kernel, asked, own)
            memory = KeptMemory(asked.memory, len(plan.rings), own, areas=has_areas(plan))
            made = kept_session(kernel, plan, asked, memory, own)
            legacy = legacies(memory, asked, made[1].rings)
            opened: OpenPerf = open_kept(kernel, plan, made, own, exclude_tids, *legacy)
        else:
            with without_opener(asked):
                opened = open_own(kernel, plan, own, exclude_tids)
        stack.push(own.pop_all())
    return opened


def open_own(
    kernel: Kernel, plan: SessionPlan, stack: ExitStack, exclude_tids: tuple[int, ...]
) -> OpenPerf:
    """Open a session's rings and events by this process. See `source.base.Source`."""
    opening = Opening(kernel, plan, stack, exclude_tids)
    opening.run()
    found = opening.result()
    if plan.scope.kind in FOLLOWING:
        following = PerfFollowing(kernel, opening, found.rings, stack)
        opened = OpenPerf(kernel, found, plan, following)
        opened.following = (following,)
    else:
        opened = OpenPerf(kernel, found, plan, OwnCounts(kernel))
    if can_reopen(plan):
        reopening = PerfReopening(
            kernel, plan, found, exclude_tids=exclude_tids, perf=opened, stack=stack
        )
        opened.hotplug = (reopening,)
    return opened


def open_kept(
    kernel: Kernel,
    plan: SessionPlan,
    made: tuple[RingMaker, Opened],
    stack: ExitStack,
    exclude_tids: tuple[int, ...],
    *legacy: Legacy,
) -> OpenKept:
    """Return the source of rings that an opener holds.

    Args:
        kernel: reads their counters.
        plan: of the perf rings of a session.
        made: these rings, and what maps later ones.
        stack: closes what is opened later.
        exclude_tids: see `source.base.Source`.
        legacy: what earlier processes leave; none if somebody else accounts for it.
    """
    maker, found = made
    opened = OpenKept(kernel, found, plan, maker=maker, legacy=legacy)
    if can_reopen(plan):
        reopening = KeptReopening(
            kernel,
            plan,
            found,
            exclude_tids=exclude_tids,
            perf=opened,
            stack=stack,
            maker=maker,
        )
        opened.hotplug = (reopening,)
    return opened
