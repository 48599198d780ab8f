# SPDX-License-Identifier: Apache-2.0
"""`flame` on profiles of the running kernel: a program of known functions, and perf's names."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from collections import Counter
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.cli import events as events_verb
from collectord.cli import flame as flame_verb
from collectord.cli import query as query_verb
from collectord.sink.symbol_list import kept_modules
from tests.support import daemons
from tests.support.programs import compile_busy, compile_maker, compile_waiter
from tests.support.recording import recorded_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.perf_tools import Perf

    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

KALLSYMS: Final = Path("/proc/kallsyms")
_FRAME: Final = re.compile(r"^\s+[0-9a-f]+ (.+?) \((.*?)\)$")
_PRINTED: Final = re.compile(r"(\S.*\+0x[0-9a-f]+) (\(.*\))")
_LOCATED: Final = re.compile(r"\s+[0-9a-f]+ (.+?) \((.*)\)")
# A name in Rust or C++ may have spaces and parentheses: it ends with the offset.
_NAME: Final = r"\[unknown\]|.+?\+0x[0-9a-f]+|.+?"
_SAMPLE: Final = re.compile(rf"\s*(-?\d+) +(\d+)\.(\d{{9}}): +[0-9a-f]+ ({_NAME}) \((.*)\)")
_PLACE: Final = re.compile(r"^\[.+\+0x[0-9a-f]+\]$")
_UNKNOWN: Final = "[unknown]"
_KERNEL: Final = re.compile(r"\[(?!vdso|unknown|heap|stack)")


@pytest.fixture
def off_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], Counter[tuple[str, ...]]]:
    """Return the times off the CPU of a directory, by stacks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def stacks(place: Path) -> Counter[tuple[str, ...]]:
        assert flame_verb.run([str(place), "--off-cpu", "--by", "pid"]) == 0
        return _folded(capsys.readouterr().out)

    return stacks


def _folded(text: str) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for line in text.splitlines():
        frames, _, count = line.rpartition(" ")
        found[tuple(frames.split(";"))] += int(count)
    return found


@pytest.fixture
def flame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Counter[tuple[str, ...]]]:
    """Return the folded stacks of a call that complains of nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def stacks(*words: str | Path) -> Counter[tuple[str, ...]]:
        status = flame_verb.run([*map(str, words)])
        told = capsys.readouterr()
        assert (status, told.err) == (0, "")
        return _folded(told.out)

    return stacks


@pytest.fixture(params=["collectord", "perf"])
def recorded(request: pytest.FixtureRequest, run_cli: Cli, perf: Perf, tmp_path: Path) -> Path:
    """A profile of the busy program, by either recorder."""
    load = (str(compile_busy(tmp_path, "-g")), "long")
    words = ("record", "-F", "997", "-g", "-m", "512", "-e", "cpu-clock")
    by = perf if request.param == "perf" else run_cli
    return recorded_by(by, words, load, tmp_path)


def test_functions_of_a_program_are_nested_as_they_called_each_other(
    recorded: Path, flame: Callable[..., Counter[tuple[str, ...]]], perf: Perf
) -> None:
    """Most samples are in the innermost ones; and every sample of perf's is one, by name."""
    stacks = flame(recorded)
    total = stacks.total()
    assert total > 100

    def share(*frames: str) -> float:
        at = len(frames)
        nested = (
            count
            for stack, count in stacks.items()
            if any(stack[begin : begin + at] == frames for begin in range(len(stack)))
        )
        return sum(nested) / total

    assert share("main", "outer", "inner") > 0.4
    assert share("main", "outer", "woven") > 0.1
    assert share("main", "outer") > 0.9
    assert not share("inner", "outer") + share("woven", "outer") + share("inner", "woven")
    assert {stack[0] for stack in stacks} <= {"busy", "perf", "perf-exec", "collectord"}

    # perf of Debian has no inlined functions, and all places without a name are unknown there.
    own = Counter(
        _merged([_PLACE.sub(_UNKNOWN, one) for one in stack[1:] if one != "woven"])
        for stack in stacks.elements()
    )
    assert own == _of_perf(perf, recorded)


