# SPDX-License-Identifier: Apache-2.0
"""Filters of perf events that the kernel refuses, and what is said of that."""

from __future__ import annotations

import errno

import pytest

from collectord.codec.perf_attr import PerfEventAttr
from collectord.errors import KernelError, MissingFeature, UsageError
from collectord.model import Basis, Scope, ScopeKind
from collectord.plan.event_attrs import EventPlan
from collectord.source.perf_filter import refused_addresses


@pytest.mark.parametrize(
    ("code", "text", "kind", "hint"),
    [
        (errno.EOPNOTSUPP, "filter 0x0/0x1@/bin/x", ScopeKind.SYSTEM, "observed processes"),
        (errno.EOPNOTSUPP, "start 0x0", ScopeKind.SYSTEM, "fewer ranges"),
        (errno.EOPNOTSUPP, "start 0x0@/bin/x", ScopeKind.PROCESS, "fewer ranges"),
        (errno.ENOENT, "filter 0x0/0x1@/bin/x", ScopeKind.PROCESS, "file must exist"),
        (errno.EINVAL, "filter 0x0/0x1", ScopeKind.PROCESS, "privilege level"),
    ],
)
def test_refused_addresses_are_explained(code: int, text: str, kind: ScopeKind, hint: str) -> None:
    """The message explains the kernel's error for this filter and this scope."""
    event = EventPlan(0, "intel_pt//", PerfEventAttr(), Basis.LOST_ONLY, filter=text, aux=True)
    error = refused_addresses(KernelError("no", errno=code), event, Scope(kind))
    assert isinstance(error, MissingFeature if code == errno.EOPNOTSUPP else UsageError)
    assert hint in error.hint
    assert text in str(error)


def test_other_refusals_stay_what_they_are() -> None:
    """A lack of memory is no matter of addresses."""
    error = KernelError("no", errno=errno.ENOMEM)
    event = EventPlan(0, "intel_pt//", PerfEventAttr(), Basis.LOST_ONLY, filter="x", aux=True)
    assert refused_addresses(error, event, Scope(ScopeKind.SYSTEM)) is error
