# SPDX-License-Identifier: Apache-2.0
"""Privileges and limits of the process that makes the calls, and the purpose of an event."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Privileges and limits of the process that makes the calls.

    Attributes:
        euid: effective user id.
        capabilities: names of the effective set, such as `CAP_PERFMON`.
        nofile: soft and hard RLIMIT_NOFILE.
        memlock_bytes: soft RLIMIT_MEMLOCK, -1 for no limit.
        paranoid: kernel.perf_event_paranoid, None where it cannot be read.
        mlock_kb: kernel.perf_event_mlock_kb.
        max_sample_rate: kernel.perf_event_max_sample_rate, per second.
        max_stack: kernel.perf_event_max_stack.
    """

    euid: int
    capabilities: frozenset[str]
    nofile: tuple[int, int]
    memlock_bytes: int
    paranoid: int | None
    mlock_kb: int
    max_sample_rate: int
    max_stack: int


@dataclass(frozen=True, slots=True)
class Purpose:
    """The purpose of an event; only error messages use it.

    Attributes:
        event: its name as the user wrote it.
        planned_fds: descriptors that the whole session needs.
    """

    event: str = "event"
    planned_fds: int = 0
