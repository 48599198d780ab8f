# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of the bcc worker: what it asks, what it believes, what it leaves behind."""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from structlog.testing import capture_logs

from collectord.errors import (
    BpfError,
    CollectordError,
    KernelError,
    MissingFeature,
    MissingPrivilege,
)
from collectord.folders.folder import opened
from collectord.programs.bpf_program import BpfProgram
from collectord.programs.manifest_text import load_manifest
from collectord.programs.program_manifest import AttachConfig
from collectord.source import bcc_client, bcc_python
from collectord.source.bcc_child import Said
from tests.support.fake_bcc import interpreter
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.source.loaded_program import Loaded

pytestmark = pytest.mark.slow

MIB: Final = 1 << 20
TABLE: Final = {"name": "m", "fd": 0, "key": "int", "leaf": "int"}
FUNCTION: Final = {"function": "f", "fd": 1, "attached": ["tracepoint a:b"]}


class Client:
    """Loads with an interpreter of the test's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "headers" / "include").mkdir(parents=True)

    def load(self, body: str, *, source: str = "", **limits: Any) -> Loaded:  # noqa: ANN401
        """Load; whatever was received is closed again."""
        headers = str(self._folder / "headers")
        request = bcc_client.Request("prog", source, headers, (), "GPL")
        with ExitStack() as stack:
            return bcc_client.load(
                request,
                python=interpreter(self._folder, body),
                stack=stack,
                **{"timeout_s": 20, "memory_bytes": 64 * MIB, **limits},
            )

    def error(self, body: str, **how: Any) -> BpfError:  # noqa: ANN401
        """Return the error that loading ends with."""
        with pytest.raises(BpfError) as caught:
            self.load(body, **how)
        assert "\n" not in str(caught.value)
        assert caught.value.program == "prog"
        return caught.value


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Return a client with stand-ins for headers."""
    return Client(tmp_path)


@pytest.mark.parametrize(
    "body",
    [
        "request()",
        "sock.sendall(b'short')",
        "raw(b'{}', 1000)",
        "raw(b'')",
        "raw(b'{}')",
        "raw(b'no json')",
        "raw(b'[1]')",
        "raw(b'{', 1 << 62)",
        "answer(unknown=1)",
        "answer(tables=[{'name': 1}])",
        f"answer(tables=[{TABLE}], programs=[{FUNCTION}], attachments=[2])",
        f"answer(tables=[{TABLE}], programs=[{FUNCTION}], attachments=[2]); send([2, 2])",
        f"answer(tables=[{TABLE}], programs=[{FUNCTION}], attachments=[-1]); send([2] * 3)",
        f"answer(tables=[{TABLE}], programs=[{FUNCTION}], attachments=[1]); send([2] * 3)",
        f"answer(tables=[{TABLE}], programs=[{FUNCTION}], attachments=[2]); send([2] * 3)",
        f"answer(programs=[{FUNCTION}], attachments=[0]); send([2] * 200); send([2] * 200)",
        "send([2] * 250)",
        "answer(failure={'step': 'nonsense', 'message': ''})",
        "answer(failure={'step': 'load'})",
    ],
)
def test_an_answer_is_not_believed(client: Client, body: str) -> None:
    """Too short, no JSON, of another form, or not what the kernel says of the descriptors."""
    error = client.error(f"say('words'); {body}")
    assert error.step == "worker"
    assert "no valid answer" in str(error)
    assert error.text == "words\n"


