# SPDX-License-Identifier: Apache-2.0
"""Advice at the end of a recording: how to prevent its losses, and how to look at its files."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Final

from collectord.model import (
    RING_DROPPED,
    RING_FULL,
    RING_OVERRUN,
    RING_UNCOVERED,
    Reason,
    Stage,
    loss_key,
    source_kind,
)
from collectord.plan.ring_sizes import RING_MAX_BYTES
from collectord.text.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.ledger.record_ledger import SessionBalance
    from collectord.model import LossKey

# Losses of rings that were full: the rings were too small, or the drain was too late.
_FULL: Final = frozenset(
    {
        RING_FULL,
        RING_OVERRUN,
        (Stage.KERNEL_RING, Reason.COMMIT_OVERRUN),
        RING_DROPPED,
    }
)
_LARGER: Final = 4  # times: a burst that just did not fit is not worth a second attempt
_FEWER: Final = "record fewer events (--filter, -C or -c)"
_REMEDIES: Final[dict[LossKey, str]] = {
    RING_UNCOVERED: "start the recording when all CPUs are online",
    (Stage.KERNEL_RING, Reason.TRUNCATED): "use a larger AUX area (-m ,16M), or trace less",
    (Stage.SINK, Reason.DISK_FULL): "make room on the disk, or write elsewhere (-o)",
    (Stage.SINK, Reason.DROPPED): "see the error above, or write elsewhere (-o)",
    (Stage.PROGRAM, Reason.RECURSION): "run fewer programs on the same events",
    (Stage.PROGRAM, Reason.DROPPED): "run the program on all CPUs (without -C)",
}
# Commands that show a file, by the source's kind; a relay channel of an unknown client has none.
_OURS: Final = ("collectord events {}",)
_VIEWERS: Final = {
    "perf": (*_OURS, "perf script -i {}"),
    "bpf": (*_OURS, "perf script -i {}"),
    "tracefs": (*_OURS, "trace-cmd report -i {}"),
    "relay": (*_OURS, "blkparse -i {}"),
}
_BLKTRACE: Final = ".blktrace."


def loss_remedies(balances: Sequence[SessionBalance]) -> Iterator[str]:
    """Yield a line for each thing to do against the losses of a recording, none without loss."""
    lost = [
        (loss_key(name), balance)
        for balance in balances
        for name, count in balance.lost.items()
        if count
    ]
    full = [balance for key, balance in lost if key in _FULL]
    if full:
        yield f"to lose less: {_against_full_rings(full)}"
    for key in dict.fromkeys(key for key, _ in lost if key in _REMEDIES):
        yield f"to lose less: {_REMEDIES[key]}"


def _against_full_rings(balances: Sequence[SessionBalance]) -> str:
    """Return what helps against full rings; relay channels are made by others."""
    sizes = [
        ring.capacity_bytes
        for balance in balances
        for ring in balance.rings
        if source_kind(balance.source) != "relay" and any(ring.lost.values())
    ]
    larger = max(sizes, default=RING_MAX_BYTES) * _LARGER
    if larger > RING_MAX_BYTES:
        return _FEWER
    return f"use larger rings (-m {-(-larger // MIB)}M), or {_FEWER}"


def viewers(balances: Sequence[SessionBalance]) -> Iterator[str]:
    """Yield a line for each session with records: the commands that show its newest file."""
    for balance in balances:
        if not balance.segments or not balance.stored:
            continue
        path = _short(balance.segments[-1])
        kind = source_kind(balance.source)
        if kind == "relay":
            path, found, _ = path.rpartition(_BLKTRACE)
            if not found:
                continue
        shown = [way.format(shlex.quote(path)) for way in _VIEWERS.get(kind, _OURS)]
        yield f"to look at it: {', or '.join(shown)}"


def _short(path: str) -> str:
    """Return a path as one would type it here."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
