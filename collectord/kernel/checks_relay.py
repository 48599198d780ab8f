# SPDX-License-Identifier: Apache-2.0
"""Rows of `doctor` about relay channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.kernel.checks import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.plan.facts import Check, RelayFacts


def relay(facts: RelayFacts, lockdown: str) -> Iterator[Check]:
    """Whether relay files can be read, and devices be traced.

    Args:
        facts: as probed.
        lockdown: its level.
    """
    yield check(
        "relay",
        ok=not facts.problem,
        detail=facts.problem
        or f"channels below {facts.debugfs} can be read (lockdown {lockdown})",
        remedy=facts.remedy,
    )
    yield check(
        "blktrace",
        ok=facts.blktrace and not facts.problem,
        detail=_devices(facts),
        remedy=facts.remedy if facts.blktrace else "a kernel with CONFIG_BLK_DEV_IO_TRACE",
    )


def _devices(facts: RelayFacts) -> str:
    if not facts.blktrace:
        return "block devices cannot be traced by this kernel"
    count = len(facts.devices)
    if facts.problem:
        return f"{count} block devices could be traced, but for the row above"
    return f"{count} block devices can be traced"