def _merged(frames: Sequence[str]) -> tuple[str, ...]:
    """Return frames of which unknown ones behind each other are one."""
    pairs = pairwise(["", *frames])
    return tuple(name for before, name in pairs if (before, name) != (_UNKNOWN, _UNKNOWN))


def _of_perf(perf: Perf, file: Path) -> Counter[tuple[str, ...]]:
    """Return the stacks that perf names, the outermost frame first."""
    done = perf.run("script", "--force", "-F", "comm,tid,time,ip,sym,dso", "-i", file)
    assert done.returncode == 0, done.stderr
    found: Counter[tuple[str, ...]] = Counter()
    for block in done.stdout.split("\n\n"):
        told = [frame.groups() for line in block.splitlines() if (frame := _FRAME.match(line))]
        marked = [f"{name}_[k]" if _KERNEL.match(dso) else name for name, dso in reversed(told)]
        if marked:
            found[_merged(marked)] += 1
    return found


def _of_modules(listed: str) -> list[str]:
    """Return the functions of modules in a list of the kernel.

    Those of BPF programs are left out: other tests load and unload some meanwhile.
    """
    functions = re.findall(r"^.*? [tTwW] .*\t\[.*\n", listed, re.MULTILINE)
    return [line for line in functions if not line.endswith("\t[bpf]\n")]


def _kernel_aliases() -> Callable[[str, str], bool]:
    """Return whether two places in the kernel are one, which has several names."""
    addresses: dict[str, set[str]] = {}
    for line in KALLSYMS.read_text().splitlines():
        address, _, name, *_ = line.split()
        addresses.setdefault(name, set()).add(address)

    def same(ours: str, theirs: str) -> bool:
        (one, _, at), (other, _, other_at) = ours.rpartition("+"), theirs.rpartition("+")
        return at == other_at and bool(addresses.get(one, set()) & addresses.get(other, set()))

    return same


def _agreement(load: Path) -> Callable[[tuple[str, str], tuple[str, str]], bool]:
    """Return whether two {name with offset, file} are one place.

    Those of the load and of the kernel have the same name, or two that the kernel gives to one
    address.
    In libraries and other programs an address may have several names, and a place outside of all
    functions that are told with a size may have one or none: there the file is the same.
    """
    same = _kernel_aliases()

    def agree(ours: tuple[str, str], theirs: tuple[str, str]) -> bool:
        if ours == theirs or same(ours[0], theirs[0]):
            return True
        if theirs[1] == str(load) or _KERNEL.match(theirs[1]):
            return False
        named = _UNKNOWN not in (ours[0], theirs[0])
        is_beside = named and ours[0].rpartition("+")[2] != theirs[0].rpartition("+")[2]
        return ours[1] == theirs[1] and not is_beside

    return agree


