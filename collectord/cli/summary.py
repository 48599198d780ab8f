# SPDX-License-Identifier: Apache-2.0
"""The result of a recording as text or JSON: balances, snapshots, answers of BPF programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.cli import next_steps
from collectord.cli.output import bar, bytes_text, figure_text, print_json, say, snapshot_text
from collectord.cli.text_table import Column, print_table
from collectord.model import Basis
from collectord.session.maps.answers import HistogramAnswer, TableAnswer
from collectord.session.maps.folded_answer import FoldedAnswer
from collectord.session.maps.program_status import session_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from collectord.ledger.aux_ledger import AuxBalance
    from collectord.ledger.record_ledger import RingBalance, SessionBalance
    from collectord.session.maps.answers import Answer, Section
    from collectord.session.maps.program_status import BpfStatus
    from collectord.session.ring_snapshot import Snapshot
    from collectord.sink.pack import Compressed

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
_BAR_WIDTH: Final = 40
_NOTHING: Final = "nothing was counted"


def print_result(
    balances: Sequence[SessionBalance],
    *,
    as_json: bool,
    programs: Sequence[BpfStatus] = (),
    answers: Mapping[str, Sequence[Answer]] | None = None,
    snapshots: Sequence[Snapshot] = (),
    compressed: Sequence[Compressed] = (),
) -> None:
    """Print the result: answers of BPF programs, sessions, rings with loss, files.

    Args:
        balances: of the sessions.
        as_json: one document instead of tables.
        programs: BPF programs of all sessions.
        answers: answers of BPF programs, by program.
        snapshots: of flight recorders.
        compressed: files that were to be compressed.
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
                "compressed": [one.to_json() for one in compressed],
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
    for one in compressed:
        why = one.attempt.detail
        told = f"{one.path} stays as it is: {why}" if why else f"compressed {one.path}"
        say(f"{told}: {compressed_size(one)}")
    for line in (*next_steps.loss_remedies(balances), *next_steps.viewers(balances)):
        say(line)


def compressed_size(one: Compressed) -> str:
    """Return the size of a file on disk, with the one before if it is another."""
    size = bytes_text(one.after_bytes)
    same = one.after_bytes == one.before_bytes
    return size if same else f"{size} of {bytes_text(one.before_bytes)}"


def _balance_cells(balance: SessionBalance | RingBalance) -> list[str]:
    return [
        str(balance.basis),
        figure_text(balance.produced),
        figure_text(balance.stored),
        figure_text(sum(balance.lost.values())),
        figure_text(balance.unaccounted),
    ]


def _aux_cells(area: AuxBalance) -> list[str]:
    known = [count for count in area.lost_bytes.values() if count is not None]
    return [
        str(area.label),
        area.pmu,
        str(area.basis),
        figure_text(area.produced_bytes),
        figure_text(area.counters.stored_bytes),
        # If the PMU does not count, only the number of losses is known.
        figure_text(sum(known) if len(known) == len(area.lost_bytes) else None),
        figure_text(area.counters.truncated),
        figure_text(area.unaccounted_bytes),
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


def print_answers(program: str, answers: Iterable[Answer]) -> None:
    """Print a program's answers, one after the other. Raises as `output.emit`."""
    for answer in answers:
        say(f"{answer.title or program}{_in_unit(answer)}")
        match answer:
            case HistogramAnswer():
                _print_histograms(answer)
            case TableAnswer():
                _print_table(answer)
            case FoldedAnswer():
                _print_folded(answer)
        if not answer.complete:
            say("(incomplete: the map has more entries than are read)")
        say("")


def _in_unit(answer: Answer) -> str:
    if isinstance(answer, TableAnswer) or answer.unit == "count":
        return ""
    return f", {answer.unit}"


def _print_histograms(answer: HistogramAnswer) -> None:
    if not answer.sections:
        say(_NOTHING)
    for section in answer.sections:
        if section.by:
            say("  ".join(f"{title} {text}" for title, text in section.by.items()))
        for line in histogram_lines(section):
            say(line)


def histogram_lines(section: Section) -> Iterator[str]:
    """Yield a line for each slot: its lowest and highest value, the count, and a bar.

    Bars are relative to the fullest slot; a slot that is not empty has one.
    """
    cells = [(str(slot.low), str(slot.high), str(slot.count)) for slot in section.slots]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    most = max(slot.count for slot in section.slots)
    for (low, high, count), slot in zip(cells, section.slots, strict=True):
        yield (
            f"{low.rjust(widths[0])} .. {high.rjust(widths[1])}  {count.rjust(widths[2])}  "
            f"{bar(slot.count, most, _BAR_WIDTH)}"
        ).rstrip()


def _print_table(answer: TableAnswer) -> None:
    if not answer.rows:
        say(_NOTHING)
    columns = [Column(title, "right" if figure else "left") for title, figure in answer.columns]
    print_table(columns, answer.rows)
    if answer.left_out:
        say(f"(and {answer.left_out:,} more)")


def _print_folded(answer: FoldedAnswer) -> None:
    if not answer.stacks:
        say(_NOTHING)
    for frames, value in answer.stacks:
        say(f"{';'.join(frames)} {value}")
