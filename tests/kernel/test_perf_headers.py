# SPDX-License-Identifier: Apache-2.0
"""Files of ours beside files of perf record: what readers are told of the host and its tasks."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from collectord.codec.perf_attr import RecordType
from tests.conftest import cli_command, cli_environment
from tests.support import recording

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.perf_tools import Perf

pytestmark = pytest.mark.alone

EVENTS: Final = ("-e", "{context-switches,page-faults}", "-e", "sched:sched_switch")
SLEEP: Final = ("--", "sleep", "0.2")
# Lines that begin with these words need not be the same in the rest.
ARGUED: Final = {
    "captured on": "another second",
    "data offset": "the head has room for what a repair needs",
    "data size": "other events happened",
    "feat offset": "follows from both",
    "perf version": "names the recorder",
    "cmdline": "names the command",
    "node0 meminfo": "free memory at another moment",
    "pmu mappings": "ours are sorted, perf has them as the folder has them; compared apart",
    "time of first sample": "another recording",
    "time of last sample": "another recording",
    "sample duration": "another recording",
    "reference time": "another moment",
    "event": "compared field by field",
    "missing features": "compared apart",
}
# Lines that only files of perf have.
ARGUED_ABSENT: Final = {
    "cpu pmu capabilities: not available": "an empty list of a PMU that is absent, of perf 6.12",
}
# perf 6.12 makes one up where there is none.
ARGUED_PMUS: Final = {"cpu = 4"}
# Sections that only files of perf have.
ARGUED_MISSING: Final = {
    "CPU_PMU_CAPS": "the same",
}
# Fields of an event that need not be the same.
ARGUED_FIELDS: Final = {
    "id": "the kernel's numbers",
    "name": "of the dummy event, which perf 6.12 calls dummy:u",
    "size": "perf 6.1 refuses what perf 6.12 writes",
    "sample_type": "compared apart",
    "read_format": "ours has the times too, by which a multiplexed counter is seen",
    "inherit": "perf asks for it of whole CPUs too, where it says nothing",
    "watermark": "ours wakes at half a ring",
    "{ wakeup_events, wakeup_watermark }": "the same",
    "exclude_guest": "of the dummy event, which perf 6.12 has leave guests out",
    "disabled": "perf starts its dummy event at once",
    "exclude_kernel": "of the dummy event, which never fires and so asks for no privilege",
    "exclude_hv": "likewise",
    "build_id": "of the dummy event",
    "ksymbol": "records that other listeners share; written from user space",
    "bpf_event": "likewise",
}
_FIELD: Final = re.compile(r", (\{[^}]*\}|\w+) = (\{[^}]*\}|[^,]*)")


class Pair(NamedTuple):
    """Two recordings of the whole host, one after the other."""

    perf: Perf
    ours: Path
    theirs: Path


@pytest.fixture(scope="module", params=[0, -1], ids=["oldest", "newest"])
def pair(
    perfs: tuple[Perf, ...],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Pair:
    """Return a recording of perf and one of ours, of the same events."""
    perf = perfs[int(request.param)]
    folder = tmp_path_factory.mktemp("pair")
    theirs, ours = folder / "theirs.data", folder / "ours.data"
    words = ("-k", "CLOCK_MONOTONIC", "-N", "-a", "-c", "1")
    done = perf.run("record", *words, *EVENTS, "-o", theirs, *SLEEP)
    assert done.returncode == 0, done.stderr
    subprocess.run(
        cli_command("record", "-a", *EVENTS, "-o", ours, *SLEEP),
        env=cli_environment(),
        capture_output=True,
        check=True,
    )
    return Pair(perf, ours, theirs)


def header(perf: Perf, file: Path) -> list[str]:
    """Return the lines that perf prints of a file's header."""
    done = perf.run("report", "--header-only", "-I", "--force", "-i", file)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.removeprefix("# ") for line in done.stdout.splitlines()]


def lines_of(lines: list[str], start: str) -> list[str]:
    """Return the rest of each line that begins with `start`."""
    return [line.removeprefix(start).lstrip(" :") for line in lines if line.startswith(start)]


def fields(line: str) -> dict[str, str]:
    """Return the fields of an event's line."""
    return {name: value.strip() for name, value in _FIELD.findall(", " + line)}