def test_frames_of_a_query_are_perfs(
    recorded: Path, perf: Perf, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Every address of every sample: its function, how far behind its beginning, and its file.

    In libraries and other programs than the load an address may have several names.
    """
    statement = "FROM frames WHERE NOT inlined ORDER BY mono_ns, tid, position"
    assert query_verb.run(["--json", statement, str(recorded)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    own: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for row in map(json.loads, told.out.splitlines()):
        name = _UNKNOWN
        if row["offset"] is not None and not _PLACE.match(row["function"]):
            name = f"{row['function']}+{row['offset']:#x}"
        module = "[kernel.kallsyms]" if row["module"] == "kernel" else row["module"]
        place = name, module or _UNKNOWN
        own.setdefault((row["mono_ns"], row["tid"]), []).append(place)

    fields = "tid,time,ip,sym,symoff,dso"
    done = perf.run("script", "--force", "--ns", "-F", fields, "-i", recorded)
    assert done.returncode == 0, done.stderr
    theirs: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for block in done.stdout.split("\n\n"):
        head, *frames = block.strip("\n").splitlines() or [""]
        if frames:
            tid, seconds, nanoseconds = map(int, re.findall(r"\d+", head))
            found = [(one[1], one[2]) for frame in frames if (one := _LOCATED.fullmatch(frame))]
            assert len(found) == len(frames), block
            theirs[seconds * 10**9 + nanoseconds, tid] = found
    assert len(own) > 100
    assert own.keys() == theirs.keys()
    agree = _agreement(tmp_path / "busy")
    differing = [
        (key, own[key], theirs[key])
        for key in own
        if len(own[key]) != len(theirs[key]) or not all(map(agree, own[key], theirs[key]))
    ]
    assert not differing

    # `events` tells the same, of one place after the other.
    assert events_verb.run(["--json", str(recorded)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    printed = {}
    for row in map(json.loads, told.out.splitlines()):
        seen = [one for text in row["frames"] if (one := _PRINTED.fullmatch(text))]
        names = [(one[1], one[2].replace("(kernel)", "([kernel.kallsyms])")) for one in seen]
        printed[row["time_ns"], row["tid"]] = names
    assert printed == {
        key: [(name, f"({module})") for name, module in places if name != _UNKNOWN]
        for key, places in own.items()
    }


@pytest.fixture(params=["collectord", "perf"])
def flat(
    request: pytest.FixtureRequest,
    run_cli: Cli,
    perf: Perf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A profile of all CPUs without call chains, by either recorder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load = (str(compile_busy(tmp_path, "-g")), "long")
    words = ("record", "-a", "-F", "997", "-m", "512", "-e", "cpu-clock")
    by = perf if request.param == "perf" else run_cli
    return recorded_by(by, words, load, tmp_path)


def test_addresses_without_call_chains_are_perfs(
    flat: Path, perf: Perf, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each sample: the function, how far behind its beginning, and the file.

    In libraries and other programs than the load an address may have several names: there the file
    is the same.
    """

    def printed(form: str) -> list[str]:
        assert events_verb.run(["-o", form, str(flat)]) == 0
        told = capsys.readouterr()
        assert told.err == ""
        return told.out.splitlines()

    own: dict[tuple[int, int], tuple[str, str]] = {}
    rows = [json.loads(line) for line in printed("json")]
    for row in rows:
        *_, place = row["frames"]  # what is inlined comes before it
        found = _PRINTED.fullmatch(place)
        name, module = (found[1], found[2]) if found else (_UNKNOWN, "")
        tid = -1 if row["tid"] is None else row["tid"]  # the sample of a thread that ended
        own[row["time_ns"], tid] = name, module.replace("(kernel)", "([kernel.kallsyms])")

    fields = "tid,time,ip,sym,symoff,dso"
    done = perf.run("script", "--force", "--ns", "-F", fields, "-i", flat)
    assert done.returncode == 0, done.stderr
    theirs: dict[tuple[int, int], tuple[str, str]] = {}
    for line in done.stdout.splitlines():
        sample = _SAMPLE.fullmatch(line)
        assert sample, line
        tid, seconds, nanoseconds, name, module = sample.groups()
        key = int(seconds) * 10**9 + int(nanoseconds), int(tid)
        theirs[key] = name, "" if name == _UNKNOWN else f"({module})"
    assert len(own) == len(rows) > 100
    assert own.keys() == theirs.keys()
    exact = (f"({flat.parent / 'busy'})", "([")  # the load, and the kernel with its modules
    same = _kernel_aliases()
    differing = [
        (own[key], theirs[key])
        for key in own
        if own[key] != theirs[key] and not same(own[key][0], theirs[key][0])
    ]
    assert not [
        (ours, its)
        for ours, its in differing
        if its[1].startswith(exact) or (ours[1] != its[1] and ours[1] and its[1])
    ]
    assert any(name.startswith("inner+0x") for name, _ in own.values())

    joined = [" <- ".join(row["frames"]) for row in rows]
    assert [
        line.partition(" ip=")[2].partition(" period=")[0] for line in printed("text")
    ] == joined
    assert [row["frames"] for row in csv.DictReader(printed("csv"))] == joined


def test_a_session_in_pieces_and_its_children_are_named_throughout(
    run_cli: Cli, flame: Callable[..., Counter[tuple[str, ...]]], tmp_path: Path
) -> None:
    """Each segment stands alone: children that were forked before it are named in it, too."""
    busy = compile_busy(tmp_path, "-g")
    done = run_cli(
        *("record", "-a", "-m", "512", "-F", "997", "-g", "-e", "cpu-clock"),
        *("--output-dir", tmp_path / "out"),
        *("--json", "--", "sh", "-c", f"({busy} long) & ({busy} long); wait"),
    )
    assert done.returncode == 0, done.stderr
    stacks = flame(tmp_path / "out")
    ours = Counter({stack: n for stack, n in stacks.items() if stack[0] == "busy"})
    nested = sum(count for stack, count in ours.items() if stack[2:4] == ("main", "outer"))
    assert nested > 0.85 * ours.total() > 100
    by_pid = flame(tmp_path / "out", "--by", "pid")
    assert len({stack[0] for stack in by_pid if stack[0].startswith("busy-")}) == 2

    # On another boot the list that the session kept has the names.
    (symbols,) = (tmp_path / "out").glob(".kallsyms-*")
    lasting = _of_modules(KALLSYMS.read_text())
    for segment in (tmp_path / "out").glob("*.perf.data"):
        assert _of_modules(kept_modules(segment).decode()) == lasting
    for manifest in (tmp_path / "out").glob("*.json"):
        told = json.loads(manifest.read_text())
        boot_id, told["boot_id"] = told["boot_id"], told["boot_id"][:-4] + "0000"
        manifest.write_text(json.dumps(told))
    symbols.rename(symbols.with_name(symbols.name.replace(boot_id[-4:] + ".gz", "0000.gz")))
    later = flame(tmp_path / "out")
    assert {stack: n for stack, n in later.items() if stack[0] == "busy"} == ours
    assert later.total() == stacks.total()
    files = [tmp_path / f"x{suffix}" for suffix in (".svg", ".html", ".speedscope.json", ".pprof")]
    for file in files:
        flame_verb.run([str(tmp_path / "out"), "-o", str(file)])
        assert file.stat().st_size > 1000


_CONTAINER: Final = """
exec 3<"$0" && mount -t tmpfs none /tmp && cat <&3 >/tmp/maker && chmod +x /tmp/maker
exec /tmp/maker
"""
_SESSION: Final = """
[[session]]
name = "load"

[[session.source]]
kind = "perf"
events = ["cpu-clock"]
frequency = 997
call_graph = "fp"
"""


@contextmanager
def _in_a_container(maker: Path) -> Iterator[None]:
    """Have the program run where it has another number and another /tmp, until the end."""
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _CONTAINER]
    with subprocess.Popen([*words, str(maker)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "spins\n"
            yield
        finally:
            process.kill()


def test_code_that_is_made_at_run_time_has_its_names_when_its_process_is_gone(
    run_cli: Cli,
    start_cli: Callable[..., subprocess.Popen[str]],
    flame: Callable[..., Counter[tuple[str, ...]]],
    tmp_path: Path,
) -> None:
    """A process in a container takes its map with it; each sealed segment has a copy."""
    config = daemons.write_sessions(tmp_path, _SESSION)
    with daemons.running(start_cli, config) as daemon:
        with _in_a_container(compile_maker(tmp_path)):
            daemons.wait_for(lambda: daemon.session("load")["stored"] > 3000, "samples")
            for _ in range(2):
                done = run_cli("rotate", "--socket", tmp_path / "control.sock")
                assert done.returncode == 0, done.stderr
            folder = tmp_path / "state/load"
            daemons.wait_for(lambda: len([*folder.glob("*.map.gz")]) == 2, "two copies")
        daemon.stop()
    first, second = sorted(folder.glob("*.map.gz"))
    assert first.samefile(second)
    assert not [*Path("/tmp").glob(f"perf-{first.name.split('.')[-3]}.map")]  # noqa: S108
    stacks = flame(first.with_name(".".join(first.name.split(".")[:-3])))
    ours = Counter({stack: n for stack, n in stacks.items() if stack[0] == "maker"})
    made = sum(n for stack, n in ours.items() if stack[-1] == "made while it ran")
    assert made > 0.8 * ours.total() > 20


def test_the_last_segment_of_a_recording_has_its_maps(
    run_cli: Cli, flame: Callable[..., Counter[tuple[str, ...]]], tmp_path: Path
) -> None:
    """The end waits for the copies."""
    maker = compile_maker(tmp_path)
    words = ("record", "-F", "997", "-g", "-m", "512", "-e", "cpu-clock")
    done = run_cli(*words, "--output-dir", tmp_path / "out", "--json", "--", maker, "once")
    assert done.returncode == 0, done.stderr
    (copy,) = (tmp_path / "out").glob("*.map.gz")
    os.unlink(f"/tmp/perf-{copy.name.split('.')[-3]}.map")  # noqa: PTH108, S108
    stacks = flame(tmp_path / "out")
    made = sum(n for stack, n in stacks.items() if stack[-1] == "made while it ran")
    assert made > 0.8 * stacks.total() > 50


_SWITCHES: Final = """
[[session]]
name = "switches"

[[session.source]]
kind = "perf"
events = ["sched:sched_switch"]
call_graph = "fp"
"""


_UNEVEN: Final = """
SELECT tid FROM (
    SELECT next_pid AS tid, 1 AS step FROM sched_switch
    UNION ALL SELECT prev_pid, -1 FROM sched_switch
) GROUP BY tid HAVING sum(step) <> 0
"""


def test_time_off_the_cpu_is_that_of_a_known_cause(
    run_cli: Cli,
    start_cli: Callable[..., subprocess.Popen[str]],
    off_cpu: Callable[[Path], Counter[tuple[str, ...]]],
    tmp_path: Path,
) -> None:
    """A thread waits for a line and another one for its lock, over the end of a segment.

    Kernels leave out switches of some threads, and so when the next one came, perf's recordings
    too: of several runs one at least is recorded as a whole.
    """
    waiter = compile_waiter(tmp_path)
    config = daemons.write_sessions(tmp_path, _SWITCHES)
    socket = tmp_path / "control.sock"
    runs: dict[int, tuple[set[int], str]] = {}
    with daemons.running(start_cli, config) as daemon:
        for _ in range(3):
            with subprocess.Popen(
                [waiter], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as process:
                tasks = Path(f"/proc/{process.pid}/task")
                daemons.wait_for(partial(_sleep, tasks, 2), "two threads that wait")
                threads = {int(task.name) for task in tasks.iterdir()}
                for _ in range(2):
                    assert run_cli("rotate", "--socket", socket).returncode == 0
                runs[process.pid] = threads, process.communicate("\n")[0]
        daemon.stop()
    assert len([*(tmp_path / "state/switches").glob("*.perf.data")]) == 7
    done = run_cli("query", "--csv", _UNEVEN, tmp_path / "state")
    uneven = {int(line) for line in done.stdout.split()[1:]}
    whole = {pid: told for pid, (threads, told) in runs.items() if not threads & uneven}
    assert whole
    stacks = off_cpu(tmp_path / "state")
    for pid, told in whole.items():
        for function, took_ns in zip(("reader", "locker"), map(int, told.split()), strict=True):
            mine = [n for stack, n in stacks.items() if {f"waiter-{pid}", function} <= {*stack}]
            assert 0.9 * took_ns < sum(mine) <= took_ns


def _sleep(tasks: Path, count: int) -> bool:
    """Whether a process has so many threads, which all sleep."""
    states = [
        (task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()
    ]
    return states == ["S"] * count