@pytest.mark.usefixtures("client")
def test_descriptors_belong_to_the_stack(tmp_path: Path) -> None:
    """From their arrival on, close-on-exec, and after an error none is left open."""
    received: list[tuple[int, bool]] = []

    class Stack(ExitStack):
        def enter_context(self, cm: Any) -> Any:  # noqa: ANN401 - as that of ExitStack
            callback = cm.callback

            def note(function: Callable[..., object], *fds: int) -> object:
                assert function is os.close
                received.extend((fd, os.get_inheritable(fd)) for fd in fds)
                return callback(function, *fds)

            cm.callback = note
            return super().enter_context(cm)

    request = bcc_client.Request("prog", "", str(tmp_path / "headers"))
    with Stack() as stack:
        with pytest.raises(BpfError, match="no valid answer"):
            bcc_client.load(
                request, python=interpreter(tmp_path, "send([0, 1, 2] * 70)"), stack=stack
            )
        assert len(received) == 210
        assert not any(inheritable for _, inheritable in received)
        open_now = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
        assert not open_now & {fd for fd, _ in received}


def test_too_few_descriptors_are_told(client: Client) -> None:
    """The limit of open files cuts what arrives; that is no fault of the worker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        error = client.error("answer(); send([2] * 250)")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "out of file descriptors" in str(error)
    assert "RLIMIT_NOFILE" in error.hint


def test_a_worker_that_takes_too_long_is_stopped(client: Client, tmp_path: Path) -> None:
    """With all that it started; the limit is named, and how to raise it."""
    noted = tmp_path / "pid"
    body = (
        "child = subprocess.Popen(['sleep', '600'])\n"
        "say('busy')\n"
        f"open({str(noted)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    limits = iter((1.5, 10, 60))  # a slow machine has done nothing of it after the first
    while not noted.exists():
        limit, busy = next(limits), time.thread_time()
        error = client.error(body, timeout_s=limit)
    assert time.thread_time() - busy < 0.5  # it waits
    assert f"more than {limit:g} s" in str(error)
    assert "compile_time" in error.hint
    assert error.step == "worker"
    assert error.text == "busy\n"
    with suppress(ProcessLookupError), opened(os.pidfd_open(int(noted.read_text()))) as pidfd:
        assert select.select([pidfd], [], [], patient(10))[0], "it still runs"


def test_a_worker_that_does_not_listen_is_stopped(client: Client) -> None:
    """A request that is larger than the socket's buffer cannot block the daemon for good."""
    error = client.error("time.sleep(600)", source="x" * (4 * MIB), timeout_s=1)
    assert "more than 1 s" in str(error)


def test_a_large_request_and_a_large_answer_pass(client: Client) -> None:
    """Both go through while the other side is being heard."""
    body = "text = request()['source']; raw(b' ' * (8 << 20)); say(len(text)); say(text[-1])"
    assert client.error(body, source="x" * (4 * MIB) + "y").text == f"{4 * MIB + 1}\ny\n"
    # Messages that lie in the socket when the worker ends are read all the same.
    for _ in range(5):
        error = client.error(f"fail('attach', 'y' * {150 << 10}); os._exit(0)")
        assert str(error) == f"prog: {'y' * (150 << 10)}"


@pytest.mark.parametrize(
    ("name", "hint"), [("SIGKILL", ""), ("SIGSEGV", "64 MiB"), ("SIGABRT", "64 MiB")]
)
def test_a_killed_worker_is_told(client: Client, name: str, hint: str) -> None:
    """The message names the signal, and its possible cause."""
    error = client.error(
        f"resource = __import__('resource'); resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        f"say('words'); request(); os.kill(os.getpid(), signal.{name})"
    )
    assert f"killed by {name}" in str(error)
    assert hint in error.hint
    assert error.text == "words\n"


