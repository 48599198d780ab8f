# SPDX-License-Identifier: Apache-2.0
"""Files built by the codec, read by the stock perf: 6.1 and, where it is installed, 6.12."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec import tracing_data
from collectord.codec.perf_attr import (
    CLOCK_MONOTONIC,
    EventType,
    PerfEventAttr,
    RecordType,
    SampleType,
    SoftwareId,
)
from collectord.codec.perf_data import (
    AttrSection,
    Head,
    build_head,
    build_tail,
    parse_head,
)
from collectord.codec.perf_features import BuildId, ClockData, Features, Group
from collectord.codec.perf_record import Misc, SampleId, frame, iter_records
from collectord.codec.perf_sideband import (
    Comm,
    Fork,
    Ksymbol,
    KsymbolType,
    Lost,
    LostSamples,
    Mmap,
    Mmap2,
)
from tests.support import profiles
from tests.support.perf_ids import identifier
from tests.support.query_tables import rows_of, tables_in
from tests.support.samples import Sample, encode_sample
from tests.support.sideband import Exit, Record, encode
from tests.support.whole_records import last_whole_record

if TYPE_CHECKING:
    from tests.support.perf_tools import Perf

HERE: Final = Path(__file__).parent
BASE: Final = (
    SampleType.IDENTIFIER | SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.CPU
)
CLOCK: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.CPU_CLOCK,
    sample_period=1_000_000,
    sample_type=BASE | SampleType.PERIOD,
    sample_id_all=True,
    use_clockid=True,
    clockid=CLOCK_MONOTONIC,
)
DUMMY: Final = replace(
    CLOCK, config=SoftwareId.DUMMY, sample_type=BASE, mmap=True, mmap2=True, comm=True, task=True
)
TRACEPOINT: Final = replace(
    CLOCK,
    type=EventType.TRACEPOINT,
    config=305,
    sample_period=1,
    sample_type=BASE | SampleType.RAW,
)
TRACEPOINT_NAME: Final = "syscalls:sys_enter_getppid"
EVENTS: Final = (
    AttrSection(CLOCK, (11, 12), "cpu-clock"),
    AttrSection(TRACEPOINT, (21, 22), TRACEPOINT_NAME),
    AttrSection(DUMMY, (31, 32), "sideband"),
)
CLOCK_ONLY: Final = (EVENTS[0], EVENTS[2])
BUILD_ID: Final = bytes(range(1, 21))
KERNEL_TEXT: Final = 0xFFFFFFFF81000000
BPF_TEXT: Final = 0xFFFFFFFFC0001000
PID: Final = 4242
NOTHING: Final = Features()


@pytest.fixture(params=[0, -1], ids=["oldest", "newest"])
def stock(perfs: tuple[Perf, ...], request: pytest.FixtureRequest) -> Perf:
    """Return the perf of this distribution, then 6.12."""
    return perfs[int(request.param)]


def run(stock: Perf, *words: str | Path) -> str:
    """Give perf's output; it must succeed and have nothing to complain about."""
    done = stock.run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def formats() -> bytes:
    """Return the TRACING_DATA section for the one tracepoint of these files."""
    kernel = HERE / "kernel-6.18"
    return tracing_data.build(
        tracing_data.TracingData(
            header_page=(kernel / "header_page").read_bytes(),
            header_event=(kernel / "header_event").read_bytes(),
            page_size_bytes=4096,
            events={"syscalls": [(kernel / "sys_enter_getppid.format").read_bytes()]},
        )
    )


def side(record: Record, time_ns: int, cpu: int = 0) -> bytes:
    """Return a record of the dummy event."""
    return encode(record, DUMMY, SampleId(pid=PID, tid=PID, time_ns=time_ns, id=31, cpu=cpu))


def preamble() -> bytes:
    """Return a task with a name and a mapping of a file with a build-id."""
    return b"".join(
        (
            side(Fork(PID, 1, PID, 1, 900), 900),
            side(Comm(PID, PID, b"worker", is_exec=True), 1000),
            side(
                Mmap2(
                    *(PID, PID, 0x400000, 0x10000, 0x1000, 5, 2, b"/opt/with space/worker"),
                    build_id=BUILD_ID,
                ),
                1001,
            ),
        )
    )


