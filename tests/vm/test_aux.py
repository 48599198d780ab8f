# SPDX-License-Identifier: Apache-2.0
"""AUX areas on a real kernel: every byte of the test PMU is stored once, or counted as lost.

The PMU writes words that count on each CPU (modules/test_pmu/README.md), and counts itself what it
produced and what found no room.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import aux_words, compiled_programs
from tests.support.daemons import manifest, running, sealed, wait_for, write_sessions
from tests.support.recording import result_of, segments_of
from tests.vm.support_modules import WORD_BYTES, Pmu, PmuCounters, loaded_pmu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.aux_words import Checker, Found
    from tests.support.daemons import Daemon
    from tests.support.perf_tools import Perf

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
# At a timer of 1 ms, bytes of each tick: from 32 to 4 MB a second on each CPU.
CHUNKS: Final = (32768, 24576, 16384, 12288, 8192, 6144, 4096)
# A timer that is late makes up for it, so that the rate is what it is said to be.
CATCH_UP_TICKS: Final = 100
CALIBRATION_WORDS: Final = 4 * MIB  # on each CPU
RATE_MIN: Final = 4_000_000  # bytes a second on each CPU
STATUS_USAGE: Final = 2
STATUS_FEATURE: Final = 5


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Checker:
    """Return the program that reads words out of segments."""
    return aux_words.build(compiled_programs.folder("aux_words", tmp_path_factory))


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
    """Return the test PMU under its own name, at 16 MB a second on each CPU."""
    return load_pmu()


def await_growth(read: Callable[[], int], enough: int) -> None:
    """Wait until a figure is large enough; slowness is no failure, a standstill is."""
    reached = read()

    def grows() -> bool:
        return read() > reached

    while reached < enough:
        wait_for(grows, f"more than {reached} of {enough}")
        reached = read()


def await_traced(pmu: Pmu) -> None:
    """Wait until the PMU traces on every CPU that is online."""
    wait_for(lambda: all(c.active for c in pmu.counters().values()), "tracing on every CPU")


class Recording:
    """A `record` of the PMU, and the PMU's counters before it."""

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
        """Return words by CPU since it began, including truncated ones."""
        now = self._pmu.counters()
        return {cpu: now[cpu].next_word - self.before[cpu].next_word for cpu in now}

    def stop(self) -> dict[str, Any]:
        """Interrupt it; returns the session of its result."""
        self.process.send_signal(signal.SIGINT)
        return self.result()

    def result(self) -> dict[str, Any]:
        """Wait for its end; returns the session of its result."""
        stdout, stderr = self.process.communicate()
        assert self.process.returncode == 0, stderr
        return result_of(stdout)


def record(start_cli: Start, pmu: Pmu, *words: str | Path, wait: bool = True) -> Recording:
    """Start `record --json WORDS...` into a directory; all CPUs trace when it is back."""
    before = pmu.counters()
    recording = Recording(start_cli("record", "--json", "--output-dir", "out", *words), pmu)
    recording.before = before
    if wait:
        await_traced(pmu)
    return recording