@pytest.mark.parametrize(
    ("body", "limit_s", "starts", "says"),
    [
        ("if starts < 3: os.kill(os.getpid(), signal.SIGKILL)\nos._exit(3)", 20, 3, "status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 20, 3, "killed by SIGKILL"),
        ("signal.raise_signal(signal.SIGTERM)", 20, 1, "killed by SIGTERM"),
        ("time.sleep(600)", 1, 1, "more than 1 s"),
    ],
)
def test_a_worker_that_somebody_kills_is_started_again(
    client: Client, tmp_path: Path, body: str, limit_s: int, *, starts: int, says: str
) -> None:
    """Twice at the most, and with a line in the log; one that crashes or is late is not."""
    noted = tmp_path / "starts"
    count = f"file = open({str(noted)!r}, 'a+'); file.write('x'); file.flush(); file.seek(0)\n"
    with capture_logs() as logged:
        error = client.error(f"{count}starts = len(file.read())\n{body}", timeout_s=limit_s)
    assert says in str(error)
    assert len(noted.read_text()) == starts
    assert [line["event"] for line in logged] == ["bcc_worker_killed"] * (starts - 1)


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        ("say('words'); os._exit(12)", True),
        ("say('LLVM ERROR: out of memory'); os._exit(1)", False),
        (
            "fail('worker', 'libLLVM.so: failed to map segment', lack='nothing'); os._exit(1)",
            False,
        ),
    ],
)
def test_want_of_memory_is_told(client: Client, body: str, *, is_told: bool) -> None:
    """The status says it, and no word does: the limit is named, and how to raise it."""
    error = client.error(body)
    assert ("more memory than its limit of 64 MiB" in str(error)) == is_told
    assert ("compile_memory" in error.hint) == is_told


def test_a_worker_that_fails_is_quoted(client: Client) -> None:
    """The last line of what it wrote says why."""
    error = client.error("say('Traceback'); say('ValueError: of some sort'); os._exit(3)")
    assert str(error) == "prog: the bcc worker failed: ValueError: of some sort"
    assert error.text == "Traceback\nValueError: of some sort\n"
    assert "status 3" in str(client.error("os._exit(3)"))
    # One that ends with much of the request unread.
    assert "status 3" in str(client.error("os._exit(3)", source="x" * (4 * MIB)))


def test_what_is_written_is_kept_within_bounds(client: Client) -> None:
    """Out of megabytes the compiler's beginning and the verifier's end are kept."""
    flood = "say('first'); [say('x' * 99) for _ in range(100_000)]; say('last'); request()\n"
    text = client.error(f"{flood}fail('compile', 'no')").text
    assert text.startswith("first\n")
    assert len(text) == 64 << 10
    text = client.error(f"{flood}fail('load', 'f')").text
    assert text.endswith("\nlast")
    assert len(text) < 64 << 10
    said = Said()
    for _ in range(1000):
        said.add(b"x" * 999 + b"\n")
    assert len(said.tail) == 64 << 10
    assert set(map(len, said.end.splitlines())) == {999}


@pytest.mark.parametrize("python", ["/nonexistent/python", "/etc/passwd", "/"])
def test_an_interpreter_that_is_none(python: str, tmp_path: Path) -> None:
    """A program that cannot be started is named."""
    (tmp_path / "include").mkdir()
    request = bcc_client.Request("prog", "", str(tmp_path))
    with (
        pytest.raises(BpfError, match=f"prog: cannot start {python}: ") as caught,
        ExitStack() as s,
    ):
        bcc_client.load(request, python=python, stack=s)
    assert caught.value.step == "worker"
    with pytest.raises(BpfError, match="cannot start"):
        bcc_client.symbols([(1, [2])], python=python)


@pytest.mark.parametrize("headers", ["", "/nonexistent"])
def test_missing_headers_are_told_before_anything_is_started(headers: str) -> None:
    """BCC would look for others, and complain of those."""
    request = bcc_client.Request("prog", "", headers)
    with pytest.raises(BpfError, match="no kernel headers") as caught, ExitStack() as stack:
        bcc_client.load(request, python="/nonexistent", stack=stack)
    assert caught.value.step == "compile"


