# SPDX-License-Identifier: Apache-2.0
"""`collectord incident`: what was recorded when something went wrong: list, show, export, trigger.

All but `trigger` read the state directory, with or without a daemon.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.incident_text import incident_lines, problem_lines, when_text
from collectord.cli.new_file import new_open_file
from collectord.cli.output import bytes_text, complain, print_json, say
from collectord.cli.parser import Parser
from collectord.cli.segments import STATE_DIRECTORY
from collectord.cli.text_table import Column, print_table
from collectord.control import client
from collectord.errors import UsageError
from collectord.sink.incident_folder import LAST, IncidentFolder
from collectord.sink.segment import sink_errors
from collectord.text.foreign import plain_value

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import IO

    from collectord.sink.incident_folder import Kept

_LIST, _SHOW, _EXPORT, _TRIGGER = ("list", "show", "export", "trigger")
_COLUMNS: Final = (
    *map(Column, ("INCIDENT", "WHEN", "TRIGGER")),
    Column("EVENTS", "right"),
    Column("SIZE", "right"),
    Column("REASON"),
)
_REASON_CHARS: Final = 60


def parser() -> Parser:
    """Return the parser of `incident`."""
    made = Parser(
        "incident",
        (
            "list",
            "| show [ID]",
            "| export [ID] [-o FILE]",
            "| trigger [--reason TEXT|--unit NAME]",
            "[--state-dir DIR]",
            "[--socket PATH]",
            "[--json]",
        ),
        (
            "collectord incident list",
            "collectord incident show last",
            "collectord incident export last -o incident.tar.gz",
            "collectord incident trigger --reason 'the page was slow'",
        ),
    )
    made.add_argument(
        "action",
        metavar="list|show|export|trigger",
        choices=(_LIST, _SHOW, _EXPORT, _TRIGGER),
        help="list: list the kept incidents; show: print one; export: write one to a tar file; "
        "trigger: let a running daemon make one",
    )
    made.add_argument(
        "incident",
        metavar="ID",
        nargs="?",
        help="the incident to show or export, the fingerprint of an alert that has one, or "
        f"{LAST} (default: {LAST})",
    )
    made.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="export: the file to write, compressed if its name ends in .gz (default: ID.tar)",
    )
    made.add_argument(
        "--reason", metavar="TEXT", help="trigger: words that the incident has (default: none)"
    )
    made.add_argument(
        "--unit",
        metavar="NAME",
        help="trigger: the unit that has failed; the limits of its trigger apply (default: none, "
        "and no limit applies)",
    )
    made.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        default=STATE_DIRECTORY,
        help=f"state directory of the daemon (default: {STATE_DIRECTORY})",
    )
    made.add_socket("trigger: ")
    made.add_json("print the result as JSON (default: text)")
    return made


def run(arguments: Sequence[str]) -> int:
    """List incidents, show or export one, or have one made."""
    args = parser().parse_intermixed_args(arguments)
    _check(args)
    if args.action == _TRIGGER:
        return _trigger(args)
    folder = IncidentFolder(args.state_dir)
    if args.action == _LIST:
        return _list(folder, args)
    found = folder.find(args.incident or LAST)
    return _show(found, folder, args) if args.action == _SHOW else _export(found, folder, args)


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for an option of another action."""
    given = {
        "-o": (args.output, _EXPORT),
        "--reason": (args.reason, _TRIGGER),
        "--unit": (args.unit, _TRIGGER),
    }
    for name, (value, action) in given.items():
        if value is not None and args.action != action:
            raise UsageError(f"{name} is an option of incident {action} alone")
    if args.incident is not None and args.action in {_LIST, _TRIGGER}:
        raise UsageError(f"incident {args.action} takes no ID")
    if args.reason is not None and args.unit is not None:
        raise UsageError("--reason and --unit cannot be combined")


def _trigger(args: argparse.Namespace) -> int:
    """Ask for an incident, and print its name; return 1 if a limit forbids it."""
    body = {"reason": args.reason or "", "unit": args.unit or ""}
    answer = client.post(args.socket, "/v1/incident", body)
    if args.json:
        print_json(answer)
    elif answer["incident"] is None:
        say(f"no incident: the trigger is held back ({answer['suppressed']})")
    else:
        say(f"made {answer['incident']}")
        for line in problem_lines(answer["snapshots"], answer["problems"]):
            say(line)
        say(f"next: collectord incident show {answer['incident']}")
    return EXIT_OK


def _list(folder: IncidentFolder, args: argparse.Namespace) -> int:
    kept = folder.kept()
    if args.json:
        print_json({"incidents": [_listed(one) for one in reversed(kept)]})
        return EXIT_OK
    print_table(_COLUMNS, [_row(one) for one in reversed(kept)])
    if not kept:
        say(f"no incident in {folder.path}")
    return EXIT_OK


def _listed(one: Kept) -> dict[str, Any]:
    told = plain_value(one.note) if one.note is not None else {}
    keys = ("trigger", "kind", "reason", "fired_ns", "taken_ns", "problems")
    events = sum(made["samples"] for made in one.note.snapshots) if one.note else None
    return {
        "id": one.id,
        "finished": one.note is not None,
        "bytes": one.bytes,
        "events": events,
        **{key: told.get(key) for key in keys},
    }


def _row(one: Kept) -> list[str]:
    note = one.note
    if note is None:
        return [one.id, "-", "-", "-", bytes_text(one.bytes), "unfinished"]
    reason = note.reason
    if len(reason) > _REASON_CHARS:
        reason = f"{reason[:_REASON_CHARS]}..."
    events = sum(made["samples"] for made in note.snapshots)
    return [
        one.id,
        when_text(note.fired_ns),
        note.trigger,
        f"{events:,}",
        bytes_text(one.bytes),
        reason,
    ]


def _show(found: Kept, folder: IncidentFolder, args: argparse.Namespace) -> int:
    if found.note is None:
        complain(f"{found.id} is unfinished: the daemon ended while it was made")
        return EXIT_FAILURE
    if args.json:
        print_json(found.note)
        return EXIT_OK
    for line in incident_lines(found.note, folder):
        say(line)
    return EXIT_OK


def _export(found: Kept, folder: IncidentFolder, args: argparse.Namespace) -> int:
    """Write all files of an incident to a tar file, which is as large as they are."""
    path = args.output or Path(f"{found.id}.tar")
    with new_open_file(path) as file, sink_errors("cannot write", path):
        is_packed = path.suffix in {".gz", ".tgz"}
        with (
            tarfile.open(fileobj=file, mode="w:gz")
            if is_packed
            else tarfile.open(fileobj=file, mode="w")
        ) as archive:
            names = [_add(archive, found.id, name, fd) for name, fd in folder.files(found.id)]
    if args.json:
        print_json({"incident": found.id, "file": str(path), "files": names})
    else:
        say(f"wrote {path}: {len(names)} files, {bytes_text(path.stat().st_size)}")
    return EXIT_OK


def _add(archive: tarfile.TarFile, incident: str, name: str, fd: int) -> str:
    file: IO[bytes]
    with os.fdopen(os.dup(fd), "rb") as file:
        entry = archive.gettarinfo(arcname=f"{incident}/{name}", fileobj=file)
        archive.addfile(entry, file)
    return name
