# SPDX-License-Identifier: Apache-2.0
"""Which of the daemon's own threads have to be left out of a recording."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from collectord.session.session_factory import own_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

# No machine has that many.
ABSENT = 8191


@contextmanager
def another() -> Iterator[int]:
    """Provide the kernel id of a second thread."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id is not None
    try:
        yield thread.native_id
    finally:
        done.set()
        thread.join()


def test_all_threads_are_left_out_of_all_cpus() -> None:
    """The thread that asks is not the only one."""
    with another() as tid:
        assert {threading.get_native_id(), tid} <= set(own_threads())


def test_a_thread_that_cannot_run_there_needs_no_filter() -> None:
    """One that may run on any of the CPUs is left out, by its own affinity."""
    allowed = sorted(os.sched_getaffinity(0))
    with another() as tid:
        assert tid in own_threads((ABSENT, allowed[-1]))
        assert own_threads((ABSENT,)) == ()
        os.sched_setaffinity(tid, {allowed[0]})
        found = own_threads(allowed[1:] or (ABSENT,))
        assert tid not in found
        assert (threading.get_native_id() in found) == (len(allowed) > 1)