def check_cpus(
    session: dict[str, Any], found: Found, before: dict[int, PmuCounters], pmu: Pmu
) -> dict[int, int]:
    """Check that every word is stored in order, or truncated; returns truncated bytes.

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
        # Words that were truncated at the end leave no gap: nothing comes behind them.
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


def check_words(found: Found, now: dict[int, PmuCounters]) -> None:
    """Check that each byte of a PMU since it was loaded is stored or truncated."""
    assert sorted(found.of_cpu()) == sorted(now)
    for words in found.words:
        lost = now[words.cpu].truncated_bytes
        assert words.words * WORD_BYTES + lost == now[words.cpu].produced_bytes


@pytest.fixture(scope="module")
def pace(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, int]:
    """Return the highest rate of the PMU at which a recording loses no byte, as its parameters.

    It is printed, and must be what a collector is good for at the least.
    """
    for chunk in CHUNKS:
        knobs = {"chunk_bytes": chunk, "catch_up_ticks": CATCH_UP_TICKS}
        rate = sustained(knobs, tmp_path_factory.mktemp("calibration"))
        if rate:
            told = f"{rate / 1e6:.2f} MB/s on each of {len(CPUS)} CPUs, {chunk} bytes a tick"
            capture = request.config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled():
                request.config.get_terminal_writer().line(f"\nAUX sustained: {told}")
            assert rate >= RATE_MIN, told
            return knobs
    pytest.fail(f"bytes were truncated at the lowest rate, {CHUNKS[-1]} a millisecond")


def sustained(knobs: dict[str, int], directory: Path) -> float:
    """Return the slowest CPU's bytes in a second of a recording; 0 if any was truncated."""
    with loaded_pmu(PMU, **knobs) as pmu:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "collectord", "record", "-a", "-e", TRACE),
                *("-m", ",8M", "--output-dir", directory, "--json"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        recording = Recording(process, pmu)
        await_traced(pmu)
        begun_ns, first = time.monotonic_ns(), pmu.counters()

        def is_enough() -> bool:
            now = pmu.counters().values()
            if any(c.truncated_bytes for c in now):
                return True
            return min(c.next_word - first[c.cpu].next_word for c in now) >= CALIBRATION_WORDS

        wait_for(is_enough, "enough words, or too many")
        last, ended_ns = pmu.counters(), time.monotonic_ns()
        session = recording.stop()
        for segment in segments_of(session):
            segment.unlink()
        if any(c.truncated_bytes for c in pmu.counters().values()):
            return 0.0
        produced = (c.produced_bytes - first[c.cpu].produced_bytes for c in last.values())
        return min(produced) * NS / (ended_ns - begun_ns)


@pytest.mark.parametrize("stopped", [False, True], ids=["reading", "reader stopped"])
def test_a_gigabyte(
    load_pmu: Load, start_cli: Start, checker: Checker, pace: dict[str, int], *, stopped: bool
) -> None:
    """1 GiB on all CPUs at the rate that calibration found, or with all areas full on the way."""
    pmu = load_pmu(**pace)
    recording = record(start_cli, pmu, "-a", "-e", TRACE, "-m", ",8M")
    if stopped:
        recording.await_bytes(GIB // 8)
        recording.process.send_signal(signal.SIGSTOP)
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
    """A PMU that counts on without room reports how much: the gap in the words."""
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
    load_pmu: Load, start_cli: Start, checker: Checker, tmp_path: Path, pace: dict[str, int]
) -> None:
    """1 GiB through segments of a second each: they follow on, byte for byte."""
    config = write_config(tmp_path, 'segment_age = "1s"', aux="8MiB")
    pmu = load_pmu(**pace)
    with running(start_cli, config) as daemon:
        await_growth(lambda: sum(c.produced_bytes for c in pmu.counters().values()), GIB)
        wait_for(lambda: len(sealed(tmp_path)) > 5, "six segments")
        assert daemon.stop().status == 0
    segments = sealed(tmp_path)
    found = checker(segments)
    now = pmu.counters()
    assert found.in_order
    check_words(found, now)
    areas = {area["cpu"]: area for area in manifest(segments[-1])["ledger"]["aux"]}
    assert sorted(areas) == list(CPUS)
    for words in found.words:
        lost = now[words.cpu].truncated_bytes
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
    """Return a daemon with one session, `trace`, that keeps all."""
    trace = f"""
[[session]]
name = "trace"
{session}
[[session.source]]
kind = "perf"
events = ["{event}"]
aux = "{aux}"
{source}
"""
    return write_sessions(directory, trace, chunk="1MiB", staging="64MiB")


# --- snapshots ---

# A PMU's name, and how it tells where it is in an area that runs free: of a name that nobody knows
# that is learned. Begun in an area that came around before its first window, or did not.
FAST: Final = 16384
SLOW: Final = 64  # a CPU takes 16 s to fill an area
RECORDERS: Final = (
    (PMU, "monotonic", True),
    (PMU, "monotonic", False),
    (PMU, "whole", True),
    (PMU, "offset", False),
    ("intel_pt", "whole", True),
    ("arm_spe_0", "offset", False),
)


@contextmanager
def recorder(
    start_cli: Start, directory: Path, name: str, rule: str
) -> Iterator[tuple[Pmu, Daemon]]:
    """Provide a flight recorder of 1 MiB a CPU."""
    event = f"{name}/trace/" if name == PMU else f"{name}//"
    config = write_config(directory, 'mode = "flight-recorder"', event=event)
    with (
        loaded_pmu(name, head=rule, chunk_bytes=SLOW) as pmu,
        running(start_cli, config) as daemon,
    ):
        await_traced(pmu)
        yield pmu, daemon
        assert daemon.stop().status == 0


def await_words(pmu: Pmu, words: int) -> None:
    """Wait until each CPU has produced so many more."""
    before = pmu.counters()
    await_growth(
        lambda: min(c.next_word - before[c.cpu].next_word for c in pmu.counters().values()), words
    )


@pytest.mark.parametrize(("name", "rule", "wrapped"), RECORDERS)
def test_a_snapshot_holds_what_came_last(
    start_cli: Start, checker: Checker, tmp_path: Path, name: str, rule: str, *, wrapped: bool
) -> None:
    """It holds the last bytes before a known instant, contiguous, on every CPU; no old ones."""
    area_words = MIB // WORD_BYTES
    with recorder(start_cli, tmp_path, name, rule) as (pmu, daemon):
        taken = dict.fromkeys(CPUS, 0)
        came_around = dict.fromkeys(CPUS, False)
        for around in (wrapped, False, not wrapped, False):
            pmu.set(chunk_bytes=FAST if around else SLOW)
            pmu.thaw()
            await_words(pmu, 2 * area_words if around else 1)
            pmu.freeze()
            at = pmu.counters()
            paths = daemon.post("/v1/snapshot", {})["segments"]
            found = checker([Path(path) for path in paths])
            assert found.in_order
            assert len(found.words) == len(CPUS)
            for words in found.words:
                now = at[words.cpu].next_word
                fresh = now - taken[words.cpu]
                assert (words.last, words.gaps) == (now - 1, 0)
                if fresh < area_words:
                    assert words.words == fresh
                else:
                    assert area_words >= words.words >= area_words - 4096 // WORD_BYTES
                came_around[words.cpu] |= now > area_words
                taken[words.cpu] = now
        assert all(came_around.values())
        (session,) = daemon.status()["sessions"]
        for area in session["aux"]:
            assert area["quarantined"] is None
            assert (area["produced_bytes"] is None) == (rule != "monotonic")


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


# Nobody calls it but for these tests.
FREEZE: Final = "syscalls:sys_enter_sched_rr_get_interval"


def happens_on(cpu: int) -> None:
    """Make FREEZE happen on a CPU; its ring is stopped when this returns."""
    code = f"import os; os.sched_setaffinity(0, [{cpu}]); os.sched_rr_get_interval(0)"
    subprocess.run([sys.executable, "-c", code], check=True)


def await_more(pmu: Pmu, words: int, but: int = -1) -> None:
    """Wait until each CPU, `but` this one, has produced so many more."""
    before = pmu.counters()
    wait_for(
        lambda: all(
            c.next_word > before[c.cpu].next_word + words
            for c in pmu.counters().values()
            if c.cpu != but
        ),
        f"{words} words more",
    )


def freeze(daemon: Daemon, pmu: Pmu, directory: Path, cpu: int) -> tuple[PmuCounters, list[Path]]:
    """Have FREEZE happen while user space sleeps; gives the CPU as it stood, and the snapshot."""
    stored = sealed(directory)
    os.kill(daemon.pid, signal.SIGSTOP)
    happens_on(cpu)
    at = pmu.counters()[cpu]
    await_more(pmu, MIB // WORD_BYTES, but=cpu)
    assert pmu.counters()[cpu].next_word == at.next_word
    os.kill(daemon.pid, signal.SIGCONT)
    wait_for(lambda: pmu.counters()[cpu].next_word > at.next_word, "what comes next")
    wait_for(lambda: len(sealed(directory)) > len(stored), "a snapshot")
    return at, [path for path in sealed(directory) if path not in stored]


@pytest.mark.parametrize("pauses", [True, False], ids=["paused", "disabled"])
def test_an_event_freezes_the_area(
    start_cli: Start, checker: Checker, tmp_path: Path, *, pauses: bool
) -> None:
    """The kernel itself stops a CPU's trace; it is stored, goes on, and can be stopped again."""
    cpu, area_words = CPUS[-1], MIB // WORD_BYTES
    config = write_config(tmp_path, f'mode = "flight-recorder"\nfreeze_on = "{FREEZE}"')
    with loaded_pmu(PMU, aux_pause=pauses) as pmu, running(start_cli, config) as daemon:
        await_traced(pmu)
        for times in (1, 2):
            await_more(pmu, 2 * area_words)
            at, segments = freeze(daemon, pmu, tmp_path, cpu)
            found = checker(segments)
            assert found.in_order
            (words,) = (one for one in found.words if one.cpu == cpu)
            assert (words.last, words.gaps) == (at.next_word - 1, 0)
            assert words.words >= area_words - 4096 // WORD_BYTES
            assert (bool(at.active), at.pauses) == ((True, times) if pauses else (False, 0))
        assert not daemon.session("trace")["degraded"]
        assert daemon.stop().status == 0


# --- what the kernel tells once ---


def test_each_segment_says_who_traces(
    load_pmu: Load, start_cli: Start, tmp_path: Path, perf: Perf
) -> None:
    """Hardware ids and the begin of a trace come once, and are in every segment."""
    first_id = 0x10
    load_pmu(hw_id=first_id, chunk_bytes=64)  # perf dumps each byte of it
    config = write_config(tmp_path, 'segment_age = "1s"')
    with running(start_cli, config) as daemon:
        wait_for(lambda: len(sealed(tmp_path)) >= 3, "three segments")
        assert daemon.stop().status == 0
    for segment in sealed(tmp_path):
        dumped = perf.run("script", "-D", "-i", segment)
        assert dumped.returncode == 0, dumped.stderr
        ids = re.findall(r"PERF_RECORD_AUX_OUTPUT_HW_ID.*?hw_id: (0x[0-9a-f]+)", dumped.stdout)
        assert {int(one, 16) for one in ids} == {first_id + cpu for cpu in CPUS}
        starts = re.findall(r"^(\d+) .*PERF_RECORD_ITRACE_START", dumped.stdout, re.MULTILINE)
        assert {int(cpu) for cpu in starts} == set(CPUS)


# --- flags, pauses, filters ---


@pytest.mark.parametrize("flag", ["truncated", "partial", "collision"])
def test_flags_are_counted(pmu: Pmu, start_cli: Start, checker: Checker, flag: str) -> None:
    """Each flag of an AUX record is counted as often as it was raised; tracing goes on."""
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
    """Return where a program's code begins in its file: the executable PT_LOAD of an ELF64."""
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
    """The PMU gets the user's ranges of a file that the command maps."""
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
    """Check that all data produced for the observed tasks are in the segments, in order."""
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
    """Provide a process with three busy threads; it runs until it is killed."""
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
    """Only the listed CPUs are traced."""
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
    """The statuses are as documented; a session that does not need it says so."""
    done = run_cli("record", "-a", "-e", "intel_pt//", "-o", "x.data", "--duration", "1s")
    assert done.returncode == STATUS_FEATURE
    assert "no PMU 'intel_pt'" in done.stderr
    none = run_cli("record", "-a", "-e", "cs", "-m", ",1M", "-o", "x.data", "--duration", "1s")
    assert none.returncode == STATUS_USAGE
    assert "AUX area" in none.stderr
    config = write_config(tmp_path, event="intel_pt//", source='when = "present"')
    with config.open("a") as more:
        more.write('[[session.source]]\nkind = "perf"\nevents = ["cs"]\n')
    checked = run_cli("check", config, "--json")
    assert checked.returncode == 0, checked.stderr
    (session,) = json.loads(checked.stdout)["sessions"]
    assert "no PMU 'intel_pt'" in session["degraded"][0]