def clock_sample(time_ns: int, ip: int = 0x401234, cpu: int = 0) -> bytes:
    """Return a sample of cpu-clock in the task."""
    sample = Sample(
        misc=Misc.USER if ip < 1 << 63 else Misc.KERNEL,
        id=11 + cpu,
        ip=ip,
        pid=PID,
        tid=PID,
        time_ns=time_ns,
        cpu=cpu,
        period=1_000_000,
    )
    return encode_sample(sample, CLOCK)


def padded(records: bytes) -> bytes:
    """Records up to the next page, as a closing chunk has them."""
    gap = -len(records) % 4096
    return records + frame(RecordType.FINISHED_INIT, 0, bytes(gap - 8)) if gap else records


def seal(path: Path, head: Head, records: bytes, features: Features = NOTHING) -> Path:
    """Write a whole file."""
    tail = build_tail(head, len(head.first_records) + len(records), features)
    path.write_bytes(tail.header + head.image[len(tail.header) :] + records + tail.tail)
    return path


def test_samples_and_names(stock: Perf, tmp_path: Path) -> None:
    """Every sample is shown, with the comm, mapping, event name and id of its own event."""
    records = preamble() + b"".join(clock_sample(2000 + n, cpu=n % 2) for n in range(100))
    file = seal(tmp_path / "a.data", build_head(CLOCK_ONLY), padded(records))
    lines = run(
        stock, "script", "--ns", "-i", file, "-F", "comm,pid,tid,cpu,time,event,ip,sym,dso,period"
    ).splitlines()
    assert len(lines) == 100
    assert lines[1].split() == [
        *("worker", "4242/4242", "[001]", "0.000002001:", "1000000", "cpu-clock:"),
        *("401234", "[unknown]", "(/opt/with", "space/worker)"),
    ]


def test_chunks_with_rounds_and_padding(stock: Perf, tmp_path: Path) -> None:
    """Padding between chunks is passed by, and rounds leave samples in the order of time."""
    chunks = [
        padded(preamble() + clock_sample(5000)),
        padded(clock_sample(4000, cpu=1) + frame(RecordType.FINISHED_ROUND, 0, b"")),
        padded(clock_sample(7000) + clock_sample(6000, cpu=1)),
    ]
    file = seal(tmp_path / "a.data", build_head(CLOCK_ONLY), b"".join(chunks))
    out = run(stock, "script", "--ns", "-i", file, "-F", "time")
    assert out.split() == ["0.000004000:", "0.000005000:", "0.000006000:", "0.000007000:"]


def test_tracepoint_of_this_kernel(stock: Perf, tmp_path: Path) -> None:
    """A sample that the kernel wrote is decoded by the format in TRACING_DATA."""
    captured = (HERE / "kernel-6.18/samples.bin").read_bytes()
    attr, records = PerfEventAttr.decode(captured[:128]), captured[128:]
    event_id = identifier(records, next(iter_records(records)))
    head = build_head((AttrSection(attr, (event_id,), TRACEPOINT_NAME),), formats())
    file = seal(tmp_path / "a.data", head, records)
    assert run(stock, "script", "-i", file, "-F", "trace:event").split() == [
        f"{TRACEPOINT_NAME}:",
        f"{TRACEPOINT_NAME}:",
    ]
    fields = run(stock, "evlist", "-i", file, "--trace-fields")
    assert fields.split() == [
        *(f"{TRACEPOINT_NAME}:", "trace_fields:", "__syscall_nr"),
    ]
    assert head.tracing_data == formats()


def test_mixed_events(stock: Perf, tmp_path: Path) -> None:
    """Tracepoint and clock samples in one file are told apart by their ids."""
    trace = Sample(
        misc=Misc.USER, id=22, ip=1, pid=PID, tid=PID, time_ns=3000, cpu=1, raw=bytes(20)
    )
    records = preamble() + clock_sample(2000) + encode_sample(trace, TRACEPOINT)
    file = seal(tmp_path / "a.data", build_head(EVENTS, formats()), padded(records))
    out = run(stock, "script", "-i", file, "-F", "event")
    assert out.split() == ["cpu-clock:", f"{TRACEPOINT_NAME}:"]
    assert run(stock, "evlist", "-i", file).split("\n")[:3] == [event.name for event in EVENTS]


