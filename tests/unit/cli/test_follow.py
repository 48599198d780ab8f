# SPDX-License-Identifier: Apache-2.0
"""`events -f`: a running recording is followed until it ends, or until Ctrl-C."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import UnixStreamServer
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

from collectord.cli import events, follow
from collectord.errors import CollectordError, KernelError, UnknownEvent, UsageError
from collectord.programs.program_manifest import ColumnConfig
from collectord.reader import live
from collectord.sink.manifest import EventLayout
from tests.support import segments as perf_support
from tests.support import trace_segments
from tests.support.bpf_segments import (
    EXITS,
    LAYOUTS,
    OPENS,
    Writer,
    chunk,
    exited,
    opened,
    sample,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Start = Callable[..., subprocess.Popen[str]]

S_NS: Final = 1_000_000_000
_GRACE_S: Final = 0.2
# The lines on sessions that write nothing.
_BAD: Final = "bad has failed (no BTF; no headers)"
_MAPS: Final = "maps has no rings, its programs fill only maps"


def numbered(*values: int) -> bytes:
    """Return a chunk that ends a round, with samples that are known by their numbers."""
    return chunk(
        *(sample(value * S_NS, exited(value), event=EXITS) for value in values), ends_round=True
    )


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """Provide the running segment of a session."""
    made = Writer(tmp_path / "exits", events=(EXITS,))
    yield made
    made.sink.close()


@contextmanager
def daemon(path: Path, sessions: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Something that answers for these sessions on a control socket."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/status"
            body = json.dumps({"sessions": sessions}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            pass

    with UnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def running(name: str, directory: Path) -> dict[str, Any]:
    """Return the daemon's status of a session that writes."""
    ring = {"role": "data", "cpu": 0}
    told = {"source": "bpf", "state": "running", "degraded": [], "rings": [ring]}
    return told | {"name": name, "directory": str(directory)}


def ringless(name: str, *failures: str) -> dict[str, Any]:
    """Return the status of one that writes nothing: it only fills maps, or has failed."""
    state = "failed" if failures else "running"
    told = {"source": "bpf", "state": state, "degraded": [*failures], "rings": []}
    return told | {"name": name, "directory": ""}


class Following:
    """`events -f WORDS` in a thread of its own, and what it prints."""

    def __init__(self, words: Sequence[str | Path]) -> None:
        read, write = os.pipe()
        self._output = os.fdopen(read)
        self._stdout = os.fdopen(write, "w")
        self._words = ["-f", *map(str, words)]
        self._status = -1
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._before, sys.stdout = sys.stdout, self._stdout
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        sys.stdout = self._before
        self._output.close()

    def _run(self) -> None:
        with self._stdout:
            self._status = events.run(self._words)

    def line(self) -> str:
        """Return the next line."""
        return self._output.readline()

    def first_line(self, writer: Writer) -> tuple[str, int]:
        """Return the first line of what is written until then, and the last number of that.

        Only what comes once it follows is printed.
        """
        for number in range(100, 1000):
            writer.write(numbered(number))
            if select.select([self._output], [], [], 0.05)[0]:
                return self.line(), number
        raise AssertionError("nothing is printed")

    def rest(self) -> tuple[int, str]:
        """Return the status, and the lines up to the end, which comes by itself."""
        out = self._output.read()
        self._thread.join(30)
        return self._status, out


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make polls of quiet sessions fast."""
    monkeypatch.setattr(live, "QUIET_S", 0.1)
    monkeypatch.setattr(live, "GRACE_S", _GRACE_S)
    monkeypatch.setattr(follow, "_PAUSE_S", 0.01)


@pytest.fixture
def next_run_is_there(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it then: until it is called the end does not come for want of a next run."""
    monkeypatch.setattr(live, "GRACE_S", 60.0)
    return lambda: monkeypatch.setattr(live, "GRACE_S", _GRACE_S)


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_quick")]


def values_of(text: str) -> list[int]:
    """Return the numbers in the rows of a table."""
    return [int(line.split()[1]) for line in text.splitlines()]


