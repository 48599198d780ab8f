# SPDX-License-Identifier: Apache-2.0
"""Bad input: one clear line, the documented exit status, and nothing lost or left behind."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from tests.conftest import ROOT
from tests.support import segments
from tests.support.changed_segments import manifest_path, overwrite
from tests.support.recording import result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.support.generator import Generator
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

SYSCTL: Final = Path("/proc/sys/kernel")
SOMEBODY: Final = 300_000 + os.getpid()  # no account has this uid, and no process but ours
EARLIER: Final = "perf.data"  # of an earlier recording, at the place where `record` writes
SHORT: Final = ("--duration", "100ms")
COMMAND: Final = ("--", "touch", "ran")
FAILED, USAGE, PRIVILEGE, FEATURE, CONFIG, RECORD = 1, 2, 4, 5, 6, 125
SWITCH: Final = ("-e", "sched:sched_switch")
CLOCK: Final = ("-e", "cpu-clock")


class Refused(Protocol):
    """Asserts that a command line is refused, and changes nothing."""

    def __call__(
        self, *words: str | Path, status: int, says: str, prefix: Sequence[str] = ()
    ) -> None:
        """Run it: this status, and one line with these words."""


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a directory with its mode, and the contents of the regular ones."""
    found = {}
    for path in sorted(directory.rglob("*")):
        mode = path.lstat().st_mode
        found[str(path)] = (mode, path.read_bytes() if stat.S_ISREG(mode) else b"")
    return found


@pytest.fixture
def refused(run_cli: Run, tmp_path: Path) -> Refused:
    """In a directory that holds an earlier recording."""
    (tmp_path / EARLIER).write_bytes(b"an earlier recording")

    def check(*words: str | Path, status: int, says: str, prefix: Sequence[str] = ()) -> None:
        before = tree(tmp_path)
        done = run_cli(*words, prefix=prefix)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        # Tests that run in front of these take CPUs away, which a recording reports.
        (said,) = (line for line in done.stderr.splitlines() if not line.startswith('{"online": '))
        assert said.startswith("collectord: "), done.stderr
        assert says in said
        assert tree(tmp_path) == before

    return check


def check_record(
    refused: Refused,
    *words: str | Path,
    status: int,
    says: str,
    prefix: Sequence[str] = (),
) -> None:
    """`record` is refused with its own status, and with 125 where a COMMAND could be meant."""
    refused("record", *words, *SHORT, status=status, says=says, prefix=prefix)
    refused("record", *words, *COMMAND, status=RECORD, says=says, prefix=prefix)


def sysctl(name: str) -> int:
    """Return a number below kernel."""
    return int((SYSCTL / name).read_text())


def too_often() -> str:
    """Return a frequency above the kernel's limit."""
    return str(sysctl("perf_event_max_sample_rate") + 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-e", "cyclse"), "unknown event 'cyclse'; did you mean \"cycles\"?"),
        (("-e", "cpu-clock,page-fault"), 'did you mean "page-faults"?'),
        (("-e", "sched:sched_swich"), 'did you mean "sched:sched_switch"?'),
        (("-e", "sched:nothing*"), "unknown event 'sched:nothing*'"),
        (("-e", "L1-dcache-load-mises"), 'did you mean "L1-dcache-load-misses"?'),
        (("-e", "cpu-clock:q"), "unknown modifier 'q'"),
        (("-e", "{cpu-clock"), "unbalanced brace"),
        (("-e", ""), "an event is missing"),
        ((*SWITCH, "--filter", "nothing == 1"), "Field not found"),
        ((*SWITCH, "--filter", "prev_pid == 1)"), "Too few '('"),
        ((*SWITCH, "--filter", "prev_comm == 'x"), "Missing matching quote"),
        (
            (*SWITCH, "--filter", "(prev_pid == 1"),
            "the kernel refuses filter '(prev_pid == 1' for ",
        ),
        (("-e", "page-faults", "--filter", "x == 1"), "'page-faults' takes no filter"),
        (("--filter", "x == 1", *SWITCH), "--filter applies to the preceding -e"),
    ],
)
def test_wrong_events(refused: Refused, words: tuple[str, ...], says: str) -> None:
    """The error has an unknown event's nearest name, and the kernel's reason for a bad filter."""
    refused("record", *words, *COMMAND, status=RECORD, says=says)


