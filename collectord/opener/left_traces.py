# SPDX-License-Identifier: Apache-2.0
"""Instances of ftrace and block traces that a daemon has left, when no next one is to come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError, NoSuchTarget

if TYPE_CHECKING:
    from collectord.kernel.port import Kernel

_LOG: Final = structlog.get_logger()


def end_left_traces(kernel: Kernel) -> None:
    """Remove what a daemon has left recording, and log what was unread in it.

    Instances that a crash left are not touched: the next daemon salvages their rings.

    Raises:
        MissingPrivilege, MissingFeature: instances cannot be listed.
    """
    for trace in kernel.end_lasting_traces():
        event, fields = trace.told("trace_ended")
        _LOG.warning(event, **fields)
    for name in kernel.leftover_instances():
        note = kernel.noted_instance(name)
        if note is None or not note.digest:
            continue
        try:
            left = kernel.adopt_instance(name)
        except NoSuchTarget:  # a daemon has come
            continue
        except KernelError as error:
            _LOG.error("instance_not_ended", instance=name, error=str(error))
            continue
        unread = sum(ring.stats.entries for ring in left.rings.values())
        try:
            kernel.release_left(left.id, remove=True)
        except KernelError as error:
            _LOG.error("instance_not_ended", instance=name, error=str(error))
            continue
        kernel.forget_instance(name)
        _LOG.warning("instance_ended", instance=name, unread=unread)
