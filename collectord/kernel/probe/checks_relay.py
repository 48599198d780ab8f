# SPDX-License-Identifier: Apache-2.0
"""Rows of `doctor` about relay channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.facts.kernel_facts import SEES_DEVICES
from collectord.kernel.probe.checks import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.facts.kernel_facts import Check, RelayFacts


def relay(facts: RelayFacts, lockdown: str) -> Iterator[Check]:
    """Check whether relay files can be read, and devices be traced.

    Args:
        facts: facts of the probe.
        lockdown: the level of kernel lockdown.
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
        ok=facts.blktrace and not facts.problem and not _all_hidden(facts),
        detail=_devices(facts),
        remedy=_blktrace_remedy(facts),
    )


def _blktrace_remedy(facts: RelayFacts) -> str:
    if not facts.blktrace:
        return "a kernel with CONFIG_BLK_DEV_IO_TRACE"
    return facts.remedy or f"needs {SEES_DEVICES}"


def _devices(facts: RelayFacts) -> str:
    if not facts.blktrace:
        return "block devices cannot be traced by this kernel"
    count = len(facts.devices)
    if facts.problem:
        return f"{count} block devices could be traced if the row above were ok"
    if _all_hidden(facts):
        return f"{count} block devices are hidden from this process"
    return f"{count - len(facts.hidden)} block devices can be traced"


def _all_hidden(facts: RelayFacts) -> bool:
    return bool(facts.hidden) and set(facts.hidden) == set(facts.devices)