def test_unknown_pmu(refused: Refused) -> None:
    """The error for a missing PMU lists those of this machine."""
    says = "this host has no PMU 'nothing'; there are "
    check_record(refused, "-e", "nothing/event=1/", status=FEATURE, says=says)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("-C", "4000"), CONFIG, "CPU 4000 is not in this machine; online: 0"),
        (("-a", "-C", "0,4000"), CONFIG, "CPU 4000 is not in this machine; online: 0"),
        (("-C", "3-1"), USAGE, "CPU range '3-1' runs backwards"),
        (("-C", "first"), USAGE, "not a CPU list: 'first'"),
        (("-C", "99999"), USAGE, "no CPU 99999"),
        (("-C", ""), USAGE, "its list of CPUs is empty"),
        (("-p", "0"), USAGE, "'0' is not a whole number above 0"),
        (("-t", "init"), USAGE, "'init' is not a whole number above 0"),
        (("-p", "99999999999"), USAGE, "99999999999 is not a process id"),
        (("-t", "99999999999"), USAGE, "99999999999 is not a process id"),
        (("-p", "1", "-a"), USAGE, "not allowed with"),
        (("-p", "1", "-t", "1"), USAGE, "not allowed with"),
        (("-a", "--per-thread"), USAGE, "per-thread: cannot be combined with scope 'system'"),
        (("-C", "0", "--per-thread"), USAGE, "per-thread: cannot be combined with scope 'cpus'"),
        (("-p", "1", "-C", "4000"), CONFIG, "CPU 4000 is not in this machine"),
        (("-u", "no-such-user"), USAGE, "no user 'no-such-user'"),
        (("-u", str(SOMEBODY)), FAILED, f"user {SOMEBODY} has no running process"),
        (("-G", "no-such-group"), FAILED, "no cgroup no-such-group"),
        (("-G", ""), USAGE, "scope 'cgroup' needs this key"),
    ],
)
def test_wrong_targets(refused: Refused, words: tuple[str, ...], status: int, says: str) -> None:
    """A scope that does not exist, or that does not go with another, is named."""
    refused("record", *CLOCK, *words, *SHORT, status=status, says=says)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("-F", "0"), USAGE, "'0' is not a whole number above 0"),
        (("-F", "often"), USAGE, "'often' is not a whole number above 0"),
        (("-F", too_often()), CONFIG, "is above the kernel's limit of "),
        (("-F", "99", "-c", "1"), USAGE, "not allowed with"),
        (("-c", "0"), USAGE, "'0' is not a whole number above 0"),
        (("-c", str(1 << 63)), CONFIG, "is larger than 63 bits"),
        (("-m", "0"), USAGE, "'0pages' is not a ring size"),
        (("-m", "3X"), USAGE, "unit 'X' is unknown"),
        (("-m", "-1"), USAGE, "'-1' is not a number and B, KiB"),
        (("-m", "10T"), CONFIG, "a ring of 16TiB; at most 1GiB"),
        (("--duration", "1y"), USAGE, "unit 'y' is unknown"),
        (("--duration", "-1"), USAGE, "'-1' is not a number and ns, us"),
        (("--duration", "nan"), USAGE, "'nan' is not a number and ns, us"),
        (("--duration", "99999999999999"), USAGE, "is larger than 63 bits"),
        (("--call-graph", "magic"), USAGE, "unknown call graph 'magic'"),
        (("--overwrites",), USAGE, "unrecognized arguments: --overwrites"),
        (("sleep", "1"), USAGE, "put -- before COMMAND"),
        (("-o", ""), USAGE, "its path is empty"),
        (("--output-dir", ""), USAGE, "its path is empty"),
        (("-o", "a", "--output-dir", "b"), USAGE, "not allowed with"),
    ],
)
def test_wrong_values(refused: Refused, words: tuple[str, ...], status: int, says: str) -> None:
    """The error for an invalid or excessive value names it, and valid ones."""
    # Its own --duration comes last, as the last one is taken.
    refused("record", *CLOCK, *SHORT, *words, status=status, says=says)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("recrod",), USAGE, "no verb 'recrod'; did you mean \"record\"?"),
        (("run", "--nothing"), USAGE, "see `collectord run --help`"),
        (("check", "--nothing"), USAGE, "see `collectord check --help`"),
        (("list", "--nothing"), USAGE, "see `collectord list --help`"),
        (("doctor", "nothing"), USAGE, "see `collectord doctor --help`"),
        (("segments", "burn"), USAGE, "invalid choice: 'burn'"),
        (("segments", "list", "--sha256", "."), USAGE, "--sha256 is an option of verify only"),
        (("list", "no-such-event"), FAILED, "no event matches 'no-such-event'"),
    ],
)
def test_wrong_verbs(refused: Refused, words: tuple[str, ...], status: int, says: str) -> None:
    """The error for an unknown verb, option or action says where to look."""
    refused(*words, status=status, says=says)


