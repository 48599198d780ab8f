# SPDX-License-Identifier: Apache-2.0
"""Fixtures and rules of every lane.

Rules: a test leaves nothing behind (fds, threads, processes, tracefs instances, mounts); the only
skip is `require(feature)`, for a feature that this kernel lacks; with `--lanes`, each named lane
must have passed at least one test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hypothesis
import pytest

from tests.support import (
    compiled_programs,
    features,
    leaks,
    perf_tools,
    sharing,
    tracefs_mount,
)
from tests.support import generator as generator_support
from tests.support import mutant as mutant_support
from tests.support import trace_cmds as trace_cmd_support
from tests.support.browser import Page, browser_page
from tests.support.examples import examples
from tests.support.fork_server import OF_INTERPRETERS, Forked, ForkServer, Request
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
CLI_TIMEOUT_S: Final = patient(120)
BESIDE: Final = "COLLECTORD_BESIDE" in os.environ  # of tests/lanes.py

# Times are not asserted: machines that run the tests are shared. Hypothesis would fail a test when
# one of its cases waits 200 ms for a processor. Loaded before a test's own settings add to it.
hypothesis.settings.register_profile(
    "unhurried",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("unhurried")

_DOCS: Final = ROOT / "tests" / "unit" / "docs"
_passed: Counter[str] = Counter()
_alone: Final = sharing.Alone()


def _lane(path: Path) -> str:
    """Return the lane of a path: `kernel` for tests/kernel/..., `top` for a module in tests."""
    parts = path.relative_to(ROOT / "tests").parts
    return parts[0] if len(parts) > 1 else "top"


def _is_worker(config: pytest.Config) -> bool:
    """Return whether pytest-xdist started this process, to run a part of the tests (`-n 2`)."""
    return hasattr(config, "workerinput")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --lanes, which names the lanes that must run."""
    parser.addoption(
        "--lanes", default="", help="lanes of which each must pass a test, comma-separated"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Adopt orphans of the processes under test, so that they count as leaks; set up Ctrl-C.

    A shell without job control has what it starts in the background ignore it. Of several
    processes that run tests each has its own mounts: those of one are no leak of another.
    """
    leaks.adopt_orphans()
    if _is_worker(config) and os.geteuid() == 0:
        leaks.hide_mounts()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the kernel, native and vm lanes by their folders.

    Coverage does not count what properties run: it would take half of their processor time, and
    the tests of a module are to reach its lines by themselves. Those in `top` and of the manual
    run little of it; slow modules whose lines almost all are reached by others have the marker.

    Outside the guest nobody who does not ask for `vm` gets the tests of tests/vm.
    """
    asked = compiled_programs.IN_GUEST or "vm" in config.getoption("markexpr")
    beside = [item for item in items if _lane(item.path) == "vm" and not asked]
    if beside:
        items[:] = [item for item in items if item not in beside]
        config.hook.pytest_deselected(items=beside)
    for item in items:
        lane = _lane(item.path)
        if lane in {"kernel", "native", "vm"}:
            item.add_marker(lane)
        if lane in {"property", "top"} or _DOCS in item.path.parents:
            item.add_marker("no_cover")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail if a required lane cannot run here, instead of passing silently."""
    lane = _lane(item.path)
    if lane in {"kernel", "vm"} and os.geteuid() != 0:
        pytest.fail(f"the {lane} lane needs root: sudo make test", pytrace=False)
    if lane == "vm" and not compiled_programs.IN_GUEST:
        pytest.fail(f"runs in the guest: make test-vm VM_TESTS={item.nodeid}", pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # no test's limit includes what it waits here
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Have no test that is marked `alone` while one that is marked `beside` runs."""
    if item.get_closest_marker("beside"):
        with sharing.shared():
            return (yield)
    if item.get_closest_marker("alone"):
        _alone.take()
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.get_closest_marker("alone"):
            _alone.give_back()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip that does not name a missing kernel feature into a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        assert call.excinfo is not None
        if not isinstance(call.excinfo.value, features.MissingFeature):
            report.outcome = "failed"
            report.longrepr = f"skipped without require(feature): {call.excinfo.value}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count passed tests, in the reporting process: with xdist the one that was started."""
    if report.when == "call" and report.passed:
        _passed[_lane(ROOT / report.nodeid.partition("::")[0])] += 1


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a module that skips itself as a whole into a failure."""
    report = yield
    if report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skips itself as a whole"
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run with an empty lane, with a status that allows no second run."""
    if _is_worker(session.config):
        return
    ended = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
    if ended and _idle_lanes(session.config):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the number of passed tests by lane."""
    if config.getoption("--lanes"):
        counts = ", ".join(f"{lane} {count}" for lane, count in sorted(_passed.items()))
        terminalreporter.write_line(f"passed by lane: {counts}")
        for lane in _idle_lanes(config):
            terminalreporter.write_line(f"ERROR: lane {lane} passed no test", red=True)


def _idle_lanes(config: pytest.Config) -> list[str]:
    lanes: str = config.getoption("--lanes")
    return [lane for lane in lanes.split(",") if lane and not _passed[lane]]


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check for leaks: it is set up first and torn down last of a test's own fixtures.

    Only tests of a kernel make instances of tracefs. Those that `make test` runs beside the kernel
    lane have mounts of their own, but see its instances come and go.
    """
    instances = _lane(request.path) in {"kernel", "vm"} and not BESIDE
    before = leaks.Holdings.now(instances=instances)
    yield
    left = leaks.leaked_since(before, instances=instances)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def tracefs() -> Iterator[Path]:
    """Return the mount point of tracefs, which is mounted for the run if necessary."""
    with tracefs_mount.mounted() as root:
        yield root


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> generator_support.Generator:
    """Return the program that makes a known number of events (tests/support/generator.c)."""
    return generator_support.Generator(
        generator_support.build(compiled_programs.folder("generator", tmp_path_factory))
    )


@pytest.fixture(scope="session")
def mutant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the core that loses one record (tests/support/mutant.py)."""
    return mutant_support.build(compiled_programs.folder("mutant", tmp_path_factory))


@pytest.fixture(scope="session")
def tracefs_of_root(request: pytest.FixtureRequest) -> None:
    """Mount tracefs for tests of programs that would mount and leave it, as perf does."""
    if os.geteuid() == 0:
        request.getfixturevalue("tracefs")


@pytest.fixture(scope="session")
def perfs(tracefs_of_root: None) -> tuple[perf_tools.Perf, ...]:
    """Every perf that must read our files: the distribution's, and 6.12."""
    del tracefs_of_root
    system = shutil.which("perf")
    assert system, "perf is not installed: make setup"
    return perf_tools.all_perfs(Path(system))


@pytest.fixture(scope="session")
def perf(perfs: tuple[perf_tools.Perf, ...]) -> perf_tools.Perf:
    """Return the distribution's perf."""
    return perfs[0]


@pytest.fixture(scope="session")
def trace_cmds() -> tuple[trace_cmd_support.TraceCmd, ...]:
    """Every trace-cmd that must read our files: the distribution's, and 3.3."""
    system = shutil.which("trace-cmd")
    assert system, "trace-cmd is not installed: make setup"
    return trace_cmd_support.all_trace_cmds(Path(system))


@pytest.fixture(scope="session")
def bcc() -> None:
    """Check for an interpreter with bcc: `make setup` installs it, so its absence is a failure."""
    from collectord.source import bcc_python  # noqa: PLC0415

    interpreter, reason = bcc_python.find_python()
    assert interpreter, f"{reason}: make setup"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of one browser for all tests of a module."""
    with browser_page(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """A stack that closes all that the test opens."""
    with ExitStack() as made:
        yield made


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the test's own for what the program reads of symbols."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def stage() -> Iterator[Path]:
    """Provide an empty directory that everybody may search."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def require() -> Callable[[str], None]:
    """Return `require(feature)`, which skips the test if this kernel lacks the feature."""
    return features.require


def cli_environment() -> dict[str, str]:
    """Return the environment of a collectord under test: plain output, this checkout's package."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def cli_command(*words: str | Path, prefix: Sequence[str] = ()) -> list[str]:
    """Return the command line of a collectord under test; `prefix` starts it (prlimit, ...)."""
    return [*prefix, sys.executable, "-m", "collectord", *map(str, words)]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Return the server that forks for starts of the program (tests/support/fork_server.py)."""
    with ForkServer(cli_environment()) as server:
        yield server


@pytest.fixture(scope="module")
def fork_servers(
    request: pytest.FixtureRequest, fork_server: ForkServer
) -> Iterator[dict[tuple[str, ...], ForkServer]]:
    """Return servers by the prefixes of starts: one without, and those of a module's SERVED."""
    with ExitStack() as stack:
        served = {
            prefix: stack.enter_context(ForkServer(cli_environment(), prefix))
            for prefix in getattr(request.module, "SERVED", ())
        }
        yield {(): fork_server, **served}


@pytest.fixture
def start_cli(
    tmp_path: Path, fork_servers: dict[tuple[str, ...], ForkServer]
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `collectord WORDS...` in the test's own directory.

    It is forked by a server, unless an interpreter is to start: with `fresh`, with a `prefix` that
    has no server, or with a variable that interpreters read. What still runs when the test ends is
    killed.
    """
    with ExitStack() as stack:

        def start(
            *words: str | Path,
            env: dict[str, str] | None = None,
            prefix: Sequence[str] = (),
            fresh: bool = False,
        ) -> subprocess.Popen[str]:
            command = cli_command(*words, prefix=prefix)
            environment = {**cli_environment(), **(env or {})}
            server = fork_servers.get(tuple(prefix))
            is_read = any(name.startswith(OF_INTERPRETERS) for name in env or ())
            if fresh or is_read or server is None:
                process = subprocess.Popen(
                    command,
                    cwd=tmp_path,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            else:
                request = Request([*map(str, words)], str(tmp_path), environment)
                process = Forked(server, command, request)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def run_cli(
    start_cli: Callable[..., subprocess.Popen[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `collectord WORDS...` to its end, started as by `start_cli`."""

    def run(
        *words: str | Path, timeout_s: float = CLI_TIMEOUT_S, **how: object
    ) -> subprocess.CompletedProcess[str]:
        process = start_cli(*words, **how)
        stdout, stderr = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    return run