def test_the_worker_starts_clean(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment nor open files of the daemon are passed on, nor its paths."""
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("BCC_KERNEL_SOURCE", "/other")
    body = (
        "fds = [n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)]\n"
        "fail('attach', json.dumps([dict(os.environ), fds, sys.argv[1:], os.getcwd(),"
        " os.getsid(0) == os.getpid(), os.getppid()]))"
    )
    with (Path("/dev/null")).open() as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 - positional-only
        message = str(client.error(body)).partition(": ")[2]
    environment, fds, words, folder, leads, parent = json.loads(message)
    assert environment.pop("BCC_KERNEL_SOURCE").endswith("/headers")
    assert environment.pop("LANG") == "C"
    assert "sbin" not in environment.pop("PATH")
    assert set(environment) <= {"LC_CTYPE"}  # python's own
    assert len(fds) == 4
    assert words[0] == "-I"
    assert Path(words[-3]).name == "bcc_worker.py"
    assert words[-2] in fds
    assert (folder, leads, parent) == ("/", True, os.getpid())
    assert int(words[-1]) == os.getpid()


def test_what_is_asked(client: Client) -> None:
    """The worker gets the text, the licence and its limit."""
    error = client.error("fail('attach', json.dumps(request()))", source="int x;")
    assert json.loads(str(error).partition(": ")[2]) == {
        "mode": "load",
        "memory_bytes": 64 * MIB,
        "source": "int x;",
        "license": "GPL",
        "attach": [],
        "ring": "collectord_ring",
        "counts": "collectord_counts",
    }


def test_attachments_as_the_worker_takes_them() -> None:
    """Events become numbers: of a name, or as they are written."""

    def entry(
        place: str, *, frequency: int | None = None, period: int | None = None
    ) -> dict[str, object]:
        given = AttachConfig(
            kind="perf_event", function="f", place=place, frequency=frequency, period=period
        )
        return bcc_client._entry(given)

    plain = AttachConfig(kind="uprobe", function="f", place="libc:malloc")
    assert bcc_client._entry(plain) == {"kind": "uprobe", "function": "f", "place": "libc:malloc"}
    clock = entry("cpu-clock", frequency=49)
    assert (clock["type"], clock["config"], clock["frequency"], clock["period"]) == (1, 0, 49, 0)
    numbers = entry("4:0x1c2", period=1000)
    assert (numbers["type"], numbers["config"], numbers["period"]) == (4, 0x1C2, 1000)


MAP_REFUSED: Final = "could not open bpf map: m, error: Operation not permitted"
INCOMPLETE: Final = "prog.bpf.c:3:4: error: incomplete type 'struct tracepoint__a__b'"
VERIFIER_LOG: Final = """\
bpf: Failed to load program: Permission denied
0: R1=ctx() R10=fp0
;  @ prog.bpf.c:12
7: (b7) r1 = 1                        ; R1=1
8: (7b) *(u64 *)(r0 +0) = r1
R0 invalid mem access 'map_value_or_null'
verification time 57 usec
stack depth 0
processed 8 insns (limit 1000000) max_states_per_insn 0 total_states 0

HINT: look before you leap.
"""


@pytest.mark.parametrize(
    ("body", "kind", "step", "message"),
    [
        (
            "say('prog.bpf.c:7:3: error: no such thing'); fail('compile', 'Failed to compile')",
            BpfError,
            "compile",
            "prog.bpf.c:7:3: error: no such thing",
        ),
        (
            "say('x:1: warning: w\\nx:2:3: fatal error: gone'); fail('compile', 'no')",
            BpfError,
            "compile",
            "prog: x:2:3: fatal error: gone",
        ),
        ("fail('compile', 'Failed to compile')", BpfError, "compile", "prog: Failed to compile"),
        (
            f"say({VERIFIER_LOG!r}); fail('load', 'on_x', errno=13)",
            BpfError,
            "load",
            "prog: the verifier rejects on_x: R0 invalid mem access 'map_value_or_null'",
        ),
        (
            "fail('load', 'on_x', errno=7)",
            BpfError,
            "load",
            "prog: on_x cannot be loaded: Argument list too long",
        ),
        (
            "say('could not open bpf map: m, error: Whatever'); fail('map', 'its maps', errno=22)",
            BpfError,
            "load",
            "prog: map m cannot be made: Invalid argument",
        ),
        (
            "fail('map', 'its maps', errno=12)",
            BpfError,
            "load",
            "prog: a map cannot be made: Cannot allocate memory",
        ),
        (
            f"say({MAP_REFUSED!r}); fail('compile', 'no')",
            BpfError,
            "compile",
            "prog: no",
        ),
        (
            "fail('map', 'its maps', errno=1, need='bpf')",
            MissingPrivilege,
            "CAP_BPF and CAP_PERFMON",
            "prog: no privilege to load its maps (Operation not permitted)",
        ),
        (
            "fail('load', 'on_x', errno=1, need='bpf')",
            MissingPrivilege,
            "CAP_BPF and CAP_PERFMON",
            "prog: no privilege to load on_x (Operation not permitted)",
        ),
        (
            "fail('attach', 'uprobe a:b', errno=13, need='perf')",
            MissingPrivilege,
            "CAP_PERFMON (CAP_SYS_ADMIN where kernel.perf_event_paranoid is 3 or more)",
            "prog: no privilege to attach uprobe a:b (Permission denied)",
        ),
        (
            "fail('compile', 'a:b', errno=13, need='tracefs')",
            MissingPrivilege,
            "CAP_DAC_READ_SEARCH, or a group that may read tracefs",
            "prog: no privilege to read the tracepoint a:b (Permission denied)",
        ),
        (
            "fail('attach', 'kprobes', errno=2, lack='kprobes')",
            MissingFeature,
            "kprobes",
            "prog: this kernel has no kprobes",
        ),
        (
            "fail('attach', 'function f', errno=2, lack='function f')",
            MissingFeature,
            "function f",
            "prog: this kernel has no function f",
        ),
        (
            "fail('attach', 'tracepoint a:b', errno=2, lack='tracepoint a:b')",
            MissingFeature,
            "tracepoint a:b",
            "prog: this kernel has no tracepoint a:b",
        ),
        (
            f"say({INCOMPLETE!r}); fail('compile', 'Failed')",
            BpfError,
            "compile",
            INCOMPLETE,
        ),
        (
            "fail('attach', 'x cannot be attached', errno=22)",
            BpfError,
            "attach",
            "prog: x cannot be attached: Invalid argument",
        ),
        (
            "say('first'); say('libbcc says why'); fail('attach', 'x cannot be attached')",
            BpfError,
            "attach",
            "prog: x cannot be attached: libbcc says why",
        ),
    ],
)
def test_a_failure_becomes_an_error(
    client: Client, body: str, kind: type[CollectordError], step: str, message: str
) -> None:
    """By its step, errno and what was written: one line, with what is wanting or where."""
    with pytest.raises(kind) as caught:
        client.load(f"request(); {body}")
    error = caught.value
    assert error.args[0] == message
    if isinstance(error, MissingPrivilege):
        assert error.need == step
    elif isinstance(error, MissingFeature):
        assert error.feature == step
    else:
        assert isinstance(error, BpfError)
        assert error.step == step


def test_an_interpreter_without_bcc_is_a_missing_feature(client: Client) -> None:
    """The package to install is named."""
    with pytest.raises(MissingFeature, match="has no bcc") as caught:
        client.load("fail('worker', 'No module named bcc', lack='bcc')")
    assert caught.value.feature == "bcc"
    assert "python3-bpfcc" in caught.value.hint


def test_names_of_addresses(tmp_path: Path) -> None:
    """Each stack gets its names, and an answer of another form is refused."""
    stacks = [(-1, [1 << 63, 2]), (7, [3])]
    python = interpreter(tmp_path, "request(); answer(names=[['a', 'b'], ['c']])")
    assert bcc_client.symbols(stacks, python=python) == [["a", "b"], ["c"]]
    for names in ([], [["a"], ["c"]], [["a", "b"], ["c", "d"]]):
        python = interpreter(tmp_path, f"request(); answer(names={names})")
        with pytest.raises(BpfError, match="no valid answer"):
            bcc_client.symbols(stacks, python=python)


def _finder(folder: Path, name: str, output: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{output}\n")
    path.chmod(0o755)
    return str(path)


def test_finding_an_interpreter(tmp_path: Path) -> None:
    """The first that has the right bcc, with its version; a package of that name is not enough."""
    other, real, odd = (tmp_path / name / "bcc" for name in ("other", "real", "odd"))
    for folder in (other, real, odd):
        folder.mkdir(parents=True)
        (folder / "version.py").write_text("__version__ = '0.31.0'\n")
    (real / "libbcc.py").touch()
    (odd / "libbcc.py").touch()
    (odd / "version.py").unlink()
    without = _finder(tmp_path, "without", "")
    wrong = _finder(tmp_path, "wrong", f"echo {other}")
    dies = _finder(tmp_path, "dies", "exit 1")
    right = _finder(tmp_path, "right", f"echo {real}")
    unknown = _finder(tmp_path, "unknown", f"echo {odd}")
    assert bcc_python.find_python((without, wrong, dies, right, unknown)) == (right, "0.31.0")
    assert bcc_python.find_python((unknown,)) == (unknown, "unknown")
    python, reason = bcc_python.find_python((without, wrong, dies, "/nonexistent", without))
    assert python == ""
    assert f"{without}: it has no bcc; " in reason
    assert f"{wrong}: {other} is another bcc" in reason
    assert f"{dies}: it does not run" in reason
    assert reason.endswith("/nonexistent: No such file or directory")


def test_finding_runs_no_bcc() -> None:
    """The interpreter that runs this is asked where bcc would come from, and imports nothing."""
    bcc_python.find_python((sys.executable,))
    assert "bcc" not in sys.modules


def test_a_request_of_the_catalogue(tmp_path: Path) -> None:
    """Text with parameters and header, licence in the kernel's words, and attachments."""
    manifest = b"""
summary = "x"
license = "GPL-2.0-only OR BSD-2-Clause"
[parameter.pid]
type = "int"
default = 3
help = "x"
[[attach]]
kind = "uprobe"
function = "f"
place = "libc:malloc"
"""
    source = 'struct e { int a; };\n#define COLLECTORD_EVENT struct e\n#include "collectord.h"\n'
    program = BpfProgram("prog", "x", source, load_manifest(manifest, "x"), "local")
    request = bcc_client.request(program, {"pid": 4}, headers=str(tmp_path), library="LIBRARY")
    assert request.source.startswith('#line 1 "prog.toml"\n#define PARAMETER_PID 4\n#line 1 "prog')
    assert "LIBRARY" in request.source
    assert request.license == "GPL"
    assert [attach.place for attach in request.attach] == ["libc:malloc"]


def test_kernel_errors_are_no_bpf_errors() -> None:
    """Exit statuses tell a program that is wrong from a host that cannot run it."""
    assert BpfError("", program="", step="").exit_code == 1
    assert not issubclass(BpfError, KernelError)


def test_a_function_that_may_be_a_modules(client: Client) -> None:
    """The error says when it would be there."""
    with pytest.raises(MissingFeature) as caught:
        client.load("request(); fail('attach', 'function f', errno=2, lack='function f')")
    assert caught.value.hint == "one of a module is there while the module is loaded"


def test_a_parameter_chooses_where_a_program_is_attached() -> None:
    """The worker is asked for the one place that the value has."""
    manifest = b"""
summary = "s"
license = "GPL"
[parameter.which]
type = "string"
default = "a"
choices = ["a", "b"]
help = "h"
[[attach]]
kind = "kprobe"
function = "mine"
parameter = "which"
places = { a = "f", b = "g" }
"""
    program = BpfProgram("prog", "/p", "", load_manifest(manifest, "prog.toml"), "local")
    for value, place in (("a", "f"), ("b", "g")):
        request = bcc_client.request(program, {"which": value}, headers="", library="")
        assert request.attach == (AttachConfig(kind="kprobe", function="mine", place=place),)