@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        ("no-such-command", 127, "there is no command 'no-such-command'"),
        ("./no-such-file", 127, "there is no command './no-such-file'"),
        (f"./{EARLIER}", 126, f"command './{EARLIER}' is not an executable file"),
        ("/proc", 126, "command '/proc' is not an executable file"),
    ],
)
def test_commands_that_cannot_run(refused: Refused, command: str, status: int, says: str) -> None:
    """An absent command is 127 and one that is no program 126, before anything is opened."""
    refused("record", "--", command, status=status, says=says)


def test_no_command_behind_the_dashes(refused: Refused) -> None:
    """A COMMAND must follow --."""
    refused("record", "-a", "--", status=RECORD, says="there is no COMMAND after --")


@pytest.fixture
def dead_pid() -> int:
    """Return the id of a process that has ended."""
    with subprocess.Popen(["true"]) as child:
        pass
    return child.pid


@pytest.fixture
def dead_tid() -> int:
    """Return the id of a thread that has ended."""
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    assert ended.native_id is not None
    return ended.native_id


def test_dead_processes(refused: Refused, dead_pid: int) -> None:
    """The error names a process that is gone, also beside an existing one."""
    says = f"pid {dead_pid} does not exist"
    check_record(refused, *CLOCK, "-p", str(dead_pid), status=FAILED, says=says)
    pids = f"{os.getpid()},{dead_pid}"
    check_record(refused, *CLOCK, "-p", pids, "-i", status=FAILED, says=says)


def test_dead_threads(refused: Refused, dead_tid: int) -> None:
    """The message names a thread that is gone."""
    says = f"pid {dead_tid} does not exist"
    check_record(refused, *CLOCK, "-t", str(dead_tid), status=FAILED, says=says)


def test_too_few_descriptors_for_the_plan(refused: Refused) -> None:
    """A plan beyond RLIMIT_NOFILE is refused before anything is opened."""
    prefix = ("prlimit", "--nofile=20:20")
    says = "file descriptors are needed, and RLIMIT_NOFILE allows 20"
    check_record(refused, *CLOCK, "-a", status=CONFIG, says=says, prefix=prefix)


def test_too_few_descriptors_for_the_threads(refused: Refused, generator: Generator) -> None:
    """EMFILE, met when the threads of a process are found, closes everything and says how many."""
    limit = 80 + 8 * (os.cpu_count() or 1)
    prefix = ("prlimit", f"--nofile={limit}:{limit}")
    says = f"the limit is {limit} (hard {limit}) (perf_event_open: Too many open files); about "
    with generator.start("count", threads=64) as running:
        words = (*CLOCK, "-p", str(running.pid))
        check_record(refused, *words, status=FAILED, says=says, prefix=prefix)
        running.run()


# Where the output goes.


