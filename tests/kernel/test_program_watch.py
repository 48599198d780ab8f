# SPDX-License-Identifier: Apache-2.0
"""BPF programs that come and go during a recording have names in its file."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest

from collectord.codec.perf_data import parse_head
from collectord.codec.perf_record import iter_records
from collectord.codec.perf_sideband import KSYMBOL_UNREGISTER, BpfEvent, BpfEventType, Ksymbol
from collectord.kernel.bpf import bpf_calls, program_image
from collectord.kernel.linux import LinuxKernel
from collectord.plan.event_attrs import sideband_event
from collectord.session.program_watch import ProgramWatch
from tests.support import bpf as programs
from tests.support.hosts import host
from tests.support.perf_ids import decode_sample_id
from tests.support.recording import recording, segments_of
from tests.support.sideband import decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord._native._core import RingMap
    from collectord.codec.perf_attr import PerfEventAttr
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = pytest.mark.alone

RUNS: Final = 20
PRINTK: Final = "bpf_trace:bpf_trace_printk"


def listed() -> dict[int, bytes]:
    """Return the kernel's own names of loaded programs' functions, by address."""
    lines = Path("/proc/kallsyms").read_bytes().splitlines()
    rows = (line.split() for line in lines if line.endswith(b"[bpf]"))
    return {int(row[0], 16): row[2] for row in rows if row[2].startswith(b"bpf_prog_")}


def told(segment: Path) -> list[tuple[int, Ksymbol | BpfEvent]]:
    """Return a segment's records of programs, with the time of each."""
    image = segment.read_bytes()
    head = parse_head(image)
    attr = next(section.attr for section in head.attrs if section.attr.mmap2)
    data = image[head.data_offset : head.data_offset + head.header.data.size]
    found = []
    for header in iter_records(data):
        record = decode(data, header, attr)
        if isinstance(record, Ksymbol | BpfEvent):
            found.append((decode_sample_id(data, header, attr).time_ns, record))
    return list(dict.fromkeys(found))


def calls(program: int) -> None:
    """Run a program so many times."""
    for _ in range(RUNS):
        programs.run_once(program)


@pytest.mark.usefixtures("bcc")
def test_functions_have_the_kernels_names(
    require: Callable[[str], None], start_cli: Start, tmp_path: Path
) -> None:
    """By the types that a program was loaded with, or by its own name."""
    require("BPF")
    with programs.harmless_program(), recording(start_cli, tmp_path, "--bpf", "execsnoop"):
        before = listed()
        found = program_image.symbols(bpf_calls.program_ids())
        names = {function.addr: function.name for one in found for function in one.functions}
        after = listed()
    assert any(name.endswith(b"_passes") for name in names.values())
    assert len(names) > 1
    # Others load and unload theirs meanwhile.
    assert before.items() & after.items() <= names.items()


def test_programs_that_come_and_go_during_a_recording_are_told(
    require: Callable[[str], None], start_cli: Start, tmp_path: Path, perfs: tuple[Perf, ...]
) -> None:
    """Samples in their code have their names, and each has its records at its own time."""
    require("BPF")
    with ExitStack() as before, ExitStack() as after:
        old = before.enter_context(programs.printing_program(b"known"))
        numbers = [bpf_calls.program_info(old).id]
        with recording(start_cli, tmp_path, "-a", "-g", "-e", PRINTK) as ours:
            calls(old)
            before.close()
            # There until the end: one that nobody sees is not told.
            new = after.enter_context(programs.printing_program(b"late"))
            numbers.append(bpf_calls.program_info(new).id)
            calls(new)
    (segment,) = segments_of(ours.session)
    symbols = [(time_ns, r) for time_ns, r in told(segment) if isinstance(r, Ksymbol)]
    known = [(t > 0, r.flags) for t, r in symbols if r.name.endswith(b"_known")]
    assert known == [(False, 0), (True, KSYMBOL_UNREGISTER)]
    late = [(t > 0, r.flags) for t, r in symbols if r.name.endswith(b"_late")]
    assert late == [(True, 0)]
    events = [(r.id, r.kind) for _, r in told(segment) if isinstance(r, BpfEvent)]
    assert [kind for number, kind in events if number == numbers[0]] == [
        BpfEventType.LOAD,
        BpfEventType.UNLOAD,
    ]
    assert (numbers[1], BpfEventType.LOAD) in events
    comm = Path("/proc/self/comm").read_text().strip()
    for perf in perfs:
        frames = Counter(perf.script(segment, "--comm", comm, "-F", "ip,sym"))
        named = Counter(line.split("_")[-1] for line in frames.elements())
        assert (named["known"], named["late"]) == (RUNS, RUNS), perf.version


class Fed:
    """In the place of a ring: keeps the times of what is fed."""

    def __init__(self, attr: PerfEventAttr) -> None:
        self.times: list[int] = []
        self._attr = attr

    def feed(self, records: bytes) -> bool:
        """Take whole records."""
        found = [decode_sample_id(records, h, self._attr).time_ns for h in iter_records(records)]
        self.times += found
        return True


def test_a_late_look_tells_nothing_that_readers_have_passed(
    require: Callable[[str], None],
) -> None:
    """Rounds may have ended since a program came or went: its records are of the look then."""
    require("BPF")
    attr = sideband_event(host()).attr
    fed = Fed(attr)
    round_ns = time.monotonic_ns()
    watch = ProgramWatch(
        LinuxKernel(), cast("RingMap", fed), attr, 1, lambda: round_ns, perf_clock=False
    )
    watch.running()
    with programs.harmless_program():
        loaded_ns = time.monotonic_ns()
        watch.poll()
        assert fed.times
        assert max(fed.times) <= loaded_ns
    # A round has ended since; then nobody knows which have.
    for known in (True, False):
        fed.times.clear()
        with programs.harmless_program():
            late_ns = time.monotonic_ns()
            round_ns = late_ns if known else 0
            watch.poll()
            assert fed.times
            assert min(fed.times) >= late_ns
