# SPDX-License-Identifier: Apache-2.0
"""A guest that crashes, hangs or leaves tests out fails the run, which says why."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests import again
from tests.support.patience import patient
from tests.vm import __main__ as vm
from tests.vm import guest, layers, report

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

# In the place of QEMU: where the words of a real one send the console and the two ports.
PROLOGUE: Final = """\
import io, re, signal, sys, tarfile, time
words = " ".join(sys.argv)
if "-serial stdio" in words:  # the trial of /dev/kvm
    sys.exit(1)
console, output, result = (
    re.search(pattern, words)[1]
    for pattern in (r"-serial file:(\\S+)", r"id=output,path=(\\S+)", r"id=result,path=(\\S+)")
)

def write(path, text):
    with open(path, "a") as file:
        file.write(text)

def leave(**files):
    with tarfile.open(result, "w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("_", "."))
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))

"""
PANIC: Final = """\
write(console, "".join(f"boots {n}\\n" for n in range(100)))
write(console, "Kernel panic - not syncing: Attempted to kill init!\\n")
"""
HANG: Final = """\
import os
write(console, f"{os.getpid()}\\n")
write(output, "tests begin\\n")
signal.pause()
"""
CHATTER: Final = """\
while True:
    write(output, "again\\n")
    time.sleep(0.01)
"""
LONG_S: Final = patient(60)
SILENT_S: Final = patient(3)  # in which a Python starts, and prints
WORDS: Final = "tests/vm/test_systemd_units.py"


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], guest.Machine]:
    """Make a machine whose QEMU does what a piece of Python says."""

    def make(body: str) -> guest.Machine:
        program = tmp_path / "qemu"
        program.write_text(f"#!{sys.executable} -I\n{PROLOGUE}{body}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        nothing = tmp_path / "nothing"
        return guest.Machine(str(program), layers.Disks(nothing, nothing, nothing, nothing))

    return make


@pytest.fixture
def files(tmp_path: Path) -> guest.Run:
    """Return the folder of a run."""
    folder = tmp_path / "run"
    folder.mkdir()
    return guest.Run(folder)


def _limits(total_s: float = LONG_S, silent_s: float = LONG_S) -> guest.Limits:
    return guest.Limits(total_s, silent_s)


def _failure(
    machine: guest.Machine, files: guest.Run, limits: guest.Limits
) -> tuple[guest.GuestFailed, str]:
    """Why a guest failed, and what it had printed."""
    shown: list[str] = []
    with pytest.raises(guest.GuestFailed) as caught:
        guest.run("true", machine, files, limits, shown.append)
    return caught.value, "".join(shown)


def test_a_job_runs_to_its_end(machine: Callable[[str], guest.Machine], files: guest.Run) -> None:
    """Its output is shown, its status given, and what it left is unpacked."""
    shown: list[str] = []
    body = 'write(output, "all is well\\n")\nleave(status="3", report_xml="<x/>")\n'
    status = guest.run("exit 3", machine(body), files, _limits(), shown.append)
    assert (status, "".join(shown)) == (3, "all is well\n")
    assert (files.results / "report.xml").read_text() == "<x/>"


def test_a_panic_is_a_failure(machine: Callable[[str], guest.Machine], files: guest.Run) -> None:
    """QEMU ends well then, so that the missing result tells; the console's end is what matters."""
    error, _ = _failure(machine(PANIC), files, _limits())
    assert error.reason.startswith("the guest stopped without a result")
    assert str(files.console) in str(error)
    lines = error.console_end().splitlines()
    assert lines[-1] == "Kernel panic - not syncing: Attempted to kill init!"
    assert len(lines) == guest.CONSOLE_LINES_SHOWN


def test_silence_is_a_hang(machine: Callable[[str], guest.Machine], files: guest.Run) -> None:
    """It is given up with what it had printed, and its process is gone."""
    error, shown = _failure(machine(HANG), files, _limits(silent_s=SILENT_S))
    assert error.reason.startswith("the guest printed nothing for")
    assert shown == "tests begin\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(error.console_end()), 0)


def test_a_guest_that_does_not_end_is_given_up(
    machine: Callable[[str], guest.Machine], files: guest.Run
) -> None:
    """It ends even if it goes on to print."""
    error, shown = _failure(machine(CHATTER), files, _limits(total_s=SILENT_S))
    assert error.reason.startswith("the guest did not end within")
    assert "again" in shown


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit(7)\n", "QEMU ended with status 7"),
        ("signal.raise_signal(signal.SIGKILL)\n", "QEMU was killed"),
        ('write(result, "torn")\n', "the guest stopped without a result"),
        ('leave(report_xml="<x/>")\n', "the guest stopped without a result"),
        ('leave(status="")\n', "the guest stopped without a result"),
    ],
)
def test_what_is_no_result(
    machine: Callable[[str], guest.Machine], files: guest.Run, body: str, reason: str
) -> None:
    """A QEMU that fails, and a result that is cut off or lacks the job's status."""
    error, _ = _failure(machine(body), files, _limits())
    assert error.reason.startswith(reason)