@contextmanager
def full(directory: Path) -> Iterator[Path]:
    """Provide a filesystem without a free byte."""
    with segments.mounted("tmpfs", directory, "size=64k"):
        usage = os.statvfs(directory)
        (directory / "fill").write_bytes(bytes(usage.f_bavail * usage.f_frsize))
        yield directory


@contextmanager
def read_only(directory: Path) -> Iterator[Path]:
    """Provide a filesystem that takes nothing."""
    with segments.mounted("tmpfs", directory, "ro,size=64k"):
        yield directory


@pytest.mark.parametrize(
    ("filesystem", "says"),
    [(full, "No space left on device"), (read_only, "Read-only file system")],
)
@pytest.mark.parametrize(
    "words",
    [("-o", "x.data"), ("-o", "new/x.data"), ("--output-dir", "."), ("--output-dir", "new/deep")],
)
def test_filesystems_that_take_nothing(
    refused: Refused,
    tmp_path: Path,
    filesystem: Callable[[Path], Any],
    says: str,
    words: tuple[str, str],
) -> None:
    """A full or read-only filesystem ends a recording before its command, without a trace."""
    option, path = words
    with filesystem(tmp_path / "fs") as place:
        refused("record", *CLOCK, option, place / path, *COMMAND, status=RECORD, says=says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--output-dir", EARLIER), f"{EARLIER} (Not a directory)"),
        (("--output-dir", f"{EARLIER}/new"), "(Not a directory); a part of the path is a file"),
        (("-o", f"{EARLIER}/x.data"), f"{EARLIER} (Not a directory)"),
        (("-o", "."), "(Is a directory); name a new or regular file"),
        (("-o", "fifo"), "not a regular file: "),
        (("-o", "link"), "not a regular file: "),
    ],
)
def test_outputs_of_the_wrong_kind(
    refused: Refused, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    """Neither a directory nor a device is replaced, and no file is taken for a directory."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    refused("record", *CLOCK, *words, *COMMAND, status=RECORD, says=says)


@pytest.mark.parametrize("words", [("-o", "new/deep/x.data"), ("--output-dir", "new/deep")])
def test_absent_directories_are_made_when_needed(
    refused: Refused, run_cli: Run, tmp_path: Path, words: tuple[str, str]
) -> None:
    """A recording makes the directories of its output, and a refused one makes none."""
    check_record(
        refused, *SWITCH, "--filter", "nothing == 1", *words, status=USAGE, says="Field not found"
    )
    done = run_cli("record", *CLOCK, *words, "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / "new/deep").glob("*.data"))) == 1


def test_one_file_of_two_recordings(
    refused: Refused, start_cli: Start, tmp_path: Path, stage: Path
) -> None:
    """The second recording to a file is refused while the first one writes it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    output = stage / "x.data"
    waits = ("sh", "-c", 'echo open >&2 && read -r _ < "$0"', gate)
    first = start_cli("record", "-e", "dummy", "-o", output, "--json", "--", *waits)
    assert first.stderr is not None
    assert first.stderr.readline() == "open\n"
    before = set(tree(stage))
    says = "another recording writes this file"
    check_record(refused, "-e", "dummy", "-o", output, status=FAILED, says=says)
    assert set(tree(stage)) == before
    gate.write_text("\n")
    stdout, stderr = first.communicate()
    assert (first.returncode, stderr) == (0, "")
    assert result_of(stdout)["segments"] == [str(output)]
    assert set(tree(stage)) == {str(output), str(manifest_path(output))}


# Without privileges.


@pytest.fixture(name="_paranoid")
def paranoid() -> Iterator[None]:
    """perf_event_paranoid as upstream has it: own processes only, in user mode only."""
    path = SYSCTL / "perf_event_paranoid"
    before = path.read_text()
    if int(before) != 2:
        path.write_text("2\n")
    yield
    if int(before) != 2:
        path.write_text(before)


def opened_up(stage: Path) -> list[str]:
    """Commands for a private mount namespace in which anybody may search to our interpreter.

    Checkouts and interpreters are often below /root, which only root may search.
    """
    needed = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, ROOT)}
    closed = {}
    for path in sorted(needed):
        above = [p for p in reversed(path.parents) if not p.stat().st_mode & stat.S_IXOTH]
        if above:
            closed[path] = above[0]
    lines = [f"mount -t tmpfs -o mode=755 none '{stage}'"]
    for number, path in enumerate(closed):
        lines += [f"mkdir '{stage}/{number}'", f"mount --bind '{path}' '{stage}/{number}'"]
    lines += [f"mount -t tmpfs -o mode=755 none '{top}'" for top in set(closed.values())]
    for number, path in enumerate(closed):
        lines += [f"mkdir -p '{path}'", f"mount --bind '{stage}/{number}' '{path}'"]
    return lines