def test_header_features(stock: Perf, tmp_path: Path) -> None:
    """`report --header-only` shows what the feature sections say."""
    features = Features(
        hostname="hôst",
        osrelease="6.18.0",
        version="0.1",
        arch="x86_64",
        nrcpus=(2, 4),
        cpudesc="A CPU",
        cpuid="Vendor,1,2,3",
        total_mem_kib=123456,
        cmdline=("collectord", "record", "x" * 63, "-a"),
        pmu_mappings=(("software", 1), ("tracepoint", 2)),
        clockid_resolution_ns=1,
        clock_data=ClockData(CLOCK_MONOTONIC, 1_700_000_000_000_000_000, 1_000_000_000),
    )
    head = build_head(CLOCK_ONLY, features=features)
    late = Features(sample_time=(2000, 2099), version="0.2")
    file = seal(tmp_path / "a.data", head, padded(preamble() + clock_sample(2000)), late)
    out = run(stock, "report", "--header-only", "-i", file)
    for line in (
        "# hostname : hôst",
        "# os release : 6.18.0",
        "# perf version : 0.2",
        "# arch : x86_64",
        "# nrcpus online : 2",
        "# nrcpus avail : 4",
        "# cpudesc : A CPU",
        "# cpuid : Vendor,1,2,3",
        "# total memory : 123456 kB",
        f"# cmdline : collectord record {'x' * 63} -a ",
        "# pmu mappings: software = 1, tracepoint = 2",
        "# clockid: monotonic (1)",
        "22:13:20.000000 = 1700000000.000000 (TOD) = 1.000000000 (monotonic)",
        "# time of first sample : 0.000002",
        "# time of last sample : 0.000002",
        "# event : name = cpu-clock, , id = { 11, 12 }, type = 1",
    ):
        assert line in out


def test_time_slices_and_wall_clock(stock: Perf, tmp_path: Path) -> None:
    """SAMPLE_TIME lets `--time` take per cents, CLOCK_DATA lets `tod` show the wall clock."""
    times = range(1_000_000_000, 2_000_000_000, 10_000_000)
    clock = ClockData(CLOCK_MONOTONIC, 1_700_000_000_000_000_000, 1_000_000_000)
    features = Features(
        sample_time=(times[0], times[-1]), clock_data=clock, clockid_resolution_ns=1
    )
    records = padded(preamble() + b"".join(map(clock_sample, times)))
    file = seal(tmp_path / "a.data", build_head(CLOCK_ONLY), records, features)
    out = run(stock, "script", "-i", file, "--time", "10%-20%", "-F", "time")
    assert 9 <= len(out.splitlines()) <= 11
    wall = run(stock, "script", "-i", file, "-F", "tod").splitlines()
    assert wall[50].strip().endswith(":20.500000")


def test_groups(stock: Perf, tmp_path: Path) -> None:
    """GROUP_DESC names the group's members."""
    features = Features(group_desc=(Group(0, 2),))
    head = build_head(CLOCK_ONLY, features=features)
    file = seal(tmp_path / "a.data", head, padded(preamble() + clock_sample(2000)))
    assert run(stock, "evlist", "-g", "-i", file).startswith("{cpu-clock,sideband}")


def test_build_ids(stock: Perf, tmp_path: Path) -> None:
    """`buildid-list` finds build-ids in the BUILD_ID section, and in MMAP2 records alone."""
    records = padded(preamble() + clock_sample(2000))
    bare = seal(tmp_path / "bare.data", build_head(CLOCK_ONLY), records)
    assert f"{BUILD_ID.hex()} /opt/with space/worker" in run(
        stock, "buildid-list", "-i", bare, "--with-hits"
    )
    features = Features(build_ids=(BuildId("/usr/lib/libx.so", BUILD_ID[::-1]),))
    file = seal(tmp_path / "listed.data", build_head(CLOCK_ONLY), records, features)
    assert f"{BUILD_ID[::-1].hex()} /usr/lib/libx.so" in run(stock, "buildid-list", "-i", file)


