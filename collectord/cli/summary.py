# SPDX-License-Identifier: Apache-2.0
"""The summary at a recording's end, and the --json result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.cli.output import Column, print_json, print_table, say
from collectord.ledger import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.ledger import RingBalance, SessionBalance

_RIGHT: Final = "right"
_BALANCE: Final = (
    Column("BASIS"),
    Column("PRODUCED", _RIGHT),
    Column("STORED", _RIGHT),
    Column("LOST", _RIGHT),
    Column("UNACCOUNTED", _RIGHT),
)
_SESSION_COLUMNS: Final = (Column("SESSION"), Column("SCOPE"), *_BALANCE)
_RING_COLUMNS: Final = (Column("RING"), *_BALANCE, Column("PEAK FILL", _RIGHT))


def print_result(balances: Sequence[SessionBalance], *, as_json: bool) -> None:
    """Print what was recorded: the sessions, the rings with loss, the files."""
    if as_json:
        print_json({"sessions": [to_json(balance) for balance in balances]})
        return
    print_table(_SESSION_COLUMNS, [[b.name, b.scope, *_balance_cells(b)] for b in balances])
    print_table(
        _RING_COLUMNS,
        [
            [str(r.label), *_balance_cells(r), f"{r.high_watermark_bytes / r.capacity_bytes:.0%}"]
            for b in balances
            for r in b.rings
            if any(r.lost.values()) or r.quarantined is not None
        ],
    )
    for line in _remarks(balances):
        say(line)


def _balance_cells(balance: SessionBalance | RingBalance) -> list[str]:
    return [
        str(balance.basis),
        _figure(balance.produced),
        _figure(balance.stored),
        _figure(sum(balance.lost.values())),
        _figure(balance.unaccounted),
    ]


def _remarks(balances: Sequence[SessionBalance]) -> list[str]:
    lines: list[str] = []
    for balance in balances:
        lines += [f"{balance.name}: lost {text}" for text in _loss_texts(balance.lost)]
        lines += [
            f"{ring.label}: quarantined, {ring.quarantined}"
            for ring in balance.rings
            if ring.quarantined is not None
        ]
        lines += [f"{balance.name}: degraded, {reason}" for reason in balance.degraded_reasons]
        lines += [f"wrote {path}" for path in balance.segments]
    return lines


def _loss_texts(lost: Mapping[str, int]) -> list[str]:
    return [f"{count:,} at {pair}" for pair, count in lost.items() if count]


def _figure(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
