# SPDX-License-Identifier: Apache-2.0
"""Filters of perf events: what the kernel is asked to leave out, and what its refusal means."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from collectord.errors import KernelError, MissingFeature, UsageError
from collectord.kernel.values.trace_filter import FILTER_REFUSALS, without_threads
from collectord.model import Scope, ScopeKind

if TYPE_CHECKING:
    from collectord.errors import CollectordError
    from collectord.kernel.port import Kernel
    from collectord.plan.event_attrs import EventPlan


def set_filter(
    kernel: Kernel, fd: int, event: EventPlan, scope: Scope, exclude_tids: tuple[int, ...]
) -> None:
    """Give an open event its filter, with the threads to leave out if the plan says so.

    Args:
        kernel: has the event.
        fd: its descriptor.
        event: its plan.
        scope: of the session.
        exclude_tids: see `source.base.Source`.

    Raises:
        UsageError: the kernel refuses it; with its reason.
        MissingFeature: the PMU takes no such address filter.
        KernelError: it fails otherwise.
    """
    text = event.filter
    if not event.aux:
        text = without_threads(text, exclude_tids if event.exclude_self else ())
    if not text:
        return
    try:
        kernel.set_filter(fd, text)
    except KernelError as error:
        if event.aux:
            raise refused_addresses(error, event, scope) from error
        if error.errno not in FILTER_REFUSALS or event.tracepoint is None:
            raise
        reason = kernel.filter_refusal(event.tracepoint, event.filter)
        raise refused_filter(event.name, event.filter, reason) from error


def refused_filter(name: str, text: str, reason: str) -> UsageError:
    """Return the error where the kernel refuses a tracepoint's filter; "" is an unknown reason."""
    return UsageError(
        f"the kernel refuses filter {text!r} for {name}" + (f": {reason}" if reason else ""),
        hint="the tracepoint's fields are in its `format` file below tracefs",
    )


def refused_addresses(error: KernelError, event: EventPlan, scope: Scope) -> CollectordError:
    """Return the error where the kernel refuses an event's address filter."""
    text = event.filter
    message = f"the kernel refuses address filter {text!r} for {event.name}"
    if error.errno == errno.EOPNOTSUPP:
        # Files are found in a task's mappings, which a whole CPU lacks.
        of_files = scope.kind in (ScopeKind.SYSTEM, ScopeKind.CPUS, ScopeKind.CGROUP)
        hint = "this PMU takes fewer ranges, or no ranges of this kind"
        if "@" in text and of_files:
            hint = "ranges of files are for observed processes; use addresses of the kernel"
        return MissingFeature(
            message, feature="address filters", syscall="ioctl", errno=error.errno, hint=hint
        )
    if error.errno == errno.ENOENT or (error.errno == errno.EINVAL and "@" in text):
        return UsageError(message, hint="its file must exist and be executable code")
    if error.errno == errno.EINVAL:
        hint = "addresses must be of the privilege level that the event traces"
        return UsageError(message, hint=hint)
    return error
