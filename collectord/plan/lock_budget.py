# SPDX-License-Identifier: Apache-2.0
"""The memory that the kernel lets a user pin, and the sizes of rings that fit it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectord.errors import PlanError
from collectord.text.units import KIB, show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.session_draft import SessionDraft


def pinned_bytes(data_bytes: int, page_size: int) -> int:
    """Return what a ring counts against the budget: its data and its control page."""
    return data_bytes + page_size


def _pinned_by(sizes: Sequence[int], rings: Sequence[tuple[int, int]], page_size: int) -> int:
    """Return what rings of these sizes pin together; see `fit`."""
    counts = (count for _, count in rings)
    return sum(
        pinned_bytes(size, page_size) * count for size, count in zip(sizes, counts, strict=True)
    )


@dataclass(frozen=True, slots=True)
class LockBudget:
    """The memory that a user may pin (perf_mmap in kernel/events/core.c).

    Attributes:
        free_bytes: perf_event_mlock_kb for each online CPU, shared by all the user's processes.
        memlock_bytes: RLIMIT_MEMLOCK, for what exceeds that; None for no limit.
        unlimited: neither applies.
    """

    free_bytes: int
    memlock_bytes: int | None
    unlimited: bool

    @classmethod
    def of(cls, facts: KernelFacts) -> LockBudget:
        """Return the budget by the facts, with nothing pinned yet."""
        pages_per_cpu = facts.perf_event_mlock_kb * KIB // facts.page_size
        return cls(
            free_bytes=pages_per_cpu * facts.page_size * len(facts.cpus_online),
            memlock_bytes=facts.rlimit_memlock_bytes,
            unlimited=facts.locks_freely,
        )

    @property
    def bytes(self) -> int | None:
        """The memory that may be pinned in all, None for no limit."""
        if self.unlimited or self.memlock_bytes is None:
            return None
        return self.free_bytes + self.memlock_bytes


def fit(
    rings: Sequence[tuple[int, int]], page_size: int, limit_bytes: int | None
) -> tuple[int, ...] | None:
    """Return sizes of rings after halving the largest ones until all of them fit the budget.

    Args:
        rings: (data bytes of one ring, how many such rings are pinned: with 0 the size stays).
        page_size: bytes.
        limit_bytes: the budget, None for no limit.

    Returns:
        data bytes for each entry, or None if one page each is still too much.
    """
    sizes = [size for size, _ in rings]
    if limit_bytes is None:
        return tuple(sizes)
    while True:
        if _pinned_by(sizes, rings, page_size) <= limit_bytes:
            return tuple(sizes)
        counts = [count for _, count in rings]
        largest = max((s for s, count in zip(sizes, counts, strict=True) if count), default=0)
        if largest <= page_size:
            return None
        sizes = [
            size // 2 if size == largest and count else size
            for size, count in zip(sizes, counts, strict=True)
        ]


def within_budgets(
    drafts: Sequence[SessionDraft], warnings: list[str]
) -> tuple[list[list[tuple[int, int]]], int]:
    """Return data and AUX bytes of each session's ring sets, in turn, and all that they pin.

    Each process that opens rings has a budget of its own.
    """
    sizes: dict[int, list[tuple[int, int]]] = {}
    pinned = 0
    for facts in {id(draft.facts): draft.facts for draft in drafts}.values():
        own = [draft for draft in drafts if draft.facts is facts]
        fitting, more = _within_budget(own, facts, warnings)
        sizes |= {id(draft): one for draft, one in zip(own, fitting, strict=True)}
        pinned += more
    return [sizes[id(draft)] for draft in drafts], pinned


def _within_budget(
    drafts: Sequence[SessionDraft], facts: KernelFacts, warnings: list[str]
) -> tuple[list[list[tuple[int, int]]], int]:
    """Return the same for the sessions whose rings one process opens."""
    sets = [ring_set for draft in drafts for ring_set in draft.rings.sets]
    # A set without AUX has an area of 0 bytes on no CPU.
    wanted = [
        entry
        for ring_set in sets
        for entry in (
            (ring_set.requested_bytes, len(ring_set.cpus)),
            (ring_set.aux.requested_bytes, len(ring_set.cpus)) if ring_set.aux else (0, 0),
        )
    ]
    limits = LockBudget.of(facts)
    page = facts.page_size
    sizes = fit(wanted, page, limits.bytes)
    needed = _pinned_by([size for size, _ in wanted], wanted, page)
    remedy = (
        "give CAP_IPC_LOCK, or raise RLIMIT_MEMLOCK (LimitMEMLOCK= of the unit) or "
        "kernel.perf_event_mlock_kb"
    )
    allowed = f"{show_bytes(needed)} of rings do not fit the {show_bytes(limits.bytes or 0)} "
    allowed += "that this user may lock"
    if sizes is None:
        raise PlanError(f"{allowed}, at any size", what="mlock", hint=remedy)
    pinned = _pinned_by(sizes, wanted, page)
    if pinned < needed:
        shrunk = [
            f"{name} {show_bytes(asked)} to {show_bytes(size)}"
            for name, (asked, _), size in zip(_owned(drafts), wanted, sizes, strict=True)
            if size < asked
        ]
        warnings.append(f"{allowed}: the rings are made smaller, {', '.join(shrunk)}; {remedy}")
    remaining = iter(sizes)
    both = [[(next(remaining), next(remaining)) for _ in draft.rings.sets] for draft in drafts]
    return both, pinned


def _owned(drafts: Sequence[SessionDraft]) -> Iterator[str]:
    """Yield the owner of each size, as warnings name it."""
    for draft in drafts:
        for ring_set in draft.rings.sets:
            name = f"{draft.config.name}/{ring_set.source}"
            yield f"{name} {ring_set.role}"
            yield f"{name} aux"