@pytest.fixture
def place() -> Iterator[Path]:
    """Provide a directory of somebody."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, SOMEBODY, SOMEBODY)
        yield Path(name)


@pytest.fixture
def somebody(stage: Path, place: Path, _paranoid: None) -> Callable[..., list[str]]:
    """Start a program in `place` as a user with no capabilities but those that are named."""

    def prefix(*capabilities: str, limit: str = "") -> list[str]:
        script = "\n".join(("set -e", *opened_up(stage), 'cd "$0"', 'exec "$@"'))
        kept = ",".join(("-all", *(f"+{name}" for name in capabilities)))
        return [
            *("unshare", "--mount", "sh", "-c", script, str(place)),
            *(("prlimit", limit) if limit else ()),
            *("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"),
            *(f"--inh-caps={kept}", f"--ambient-caps={kept}"),
        ]

    return prefix


@pytest.fixture
def others_pid() -> Iterator[str]:
    """Provide a process that is root's."""
    with subprocess.Popen(["sleep", "60"]) as child:
        yield str(child.pid)
        child.kill()


# A request, the capabilities that do not suffice, those that do, and what the message names.
PRIVILEGES: Final = [
    (("-a", *CLOCK), (), ("perfmon",), "needs CAP_PERFMON"),
    (("-C", "0", *CLOCK), (), ("perfmon",), "needs CAP_PERFMON"),
    (("-p", "OTHERS", *CLOCK), (), ("perfmon",), "needs CAP_PERFMON"),
    (("-a", *SWITCH), (), ("perfmon", "dac_read_search"), "CAP_DAC_READ_SEARCH"),
    (SWITCH, ("perfmon",), ("perfmon", "dac_read_search"), "CAP_DAC_READ_SEARCH"),
    (SWITCH, ("dac_read_search",), ("perfmon", "dac_read_search"), "needs CAP_PERFMON"),
]


@pytest.mark.parametrize(("words", "held", "enough", "says"), PRIVILEGES)
def test_missing_privileges(
    refused: Refused,
    run_cli: Run,
    place: Path,
    *,
    somebody: Callable[..., list[str]],
    others_pid: str,
    words: tuple[str, ...],
    held: tuple[str, ...],
    enough: tuple[str, ...],
    says: str,
) -> None:
    """The message names the least privilege that suffices, and that does suffice."""
    asked = [others_pid if word == "OTHERS" else word for word in words]
    check_record(refused, *asked, status=PRIVILEGE, says=says, prefix=somebody(*held))
    assert list(place.iterdir()) == []
    done = run_cli("record", *asked, "--", "true", prefix=somebody(*enough))
    assert (done.returncode, done.stderr) == (0, "")
    assert (place / EARLIER).exists()


@pytest.mark.parametrize("words", [("-o", "x.data"), ("--output-dir", "."), ("-o", "new/x.data")])
def test_directories_of_others(
    refused: Refused, stage: Path, somebody: Callable[..., list[str]], words: tuple[str, str]
) -> None:
    """A directory that the user may not write into is refused before the command runs."""
    option, path = words
    output = (option, stage / path)
    says = "Permission denied); give uid "
    check_record(
        refused, "-a", *CLOCK, *output, status=FAILED, says=says, prefix=somebody("perfmon")
    )
    assert list(stage.iterdir()) == []


def budget_bytes() -> int:
    """Return how much a user without CAP_IPC_LOCK and RLIMIT_MEMLOCK may pin with rings."""
    return sysctl("perf_event_mlock_kb") * 1024 * len(os.sched_getaffinity(0))


