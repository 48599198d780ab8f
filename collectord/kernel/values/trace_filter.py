# SPDX-License-Identifier: Apache-2.0
"""Filters of tracepoints, in the kernel's language."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# errnos of SET_FILTER for a wrong filter. The last three are not errnos at all: calc_stack() in
# kernel/trace/trace_events_filter.c numbers unbalanced parentheses and quotes -1 to -3, and that
# reaches the caller.
FILTER_REFUSALS: Final = frozenset({errno.EINVAL, errno.EPERM, errno.ENOENT, errno.ESRCH})


def without_threads(text: str, tids: Iterable[int]) -> str:
    """Return a filter that leaves these threads out, in addition to another filter.

    Threads of one process have ids near each other. The kernel evaluates comparisons from the left
    until the result is certain, some 10 ns for each: one is enough for tasks that began later than
    our threads, two for those that began earlier. Tasks that began between our threads, such as
    the command of a recording, need one or two more for each gap. A list (set_event_notrace_pid)
    costs each event 29 ns, and each context switch of the host 350 more, as it hooks sched_switch
    twice (measured on Linux 6.18, x86-64).
    """
    terms = [f"({text})"] if text else []
    ids = sorted(set(tids))
    if ids:
        others = [f"common_pid > {ids[-1]}", f"common_pid < {ids[0]}", *_between(ids)]
        terms.append(f"({' || '.join(others)})")
    return " && ".join(terms)


def _between(ids: list[int]) -> Iterator[str]:
    """Yield a comparison for each gap between sorted ids."""
    for before, after in pairwise(ids):
        if after == before + 2:
            yield f"common_pid == {before + 1}"
        elif after > before + 2:
            yield f"(common_pid > {before} && common_pid < {after})"