def test_a_guest_that_nobody_wants_ends(
    machine: Callable[[str], guest.Machine], files: guest.Run
) -> None:
    """It ends when, for example, another guest has failed."""
    limits = _limits()
    limits.stop.set()
    error, _ = _failure(machine(HANG), files, limits)
    assert error.reason == "the guest was stopped"


@pytest.fixture(scope="module")
def marked() -> list[str]:
    """Return the tests marked `vm` of one file."""
    found = sorted(report.collect((WORDS,)))
    assert len(found) > 1
    return found


@pytest.fixture
def run_tests(
    machine: Callable[[str], guest.Machine], files: guest.Run, marked: list[str]
) -> Callable[..., int]:
    """Run the tests of that file "in a guest" whose QEMU does what a piece of Python says."""

    def run(body: str, silent_s: float = LONG_S) -> int:
        made, limits = machine(body), _limits(silent_s=silent_s)
        shown: list[str] = []

        def in_a_guest(job: str) -> tuple[guest.Run, int]:
            assert "-m vm" in job
            assert WORDS in job
            return files, guest.run(job, made, files, limits, shown.append)

        return vm.run_tests(frozenset(marked), [(WORDS,)], in_a_guest, limits.stop)

    return run


def _leave(*cases: str, status: int = 0) -> str:
    text = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
    return f"leave(status={str(status)!r}, report_xml={text!r})\n"


def _case(node_id: str, outcome: str = "") -> str:
    classname, _, name = report.report_name(node_id).rpartition(".")
    return f'<testcase classname="{classname}" name="{name}">{outcome}</testcase>'


def test_every_test_passed(run_tests: Callable[..., int], marked: list[str]) -> None:
    """The status is 0 only then."""
    assert run_tests(_leave(*map(_case, marked))) == 0


