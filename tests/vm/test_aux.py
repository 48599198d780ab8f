# SPDX-License-Identifier: Apache-2.0
"""AUX areas of a real kernel: every byte of the test PMU stored once, or counted where it went.

The PMU writes words that count on each CPU (modules/test_pmu/README.md), and counts itself what it
produced and what found no room.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import aux_words
from tests.support.daemons import manifest, running, sealed, wait_for
from tests.support.recording import result_of, segments_of
from tests.vm.support_modules import WORD_BYTES, Pmu, PmuCounters, loaded_pmu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.aux_words import Checker, Found

    Load = Callable[..., Pmu]
    Run = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

PMU: Final = "collectord_test"
TRACE: Final = f"{PMU}/trace/"
MIB: Final = 1 << 20
GIB: Final = 1 << 30
NS: Final = 1_000_000_000  # of a second
CPUS: Final = tuple(range(os.cpu_count() or 1))
TRUNCATED: Final = "kernel_ring/truncated"
# At a timer of 1 ms: 4, 8, 16 and 32 MB a second on each CPU.
CHUNKS: Final = (32768, 16384, 8192, 4096)
CALIBRATION_WORDS: Final = 4 * MIB  # on each CPU
STATUS_CONFIG: Final = 6
STATUS_FEATURE: Final = 5


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Checker:
    """Reads words out of segments."""
    return aux_words.build(tmp_path_factory.mktemp("checker"))


@pytest.fixture
def load_pmu() -> Iterator[Load]:
    """Load the test PMU with these parameters, at most once in a test.

    Tests name this fixture, or `pmu`, ahead of those that start processes: these end first, and a
    module that is in use cannot go.
    """
    with ExitStack() as stack:
        yield lambda name=PMU, **knobs: stack.enter_context(loaded_pmu(name, **knobs))


@pytest.fixture
def pmu(load_pmu: Load) -> Pmu:
    """The test PMU under its own name, at 16 MB a second on each CPU."""
    return load_pmu()


def await_growth(read: Callable[[], int], enough: int) -> None:
    """Wait until a figure is large enough; slow is no failure, to stand still is."""
    reached = read()

    def grows() -> bool:
        return read() > reached

    while reached < enough:
        wait_for(grows, f"more than {reached} of {enough}")
        reached = read()


class Recording:
    """A `record` that observes the PMU, and what the PMU had done before it."""

    def __init__(self, process: subprocess.Popen[str], pmu: Pmu) -> None:
        self.process = process
        self.before = pmu.counters()
        self._pmu = pmu

    def await_words(self, words: int, cpus: tuple[int, ...] = CPUS) -> None:
        """Wait until each of these CPUs has produced so many."""
        await_growth(lambda: min(self.produced()[cpu] for cpu in cpus), words)

    def await_bytes(self, total: int) -> None:
        """Wait until all CPUs together have produced so many."""
        await_growth(lambda: sum(self.produced().values()) * WORD_BYTES, total)

    def produced(self) -> dict[int, int]:
        """Words by CPU since it began, truncated ones too."""
        now = self._pmu.counters()
        return {cpu: now[cpu].next_word - self.before[cpu].next_word for cpu in now}

    def stop(self) -> dict[str, Any]:
        """Interrupt it; gives the session of its result."""
        self.process.send_signal(signal.SIGINT)
        return self.result()

    def result(self) -> dict[str, Any]:
        """Wait for its end; gives the session of its result."""
        stdout, stderr = self.process.communicate()
        assert self.process.returncode == 0, stderr
        return result_of(stdout)


def record(start_cli: Start, pmu: Pmu, *words: str | Path, wait: bool = True) -> Recording:
    """Start `record --json WORDS...` into a directory; all CPUs trace when it is back."""
    before = pmu.counters()
    recording = Recording(start_cli("record", "--json", "--output-dir", "out", *words), pmu)
    recording.before = before
    if wait:
        wait_for(lambda: all(c.active for c in pmu.counters().values()), "tracing on every CPU")
    return recording


def check_cpus(
    session: dict[str, Any], found: Found, before: dict[int, PmuCounters], pmu: Pmu
) -> dict[int, int]:
    """Every word is in the segments, in order, or counted as truncated; gives truncated bytes.

    Of a recording with one area for each CPU.
    """
    now = pmu.counters()
    assert found.in_order, found
    areas = {area["cpu"]: area for area in session["aux"]}
    assert sorted(areas) == sorted(now)
    truncated = {}
    for words in found.words:
        assert words.of == words.cpu
        cpu, area = words.cpu, areas[words.cpu]
        first = before[cpu].next_word
        # What was truncated at the end leaves no gap: nothing comes behind it.
        at_end = now[cpu].next_word - 1 - words.last
        missing = words.first - first + words.missing + at_end
        produced = now[cpu].next_word - first
        lost = now[cpu].truncated_bytes - before[cpu].truncated_bytes
        assert words.words + missing == produced
        assert missing * WORD_BYTES == lost
        assert area["ledger_basis"] == "exact"
        assert area["produced_bytes"] == produced * WORD_BYTES
        assert area["stored_bytes"] == words.words * WORD_BYTES
        assert area["lost_bytes"][TRUNCATED] == lost
        assert sum(area["lost_bytes"].values()) == lost
        assert (area["unaccounted_bytes"], area["in_flight_bytes"]) == (0, 0)
        truncated[cpu] = lost
    assert sorted(truncated) == sorted(now)
    return truncated


@pytest.fixture(scope="module")
def chunk_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What the PMU may produce at each millisecond and CPU so that no byte is truncated.

    The highest of CHUNKS that a short recording sustained; the least if none did.
    """
    for chunk in CHUNKS:
        with loaded_pmu(PMU, chunk_bytes=chunk) as pmu:
            out = tmp_path_factory.mktemp("calibration")
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "collectord", "record", "-a", "-e", TRACE),
                    *("-m", ",8M", "--output-dir", out, "--json"),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            recording = Recording(process, pmu)
            recording.await_words(CALIBRATION_WORDS)
            (session,) = [recording.stop()]
            for segment in segments_of(session):
                segment.unlink()
            if not any(area["truncated"] for area in session["aux"]):
                return chunk
    return CHUNKS[-1]


