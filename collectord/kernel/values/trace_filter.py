# SPDX-License-Identifier: Apache-2.0
"""Filters of tracepoints, in the kernel's language."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# errnos of SET_FILTER for a wrong filter. The last three are not errnos at all: calc_stack() in
# kernel/trace/trace_events_filter.c numbers unbalanced parentheses and quotes -1 to -3, and that
# reaches the caller.
FILTER_REFUSALS: Final = frozenset({errno.EINVAL, errno.EPERM, errno.ENOENT, errno.ESRCH})


def without_threads(text: str, tids: Iterable[int]) -> str:
    """Return a filter that leaves these threads out, in addition to another filter.

    Threads of one process have ids near each other: most others are ruled out by one comparison or
    two, which cost about 20 ns in all. A list (set_event_notrace_pid) costs each event 29 ns, and
    each context switch of the host 350 more, as it hooks sched_switch twice (measured on Linux
    6.18, x86-64).
    """
    terms = [f"({text})"] if text else []
    ids = sorted(set(tids))
    if ids:
        others = " && ".join(f"common_pid != {tid}" for tid in ids)
        terms.append(f"(common_pid < {ids[0]} || common_pid > {ids[-1]} || ({others}))")
    return " && ".join(terms)
