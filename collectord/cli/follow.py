# SPDX-License-Identifier: Apache-2.0
"""`collectord events -f`: follow the events of BPF programs of a running daemon or recording."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.event_view import Printer, choosables
from collectord.cli.output import complain, flush
from collectord.control import client
from collectord.errors import CollectordError, UsageError
from collectord.reader.event_file import Window
from collectord.reader.event_lines import EventLines
from collectord.reader.live import LiveStreams
from collectord.session.maps.device_names import HostNames
from collectord.sink.segment import PARTIAL, SegmentPaths, segment_directories
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.cli.event_choice import Choice
    from collectord.reader.event_file import EventFile
    from collectord.reader.live_segment import LinesOf

_PAUSE_S: Final = 0.2
_SOURCE: Final = "bpf"
_FAILED: Final = "failed"


def run(words: Sequence[str], socket: Path, choice: Choice, form: str) -> int:
    """Print events as they are submitted, until nothing is running any more, or until Ctrl-C.

    Args:
        words: sessions of the daemon, directories and segments; empty for all its BPF sessions.
        socket: the daemon's.
        choice: chooses the events.
        form: of the output.

    Raises:
        UsageError: there is nothing to follow, or nothing in it matches the choice.
    """
    follower = Follower(choice, form)
    with ExitStack() as stack:
        try:
            streams = _streams(words, socket, follower.lines_of)
            return follower.run([stack.enter_context(closing(one)) for one in streams])
        except KeyboardInterrupt:
            return EXIT_OK


class Follower:
    """Prints the new records of some streams."""

    def __init__(self, choice: Choice, form: str) -> None:
        self._choice = choice
        self._printer = Printer(choice, form, HostNames())
        self._failed = False

    def lines_of(self, file: EventFile) -> EventLines:
        """Begin to read a file."""
        self._printer.knows(file.events)
        return EventLines(file, self._printer.programs(file), Window())

    def run(self, streams: Sequence[LiveStreams], over: Event | None = None) -> int:
        """Follow until all streams have ended, and return the exit status.

        Args:
            streams: to be followed.
            over: set when nothing new begins any more: what is open is followed to its end.
        """
        over = over or Event()
        files = [segment.file for one in streams for segment in one.segments]
        self._choice.check([one for file in files for one in choosables(file)])
        self._printer.knows([event for file in files for event in file.events])
        while True:
            # Not any(): each stream must be polled.
            printed = sum(self._print(stream) for stream in streams)
            if printed:
                flush()
            elif all(
                stream.ended or (over.is_set() and not stream.segments) for stream in streams
            ):
                return EXIT_FAILURE if self._failed else EXIT_OK
            else:
                time.sleep(_PAUSE_S)

    def _print(self, stream: LiveStreams) -> bool:
        """Print the new records; return whether there were any."""
        printed = False
        for segment, batch in stream.poll():
            printed = True
            if batch is None:
                self._printer.end(segment.lines)
            else:
                self._failed |= self._printer.emit(segment.lines, batch)
        for complaint in stream.take_complaints():
            self._failed = True
            complain(complaint)
        return printed


def _streams(words: Sequence[str], socket: Path, lines_of: LinesOf) -> Iterator[LiveStreams]:
    if not words:
        problem = "no session of the daemon has events of BPF programs"
        yield from _running(_directories(_sessions(socket), problem), problem, lines_of)
    for word in words:
        path = Path(word)
        paths = SegmentPaths(path.parent, path.name.removesuffix(PARTIAL))
        if path.is_dir():
            yield from _running(
                segment_directories(path),
                f"no segment with BPF events is being written in {word}",
                lines_of,
            )
        elif paths.data.exists() or paths.partial.exists():
            yield LiveStreams(paths.directory, lines_of, paths)
        elif "/" in word:
            raise UsageError(f"there is no directory or segment {word}")
        else:
            problem = f"session {word} writes no BPF events"
            yield from _running(_directories(_named(word, socket), problem), problem, lines_of)


def _running(
    directories: Iterable[Path], problem: str, lines_of: LinesOf
) -> Iterator[LiveStreams]:
    """Follow those directories in which something is running."""
    all_of = (LiveStreams(directory, lines_of) for directory in dict.fromkeys(directories))
    found = [stream for stream in all_of if stream.found]
    if not found:
        raise UsageError(problem, hint="-f can follow only events of BPF programs")
    yield from found


def _named(name: str, socket: Path) -> list[dict[str, Any]]:
    sessions = _sessions(socket)
    found = [one for one in sessions if one["name"] == name]
    if not found:
        known = {str(one["name"]) for one in sessions}
        hint = did_you_mean(name, known) or f"the daemon runs {', '.join(sorted(known)) or 'none'}"
        raise UsageError(f"there is no session, directory or segment {name!r}", hint=hint)
    return found


def _directories(sessions: Iterable[dict[str, Any]], problem: str) -> list[Path]:
    """Return where sessions write events of BPF programs; failed sessions are left out.

    Args:
        sessions: as reported by the daemon.
        problem: the error message if none is left.

    Raises:
        UsageError: there are sessions of BPF programs, but none of them writes events.
        CollectordError: no session writes events, because one has failed.
    """
    programs = [one for one in sessions if one["source"] == _SOURCE]
    failed = [one for one in programs if one.get("state") == _FAILED]
    running = [one for one in programs if one not in failed]
    found = [_directory(one) for one in running if _has_rings(one)]
    if not found and programs:
        said = "; ".join(
            [f"{one['name']} has failed{_reason(one)}" for one in failed]
            + [f"{one['name']} has no rings, its programs fill only maps" for one in running]
        )
        if failed:
            raise CollectordError(f"{problem}: {said}")
        raise UsageError(f"{problem}: {said}", hint="the daemon's /metrics show their maps")
    for one in failed:
        complain(f"session {one['name']} is not followed, it has failed{_reason(one)}")
    return found


def _has_rings(session: dict[str, Any]) -> bool:
    return bool(session.get("rings", True) and session.get("directory", True))


def _reason(session: dict[str, Any]) -> str:
    reasons = "; ".join(map(str, session.get("degraded", ())))
    return f" ({reasons})" if reasons else ""


def _sessions(socket: Path) -> list[dict[str, Any]]:
    return list(client.get(socket, "/v1/status")["sessions"])


def _directory(session: dict[str, Any]) -> Path:
    if "directory" not in session:
        raise CollectordError(
            f"the daemon does not report the directory of session {session['name']}",
            hint="name its directory instead",
        )
    return Path(session["directory"])