def test_rings_are_smaller_where_memory_may_not_be_locked(
    run_cli: Run, somebody: Callable[..., list[str]]
) -> None:
    """Rings beyond the mlock budget are made smaller, and the result has their real sizes."""
    words = ("-a", *CLOCK, "-m", "64M", *SHORT, "--json")
    done = run_cli("record", *words, prefix=somebody("perfmon", limit="--memlock=0:0"))
    assert (done.returncode, done.stderr) == (0, "")
    sizes = [ring["capacity_bytes"] for ring in result_of(done.stdout)["rings"]]
    assert len(sizes) >= len(os.sched_getaffinity(0))
    assert 0 < sum(sizes) <= budget_bytes()
    done = run_cli("record", *words, prefix=somebody("perfmon", "ipc_lock"))
    sizes = [ring["capacity_bytes"] for ring in result_of(done.stdout)["rings"]]
    assert max(sizes) == 64 << 20


def test_memory_that_may_not_be_locked_at_all(
    refused: Refused, generator: Generator, somebody: Callable[..., list[str]]
) -> None:
    """If not even one page per ring is allowed, the message names the remedies."""
    threads = budget_bytes() // os.sysconf("SC_PAGE_SIZE") // 2 + 1
    prefix = somebody("perfmon", limit="--memlock=0:0")
    with generator.start("count", threads=threads) as running:
        words = (*CLOCK, "--per-thread", "-p", str(running.pid))
        says = "needs CAP_IPC_LOCK, or a larger RLIMIT_MEMLOCK (now 0 KiB)"
        check_record(refused, *words, status=PRIVILEGE, says=says, prefix=prefix)
        running.run()


# Configuration and facts.


def config_text(state: Path) -> str:
    """Return a configuration with nothing wrong."""
    return f"""[daemon]
state_dir = "{state}"
[metrics]
listen = ""
[control]
socket = ""
[[session]]
name = "calls"
[session.target]
scope = "system"
[[session.source]]
kind = "perf"
events = ["cpu-clock"]
"""


SESSION: Final = config_text(Path("/")).partition("[[session]]")[2]
CONFIGS: Final[Mapping[str, tuple[str, str, str]]] = {
    "key": (
        "state_dir",
        "state_dri",
        "daemon.state_dri: unknown key 'state_dri'; did you mean \"",
    ),
    "table": ("[metrics]", "[metric]", "unknown key 'metric'; did you mean \"metrics\"?"),
    "key of a source": ("events =", "evnts =", "session[0].source[0].evnts: unknown key"),
    "type of a switch": (
        "listen",
        'per_cpu = "2MiB"\nlisten',
        "metrics.per_cpu: expected true or false, got a string",
    ),
    "unit of a time": (
        "state_dir",
        'flush_interval = "64MiB"\nstate_dir',
        "daemon.flush_interval: unit 'MiB' is unknown",
    ),
    "no unit": (
        "state_dir",
        "flush_interval = 10\nstate_dir",
        "daemon.flush_interval: 10 is not a number and ns, us, ms",
    ),
    "syntax": ("[metrics]", "[metrics", "not TOML: Expected ']' at the end of a table"),
    "type": ('["cpu-clock"]', '"cpu-clock"', "events: expected a list, got a string"),
    "type of an event": (
        '"cpu-clock"',
        "1",
        "events[0]: expected a string or a table, got an int",
    ),
    "scope": ('"system"', '"sytem"', "scope: 'sytem' is unknown; did you mean \"system\"?"),
    "scope without its key": ('"system"', '"process"', "pids: scope 'process' needs this key"),
    "CPU": ('"system"', '"cpus"\ncpus = "4000"', "CPU 4000 is not in this machine"),
    "event": ("cpu-clock", "cpu-clok", "session 'calls': unknown event 'cpu-clok'; did you mean"),
    "kind": ('"perf"', '"pref"', "kind: 'pref' is unknown; did you mean \"perf\"?"),
    "name": ('"calls"', '"../calls"', "name: '../calls' is not a valid session name"),
    "address": ('listen = ""', 'listen = "here"', "metrics.listen: 'here' is not an address"),
    "two of a name": (
        "[[session]]",
        f"[[session]]{SESSION}[[session]]",
        "session[1].name: there is a second session 'calls'; names are unique",
    ),
}


