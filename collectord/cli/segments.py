# SPDX-License-Identifier: Apache-2.0
"""`collectord segments`: list, verify, repair or compress segments, or extract AUX traces."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.output import bytes_text, complain, figure_text, print_json
from collectord.cli.parser import Parser
from collectord.cli.summary import compressed_size
from collectord.cli.text_table import Column, print_table
from collectord.errors import UsageError
from collectord.reader import aux_extract, verify
from collectord.sink import repair
from collectord.sink.pack import compress
from collectord.sink.segment import sink_errors
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from collectord.errors import SinkError

STATE_DIRECTORY: Final = Path("/var/lib/collectord")
_YEAR_9999_NS: Final = 253_370_764_800 * NS_PER_SECOND
_SEGMENT: Final = Column("SEGMENT")
_STATE: Final = Column("STATE")
_SAMPLES: Final = Column("SAMPLES", "right")
_SIZE: Final = Column("SIZE", "right")
_DETAIL: Final = Column("DETAIL")
_EARLY: Final = "ended early: records that name some of its samples may be in the next segment"
_AUX_COLUMNS: Final = ("CPU", "TID", "OFFSET", "BYTES", "MISSING")


def parser() -> Parser:
    """Return the parser of `segments`."""
    made = Parser(
        "segments",
        (
            "list|verify|repair|compress|aux",
            "[--sha256]",
            "[--output-dir DIR]",
            "[--json]",
            "[DIR|SEGMENT]",
        ),
        (
            "collectord segments list",
            "collectord segments verify out",
            "collectord segments verify --sha256 --json out/exec",
            "collectord segments repair /var/lib/collectord",
            "collectord segments compress perf.data",
            "collectord segments aux trace.perf.data --output-dir raw",
        ),
    )
    made.add_argument(
        "action",
        choices=tuple(_ACTIONS),
        metavar="list|verify|repair|compress|aux",
        help="list: list the segments; verify: check segments against their manifests, and name "
        "the damaged chunks; repair: seal the segments that a killed process left, and cut "
        "damaged chunks out of these and of sealed segments, in place; compress: give sealed "
        "segments their compressed form, which perf and trace-cmd read; aux: write the AUX traces "
        "of a segment as raw files, one for each CPU or thread",
    )
    made.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        type=Path,
        default=STATE_DIRECTORY,
        help="state directory, session directory or one segment; aux needs a segment "
        f"(default: {STATE_DIRECTORY})",
    )
    made.add_argument(
        "--sha256", action="store_true", help="verify: hash whole files as well (default: no)"
    )
    made.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        help="aux: directory for the raw files, which must be given (default: none)",
    )
    made.add_json("print the result as JSON (default: a table)")
    return made


def run(arguments: Sequence[str]) -> int:
    """Carry out one action; return 1 if a segment is wrong or could not be repaired."""
    args = parser().parse_intermixed_args(arguments)
    if args.sha256 and args.action != "verify":
        raise UsageError("--sha256 is an option of verify only")
    if (args.output_dir is not None) != (args.action == "aux"):
        raise UsageError(
            "aux needs --output-dir, which no other action takes",
            hint="collectord segments aux SEGMENT --output-dir DIR",
        )
    with sink_errors("cannot look at the segments", args.directory, reading=True):
        args.directory.stat()
    return _ACTIONS[args.action](args)


def _list(args: argparse.Namespace) -> int:
    closed: list[SinkError] = []
    rows = verify.list_segments([args.directory], on_closed=closed.append)
    if args.json:
        print_json({"segments": rows})
        return _complain_of(closed)
    print_table(
        (
            *(_SEGMENT, Column("FORMAT"), _STATE, Column("START"), Column("END")),
            *(_SAMPLES, Column("BASIS"), _SIZE),
        ),
        [
            [
                str(row.path),
                row.format or "-",
                f"{row.state}, early" if row.early else str(row.state),
                _time(row.begins_ns),
                _time(row.ends_ns),
                figure_text(row.samples),
                row.basis or "-",
                _size(row),
            ]
            for row in rows
        ],
    )
    return _complain_of(closed)


def _verify(args: argparse.Namespace) -> int:
    closed: list[SinkError] = []
    verdicts = verify.verify([args.directory], sha256=args.sha256, on_closed=closed.append)
    if args.json:
        print_json({"segments": verdicts})
    else:
        print_table(
            (_SEGMENT, _STATE, Column("VERDICT"), _SAMPLES, _SIZE, _DETAIL),
            [
                [
                    str(verdict.path),
                    str(verdict.state),
                    _verdict(verdict),
                    f"{verdict.samples:,}",
                    _size(verdict),
                    _finding(verdict),
                ]
                for verdict in verdicts
            ],
        )
    return max(_complain_of(closed), int(any(verdict.finding for verdict in verdicts)))


def _complain_of(closed: Sequence[SinkError]) -> int:
    """Report which directories were left out, and return the exit status."""
    for error in closed:
        complain(str(error))
    return EXIT_FAILURE if closed else EXIT_OK


def _repair(args: argparse.Namespace) -> int:
    outcomes = repair.repair(args.directory, sealed=True)
    if args.json:
        print_json({"segments": outcomes})
    else:
        print_table(
            (_SEGMENT, Column("ACTION"), _SAMPLES, _SIZE, _DETAIL),
            [
                [
                    str(outcome.path),
                    str(outcome.action),
                    f"{outcome.samples:,}",
                    bytes_text(outcome.allocated_bytes),
                    outcome.detail,
                ]
                for outcome in outcomes
            ],
        )
    return int(any(outcome.damaged for outcome in outcomes))


def _compress(args: argparse.Namespace) -> int:
    done = list(compress(args.directory))
    if args.json:
        print_json({"segments": [one.to_json() for one in done]})
    else:
        print_table(
            (_SEGMENT, Column("RESULT"), _SIZE, _DETAIL),
            [
                [str(one.path), str(one.attempt.result), compressed_size(one), one.attempt.detail]
                for one in done
            ],
        )
    return int(any(one.attempt.went_wrong for one in done))


def _aux(args: argparse.Namespace) -> int:
    if args.directory.is_dir():
        hint = "name one; `collectord segments list` shows them"
        raise UsageError("aux takes one segment, not a directory", hint=hint)
    extraction = aux_extract.extract(args.directory, args.output_dir)
    if args.json:
        print_json({"traces": extraction.traces, "damage": extraction.damage})
    elif extraction.traces:
        print_table(
            (Column("FILE"), *(Column(name, "right") for name in _AUX_COLUMNS)),
            [
                [
                    str(trace.path),
                    _number(trace.cpu),
                    _number(trace.tid),
                    f"{trace.offset:,}",
                    f"{trace.bytes:,}",
                    f"{trace.missing_bytes:,}",
                ]
                for trace in extraction.traces
            ],
        )
    if extraction.damage:
        complain(
            f"{args.directory} is damaged, and the rest of it cannot be read: {extraction.damage}"
        )
    elif not extraction.traces:
        complain(f"{args.directory} holds no AUX trace")
    return int(bool(extraction.damage) or not extraction.traces)


_ACTIONS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "list": _list,
    "verify": _verify,
    "repair": _repair,
    "compress": _compress,
    "aux": _aux,
}


def _verdict(verdict: verify.Verdict) -> str:
    if verdict.state is verify.State.RUNNING:
        return "-"
    return "wrong" if verdict.finding else "ok"


def _size(segment: verify.SegmentRow | verify.Verdict) -> str:
    """Format the size on disk, of a compressed segment with the one before."""
    size = bytes_text(segment.allocated_bytes)
    before_bytes = segment.uncompressed_bytes
    return size if before_bytes is None else f"{size} of {bytes_text(before_bytes)}"


def _finding(verdict: verify.Verdict) -> str:
    if verdict.state is verify.State.RUNNING:
        return "it is being written, and can be checked once it is sealed"
    if verdict.finding is not None:
        return f"{verdict.finding.check}: {verdict.finding.detail}"
    told = [f"sha256 {verdict.sha256}"] if verdict.sha256 else []
    return "; ".join([_EARLY, *told] if verdict.early else told)


def _time(realtime_ns: int | None) -> str:
    if realtime_ns is None or not 0 <= realtime_ns < _YEAR_9999_NS:
        return "-"
    start = datetime.fromtimestamp(realtime_ns // NS_PER_SECOND, tz=UTC)
    return f"{start:%Y-%m-%d %H:%M:%SZ}"


def _number(value: int) -> str:
    """Format a CPU or thread number, "-" if there is none."""
    return "-" if value < 0 else str(value)