def test_header_is_that_of_perf_record(pair: Pair) -> None:
    """Every line of `report --header-only -I` is perf record's, but for those that are argued."""
    ours, theirs = header(pair.perf, pair.ours), header(pair.perf, pair.theirs)

    def comparable(lines: list[str]) -> list[str]:
        told = [line for line in lines if line not in ARGUED_ABSENT]
        return [next(filter(line.startswith, ARGUED), line) for line in told]

    assert comparable(ours) == comparable(theirs)
    (our,), (their,) = lines_of(ours, "pmu mappings"), lines_of(theirs, "pmu mappings")
    assert {*our.split(", ")} ^ {*their.split(", ")} <= ARGUED_PMUS
    (our,), (their,) = lines_of(ours, "missing features"), lines_of(theirs, "missing features")
    assert set(our.split()) - set(their.split()) <= set(ARGUED_MISSING)
    assert set(their.split()) <= set(our.split())


def test_events_are_those_of_perf_record(pair: Pair) -> None:
    """Names, types and what samples carry are perf's, but for fields that are argued."""
    ours, theirs = (
        [fields(line) for line in lines_of(header(pair.perf, file), "event")]
        for file in (pair.ours, pair.theirs)
    )
    for our, their in zip(ours, theirs, strict=True):
        different = {key for key in {*our, *their} if our.get(key) != their.get(key)}
        assert different <= set(ARGUED_FIELDS), (our, their)
        carried = {*our["sample_type"].split("|")} ^ {*their["sample_type"].split("|")}
        assert carried <= {"PERIOD"}, "without it the kernel repeats samples of weighted events"


def test_groups_have_no_name(pair: Pair) -> None:
    """A group is printed with its members' names, once."""
    done = pair.perf.run("evlist", "-g", "--force", "-i", pair.ours)
    assert done.stdout.splitlines()[0] == "{context-switches,page-faults}"


def test_socket_and_cache_reports_work(pair: Pair) -> None:
    """Reports by socket, and of cache lines, find the machine in the file."""
    for file in (pair.ours, pair.theirs):
        done = pair.perf.run("report", "--sort", "socket", "--stdio", "--force", "-i", file)
        assert re.search(r"100\.00%.* 000$", done.stdout, re.MULTILINE), file
        done = pair.perf.run("c2c", "report", "--stdio", "--force", "-i", file)
        assert (done.returncode, "Trace Event Information" in done.stdout) == (0, True), file


def tasks(perf: Perf, file: Path) -> dict[int, int]:
    """Parents by thread id, as `report --tasks` prints them."""
    done = perf.run("report", "--tasks", "--force", "-i", file)
    rows = (line.split()[:3] for line in done.stdout.splitlines() if not line.startswith("#"))
    return {int(tid): int(parent) for _, tid, parent in rows}


def test_tasks_have_their_parents(pair: Pair) -> None:
    """Tasks that exist at the start have the parents that perf record finds."""
    ours, theirs = tasks(pair.perf, pair.ours), tasks(pair.perf, pair.theirs)
    # The child of a task that ended between the recordings has another parent in the later one.
    both = {
        tid
        for tid in ours.keys() & theirs.keys() - {0}
        if ours[tid] in theirs and theirs[tid] in ours
    }
    assert len(both) > 10
    # One whose parent ends while it is listed goes to one of those above it.
    adopted = {tid for tid in both if ours[tid] in _above(theirs, theirs[tid])}
    assert len(adopted) < len(both) / 10
    same = both - adopted
    assert {tid: ours[tid] for tid in same} == {tid: theirs[tid] for tid in same}


def _above(parents: dict[int, int], tid: int) -> set[int]:
    """Return the parent of a task, its parent, and so on."""
    found: set[int] = set()
    while (tid := parents.get(tid, 0)) > 0 and tid not in found:
        found.add(tid)
    return found


def test_ids_threads_and_cpus_are_listed(pair: Pair) -> None:
    """ID_INDEX, THREAD_MAP and CPU_MAP stand ahead of all other records, as in perf's files."""
    first = (RecordType.ID_INDEX, RecordType.THREAD_MAP, RecordType.CPU_MAP)
    types = list(map(int, recording.record_types(pair.ours)))
    assert types[:3] == list(first)
    dumps = [
        pair.perf.run("report", "-D", "--force", "-i", file).stdout
        for file in (pair.ours, pair.theirs)
    ]
    ours, theirs = (
        re.findall(r" \.\.\. id: \d+  (idx: \d+  cpu: \d+  tid: -?\d+)", dump) for dump in dumps
    )
    assert ours == theirs
    ours, theirs = (re.findall(r"(PERF_RECORD_(?:THREAD|CPU)_MAP.*)", dump) for dump in dumps)
    assert ours == theirs
