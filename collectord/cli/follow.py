# SPDX-License-Identifier: Apache-2.0
"""`collectord events -f`: follow the events of BPF programs of a running daemon or recording."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK, events_bpf
from collectord.cli.events_bpf import BpfStyle, BpfView
from collectord.cli.output import complain, flush, print_line, say
from collectord.control import client
from collectord.errors import CollectordError, UsageError
from collectord.reader.live import LiveStreams
from collectord.session.maps.device_names import HostNames
from collectord.sink.segment import PARTIAL, SegmentPaths, segment_directories
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.cli.event_choice import Choice
    from collectord.reader.perf_events import BpfSegment

_PAUSE_S: Final = 0.2
_SOURCE: Final = "bpf"
_FAILED: Final = "failed"


def run(words: Sequence[str], socket: Path, choice: Choice, *, as_json: bool) -> int:
    """Print events as they are submitted, until nothing is running any more, or until Ctrl-C.

    Args:
        words: sessions of the daemon, directories and segments; empty for all its BPF sessions.
        socket: the daemon's.
        choice: chooses the events.
        as_json: print an object per line.

    Raises:
        UsageError: there is nothing to follow, or nothing in it matches the choice.
    """
    with ExitStack() as stack:
        try:
            streams = [stack.enter_context(closing(one)) for one in _streams(words, socket)]
            return _Follower(streams, choice, as_json=as_json).run()
        except KeyboardInterrupt:
            return EXIT_OK


class _Follower:
    """Prints the new records of some streams."""

    def __init__(self, streams: Sequence[LiveStreams], choice: Choice, *, as_json: bool) -> None:
        events = {e.name: e for one in streams for segment in one.segments for e in segment.events}
        known = [c for one in streams for s in one.segments for c in events_bpf.choosables(s)]
        choice.check(known)
        self._streams = streams
        self._choice = choice
        self._style = BpfStyle(HostNames(), choice, events.values())
        self._as_json = as_json
        self._views: dict[BpfSegment, BpfView] = {}
        self._failed = False

    def run(self) -> int:
        """Follow until all streams have ended, and return the exit status."""
        while True:
            # Not any(): each stream must be polled.
            printed = sum(self._print(stream) for stream in self._streams)
            if printed:
                flush()
            elif all(stream.ended for stream in self._streams):
                return EXIT_FAILURE if self._failed else EXIT_OK
            else:
                time.sleep(_PAUSE_S)

    def _print(self, stream: LiveStreams) -> bool:
        """Print what is new; return whether there was anything."""
        printed = False
        for segment, happening in stream.poll():
            printed = True
            if segment not in self._views:
                self._views[segment] = BpfView(segment, self._choice, self._style)
            view = self._views[segment]
            if self._as_json:
                for found in view.data(happening):
                    print_line(found)
            else:
                for line in view.text(happening):
                    say(line)
            self._failed |= view.damaged
        for complaint in stream.take_complaints():
            self._failed = True
            complain(complaint)
        current = {segment for one in self._streams for segment in one.segments}
        self._views = {one: view for one, view in self._views.items() if one in current}
        return printed


def _streams(words: Sequence[str], socket: Path) -> Iterator[LiveStreams]:
    if not words:
        problem = "no session of the daemon has events of BPF programs"
        yield from _running(_directories(_sessions(socket), problem), problem)
    for word in words:
        path = Path(word)
        paths = SegmentPaths(path.parent, path.name.removesuffix(PARTIAL))
        if path.is_dir():
            yield from _running(
                segment_directories(path), f"no segment with BPF events is being written in {word}"
            )
        elif paths.data.exists() or paths.partial.exists():
            yield LiveStreams(paths.directory, paths)
        elif "/" in word:
            raise UsageError(f"there is no directory or segment {word}")
        else:
            problem = f"session {word} writes no BPF events"
            yield from _running(_directories(_named(word, socket), problem), problem)


def _running(directories: Iterable[Path], problem: str) -> Iterator[LiveStreams]:
    """Follow those directories in which something is running."""
    found = [stream for stream in map(LiveStreams, dict.fromkeys(directories)) if stream.found]
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