@pytest.mark.parametrize("named", [True, False])
def test_until_the_session_ends(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    writer: Writer,
    named: bool,  # parametrized
) -> None:
    """A session's events come from now on, over a rotation, and its end is the end."""
    path = tmp_path / "s"
    sessions = [
        running("exits", tmp_path / "exits"),
        running("files", tmp_path / "none") | {"source": "tracefs"},
        ringless("maps"),
    ]
    writer.write(numbered(1))
    second = Writer(tmp_path, writer.sink, token=2)
    words: list[str | Path] = ["--socket", path, *(["exits"] if named else [])]
    with daemon(path, sessions), Following(words) as following:
        titles, last = following.first_line(writer)
        assert titles.split() == ["TIME", "PID", "CODE"]
        writer.write(numbered(1500))
        writer.seal(final=False)
        second.write(numbered(1600))
        second.seal()
        status, out = following.rest()
    *others, before, after = values_of(out)
    assert (before, after) == (1500, 1600)
    assert others == [*range(others[0], last + 1)]
    assert (status, capsys.readouterr().err) == (0, "")


def test_until_interrupted(start_cli: Start, writer: Writer) -> None:
    """Ctrl-C ends it, and that is no failure; lines come at once, also into a pipe."""
    writer.write(numbered(1), numbered(2))
    process = start_cli("events", "--json", "--follow", writer.path)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["fields"] == {"pid": 1, "code": 0}
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_directory_above(tmp_path: Path, writer: Writer) -> None:
    """A state directory stands for all that is written below it."""
    with Following(["--json", tmp_path]) as following:
        line, _ = following.first_line(writer)
        assert json.loads(line)["event"] == EXITS
        writer.seal()
        writer.sink.close()
        assert following.rest()[0] == 0


def test_segment_from_its_beginning(writer: Writer) -> None:
    """A segment that is named is shown whole, as it is named while it runs or afterwards."""
    writer.write(numbered(1), numbered(2))
    with Following([writer.path]) as following:
        assert following.line().split() == ["TIME", "PID", "CODE"]
        assert values_of(following.line()) == [1]
        assert values_of(following.line()) == [2]
        writer.write(numbered(3))
        sealed = writer.seal()
        writer.sink.close()
        status, out = following.rest()
    assert (status, values_of(out)) == (0, [3])
    with Following([sealed]) as following:
        status, out = following.rest()
    assert (status, values_of(out.partition("\n")[2])) == (0, [1, 2, 3])


def test_session_that_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], writer: Writer
) -> None:
    """Without words it is told of and passed over, as is one that only fills maps."""
    path = tmp_path / "s"
    sessions = [
        ringless("bad", "no BTF"),
        ringless("maps"),
        running("exits", tmp_path / "exits"),
    ]
    with daemon(path, sessions), Following(["--json", "--socket", path]) as following:
        line, _ = following.first_line(writer)
        assert json.loads(line)["event"] == EXITS
        writer.seal()
        writer.sink.close()
        assert following.rest()[0] == 0
    told = "collectord: session bad is not followed, it has failed (no BTF)\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("names", "words", "status", "message"),
    [
        (["bad", "maps"], [], 1, f"has events of BPF programs: {_BAD}; {_MAPS}"),
        (["maps"], [], 2, f"has events of BPF programs: {_MAPS}; the daemon's /metrics"),
        (["bad", "maps"], ["bad"], 1, f"session bad writes no BPF events: {_BAD}"),
        (["bad", "maps"], ["maps"], 2, f"session maps writes no BPF events: {_MAPS}"),
    ],
)
def test_only_sessions_that_write_nothing(
    tmp_path: Path, names: list[str], words: list[str], status: int, message: str
) -> None:
    """It is said why; a session that has failed is a failure, another choice is none."""
    path = tmp_path / "s"
    known = {"bad": ringless("bad", "no BTF", "no headers"), "maps": ringless("maps")}
    with daemon(path, [known[name] for name in names]), pytest.raises(CollectordError) as caught:
        events.run(["-f", "--socket", str(path), *words])
    assert message in str(caught.value)
    assert caught.value.exit_code == status


@pytest.mark.parametrize("ends_first", [True, False])
def test_next_run_has_another_program(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    writer: Writer,
    next_run_is_there: Callable[[], None],
    ends_first: bool,  # parametrized
) -> None:
    """Its events are shown too, and say what they are of from then on."""
    with Following([tmp_path / "exits"]) as following:
        titles, _ = following.first_line(writer)
        assert titles.split() == ["TIME", "PID", "CODE"]
        if ends_first:
            writer.seal()
        other = Writer(tmp_path / "exits", events=(OPENS,))
        other.write(chunk(sample(5000 * S_NS, opened(5)), ends_round=True))
        while "opensnoop" not in (line := following.line()):
            assert line
        next_run_is_there()
        assert " opensnoop: pid=5 comm=task 5 result=3" in line
        if not ends_first:
            writer.seal()
        writer.sink.close()
        other.seal()
        other.sink.close()
        assert following.rest()[0] == 0
    assert capsys.readouterr().err == ""


