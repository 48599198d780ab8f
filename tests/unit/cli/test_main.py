# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: verbs, help, exit statuses, one-line errors."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord import __version__, cli, errors
from collectord.cli import query, record
from collectord.kernel.linux import LinuxKernel

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).resolve().parents[3]
HELP: Final = ROOT / "tests/golden/help"
HELP_WIDTH: Final = 79


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the output of `collectord WORDS --help`."""
    try:
        status = cli.main(LinuxKernel, [*words, "--help"])
    except SystemExit as leave:  # argparse ends a verb's help this way
        status = int(leave.code or 0)
    assert status == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [(), *((verb,) for verb in cli.VERBS)])
def test_help_is_golden(
    words: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help is the recorded text, on any terminal width, and fits 79 columns."""
    monkeypatch.setenv("COLUMNS", "40")
    text = help_of(capsys, *words)
    golden = HELP / f"{'-'.join(words) or 'collectord'}.txt"
    assert text == golden.read_text(), f"if right: collectord {' '.join(words)} --help > {golden}"
    assert max(map(len, text.splitlines())) <= HELP_WIDTH
    assert "examples:\n" in text


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_begins_with_one_sentence_and_shows_defaults(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A verb's help says what it does in one sentence; each option names its default."""
    text = help_of(capsys, verb)
    assert f"\n\n{cli.VERBS[verb]}\n\n" in text
    joined = re.sub(r"\n {8,}", " ", text)
    options = [line for line in joined.splitlines() if re.match(r"  (-|DIR|FILE|GLOB)", line)]
    assert len(options) >= 2
    assert [o for o in options if "--help" not in o and "(default" not in o] == []


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["recrod"], 'did you mean "record"?'),
        (["xyz"], "one of run, opener, record"),
        (["list", "--nonsense"], "see `collectord list --help`"),
        (["record", "-F", "99", "-c", "1"], "not allowed with"),
        (["segments", "burn"], "invalid choice"),
        (["--help", "list"], "no verb '--help'"),
    ],
)
def test_wrong_command_line(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command line that does not parse is one line on stderr and status 2."""
    assert cli.main(LinuxKernel, arguments) == errors.UsageError.exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("collectord: ")
    assert captured.err.count("\n") == 1
    assert hint in captured.err


def every_error() -> list[errors.CollectordError]:
    """Return one error of each class of the tree."""
    return [
        errors.CollectordError("x"),
        errors.UsageError("x"),
        errors.NotAllowed("x"),
        errors.ConfigError("x", path="f", key="k"),
        errors.PlanError("x"),
        errors.KernelError("x", syscall="mmap", errno=1),
        errors.NoDaemon("x", syscall="connect", errno=2),
        errors.MissingPrivilege("x", need="CAP_PERFMON"),
        errors.MissingFeature("x", feature="y"),
        errors.NoSuchTarget("x"),
        errors.CodecError("x", offset=0, reason="y"),
        errors.SinkError("x", path="/y", errno=28),
    ]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("command", [[], ["--", "true"]])
def test_status_of_errors(
    error: errors.CollectordError,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each error has the status of its class; before a COMMAND's own status it is 125."""

    def fail(_arguments: Sequence[str], _kernel: LinuxKernel) -> int:
        raise error

    monkeypatch.setattr(record, "run", fail)
    status = cli.main(LinuxKernel, ["record", "-a", *command])
    assert status == (cli.EXIT_RECORD_FAILED if command else error.exit_code)
    assert capsys.readouterr().err == f"collectord: {error}\n"


def test_unforeseen_error_is_logged_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug ends with status 1, or 125 before a COMMAND, and its traceback in the log."""

    def fail(_arguments: Sequence[str], _kernel: LinuxKernel) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(record, "run", fail)
    assert cli.main(LinuxKernel, ["record"]) == 1
    assert cli.main(LinuxKernel, ["record", "--", "true"]) == cli.EXIT_RECORD_FAILED
    assert capsys.readouterr().err.count("internal_error") == 2


def test_an_unforeseen_error_is_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verbs that have no log until then have it on stderr, too."""

    def fail(_arguments: Sequence[str]) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(query, "run", fail)
    assert cli.main(LinuxKernel, ["query"]) == 1
    told = capsys.readouterr()
    assert (told.out, "internal_error" in told.err) == ("", True)


def test_error_text_is_one_visible_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Foreign text in an error cannot break its line or reach the terminal as a sequence."""

    def fail(_arguments: Sequence[str], _kernel: LinuxKernel) -> int:
        raise errors.PlanError("no event 'a\x1b[2J\nb'")

    monkeypatch.setattr(record, "run", fail)
    assert cli.main(LinuxKernel, ["record"]) == errors.PlanError.exit_code
    assert capsys.readouterr().err == "collectord: no event 'a\\x1b[2J\\nb'\n"


def test_exit_statuses_of_the_manual() -> None:
    """docs/cli.md lists every status that the program can give by itself, and no other."""
    table = (ROOT / "docs/cli.md").read_text().partition("## Exit status")[2].partition("##")[0]
    listed = {int(status) for status in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    of_command = {cli.EXIT_RECORD_FAILED, cli.EXIT_NOT_EXECUTABLE, cli.EXIT_NO_COMMAND}
    own = of_command | {cli.EXIT_OK, cli.EXIT_INTERRUPTED}
    assert listed == own | {error.exit_code for error in every_error()}


def test_reader_that_leaves_is_no_crash() -> None:
    """A closed pipe on stdout ends the program without a traceback."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "collectord", "--help"],
            stdout=write,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (cli.EXIT_FAILURE, b"")


COLLECTORD: Final = f"{shlex.quote(sys.executable)} -m collectord"


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", ["--help", "list --help", "--version", "doctor --json"])
@pytest.mark.parametrize(
    ("redirection", "why"),
    [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")],
)
def test_stdout_that_cannot_be_written(
    words: str,
    redirection: str,
    why: str,
    buffered: bool,  # parametrized
) -> None:
    """A full or closed stdout is one line and status 1, at whichever write it shows."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {COLLECTORD} {words} {redirection}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"},
        check=False,
    )
    assert done.stderr.decode() == f"collectord: cannot write to stdout: {why}\n"
    assert done.returncode == cli.EXIT_FAILURE


def test_closed_streams_are_taken_by_no_file(tmp_path: Path) -> None:
    """With all three streams closed, what the program opens does not become one of them."""
    code = (
        "import os; from collectord.cli.output import open_standard_streams, complain\n"
        "open_standard_streams(); complain('lost')\n"
        f"fd = os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "os.write(fd, str(fd).encode())"
    )
    command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(code)} <&- >&- 2>&-"
    subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, check=True)
    assert int((tmp_path / "file").read_text()) > 2


def test_full_stderr_does_not_change_the_status() -> None:
    """An error whose line cannot be written still has its status."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {COLLECTORD} recrod 2>/dev/full"], cwd=ROOT, check=False
    )
    assert done.returncode == errors.UsageError.exit_code


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints name and version."""
    assert cli.main(LinuxKernel, ["--version"]) == 0
    assert re.fullmatch(r"collectord \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_the_end_of_the_process_tears_nothing_down() -> None:
    """The process writes what was printed, and ends without the interpreter's teardown."""
    text = (
        "import atexit, sys\n"
        "from collectord.__main__ import main\n"
        "atexit.register(print, 'torn down')\n"
        "sys.argv = ['collectord', '--version']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == f"collectord {__version__}\n"
