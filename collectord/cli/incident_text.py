# SPDX-License-Identifier: Apache-2.0
"""The text about an incident: when, why, what is stored, how the host was, and the answers.

Names of processes are whatever these have chosen: `say` makes them visible.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from collectord.cli.output import bytes_text, snapshot_text, wrapped
from collectord.cli.text_table import Column, table_lines
from collectord.errors import SinkError
from collectord.text.foreign import visible
from collectord.text.units import NS_PER_SECOND
from collectord.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from collectord.sink.alert import Alert
    from collectord.sink.incident_folder import AnswerNote, IncidentFolder, IncidentNote

    Document = Mapping[str, Any]

_ANSWER_BYTES: Final = 4 << 20
_ANSWER_LINES: Final = 40
_COMM_CHARS: Final = 40
_INDENT: Final = "  "
_COLUMNS: Final = (
    Column("PID", "right"),
    Column("NAME"),
    Column("STATE"),
    Column("CPU", "right"),
    Column("MEMORY", "right"),
)
_LISTS: Final = (
    ("busiest", "busiest processes"),
    ("blocked", "blocked processes (state D)"),
    ("runnable", "processes that ran or waited for a CPU"),
    ("largest", "largest processes"),
)


def when_text(realtime_ns: int) -> str:
    """Return a time in local time, with the zone."""
    return (
        datetime.fromtimestamp(realtime_ns / NS_PER_SECOND).astimezone().isoformat(" ", "seconds")
    )


def incident_lines(note: IncidentNote, folder: IncidentFolder) -> Iterator[str]:
    """Yield all lines about an incident.

    Args:
        note: the incident.
        folder: of all incidents, for the texts of the answers.
    """
    yield f"incident  {note.id}"
    yield f"when      {when_text(note.fired_ns)} on {note.hostname}, Linux {note.release}"
    yield f"trigger   {note.trigger} ({note.kind})"
    yield from wrapped(note.reason, first="reason    ", rest=" " * 10)
    for alert in note.alerts:
        yield from _alert_lines(alert)
    waited_s = (note.taken_ns - note.fired_ns) / NS_PER_SECOND
    if waited_s >= 1:
        yield f"stored    {waited_s:.3g} s later"
    for told in note.also:
        yield from wrapped(f"also {told}", first=" " * 10, rest=" " * 10)
    held = ", ".join(
        f"{counted(times, 'time')} ({cause})" for cause, times in note.suppressed.items()
    )
    if held:
        yield from wrapped(f"held back since the last one: {held}", first=" " * 10, rest=" " * 10)
    yield ""
    yield "snapshots"
    yield from problem_lines(note.snapshots, note.problems)
    for file in note.files:
        if not file.endswith((".json", ".gz")):
            yield f"{_INDENT}{folder.path / note.id / file}"
    yield from _host_lines(note.moment)
    for answer in note.answers:
        yield ""
        yield f"answer {answer.name}"
        yield from _answer_lines(answer, note, folder)


def _alert_lines(alert: Alert) -> Iterator[str]:
    labels = ", ".join(f"{name}={text}" for name, text in alert.labels.items())
    told = f"{alert.fingerprint}, since {alert.starts_at}: {labels}"
    yield from wrapped(told, first="alert     ", rest=" " * 10)


def problem_lines(snapshots: Sequence[Document], problems: Sequence[str]) -> Iterator[str]:
    """Yield a line for each snapshot, and for what is missing."""
    for one in snapshots:
        yield from wrapped(snapshot_text(one), first=_INDENT, rest=_INDENT * 2)
    for problem in problems:
        yield from wrapped(problem, first=f"{_INDENT}missing: ", rest=_INDENT * 2)


def _host_lines(moment: Document) -> Iterator[str]:
    if not moment:
        return
    yield ""
    load = " ".join(f"{one:.2f}" for one in moment["load"])
    yield (
        f"load      {load}; {moment['running_threads']:,} of {moment['threads']:,} threads ran or "
        "waited for a CPU"
    )
    for one in moment["pressure"]:
        yield (
            f"pressure  {one['resource']:<6} {one['share']:<4} {one['avg10']:6.2f}% of 10 s "
            f"{one['avg60']:6.2f}% of 60 s {one['avg300']:6.2f}% of 300 s"
        )
    busy = [
        f"{visible(one['name'])} ({one['number']}) {one['in_flight']:,}"
        for one in moment.get("devices", ())  # that incidents of older versions lack
    ]
    if busy:
        told = f"requests in flight: {', '.join(busy)}"
        yield from wrapped(told, first="devices   ", rest=" " * 10)
    for key, title in _LISTS:
        if moment[key]:
            yield ""
            yield title
            rows = [_row(one, moment["interval_ns"]) for one in moment[key]]
            yield from (f"{_INDENT}{line}" for line in table_lines(_COLUMNS, rows))
    if moment["left_out"]:
        yield f"{moment['left_out']:,} processes were not looked at"


def _row(process: Document, interval_ns: int) -> list[str]:
    share = process["cpu_ns"] / interval_ns if interval_ns else 0.0
    return [
        str(process["pid"]),
        visible(process["comm"])[:_COMM_CHARS],
        process["state"],
        f"{share:.0%}",
        bytes_text(process["resident_bytes"]),
    ]


def _answer_lines(answer: AnswerNote, note: IncidentNote, folder: IncidentFolder) -> Iterator[str]:
    if answer.problem:
        yield from wrapped(answer.problem, first=f"{_INDENT}missing: ", rest=_INDENT * 2)
    try:
        text = folder.read(note.id, answer.file, _ANSWER_BYTES).decode(errors="replace")
    except SinkError as error:
        if not answer.problem:
            yield from wrapped(str(error), first=f"{_INDENT}missing: ", rest=_INDENT * 2)
        return
    lines = text.rstrip().splitlines()
    yield from (f"{_INDENT}{line}".rstrip() for line in lines[:_ANSWER_LINES])
    if len(lines) > _ANSWER_LINES:
        path = folder.path / note.id / answer.file
        yield f"{_INDENT}{len(lines) - _ANSWER_LINES:,} more lines are in {path}"
