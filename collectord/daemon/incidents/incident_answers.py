# SPDX-License-Identifier: Apache-2.0
"""The answers of an incident: commands that run behind it, each a process of the lowest priority.

Each writes into a file of the incident. It may take only so much time, memory and space.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.config.schema_trigger import FLAME, WHY
from collectord.folders.folder import opened
from collectord.sink.incident_folder import ANSWERS, PICTURE, SUMMARY, AnswerNote
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from collectord.config.schema_trigger import TriggerConfig
    from collectord.sink.incident_folder import IncidentFolder, IncidentNote

_NICE: Final = 19
_CPU_S: Final = 60
_WALL_S: Final = 300.0
_FILE_BYTES: Final = 4 << 20
_ERROR_BYTES: Final = 64 << 10
_DATA_BYTES: Final = 2 << 30
_PROBLEM_CHARS: Final = 500
# The load of so long before an incident is drawn.
_LOAD_NS: Final = 60 * NS_PER_SECOND
_OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "loss": ("why-cpu",),
    "ring-fill": ("why-cpu",),
    "oom-kill": ("oom-kills", "why-mem"),
}
_OF_RESOURCE: Final = {"memory": "why-mem", "io": "why-io"}
_OTHERS: Final = ("why-cpu", "why-io")


def answers_for(
    trigger: TriggerConfig | None, *, has_records: bool, has_chains: bool
) -> tuple[str, ...]:
    """Return the answers that a trigger has, or those that fit its kind.

    Args:
        trigger: None for a request.
        has_records: whether the snapshots have any; without them only the load has an answer.
        has_chains: whether sessions record the call chains of samples.
    """
    if trigger is not None and trigger.answers is not None:
        names = trigger.answers
    else:
        names = (*_fitting(trigger), *((FLAME,) if has_chains else ()))
    return names if has_records else tuple(name for name in names if name == FLAME)


def _fitting(trigger: TriggerConfig | None) -> tuple[str, ...]:
    if trigger is None:
        return _OTHERS
    if trigger.pressure is not None:
        return (_OF_RESOURCE.get(trigger.pressure.resource, "why-cpu"),)
    return _OF_KIND.get(trigger.kind, _OTHERS)


class IncidentAnswers:
    """Runs the commands of one incident, one after the other, in the thread of the caller.

    Args:
        folder: of all incidents.
        note: the incident.
        took: called with the processor time of each process once it has ended.
    """

    def __init__(
        self, folder: IncidentFolder, note: IncidentNote, took: Callable[[int], None]
    ) -> None:
        self._folder = folder
        self._note = note
        self._took = took
        self._targets = [str(folder.path / note.id), *_elsewhere(note)]
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def answer(self, name: str) -> AnswerNote:
        """Give one answer. Raises SinkError."""
        file = f"{ANSWERS}/{name}.txt"
        question = name.removeprefix(WHY)
        if name == FLAME:
            words = self._drawing()
        elif name != question:
            words = ["why", question, *self._targets]
        else:
            words = ["answer", name, *self._targets]
        problem = self._run(words, file)
        return AnswerNote(name=name, file=file, problem=problem)

    def _drawing(self) -> list[str]:
        """Return the command that draws the load before the incident, of all sessions."""
        note = self._note
        window = zip(
            ("--since", "--until"), (note.fired_ns - _LOAD_NS, _end_ns(note)), strict=True
        )
        picture = self._folder.path / note.id / PICTURE
        spelt = [word for key, at_ns in window for word in (key, _spelt(at_ns))]
        return ["flame", *spelt, "-o", str(picture), str(self._folder.path.parent)]

    def summarise(self) -> str:
        """Write the summary; return why that failed, "" if it did not. Raises SinkError."""
        root = str(self._folder.path.parent)
        words = ["incident", "show", self._note.id, "--state-dir", root]
        return self._run(words, SUMMARY)

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """End the command that runs, and begin no other."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def _run(self, words: Sequence[str], file: str) -> str:
        """Run a command of this program, whose output goes to a file of the incident.

        Returns:
            why it failed, "" if it did not.
        """
        with opened(self._folder.create(self._note.id, file)) as out:
            error_end, own_end = os.pipe()
            with opened(error_end):
                try:
                    process = self._start(words, out, own_end)
                finally:
                    os.close(own_end)
                if process is None:
                    return "the daemon stopped"
                timer = threading.Timer(_WALL_S, process.kill)
                timer.daemon = True
                timer.start()
                try:
                    said = _read(error_end)
                    return self._wait(process, said)
                finally:
                    timer.cancel()

    def _start(
        self, words: Sequence[str], out: int, errors: int
    ) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopped:
                return None
            process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-I", "-m", "collectord", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd="/",
                env={},
            )
            self._process = process
        # An interpreter takes far longer to start than these do.
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        for kind, most in (
            (resource.RLIMIT_CPU, _CPU_S),
            (resource.RLIMIT_FSIZE, _FILE_BYTES),
            (resource.RLIMIT_DATA, _DATA_BYTES),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.prlimit(process.pid, kind, (most, most))
        return process

    def _wait(self, process: subprocess.Popen[bytes], said: bytes) -> str:
        _, status, usage = os.wait4(process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        with self._lock:
            self._process = None
            process.returncode = code  # so that nobody else waits for it
        self._took(int((usage.ru_utime + usage.ru_stime) * NS_PER_SECOND))
        if code == 0:
            return ""
        words = " ".join(said.decode(errors="surrogateescape").split())[:_PROBLEM_CHARS]
        if code < 0:
            words = f"the command was ended by signal {-code}"
        return words or f"the command ended with status {code}"


def _end_ns(note: IncidentNote) -> int:
    return max(note.taken_ns, note.fired_ns) + NS_PER_SECOND


def _spelt(realtime_ns: int) -> str:
    """Return a time as the options take it."""
    return datetime.fromtimestamp(realtime_ns / NS_PER_SECOND, tz=UTC).isoformat()


def _read(fd: int) -> bytes:
    """Return what a process writes until its end, as far as there is room."""
    said = b""
    while piece := os.read(fd, _ERROR_BYTES):
        said = (said + piece)[:_ERROR_BYTES]
    return said


def _elsewhere(note: IncidentNote) -> list[str]:
    """Return the paths of segments that are in their sessions' folders alone."""
    return [
        path
        for one in note.snapshots
        for path in one["segments"]
        if f"{one['session']}/{Path(path).name}" not in note.files
    ]