@pytest.mark.parametrize(("text", "by", "says"), CONFIGS.values(), ids=CONFIGS.keys())
def test_wrong_configurations(
    refused: Refused, tmp_path: Path, text: str, by: str, says: str
) -> None:
    """The error of a configuration names the key, its place, and valid values."""
    right = config_text(tmp_path / "state")
    assert text in right
    path = tmp_path / "collectord.toml"
    path.write_text(right.replace(text, by, 1))
    refused("check", path, status=CONFIG, says=says)


@pytest.mark.parametrize("kind", ["perf", "tracefs"])
def test_wrong_filter_in_a_configuration(refused: Refused, tmp_path: Path, kind: str) -> None:
    """The kernel alone knows a filter to be wrong: the session's file is named then."""
    path = tmp_path / "collectord.toml"
    wrong = '["sched:sched_switch"]\nfilter = "nothing == 1"'
    right = config_text(tmp_path / "state").replace('"perf"', f'"{kind}"')
    path.write_text(right.replace('["cpu-clock"]', wrong))
    says = f"{path}: session 'calls': the kernel refuses filter 'nothing == 1'"
    for words in (("run", "--config"), ("check",)):
        refused(*words, path, status=CONFIG, says=says)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("absent", "absent: cannot be read: No such file or directory"),
        (".", "cannot be read: it is not a regular file"),
        ("binary", "binary: not TOML: 'utf-8' codec can't decode"),
    ],
)
def test_configurations_that_are_none(
    refused: Refused, tmp_path: Path, path: str, says: str
) -> None:
    """`check` and `run` name a configuration that is absent, a directory or no text."""
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    refused("check", path, status=CONFIG, says=says)
    refused("run", "--config", path, status=CONFIG, says=says)


def test_closed_configuration(
    refused: Refused, stage: Path, somebody: Callable[..., list[str]], tmp_path: Path
) -> None:
    """A configuration that the user may not read is named."""
    del stage
    path = tmp_path / "collectord.toml"
    path.write_text(config_text(tmp_path / "state"))
    says = "collectord.toml: cannot be read: Permission denied"
    refused("check", path, status=CONFIG, says=says, prefix=somebody())
    refused("run", "--config", path, status=CONFIG, says=says, prefix=somebody())


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (b"{", "not JSON"),
        (b"\xff\x00", "not JSON"),
        (b"[]", "not kernel facts"),
        (b"{}", "these are not kernel facts: Object missing required field"),
        (None, "cannot read: No such file or directory"),
    ],
)
def test_wrong_facts(refused: Refused, tmp_path: Path, facts: bytes | None, says: str) -> None:
    """`check --facts` says how to make the file."""
    config = tmp_path / "collectord.toml"
    config.write_text(config_text(tmp_path / "state"))
    path = tmp_path / "facts.json"
    if facts is not None:
        path.write_bytes(facts)
    refused("check", "--facts", path, config, status=CONFIG, says=says)


# Segments.


def other_version(path: Path) -> None:
    """Make a manifest of a schema that is not known yet."""
    manifest = json.loads(path.read_bytes())
    path.write_text(json.dumps(manifest | {"schema": 99}))