def test_a_marked_test_that_did_not_run_fails(
    run_tests: Callable[..., int], marked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Though pytest in the guest ended well: this checkout has the test, the report has not."""
    other = _case("tests/vm/test_other.py::test_other")
    assert run_tests(_leave(other, *map(_case, marked[1:]))) == vm.STATUS_FAILED
    missing = report.report_name(marked[0])
    assert f"vm: DID NOT RUN {missing}\n" in capsys.readouterr().out


@pytest.mark.parametrize("outcome", ["skipped", "failure", "error"])
def test_a_test_that_did_not_pass_fails(
    run_tests: Callable[..., int], marked: list[str], outcome: str
) -> None:
    """Skips count too, whatever pytest's status was."""
    bad = _case(marked[0], f'<{outcome} message="why">where</{outcome}>')
    assert run_tests(_leave(bad, *map(_case, marked[1:]))) == vm.STATUS_FAILED


@pytest.mark.parametrize(("second", "status"), [("", 0), ("<failure/>", vm.STATUS_FAILED)])
def test_one_that_failed_has_a_second_run(
    machine: Callable[[str], guest.Machine],
    tmp_path: Path,
    marked: list[str],
    *,
    second: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is by itself, in a new guest, and decides; one that passes then is named."""
    limits, shown = _limits(), list[str]()
    first = _leave(_case(marked[0], "<failure/>"), *map(_case, marked[1:]), status=1)
    bodies = iter([first, _leave(_case(marked[0], second), status=1 if second else 0)])
    jobs = []

    def in_a_guest(job: str) -> tuple[guest.Run, int]:
        jobs.append(job)
        folder = tmp_path / f"run-{len(jobs)}"
        folder.mkdir()
        files = guest.Run(folder)
        return files, guest.run(job, machine(next(bodies)), files, limits, shown.append)

    assert vm.run_tests(frozenset(marked), [(WORDS,)], in_a_guest, limits.stop) == status
    assert [marked[0] in job for job in jobs] == [False, True]
    assert not any(test in jobs[1] for test in marked[1:])
    named = f"unsteady tests, which failed once and passed alone:\n  {marked[0]}\n"
    assert (named in capsys.readouterr().out) == (status == 0)


@pytest.mark.parametrize("status", [1, 3])
def test_an_end_that_no_failed_test_explains_has_none(
    machine: Callable[[str], guest.Machine], tmp_path: Path, marked: list[str], status: int
) -> None:
    """Such as a leak after the last test of one guest, beside a test that failed in another."""
    limits, shown, one_at_a_time = _limits(), list[str](), threading.Lock()
    bodies = {
        WORDS: _leave(_case(marked[0], "<failure/>"), status=1),
        "another": _leave(*map(_case, marked[1:]), status=status),
    }

    def in_a_guest(job: str) -> tuple[guest.Run, int]:
        name = next(name for name in bodies if name in job)
        with one_at_a_time:  # there is one QEMU
            files = guest.Run(Path(tempfile.mkdtemp(dir=tmp_path)))
            return files, guest.run(job, machine(bodies.pop(name)), files, limits, shown.append)

    words = [(WORDS,), ("another",)]
    assert vm.run_tests(frozenset(marked), words, in_a_guest, limits.stop) == vm.STATUS_FAILED
    assert not bodies


def test_many_that_failed_have_none(
    run_tests: Callable[..., int], marked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """So many are no accident; nor is one that failed beside others that did not run."""
    bad = [_case(test, "<failure/>") for test in marked]
    assert len(bad) > again.MOST
    for leave in (_leave(*bad), _leave(bad[0])):
        assert run_tests(leave) == vm.STATUS_FAILED
    assert "once more" not in capsys.readouterr().out


def test_the_status_of_pytest_counts(
    run_tests: Callable[..., int], marked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as that of a session which left something behind after its last test."""
    assert run_tests(_leave(*map(_case, marked), status=1)) == vm.STATUS_FAILED
    assert "vm: pytest ended with status 1" in capsys.readouterr().err


@pytest.mark.parametrize("status", [0, 137])
def test_no_report_fails(
    run_tests: Callable[..., int],
    marked: list[str],
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a report no test is known to have run."""
    assert run_tests(f'leave(status="{status}")\n') == vm.STATUS_FAILED
    assert f"vm: 0 passed, {len(marked)} failed, 0 skipped" in capsys.readouterr().out


def test_a_torn_report_fails(
    run_tests: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a report is left by a pytest that was killed while it wrote."""
    assert run_tests('leave(status="0", report_xml="<testsuites><tes")\n') == vm.STATUS_FAILED
    assert "cut off" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "silent_s", "words"),
    [
        pytest.param(PANIC, LONG_S, ("Kernel panic - not", "without a result"), id="panic"),
        pytest.param(
            f'write(console, "last words\\n")\n{HANG}', SILENT_S, ("last words",), id="hang"
        ),
    ],
)
def test_a_crash_shows_the_console(
    run_tests: Callable[..., int],
    body: str,
    silent_s: float,
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its end, what became of the guest, and that the tests did not run."""
    assert run_tests(body, silent_s) == vm.STATUS_NO_GUEST
    told = capsys.readouterr()
    for text in (*words, "the console is in"):
        assert text in told.err
    assert "vm: DID NOT RUN" in told.out


def test_the_end_of_a_run_is_that_of_its_guests(
    machine: Callable[[str], guest.Machine], files: guest.Run, marked: list[str]
) -> None:
    """An early end of a run, such as a termination, leaves no guest behind."""
    limits = _limits()
    made = machine(HANG)
    shown: list[str] = []

    def in_a_guest(job: str) -> tuple[guest.Run, int]:
        if "another" in job:
            message = "the run ends"
            raise RuntimeError(message)
        return files, guest.run(job, made, files, limits, shown.append)

    with pytest.raises(RuntimeError, match="the run ends"):
        vm.run_tests(frozenset(marked), [(WORDS,), ("another",)], in_a_guest, limits.stop)
    assert limits.stop.is_set()


# In the place of the system's own, on a machine that lacks one package.
_SYSTEM: Final = {
    "dpkg-query": '[[ " $* " == *" debootstrap "* ]] || echo install ok installed',
    "apt-cache": "true",
    "apt-get": 'echo "$*" >>"$ASKED"',
    "id": "echo 0",
    "unshare": 'echo unshare >>"$ASKED"; exit 1',
}


def test_what_builds_the_guest_is_installed_first(tmp_path: Path) -> None:
    """By `--build` too, after which no more than `make setup` has run."""
    for name, body in _SYSTEM.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    asked = tmp_path / "asked"
    path = f"{program.parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache"), "ASKED": str(asked)}
    command = "import os, sys; os.geteuid = int; import tests.vm.__main__ as vm; "
    done = subprocess.run(
        [sys.executable, "-c", f"{command}sys.exit(vm.main(['--build']))"],
        env={**os.environ, **environment},
        cwd=layers.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == vm.STATUS_NO_GUEST, done.stderr
    update, install, build = asked.read_text().splitlines()
    assert update.endswith("update")
    assert install.endswith("install debootstrap")
    assert build == "unshare"
    assert "layer base could not be built" in done.stderr


def test_arguments_that_name_a_file_have_a_guest_for_themselves(marked: list[str]) -> None:
    """They are pytest's as they are."""
    assert vm._chosen((WORDS,), vm.LANES) == (frozenset(marked), [(WORDS,)])


def test_guests_share_the_files_that_have_tests() -> None:
    """Each file is in one guest, and no guest starts without one."""
    own, moved = "tests/vm/test_aux.py", "tests/vm/test_relay.py"
    kernel = "tests/kernel/test_salvage.py"
    wanted = frozenset({f"{own}::test_one", f"{own}::test_two", f"{moved}::test_one"})
    assert vm._shares(wanted | {f"{kernel}::test_one"}) == [(kernel, moved), (own,)]
    assert vm._shares(frozenset({f"{own}::test_one"})) == [(own,)]


def test_no_test_outside_the_lanes_is_marked() -> None:
    """Or it would run nowhere: the guest runs these lanes."""
    marked = {
        path.relative_to(layers.ROOT).parts[:2]
        for path in (layers.ROOT / "tests").rglob("test_*.py")
        if "pytest.mark." + "vm" in path.read_text()
    }
    assert {"/".join(parts) for parts in marked} <= set(vm.LANES)
