# SPDX-License-Identifier: Apache-2.0
"""The summary at a recording's end, and the --json result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.cli.answer import print_answers
from collectord.cli.output import Column, print_json, print_table, say, snapshot_text
from collectord.model import Basis
from collectord.session.maps.program_status import session_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.ledger.aux_ledger import AuxBalance
    from collectord.ledger.record_ledger import RingBalance, SessionBalance
    from collectord.session.maps.answers import Answer
    from collectord.session.maps.program_status import BpfStatus
    from collectord.session.ring_snapshot import Snapshot

_RIGHT: Final = "right"
_BALANCE: Final = (
    Column("BASIS"),
    Column("PRODUCED", _RIGHT),
    Column("STORED", _RIGHT),
    Column("LOST", _RIGHT),
    Column("UNACCOUNTED", _RIGHT),
)
_SESSION_COLUMNS: Final = (Column("SESSION"), Column("SCOPE"), *_BALANCE)
_AUX_COLUMNS: Final = (
    Column("AUX"),
    Column("PMU"),
    Column("BASIS"),
    *(
        Column(title, _RIGHT)
        for title in ("PRODUCED BYTES", "STORED BYTES", "LOST BYTES", "TRUNCATED", "UNACCOUNTED")
    ),
)
_RING_COLUMNS: Final = (Column("RING"), *_BALANCE, Column("PEAK FILL", _RIGHT))


def print_result(
    balances: Sequence[SessionBalance],
    *,
    as_json: bool,
    programs: Sequence[BpfStatus] = (),
    answers: Mapping[str, Sequence[Answer]] | None = None,
    snapshots: Sequence[Snapshot] = (),
) -> None:
    """Print the result: answers of BPF programs, sessions, rings with loss, files.

    Args:
        balances: of the sessions.
        as_json: one document instead of tables.
        programs: BPF programs of all sessions.
        answers: answers of BPF programs, by program.
        snapshots: of flight recorders.
    """
    if as_json:
        print_json(
            {
                "sessions": [session_json(balance, programs) for balance in balances],
                "answers": [
                    {"program": program, **answer.to_dict()}
                    for program, given in (answers or {}).items()
                    for answer in given
                ],
                "snapshots": [snapshot.to_json() for snapshot in snapshots],
            }
        )
        return
    for program, given in (answers or {}).items():
        print_answers(program, given)
    # Programs that only fill maps have no balance.
    drained = [b for b in balances if b.rings or b.basis is not Basis.NONE]
    print_table(_SESSION_COLUMNS, [[b.name, b.scope, *_balance_cells(b)] for b in drained])
    print_table(
        _RING_COLUMNS,
        [
            [str(r.label), *_balance_cells(r), f"{r.peak_fill:.0%}"]
            for b in balances
            for r in b.rings
            if any(r.lost.values()) or r.quarantined is not None
        ],
    )
    print_table(_AUX_COLUMNS, [_aux_cells(area) for b in balances for area in b.aux])
    for line in _remarks(balances):
        say(line)
    for snapshot in snapshots:
        say(snapshot_text(snapshot.to_json()))


def _balance_cells(balance: SessionBalance | RingBalance) -> list[str]:
    return [
        str(balance.basis),
        _figure(balance.produced),
        _figure(balance.stored),
        _figure(sum(balance.lost.values())),
        _figure(balance.unaccounted),
    ]


def _aux_cells(area: AuxBalance) -> list[str]:
    known = [count for count in area.lost_bytes.values() if count is not None]
    return [
        str(area.label),
        area.pmu,
        str(area.basis),
        _figure(area.produced_bytes),
        _figure(area.counters.stored_bytes),
        # If the PMU does not count, only the number of losses is known.
        _figure(sum(known) if len(known) == len(area.lost_bytes) else None),
        _figure(area.counters.truncated),
        _figure(area.unaccounted_bytes),
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
        if balance.overwritten:
            lines.append(f"{balance.name}: {balance.overwritten:,} were overwritten by newer ones")
        lines += [f"{balance.name}: degraded, {reason}" for reason in balance.degraded_reasons]
        lines += [f"wrote {path}" for path in balance.segments]
    return lines


def _loss_texts(lost: Mapping[str, int]) -> list[str]:
    return [f"{count:,} at {pair}" for pair, count in lost.items() if count]


def _figure(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
