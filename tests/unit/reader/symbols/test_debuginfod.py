# SPDX-License-Identifier: Apache-2.0
"""Debug files from servers, of which some are hostile."""

from __future__ import annotations

import gzip
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

import pytest

from collectord.cli import answer, events, export, flame, query
from collectord.codec import elf
from collectord.codec.perf_attr import SampleType
from collectord.errors import UsageError
from collectord.reader.symbols import code_file, debuginfod
from collectord.reader.symbols.address_spaces import Mapping
from collectord.reader.symbols.code_file import open_code
from collectord.reader.symbols.debuginfod import Debuginfod
from collectord.reader.symbols.symbol_cache import SymbolCache
from tests.support.profiles import ATTR, USER, mapped, sample, write
from tests.support.programs import compile_busy, offset_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Answer = Callable[["_Handler"], None]

pytestmark = pytest.mark.slow

AT: Final = 0x5000_0000_0000


class _Handler(BaseHTTPRequestHandler):
    """Answers as the server is told to."""

    server: _Server

    def do_GET(self) -> None:
        """Answer, and note the path."""
        self.server.paths.append(self.path)
        self.server.answer(self)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def give(self, data: bytes, *, told_bytes: int | None = None) -> None:
        """Give a file."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(data) if told_bytes is None else told_bytes))
        self.end_headers()
        self.wfile.write(data)

    def send_to(self, url: str) -> None:
        """Redirect to an address."""
        self.send_response(302)
        self.send_header("Location", url)
        self.end_headers()


class _Server(ThreadingHTTPServer):
    """A server on this host.

    Attributes:
        answer: answers each request.
        paths: of the requests.
        is_over: set when the test ends.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.paths: list[str] = []
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def _serving(answer: Answer) -> Iterator[_Server]:
    with _Server(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.is_over.set()
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(code_file, "_DEBUG", tmp_path / "none")


def _id(path: Path) -> bytes:
    data = path.read_bytes()
    return elf.build_id(lambda size, at: data[at : at + size])


@pytest.fixture
def parted(tmp_path: Path) -> tuple[Path, bytes, int]:
    """A program without symbols, its debug file, and where a function of it is."""
    whole = compile_busy(tmp_path, "-g")
    stripped, debug = tmp_path / "stripped", tmp_path / "debug"
    subprocess.run(["strip", "-o", stripped, whole], check=True)
    subprocess.run(["objcopy", "--only-keep-debug", whole, debug], check=True)
    return stripped, debug.read_bytes(), offset_of(whole, "inner")


def _names(file: Path, place: int, cache: SymbolCache) -> tuple[str, ...]:
    mapping = Mapping(0, 1 << 20, 0, str(file))
    found = open_code(mapping, _id(file), iter(()), cache).find(place)
    return tuple(one.name for one in found)


def test_a_debug_file_that_is_not_here_is_fetched_once(
    tmp_path: Path, parted: tuple[Path, bytes, int]
) -> None:
    """Its symbols are kept; of several servers each is asked until one has it."""
    stripped, debug, place = parted
    with (
        _serving(lambda asked: asked.send_error(404)) as none,
        _serving(lambda asked: asked.give(debug)) as server,
    ):
        servers = Debuginfod(f"ima:enforcing file:///etc {none.url} {server.url}/")
        assert servers.urls == [none.url, server.url]
        cache = SymbolCache(tmp_path / "symbols", servers=servers)
        assert _names(stripped, place, cache) == ("inner",)
        assert _names(stripped, place, cache) == ("inner",)
        assert none.paths == server.paths == [f"/buildid/{_id(stripped).hex()}/debuginfo"]
    assert servers.failures == {}
    offline = SymbolCache(tmp_path / "symbols", servers=Debuginfod(server.url))
    assert _names(stripped, place, offline) == ("inner",)
    assert _names(stripped, place, SymbolCache(tmp_path / "other")) == ()


def _nothing(asked: _Handler) -> None:
    asked.server.is_over.wait()


def _drip(asked: _Handler) -> None:
    """Give a byte now and then, for ever."""
    asked.send_response(200)
    asked.end_headers()
    while not asked.server.is_over.wait(0.005):
        asked.wfile.write(b"x")


def _drip_headers(asked: _Handler) -> None:
    asked.wfile.write(b"HTTP/1.0 200 OK\r\n")
    while not asked.server.is_over.wait(0.005):
        asked.wfile.write(b"x")


def _pour(asked: _Handler) -> None:
    """Give much, for ever."""
    asked.send_response(200)
    asked.end_headers()
    while not asked.server.is_over.is_set():
        asked.wfile.write(bytes(1 << 16))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_drip, "no answer within"),
        (_drip_headers, "no answer within"),
        (_nothing, "no answer within"),
        (_pour, "the file has more than"),
        (lambda asked: asked.send_to(asked.path), "status 302"),
        (lambda asked: asked.send_to("file:///etc/passwd"), "status 302"),
        (lambda asked: asked.send_to("ftp://127.0.0.1/x"), "another protocol"),
        (lambda asked: asked.send_error(500), "status 500"),
        (lambda asked: asked.give(b"text"), "another build-id"),
        (lambda asked: asked.give(b"text", told_bytes=10), "it ended after 4 of 10 bytes"),
        (lambda asked: asked.wfile.write(b"\x00" * 100), ""),
    ],
    ids=[
        *("drips", "drips-headers", "silent", "endless", "loop", "file", "ftp", "error"),
        *("other", "cut", "garbage"),
    ],
)
def test_a_hostile_server_costs_some_time_and_nothing_else(
    answer: Answer, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is told."""
    monkeypatch.setattr(debuginfod, "FILE_MAX_BYTES", 1 << 20)
    if reason.startswith("no answer"):
        monkeypatch.setattr(debuginfod, "FILE_S", 0.1)
    with _serving(answer) as server:
        servers = Debuginfod(server.url)
        assert servers.fetch(bytes(20)) is None
        ((url, told),) = servers.failures.items()
        assert url.startswith(server.url)
        assert reason in told


def test_a_socket_that_gives_up_first_is_no_answer_either() -> None:
    """Socket and waiter have the same limit: either of them may end first."""
    with _serving(_nothing) as server:
        request = debuginfod._Request(server.url, bytes(20))
        request._run(0.05)
        assert request.failure == "no answer within 0.05 s"


def test_a_file_of_another_build_is_rejected(parted: tuple[Path, bytes, int]) -> None:
    """Whatever a server says it is."""
    _, debug, _ = parted
    with _serving(lambda asked: asked.give(debug)) as server:
        servers = Debuginfod(server.url)
        assert servers.fetch(b"\x01" * 20) is None
        assert "another build-id" in str(servers.failures)


def test_what_is_asked_for_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In number, and in the time of all."""
    monkeypatch.setattr(debuginfod, "FILES_MAX", 2)
    with _serving(lambda asked: asked.send_error(404)) as server:
        servers = Debuginfod(server.url)
        for _ in range(4):
            assert servers.fetch(bytes(20)) is None
        assert len(server.paths) == 2
        monkeypatch.setattr(debuginfod, "TOTAL_S", 0.0)
        late = Debuginfod(server.url)
        assert late.fetch(bytes(20)) is None
        assert "waited for" in str(late.failures)
        assert len(server.paths) == 2
    assert Debuginfod("http://127.0.0.1:1").fetch(bytes(20)) is None


@pytest.fixture
def recorded(tmp_path: Path, parted: tuple[Path, bytes, int]) -> Path:
    """A sample in the program without symbols."""
    stripped, _, place = parted
    return write(
        tmp_path / "perf.data",
        mapped(2, 50, stripped, addr=AT, length=1 << 20, inode=stripped.stat().st_ino),
        sample(3, 50, USER, AT + place),
    )


def test_only_who_asks_for_it_has_files_fetched(
    recorded: Path,
    parted: tuple[Path, bytes, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The variable alone does nothing; what fails is a note."""
    path = recorded
    _, debug, place = parted
    with pytest.raises(UsageError, match="DEBUGINFOD_URLS"):
        flame.run([str(path), "--debuginfod"])
    with _serving(lambda asked: asked.give(debug)) as server:
        monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
        assert flame.run([str(path)]) == 0
        assert capsys.readouterr().out == f"[unknown];[stripped+{place:#x}] 1\n"
        assert server.paths == []
        server.answer = lambda asked: asked.send_error(503)
        assert flame.run([str(path), "--debuginfod"]) == 0
        told = capsys.readouterr()
        assert told.out == f"[unknown];[stripped+{place:#x}] 1\n"
        assert "1 debug files were not fetched" in told.err
        assert "status 503" in told.err
        server.answer = lambda asked: asked.give(debug)
        assert flame.run([str(path), "--debuginfod"]) == 0
        assert capsys.readouterr() == ("[unknown];inner 1\n", "")


_STACKS: Final = """-- summary = "stacks"
-- needs = [["software:cpu-clock"]]
SELECT stack, (SELECT count(*) FROM "cpu-clock") AS n FROM stacks
"""


@pytest.fixture(params=["query", "answer", "events", "folded", "pprof", "perfetto"])
def named_by(
    request: pytest.FixtureRequest,
    recorded: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[bytes, str]]:
    """Return what a verb writes about the sample, and what it says on stderr."""
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers/mine.sql").write_text(_STACKS)
    verb, output = str(request.param), tmp_path / "output"
    asks: dict[str, Callable[[list[str]], int]] = {
        "query": lambda more: query.run(["FROM stacks", str(recorded), *more]),
        "answer": lambda more: answer.run(
            ["mine", "--answer-dir", str(tmp_path / "answers"), str(recorded), *more]
        ),
        "events": lambda more: events.run([str(recorded), *more]),
    }

    def ask(*more: str) -> tuple[bytes, str]:
        if verb in asks:
            assert asks[verb]([*more]) == 0
            told = capsys.readouterr()
            return told.out.encode(), told.err
        words = ["--format", verb, "-o", str(output), str(recorded), *more]
        assert export.run(words) == 0
        data = output.read_bytes()
        output.unlink()
        data = gzip.decompress(data) if verb == "pprof" else data
        return data, capsys.readouterr().err

    return ask


def test_all_that_name_functions_have_files_fetched(
    named_by: Callable[..., tuple[bytes, str]],
    parted: tuple[Path, bytes, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They do it when they are asked to, and refuse and complain as `flame` does."""
    _, debug, place = parted
    with pytest.raises(UsageError, match="DEBUGINFOD_URLS has no server"):
        named_by("--debuginfod")
    unnamed = f"[stripped+{place:#x}]".encode()
    with _serving(lambda asked: asked.send_error(503)) as server:
        monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
        data, told = named_by()
        assert unnamed in data
        assert "fetched" not in told
        assert server.paths == []
        data, told = named_by("--debuginfod")
        assert unnamed in data
        assert "1 debug files were not fetched; the first is http" in told
        assert "status 503" in told
        server.answer = lambda asked: asked.give(debug)
        data, told = named_by("--debuginfod")
        assert unnamed not in data
        assert b"inner" in data
        assert "fetched" not in told


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (query.run, ["--schema"]),
        (answer.run, ["list"]),
        (answer.run, ["syscalls", "--show"]),
        (events.run, ["--count"]),
        (events.run, ["-f"]),
        *((export.run, ["--format", form]) for form in (
            "chrome-json", "parquet", "perf.data", "trace.dat")),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else one.__module__.rpartition(".")[2],
)  # fmt: skip
def test_what_names_no_functions_refuses_it(
    verb: Callable[[list[str]], int],
    words: list[str],
    recorded: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And says which part of the command line it is that names none."""
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1")
    with pytest.raises(UsageError, match="names no functions") as refused:
        verb([*words, "--debuginfod", str(recorded)])
    assert refused.value.hint == "leave --debuginfod out"
    assert any(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    "ask",
    [
        lambda path: query.run(["FROM samples", "--debuginfod", str(path)]),
        lambda path: events.run(["-e", "cpu-clock", "--debuginfod", str(path)]),
    ],
    ids=["query", "events"],
)
def test_a_result_without_functions_says_so(
    ask: Callable[[Path], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No server is asked."""
    sample_type = ATTR.sample_type & ~(SampleType.CALLCHAIN | SampleType.IP)
    path = write(tmp_path / "perf.data", attr=replace(ATTR, sample_type=sample_type))
    with _serving(_nothing) as server:
        monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
        assert ask(path) == 0
        assert server.paths == []
    told = capsys.readouterr().err
    assert told == (
        "collectord: --debuginfod was not needed: nothing in this output names functions\n"
    )