def test_next_run_has_other_columns(
    tmp_path: Path, writer: Writer, next_run_is_there: Callable[[], None]
) -> None:
    """A table goes on below the titles of its new columns."""
    with Following([tmp_path / "exits"]) as following:
        following.first_line(writer)
        writer.seal()
        code = ColumnConfig(field="code", title="STATUS")
        described = EventLayout(program=EXITS, layout=LAYOUTS[EXITS], columns=(code,))
        other = Writer(tmp_path / "exits", events=(EXITS,), layouts={EXITS: described})
        other.write(chunk(sample(5000 * S_NS, exited(5, -7), event=EXITS), ends_round=True))
        other.seal()
        other.sink.close()
        writer.sink.close()
        while (titles := following.line().split()) != ["TIME", "STATUS"]:
            assert titles
        next_run_is_there()
        status, out = following.rest()
    assert status == 0
    assert out.split() == ["5000.000000000", "-7"]


def test_sessions_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], writer: Writer
) -> None:
    """Events of several sessions say what they are of; what is damaged is told."""
    other = Writer(tmp_path / "opens", events=(OPENS,))
    with Following([tmp_path / "exits", tmp_path / "opens"]) as following:
        line, _ = following.first_line(writer)
        assert " exits:     pid=1" in line
        other.write(chunk(sample(S_NS, b"short"), ends_round=True))
        other.seal()
        other.sink.close()
        writer.seal()
        writer.sink.close()
        assert following.rest()[0] == 1
    assert "a record of opensnoop" in capsys.readouterr().err


def test_writer_that_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], writer: Writer
) -> None:
    """The rest is shown, with the advice on what to do."""
    with Following([tmp_path / "exits"]) as following:
        following.first_line(writer)
        writer.write(numbered(1500))
        writer.sink.close()
        status, out = following.rest()
    assert (status, values_of(out)[-1]) == (1, 1500)
    assert capsys.readouterr().err.endswith("died; run `collectord segments repair`\n")


def test_nothing_to_follow(tmp_path: Path, writer: Writer) -> None:
    """It is refused at once, with a word on what can be followed."""
    path = tmp_path / "s"
    perf = perf_support.make_sink(tmp_path / "perf")
    perf.next_segment(1, perf_support.OPENING)
    trace = trace_segments.orphan(tmp_path / "trace")
    sessions = [running("perf", tmp_path / "perf") | {"source": "perf"}]
    refused: list[tuple[list[str], type[UsageError], str]] = [
        ([], UsageError, "no session of the daemon has events of BPF programs"),
        (["perf"], UsageError, "session perf writes no BPF events"),
        (
            ["prf"],
            UsageError,
            "there is no session, directory or segment 'prf'; did you mean \"perf\"?",
        ),
        (["x"], UsageError, "the daemon runs perf"),
        (["./x"], UsageError, "no directory or segment ./x"),
        ([str(tmp_path / "perf")], UsageError, "no segment with BPF events is being written in"),
        ([str(trace)], UsageError, "has no events of BPF programs, and only these"),
        (["-e", "nothing", str(writer.path)], UnknownEvent, "no event 'nothing'"),
        (["--filter", "cod == 1", str(writer.path)], UsageError, 'did you mean "code"?'),
    ]
    with daemon(path, sessions):
        for words, kind, message in refused:
            with pytest.raises(kind) as caught:
                events.run(["-f", "--socket", str(path), *words])
            assert message in str(caught.value)
    with (
        daemon(path.with_name("older"), [{"name": "exits", "source": "bpf"}]),
        pytest.raises(CollectordError, match="does not report the directory of session exits"),
    ):
        events.run(["-f", "--socket", str(path.with_name("older"))])
    with pytest.raises(KernelError, match=f"no daemon is listening at {path}"):
        events.run(["-f", "--socket", str(path)])
    perf.close()