@pytest.mark.parametrize("stopped", [False, True], ids=["reading", "reader stopped for 2 s"])
def test_a_gigabyte(
    load_pmu: Load, start_cli: Start, checker: Checker, chunk_bytes: int, *, stopped: bool
) -> None:
    """1 GiB on all CPUs at the rate that calibration found, or while nobody reads for 2 s."""
    pmu = load_pmu(chunk_bytes=chunk_bytes)
    recording = record(start_cli, pmu, "-a", "-e", TRACE, "-m", ",8M")
    if stopped:
        recording.await_bytes(GIB // 8)
        recording.process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        wait_for(lambda: all(c.halts for c in pmu.counters().values()), "full areas")
        recording.process.send_signal(signal.SIGCONT)
    recording.await_bytes(GIB)
    session = recording.stop()
    truncated = check_cpus(session, checker(segments_of(session)), recording.before, pmu)
    if stopped:
        assert all(truncated.values())
        assert all(area["truncated"] for area in session["aux"])
        assert all(area["disabled_ns"] for area in session["aux"])


def test_what_was_lost_while_it_stood_is_counted(
    pmu: Pmu, start_cli: Start, checker: Checker
) -> None:
    """A PMU that counts on while it finds no room tells how much: the gap in the words."""
    pmu.set(produce_while_stopped=True)
    recording = record(start_cli, pmu, "-a", "-e", TRACE, "-m", ",1M")
    recording.await_words(MIB // WORD_BYTES)
    recording.process.send_signal(signal.SIGSTOP)
    wait_for(
        lambda: all(c.halted and c.halted_ns > NS for c in pmu.counters().values()),
        "areas that were full for a second",
    )
    recording.process.send_signal(signal.SIGCONT)
    wait_for(lambda: all(c.starts > 1 for c in pmu.counters().values()), "events that go on")
    recording.await_words(8 * MIB // WORD_BYTES)
    session = recording.stop()
    truncated = check_cpus(session, checker(segments_of(session)), recording.before, pmu)
    assert all(lost > MIB for lost in truncated.values())
    for area in session["aux"]:
        assert area["disabled_ns"] > NS


def test_rotation_every_second(
    load_pmu: Load, start_cli: Start, checker: Checker, tmp_path: Path, chunk_bytes: int
) -> None:
    """1 GiB through segments of a second each: they follow on, byte for byte."""
    config = write_config(tmp_path, 'segment_age = "1s"', aux="8MiB")
    pmu = load_pmu(chunk_bytes=chunk_bytes)
    with running(start_cli, config) as daemon:
        await_growth(lambda: sum(c.produced_bytes for c in pmu.counters().values()), GIB)
        assert daemon.stop().status == 0
    segments = sealed(tmp_path)
    assert len(segments) > 5
    found = checker(segments)
    now = pmu.counters()
    assert found.in_order
    areas = {area["cpu"]: area for area in manifest(segments[-1])["ledger"]["aux"]}
    assert sorted(found.of_cpu()) == sorted(areas) == list(CPUS)
    for words in found.words:
        lost = now[words.cpu].truncated_bytes
        assert words.words * WORD_BYTES + lost == now[words.cpu].produced_bytes
        assert areas[words.cpu]["produced_bytes"] == now[words.cpu].produced_bytes
        assert areas[words.cpu]["stored_bytes"] == words.words * WORD_BYTES
        assert areas[words.cpu]["lost_bytes"][TRUNCATED] == lost
        assert areas[words.cpu]["unaccounted_bytes"] == 0


def write_config(
    directory: Path,
    session: str = "",
    *,
    event: str = TRACE,
    aux: str = "1MiB",
    source: str = "",
) -> Path:
    """A daemon with one session, `trace`, that keeps all."""
    path = directory / "collectord.toml"
    path.write_text(
        f"""
[daemon]
state_dir = "{directory / "state"}"
flush_interval = "100ms"
[metrics]
listen = "127.0.0.1:0"
[control]
socket = "{directory / "control.sock"}"
[retention]
bytes = "0"
age = "0"
free = "0"
[[session]]
name = "trace"
{session}
[[session.source]]
kind = "perf"
events = ["{event}"]
aux = "{aux}"
{source}
"""
    )
    return path


# --- snapshots ---

# How a PMU tells where it is in an area that runs free, by a name that stands for it.
RULES: Final = {"monotonic": PMU, "whole": "intel_pt", "offset": "arm_spe_0"}


@contextmanager
def recorder(
    start_cli: Start, directory: Path, rule: str
) -> Iterator[tuple[Pmu, Callable[[], list[Path]]]]:
    """A flight recorder of 1 MiB a CPU; gives the PMU and what takes a snapshot."""
    name = RULES[rule]
    event = f"{name}/trace/" if name == PMU else f"{name}//"
    config = write_config(directory, 'mode = "flight-recorder"', event=event)
    with (
        loaded_pmu(name, head=rule) as pmu,
        running(start_cli, config) as daemon,
    ):
        wait_for(lambda: all(c.active for c in pmu.counters().values()), "tracing on every CPU")

        def snapshot() -> list[Path]:
            return [Path(path) for path in daemon.post("/v1/snapshot", {})["segments"]]

        yield pmu, snapshot
        assert daemon.stop().status == 0


def await_words(pmu: Pmu, words: int) -> None:
    """Wait until each CPU has produced so many."""
    await_growth(lambda: min(c.next_word for c in pmu.counters().values()), words)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wrapped", [False, True], ids=["not wrapped", "wrapped"])
def test_a_snapshot_holds_what_came_last(
    start_cli: Start, checker: Checker, tmp_path: Path, rule: str, *, wrapped: bool
) -> None:
    """The last bytes before a known instant, contiguous, on every CPU; again in the next one."""
    area_words = MIB // WORD_BYTES
    with recorder(start_cli, tmp_path, rule) as (pmu, snapshot):
        if wrapped:
            await_words(pmu, 3 * area_words)
        else:
            pmu.set(chunk_bytes=512)
            await_words(pmu, 1)
        pmu.freeze()
        at = pmu.counters()
        found = checker(snapshot())
        assert found.in_order
        assert len(found.words) == len(CPUS)
        for words in found.words:
            held = min(at[words.cpu].next_word, area_words)
            assert (words.last, words.gaps) == (at[words.cpu].next_word - 1, 0)
            if wrapped:
                assert held >= words.words >= area_words - 4096 // WORD_BYTES
            else:
                assert words.words == held
        # What the first one has is not stored again; the second goes on behind it.
        pmu.thaw()
        pmu.set(chunk_bytes=512)
        wait_for(
            lambda: all(c.next_word > at[c.cpu].next_word for c in pmu.counters().values()),
            "more words",
        )
        pmu.freeze()
        later = pmu.counters()
        again = checker(snapshot())
        for words in again.words:
            new = later[words.cpu].next_word - at[words.cpu].next_word
            assert words.last == later[words.cpu].next_word - 1
            assert words.gaps == 0
            if new < area_words:
                assert words.words == new


def test_record_s_stores_the_end(pmu: Pmu, start_cli: Start, checker: Checker) -> None:
    """`record -S` lets the areas run free, and stores the last of them when it ends."""
    recording = record(start_cli, pmu, "-a", "-e", TRACE, "-m", ",1M", "-S")
    recording.await_words(2 * MIB // WORD_BYTES)
    pmu.freeze()
    session = recording.stop()
    found = checker(segments_of(session))
    now = pmu.counters()
    assert sorted(found.of_cpu()) == list(CPUS)
    for words in found.words:
        assert (words.last, words.gaps) == (now[words.cpu].next_word - 1, 0)
    for area in session["aux"]:
        assert area["snapshots"] == 1
        assert area["overwritten_bytes"] + area["stored_bytes"] == area["produced_bytes"]


# --- flags, pauses, filters ---


@pytest.mark.parametrize("flag", ["truncated", "partial", "collision"])
def test_flags_are_counted(pmu: Pmu, start_cli: Start, checker: Checker, flag: str) -> None:
    """Each flag of an AUX record as often as the driver raised it; tracing goes on after it."""
    pmu.set(**{f"force_{flag}": 20})
    recording = record(start_cli, pmu, "-a", "-e", TRACE)
    recording.await_words(4 * MIB // WORD_BYTES)
    session = recording.stop()
    check_cpus(session, checker(segments_of(session)), recording.before, pmu)
    now = pmu.counters()
    key = "collisions" if flag == "collision" else flag
    for area in session["aux"]:
        raised = getattr(now[area["cpu"]], f"{flag}_flags")
        assert area[key] == raised > 0
        assert area["records"] == now[area["cpu"]].records


def test_records_lost_with_a_full_data_ring_lose_no_byte(
    pmu: Pmu, start_cli: Start, checker: Checker
) -> None:
    """A data ring of a page is full of AUX records soon; the bytes come by the head."""
    pmu.set(chunk_bytes=1024, aux_record_bytes=1024)
    recording = record(start_cli, pmu, "-a", "-e", TRACE, "-m", "1,16M")
    recording.process.send_signal(signal.SIGSTOP)
    now = pmu.counters()
    wait_for(
        lambda: all(c.records > now[c.cpu].records + 500 for c in pmu.counters().values()),
        "more records than the ring holds",
    )
    recording.process.send_signal(signal.SIGCONT)
    recording.await_words(2 * MIB // WORD_BYTES)
    session = recording.stop()
    truncated = check_cpus(session, checker(segments_of(session)), recording.before, pmu)
    assert not any(truncated.values())
    assert all(area["lost_records"] > 0 for area in session["aux"])
    assert all(area["unrecorded_bytes"] > 0 for area in session["aux"])


def test_a_sink_without_interrupt_is_flushed(
    load_pmu: Load, start_cli: Start, checker: Checker
) -> None:
    """CoreSight's kind gives its trace when the event stops: it is stopped at an interval."""
    pmu = load_pmu("cs_etm", flush_on_stop=True, chunk_bytes=256)
    recording = record(start_cli, pmu, "-a", "-e", "cs_etm//", "-m", ",4M")
    before = pmu.counters()
    wait_for(
        lambda: all(c.stops > before[c.cpu].stops + 5 for c in pmu.counters().values()),
        "flushes",
    )
    session = recording.stop()
    found = checker(segments_of(session))
    now = pmu.counters()
    assert found.in_order
    for words in found.words:
        assert words.gaps == 0
        assert words.words == now[words.cpu].next_word
        (area,) = (a for a in session["aux"] if a["cpu"] == words.cpu)
        assert area["stored_bytes"] == words.words * WORD_BYTES
        assert area["unaccounted_bytes"] == 0
        # No count of bytes: what would have been lost is known by its flags alone.
        assert (area["ledger_basis"], area["lost_bytes"][TRUNCATED]) == ("lost_only", None)


def test_another_event_resumes_and_pauses(pmu: Pmu, run_cli: Run, checker: Checker) -> None:
    """`aux-action`: nothing is traced before the event that resumes, or after one that pauses."""
    resume = "syscalls:sys_enter_getppid/aux-action=resume/"
    busy = "for _ in range(3000000): pass"
    words = ("record", "--json", "--output-dir", "out", "-e")
    paused = f"{PMU}/trace,aux-action=start-paused/"
    never = run_cli(*words, paused, "-e", resume, "--", sys.executable, "-c", busy)
    assert never.returncode == 0, never.stderr
    assert all(area["produced_bytes"] == 0 for area in result_of(never.stdout)["aux"])
    pauses = ("-e", "faults/aux-action=pause/")
    stopped = run_cli(*words, TRACE, *pauses, "--", sys.executable, "-c", busy)
    assert stopped.returncode == 0, stopped.stderr
    assert sum(c.pauses for c in pmu.counters().values()) > 0
    resumed = run_cli(
        *(*words, paused, "-e", resume),
        *("--", sys.executable, "-c", f"import os; os.getppid()\n{busy}"),
    )
    assert resumed.returncode == 0, resumed.stderr
    session = result_of(resumed.stdout)
    assert sum(c.resumes for c in pmu.counters().values()) > 0
    stored = sum(area["stored_bytes"] for area in session["aux"])
    found = checker(segments_of(session))
    assert stored == sum(found.of_cpu().values()) * WORD_BYTES > 0
    assert session["produced"] == session["stored"] > 0  # the tracepoint in the same ring


def text_offset(program: Path) -> int:
    """Where a program's code begins in its file: the executable PT_LOAD of an ELF64."""
    data = program.read_bytes()
    at, entry_bytes, count = (
        *struct.unpack_from("<Q", data, 32),
        *struct.unpack_from("<HH", data, 54),
    )
    for number in range(count):
        kind, flags, offset = struct.unpack_from("<IIQ", data, at + number * entry_bytes)
        if kind == 1 and flags & 1:
            return int(offset)
    message = f"no code in {program}"
    raise AssertionError(message)


def test_addresses_reach_the_pmu(pmu: Pmu, run_cli: Run) -> None:
    """Ranges of a file that the command maps, as the user gave them."""
    program = Path("/bin/true").resolve()
    start = text_offset(program)
    done = run_cli(
        *("record", "--json", "--output-dir", "out", "-e", f"{TRACE[:-1]}/u"),
        *("--filter", f"filter {start:#x}/0x800@{program}", "--", program),
    )
    assert done.returncode == 0, done.stderr
    filters = {(f.action, f.end - f.start) for f in pmu.filters() if f.start}
    assert ("filter", 0x800) in filters
    wide = run_cli(
        *("record", "-a", "-e", TRACE, "--filter", f"filter {start:#x}/0x800@{program}"),
        *("--output-dir", "wide", "--duration", "1s"),
    )
    assert wide.returncode == STATUS_FEATURE
    assert "for observed processes" in wide.stderr


# --- deployments ---


BUSY: Final = """
import os, sys, threading
def spin():
    for _ in range(2000000): pass
threads = [threading.Thread(target=spin) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if os.fork() == 0:
    spin()
    os._exit(0)
os.wait()
"""


def check_tasks(session: dict[str, Any], found: Found, pmu: Pmu) -> None:
    """All that the PMU produced for the observed tasks is in the segments, in order."""
    now = pmu.counters()
    assert found.in_order, found
    lost = sum(c.truncated_bytes for c in now.values())
    produced = sum(c.produced_bytes for c in now.values())
    stored = sum(found.of_cpu().values()) * WORD_BYTES
    assert stored > 0
    assert stored + lost == produced
    assert sum(area["stored_bytes"] for area in session["aux"]) == stored
    assert sum(area["produced_bytes"] for area in session["aux"]) == produced
    assert sum(area["lost_bytes"][TRUNCATED] for area in session["aux"]) == lost
    assert all(area["unaccounted_bytes"] == 0 for area in session["aux"])


def test_a_command_and_its_children(pmu: Pmu, run_cli: Run, checker: Checker) -> None:
    """The default deployment: an area a CPU, owned by the command's event; children inherit."""
    done = run_cli(
        *("record", "--json", "--output-dir", "out", "-e", TRACE),
        *("--", sys.executable, "-c", BUSY),
    )
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    assert sorted(area["cpu"] for area in session["aux"]) == list(CPUS)
    check_tasks(session, checker(segments_of(session)), pmu)


@pytest.fixture
def threads() -> Iterator[subprocess.Popen[bytes]]:
    """A process with three busy threads; it runs until it is killed."""
    code = (
        "import threading\n"
        "def spin():\n    while True: pass\n"
        "for _ in range(2): threading.Thread(target=spin).start()\n"
        "print(flush=True)\nspin()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_running_process(
    pmu: Pmu, threads: subprocess.Popen[bytes], start_cli: Start, checker: Checker
) -> None:
    """Its threads share the areas of the CPUs, whichever of them owns these."""
    recording = record(start_cli, pmu, "-p", str(threads.pid), "-e", TRACE, wait=False)
    recording.await_bytes(32 * MIB)
    session = recording.stop()
    assert sorted(area["cpu"] for area in session["aux"]) == list(CPUS)
    check_tasks(session, checker(segments_of(session)), pmu)


def test_threads_with_areas_of_their_own(
    pmu: Pmu, threads: subprocess.Popen[bytes], start_cli: Start, checker: Checker
) -> None:
    """`--per-thread`: an area for each thread, whose words come from the CPUs that it ran on."""
    tids = sorted(int(path.name) for path in Path(f"/proc/{threads.pid}/task").iterdir())
    recording = record(
        start_cli,
        pmu,
        *("-t", ",".join(map(str, tids)), "--per-thread", "-e", TRACE),
        wait=False,
    )
    recording.await_bytes(32 * MIB)
    session = recording.stop()
    assert sorted(area["tid"] for area in session["aux"]) == tids
    assert all(area["cpu"] == -1 for area in session["aux"])
    check_tasks(session, checker(segments_of(session)), pmu)


def test_listed_cpus(pmu: Pmu, start_cli: Start, checker: Checker) -> None:
    """Nothing of the others."""
    before = pmu.counters()
    recording = record(start_cli, pmu, "-C", "1,3", "-e", TRACE, wait=False)
    recording.await_words(MIB // WORD_BYTES, cpus=(1, 3))
    session = recording.stop()
    found = checker(segments_of(session))
    assert sorted(found.of_cpu()) == [1, 3]
    assert found.in_order
    now = pmu.counters()
    assert now[0].next_word == before[0].next_word
    for area in session["aux"]:
        assert area["produced_bytes"] == now[area["cpu"]].produced_bytes
        assert area["unaccounted_bytes"] == 0


def test_an_ordinary_event_shares_the_ring(pmu: Pmu, start_cli: Start, checker: Checker) -> None:
    """Its samples stand in the data ring that the AUX event owns, and are balanced exactly."""
    events = ("-e", "sched:sched_switch", "-e", TRACE)
    recording = record(start_cli, pmu, "-a", *events)
    recording.await_words(4 * MIB // WORD_BYTES)
    session = recording.stop()
    check_cpus(session, checker(segments_of(session)), recording.before, pmu)
    assert session["ledger_basis"] == "exact"
    assert session["stored"] > 0
    assert session["produced"] == session["stored"] + sum(session["lost"].values())
    assert session["unaccounted"] == 0


# --- where it is absent ---


def test_without_the_hardware(run_cli: Run, tmp_path: Path) -> None:
    """The documented statuses; a session that may do without it says so."""
    done = run_cli("record", "-a", "-e", "intel_pt//", "-o", "x.data", "--duration", "1s")
    assert done.returncode == STATUS_FEATURE
    assert "no PMU 'intel_pt'" in done.stderr
    none = run_cli("record", "-a", "-e", "cs", "-m", ",1M", "-o", "x.data", "--duration", "1s")
    assert none.returncode == STATUS_CONFIG
    assert "AUX area" in none.stderr
    config = write_config(tmp_path, event="intel_pt//", source='when = "present"')
    with config.open("a") as more:
        more.write('[[session.source]]\nkind = "perf"\nevents = ["cs"]\n')
    checked = run_cli("check", config, "--json")
    assert checked.returncode == 0, checked.stderr
    (session,) = json.loads(checked.stdout)["sessions"]
    assert "no PMU 'intel_pt'" in session["degraded"][0]
