# SPDX-License-Identifier: Apache-2.0
"""Scopes: from a target's keys to CPUs of this host, and the privileges that a scope requires."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.codec.perf_attr import EventType
from collectord.errors import PlanError
from collectord.model import FOLLOWING, TASK_SCOPES, Scope, ScopeKind
from collectord.text import cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.config.schema_session import TargetConfig
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.event_attrs import EventPlan


def scope_of(target: TargetConfig, facts: KernelFacts) -> Scope:
    """Return the scope of a session; `Scope.cpus` stays empty to mean all online CPUs.

    Raises:
        PlanError: a CPU that is absent or offline.
    """
    _check_cpus(target.cpus, facts)
    return Scope(
        kind=target.scope,
        cpus=target.cpus,
        pids=target.pids,
        uid=-1 if target.user is None else target.user,
        cgroup=target.cgroup,
        pattern=target.comm or target.executable or _unit(target.unit),
        limit=target.limit if target.scope in FOLLOWING else 0,
        per_thread=target.per_thread,
        # perf: a ring of one thread cannot take its children's records (perf_mmap: EINVAL), and
        # events of a CPU see every task anyway.
        inherit=target.inherit and target.scope in TASK_SCOPES and not target.per_thread,
    )


def _unit(name: str) -> str:
    """Return a unit's whole name; as for systemctl, one without a type is a service."""
    return name if not name or "." in name else f"{name}.service"


def ring_cpus(scope: Scope, facts: KernelFacts) -> tuple[int, ...]:
    """Return CPUs that get a ring each; (-1,) for one ring per thread."""
    if scope.per_thread and not scope.cpus:
        return (-1,)
    return scope.cpus or facts.cpus_online


def excludes_self(include_self: bool | None, scope: Scope, *, drained: bool) -> bool:
    """Whether the daemon's own threads are left out where that is possible.

    Where the rings are not drained they do little, and a filter costs each event.

    Args:
        include_self: setting of the source; None where the configuration is silent.
        scope: scope of the session.
        drained: whether its rings are drained while it records.
    """
    if scope.kind in TASK_SCOPES:
        return False
    return drained if include_self is None else not include_self


def _check_cpus(cpus: Iterable[int], facts: KernelFacts) -> None:
    absent = [cpu for cpu in cpus if cpu not in facts.cpus_possible]
    offline = [cpu for cpu in cpus if cpu not in facts.cpus_online and cpu not in absent]
    reasons = []
    for names, reason in ((absent, "not in this machine"), (offline, "offline")):
        if names:
            plural = "CPUs" if len(names) > 1 else "CPU"
            verb = "are" if len(names) > 1 else "is"
            reasons.append(f"{plural} {cpu_list.render(names)} {verb} {reason}")
    if reasons:
        raise PlanError(
            ", ".join(reasons),
            what=cpu_list.render([*absent, *offline]),
            hint=f"online: {cpu_list.render(facts.cpus_online)}",
        )


def shortfalls(scope: Scope, events: Iterable[EventPlan], facts: KernelFacts) -> Iterator[str]:
    """Yield privileges that opening will need and the facts do not show, with the least remedy."""
    level = facts.perf_event_paranoid
    if not facts.may_open:
        yield (
            f"kernel.perf_event_paranoid is {level}: any event needs CAP_SYS_ADMIN; "
            "at 2 CAP_PERFMON would suffice"
        )
        return
    if scope.kind not in TASK_SCOPES and not facts.may_observe_cpus:
        remedy = f"(or kernel.perf_event_paranoid 0, not {level})"
        yield f"observing whole CPUs needs CAP_PERFMON {remedy}"
    if scope.kind is ScopeKind.USER and scope.uid != facts.euid and not facts.perfmon:
        yield "observing another user's processes needs CAP_PERFMON"
    wants_raw = any(event.tracepoint is not None for event in events)
    wants_kernel = any(
        not event.attr.exclude_kernel and event.attr.type != EventType.TRACEPOINT
        for event in events
    )
    if wants_raw and not facts.may_read_tracepoints:
        yield f"tracepoints need CAP_PERFMON (or kernel.perf_event_paranoid -1, not {level})"
    if wants_kernel and not facts.may_observe_kernel:
        yield f"kernel mode needs CAP_PERFMON (or kernel.perf_event_paranoid 1, not {level})"