UNREADABLE: Final = "its manifest is damaged"
NO_MANIFEST: Final = "it has no manifest"
DAMAGES: Final[Mapping[str, tuple[Callable[[Path], object], str, str]]] = {
    "header": (
        lambda path: overwrite(path, 0, b"garbage" * 10),
        "head",
        "neither perf.data nor trace.dat at",
    ),
    "cut": (lambda path: os.truncate(path, path.stat().st_size // 2), "size", "manifest says"),
    "data": (lambda path: overwrite(path, path.stat().st_size // 2, b"\xff"), "checksum", "data"),
    "manifest": (
        lambda path: manifest_path(path).write_bytes(b"garbage"),
        "manifest",
        UNREADABLE,
    ),
    "no manifest": (lambda path: manifest_path(path).unlink(), "manifest", NO_MANIFEST),
    "version": (
        lambda path: other_version(manifest_path(path)),
        "version",
        "manifest schema 99 is of another version",
    ),
}


@pytest.mark.parametrize(("damage", "check", "says"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_segments(
    run_cli: Run, tmp_path: Path, damage: Callable[[Path], object], check: str, says: str
) -> None:
    """`verify` finds what is wrong, beside what is right, and changes nothing.

    A repair cuts out what is damaged, and tells of what it leaves as it is: a segment whose head
    or manifest cannot be read, and one of which nothing is sound. Of another version it is silent.
    """
    directory = tmp_path / "exec"
    directory.mkdir()
    sink = segments.make_sink(directory)
    damaged, sound = (segments.write_segment(sink, token).path for token in (2, 1))
    damage(damaged)
    before = tree(tmp_path)
    verified = run_cli("segments", "verify", "--json", tmp_path)
    assert (verified.returncode, verified.stderr) == (1, "")
    verdicts = {row["path"]: row["finding"] for row in json.loads(verified.stdout)["segments"]}
    assert verdicts.keys() == {str(damaged), str(sound)}
    assert verdicts[str(damaged)]["check"] == check
    assert says in verdicts[str(damaged)]["detail"]
    listed = run_cli("segments", "list", "--json", tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert {row["path"] for row in json.loads(listed.stdout)["segments"]} == {
        str(damaged),
        str(sound),
    }
    repaired = run_cli("segments", "repair", tmp_path)
    left = {"head", "checksum", "manifest"} if says != NO_MANIFEST else set()
    assert (repaired.returncode, repaired.stderr) == (int(check in left), "")
    if check != "size":
        assert tree(tmp_path) == before
        return
    verified = run_cli("segments", "verify", "--json", tmp_path)
    assert (verified.returncode, verified.stderr) == (0, "")
    states = {row["path"]: row["state"] for row in json.loads(verified.stdout)["segments"]}
    assert states == {str(damaged): "recovered", str(sound): "sealed"}


@pytest.mark.parametrize("damage", ["header", "version"])
def test_orphans_beyond_repair(run_cli: Run, tmp_path: Path, damage: str) -> None:
    """An orphan that is no segment, or of another version, is refused and stays as it is."""
    partial = segments.orphan(tmp_path)
    if damage == "header":
        overwrite(partial, 0, b"garbage" * 10)
    else:
        name = partial.name.removesuffix(".partial")
        other_version(partial.with_name(f"{name}.json.partial"))
    before = tree(tmp_path)
    done = run_cli("segments", "repair", "--json", tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    (outcome,) = json.loads(done.stdout)["segments"]
    assert (outcome["action"], outcome["path"]) == ("refused", str(partial))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("action", ["list", "verify", "repair"])
def test_nothing_to_look_at(refused: Refused, run_cli: Run, tmp_path: Path, action: str) -> None:
    """An absent directory and a FIFO are refused; an empty directory has an empty result."""
    os.mkfifo(tmp_path / "fifo")
    refused(
        "segments", action, "absent", status=FAILED, says="cannot look at the segments: absent"
    )
    refused("segments", action, "fifo", status=FAILED, says=": fifo")
    (tmp_path / "empty").mkdir()
    done = run_cli("segments", action, "empty")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("action", "status", "says"), [("list", 0, "unknown"), ("verify", 1, "it has no manifest")]
)
def test_file_that_is_no_segment(
    run_cli: Run, tmp_path: Path, action: str, status: int, says: str
) -> None:
    """The error says that it is not a segment, and the file stays as it is."""
    (tmp_path / "x.data").write_bytes(b"garbage")
    before = tree(tmp_path)
    done = run_cli("segments", action, "x.data")
    assert (done.returncode, done.stderr) == (status, "")
    assert says in done.stdout
    assert tree(tmp_path) == before