def test_kernel_map_and_ksymbol(stock: Perf, tmp_path: Path) -> None:
    """A sample in text that KSYMBOL announced is shown by that name."""
    kernel = Mmap(
        2**32 - 1, 0, KERNEL_TEXT, 1 << 24, KERNEL_TEXT, b"[kernel.kallsyms]_text", Misc.KERNEL
    )
    symbol = Ksymbol(BPF_TEXT, 0x100, KsymbolType.BPF, 0, b"bpf_prog_0123456789abcdef_f")
    records = side(kernel, 0) + side(symbol, 0) + preamble() + clock_sample(2000, BPF_TEXT + 8)
    file = seal(tmp_path / "a.data", build_head(CLOCK_ONLY), padded(records))
    out = run(stock, "script", "-i", file, "-F", "ip,sym", "--kallsyms", "/dev/null")
    assert "bpf_prog_0123456789abcdef_f" in out


def test_samples_have_the_cgroups_that_perf_has(perfs: tuple[Perf, ...], tmp_path: Path) -> None:
    """By the first path that is told of an id; perf 6.1 cannot print them."""
    attr = profiles.CGROUP_ATTR
    file = profiles.write(
        tmp_path / "a.data",
        *(profiles.cgroup(0, number, path) for number, path in ((1, b"/"), (70, b"/a b/c"))),
        profiles.cgroup(0, 70, b"/other"),
        *(profiles.sample(at, 50, attr=attr, cgroup=at) for at in (70, 1, 99)),
        attr=attr,
    )
    printed = run(perfs[-1], "script", "-i", file, "-F", "time,cgroup", "-G").splitlines()
    told = [line.partition(":")[2].strip() for line in printed]
    with ExitStack() as stack:
        rows = rows_of(tables_in(stack, file)["samples"], "cgroup", "mono_ns")
    assert [name or "unknown" for name, _ in sorted(rows, key=lambda row: row[1])] == told
    assert told == ["/", "/a b/c", "unknown"]


def test_loss_is_reported(stock: Perf, tmp_path: Path) -> None:
    """LOST and LOST_SAMPLES are counted by `report --stats`, EXIT and COMM too."""
    records = preamble() + side(Lost(11, 3), 1500) + side(LostSamples(7), 1600)
    records += clock_sample(2000) + side(Exit(PID, 1, PID, 1, 3000), 3000)
    file = seal(tmp_path / "a.data", build_head(CLOCK_ONLY), padded(records))
    out = run(stock, "report", "--stats", "-i", file)
    counts = dict(line.split(" events:")[0:2] for line in out.splitlines() if " events:" in line)
    found = {name.strip(): int(rest.split()[0]) for name, rest in counts.items()}
    del found["TOTAL"], found["FINISHED_INIT"]
    assert found.pop("LOST_SAMPLES") == 7  # per event, what was lost; above it, records
    assert set(found.values()) == {1}
    assert {"LOST", "SAMPLE", "COMM", "MMAP2", "FORK", "EXIT"} <= found.keys()


@pytest.mark.parametrize("cut_bytes", [0, 3, 8, 50, 4096])
def test_repair_of_an_open_file(stock: Perf, tmp_path: Path, cut_bytes: int) -> None:
    """A file left open is made whole from its own bytes: formats, names, and all records kept."""
    trace = Sample(
        misc=Misc.USER, id=22, ip=1, pid=PID, tid=PID, time_ns=1500, cpu=1, raw=bytes(20)
    )
    records = preamble() + encode_sample(trace, TRACEPOINT)
    samples = [clock_sample(2000 + n) for n in range(200)]
    whole = b"".join((records, *samples))
    features = Features(hostname="host")
    orphan = build_head(EVENTS, formats(), features=features).image
    orphan += whole[: len(whole) - cut_bytes] + bytes(8192)
    head = parse_head(orphan)
    end = last_whole_record(orphan[head.write_offset :])
    size = len(head.first_records) + end
    tail = build_tail(head, size, Features(sample_time=(1500, 2199)))
    file = tmp_path / "a.data"
    file.write_bytes(tail.header + orphan[len(tail.header) : head.data_offset + size] + tail.tail)
    out = run(stock, "script", "-i", file, "-F", "event").split()
    kept = (end - len(records)) // len(samples[0])
    assert out == [f"{TRACEPOINT_NAME}:"] + ["cpu-clock:"] * kept
    assert len(whole) - end <= cut_bytes + 2 * len(samples[0])
    assert "# hostname : host" in run(stock, "report", "--header-only", "-i", file)
