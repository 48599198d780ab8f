# SPDX-License-Identifier: Apache-2.0
"""Limits of all sessions together: places in the core, memory, descriptors, a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.errors import PlanError
from collectord.model import STREAMS_MAX
from collectord.text.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.config.schema import DaemonConfig
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.session_plan import SessionPlan

# Connections, epoll, eventfds, the log: descriptors that are neither events nor segments.
_OTHER_FILES: Final = 44
# Memory of the process besides rings and staging, as measured at the default configuration.
_PROCESS_BYTES: Final = 72 << 20


def check_chunks(sessions: Iterable[SessionPlan], chunk_bytes: int) -> None:
    """Compare what the rings give at a time with a chunk of staging, which has to hold it.

    Raises:
        PlanError: a piece is larger.
    """
    for session in sessions:
        if session.payload.piece_bytes > chunk_bytes:
            subbuf = show_bytes(session.payload.piece_bytes)
            raise PlanError(
                f"session {session.name}: a sub-buffer of {subbuf} does not fit into a chunk of "
                f"{show_bytes(chunk_bytes)}",
                what="subbuf",
                hint="a smaller `subbuf`, or a larger `chunk` in [daemon]",
            )


def check_streams(sessions: Iterable[SessionPlan]) -> None:
    """Compare sessions that are to run at a time with the places that the core has for them.

    Each kind of source takes one, and each relay source.

    Raises:
        PlanError: they need more.
    """
    needed = sum(bool(session.rings) for session in sessions)
    if needed > STREAMS_MAX:
        raise PlanError(
            f"{needed} sessions would run at a time, and at most {STREAMS_MAX} can",
            what="session",
            hint="put the events of several sessions into one, or leave some out; one of several "
            "kinds of source counts once for each, and a reload opens what is changed before it "
            "closes the old",
        )


def check_memory(sessions: Iterable[SessionPlan], daemon: DaemonConfig) -> None:
    """Compare the rings, as they may grow, and the staging memory with the limit.

    Raises:
        PlanError: they need more.
    """
    rings = sum(session.memory_bytes for session in sessions)
    needed = rings + daemon.staging + _PROCESS_BYTES
    if daemon.memory and needed > daemon.memory:
        raise PlanError(
            f"{_mib(needed)} of memory are needed, and `memory` allows {_mib(daemon.memory)}: "
            f"{_mib(rings)} of rings, {_mib(daemon.staging)} of staging and "
            f"{_mib(_PROCESS_BYTES)} for the process",
            what="memory",
            hint="a larger `memory` or a smaller `staging` in [daemon]; or, in the sources, a "
            "smaller `ring`, `sideband_ring`, `aux`, or `max` of a flight recorder",
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f}MiB"


def check_files(files: int, facts: KernelFacts, warnings: list[str]) -> None:
    """Compare with RLIMIT_NOFILE: any process can raise the soft limit to the hard one."""
    needed = files + _OTHER_FILES
    if needed > facts.rlimit_nofile_hard:
        raise PlanError(
            f"{needed} file descriptors are needed, and RLIMIT_NOFILE allows "
            f"{facts.rlimit_nofile_hard}",
            what="RLIMIT_NOFILE",
            hint="fewer events, or raise it (LimitNOFILE= of the unit, ulimit -n)",
        )
    if needed > facts.rlimit_nofile:
        warnings.append(
            f"{needed} file descriptors are needed: the soft RLIMIT_NOFILE of "
            f"{facts.rlimit_nofile} is raised (LimitNOFILE= of the unit sets it)"
        )
