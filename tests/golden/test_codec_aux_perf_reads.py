# SPDX-License-Identifier: Apache-2.0
"""Files with AUX traces built by the codec, read by the stock perf: 6.1 and 6.12."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.aux_pmu import TimeConversion
from tests.support.aux_files import ETE, ETMV3, ETMV4, PID, SPE, AuxFile
from tests.support.aux_records import Aux, AuxOutputHwId
from tests.support.pt import PtTrace, tnt, tsc

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.codec.aux_pmu import AuxPmuFacts
    from tests.support.perf_tools import Perf

TRUNCATED: Final = 1 << 0  # PERF_AUX_FLAG_TRUNCATED
KERNEL: Final = 0xFFFFFFFF81000000
CODE: Final = 0x400200
# ITRACE_START and the switch are at 10 and 11 ns.
START_NS: Final = 1_000
STEP_NS: Final = 100
_FIELDS: Final = ("-F", "tid,cpu,time,event,ip")
_LINE: Final = re.compile(
    r"\s*(\d+) \[(\d+)\]\s+[\d.]+:\s+instructions\S*\s+(?:\d+\s+)?([0-9a-f]+)"
)
# The bits for EL1's context id and for time stamps.
_ETM_CONFIG: Final = 1 << 14 | 1 << 28
# A CoreSight frame of 16 bytes with the id of CPU 0's trace unit: A-Sync and Trace Info of ETMv4
# (Arm IHI 0064, IHI 0029). Even bytes keep their lowest bit in the last one.
_ETM_FRAME: Final = "{id:02x}" + 11 * "00" + "80" + "01" + "0000"


@pytest.fixture(params=[0, -1], ids=["oldest", "newest"])
def stock(perfs: tuple[Perf, ...], request: pytest.FixtureRequest) -> Perf:
    """Return the perf of this distribution, then 6.12."""
    return perfs[int(request.param)]


def written(directory: Path, data: bytes) -> Path:
    """Return the path of a file with these bytes."""
    path = directory / "perf.data"
    path.write_bytes(data)
    return path


def trace(psbs: int = 3, tips: int = 5, code: int = CODE, first_ns: int = START_NS) -> PtTrace:
    """PSBs with indirect branches behind each, further ones between conditional branches."""
    made = PtTrace()
    for group in range(psbs):
        time_ns = first_ns + group * STEP_NS
        made.psb(ip=code - 0x100, time=time_ns)
        for number in range(tips):
            made.add(tnt("TNT"[: 1 + number % 3]))
            made.tip(code + 0x10 * (group * tips + number))
        made.add(tsc(time_ns + 10))
    return made


def is_boundary(data: bytes, at: int) -> bool:
    """A packet of `trace` begins there: behind a PSBEND, or at a TIP."""
    return data[at - 2 : at] == b"\x02\x23" or data[at : at + 1] == b"\x2d"


def decoded(stock: Perf, path: Path) -> list[tuple[int, int, int]]:
    """(tid, cpu, address) of all that quick mode lists: FUPs of PSBs, and TIPs."""
    lines = stock.script(path, "--itrace=qi", *_FIELDS)
    found = [_LINE.match(line) for line in lines]
    assert all(found), lines
    return [(int(m[1]), int(m[2]), int(m[3], 16)) for m in found if m]


def tips_of(stock: Perf, path: Path, code: int = CODE) -> list[int]:
    """Return the addresses that are listed, but for those of the PSBs."""
    return [ip for _, _, ip in decoded(stock, path) if ip != code - 0x100]


def test_each_branch_is_listed(stock: Perf, tmp_path: Path) -> None:
    """A trace in one piece gives its TIPs in order, on the right CPU and in the right task."""
    file, made = AuxFile(), trace()
    data = bytes(made.data)
    path = written(tmp_path, file.build((file.side(Aux(0, len(data)), 5_000), file.piece(data))))
    found = decoded(stock, path)
    assert [ip for _, _, ip in found if ip != CODE - 0x100] == made.tips
    assert sum(ip == CODE - 0x100 for _, _, ip in found) == 3
    assert {(tid, cpu) for tid, cpu, _ in found} == {(PID, 0)}


def test_several_pieces(stock: Perf, tmp_path: Path) -> None:
    """A trace in pieces is one trace, if each ends where a packet does."""
    file, made = AuxFile(), trace(psbs=4, tips=9)
    data = bytes(made.data)
    cuts = [at for at in range(8, len(data), 8) if is_boundary(data, at)]
    assert cuts
    ends = [0, *cuts, len(data)]
    pieces = [file.piece(data[a:b], a) for a, b in pairwise(ends)]
    path = written(tmp_path, file.build((file.side(Aux(0, len(data)), 5_000), *pieces)))
    assert tips_of(stock, path) == made.tips


def test_packet_in_two_pieces_is_lost(stock: Perf, tmp_path: Path) -> None:
    """Why pieces end where the kernel's head was, which is behind a packet: perf joins none."""
    file, made = AuxFile(), trace(psbs=1, tips=9)
    data = bytes(made.data)
    cut = data.index(b"\x2d\x50\x02") + 1
    pieces = (file.piece(data[:cut]), file.piece(data[cut:], cut))
    path = written(tmp_path, file.build((file.side(Aux(0, len(data)), 5_000), *pieces)))
    listed = tips_of(stock, path)
    assert 0x400240 in listed
    assert 0x400250 not in listed


def test_segment_that_begins_in_the_middle(stock: Perf, tmp_path: Path) -> None:
    """A rotated segment has no beginning; decoding begins at its first PSB."""
    file, made = AuxFile(), trace(psbs=3, tips=5)
    data = bytes(made.data)
    second = data.index(b"\x02\x82" * 8, 16)
    cut = second - 21
    records = (file.side(Aux(cut, len(data) - cut), 5_000), file.piece(data[cut:], cut))
    path = written(tmp_path, file.build(records))
    assert tips_of(stock, path) == made.tips[5:]


def test_two_cpus(stock: Perf, tmp_path: Path) -> None:
    """Each CPU's trace is a queue of its own, put in one order by time."""
    file = AuxFile()
    traces = [trace(code=CODE, first_ns=1_000), trace(code=KERNEL, first_ns=1_050)]
    records = []
    for cpu, made in enumerate(traces):
        records += [
            file.side(Aux(0, len(made.data)), 5_000, cpu),
            file.piece(bytes(made.data), cpu=cpu),
        ]
    found = decoded(stock, written(tmp_path, file.build(records)))
    for cpu, made in enumerate(traces):
        code = (CODE, KERNEL)[cpu] - 0x100
        assert [ip for _, c, ip in found if c == cpu and ip != code] == made.tips
    order = [cpu for _, cpu, _ in found]
    assert order != sorted(order), "not by time, one CPU after the other"


def test_without_a_clock(stock: Perf, tmp_path: Path) -> None:
    """If the kernel does not give the counter's time, branches are listed without times."""
    file, made = AuxFile(clock=TimeConversion()), trace()
    data = bytes(made.data)
    path = written(tmp_path, file.build((file.side(Aux(0, len(data)), 5_000), file.piece(data))))
    lines = stock.script(path, "--itrace=qi", "-F", "ip")
    assert [ip for ip in (int(line, 16) for line in lines) if ip != CODE - 0x100] == made.tips


@pytest.mark.parametrize("text", ["filter 0x1000/0x200@/bin/x", "filter 0x1000/0x2000"])
def test_filter_is_told(stock: Perf, tmp_path: Path, text: str) -> None:
    """Addresses that the trace was filtered by stand in the file, and do not disturb the rest."""
    file, made = AuxFile(filter_text=text), trace()
    data = bytes(made.data)
    path = written(tmp_path, file.build((file.side(Aux(0, len(data)), 5_000), file.piece(data))))
    shown = stock.run("script", "-D", "-i", path).stdout
    assert re.search(rf"Filter string\s+{re.escape(text)}\s", shown)
    assert tips_of(stock, path) == made.tips


def test_info_is_read_as_meant(stock: Perf, tmp_path: Path) -> None:
    """Perf prints each value of AUXTRACE_INFO under its name."""
    clock = TimeConversion(shift=10, mult=400, zero=77, zero_known=True)
    path = written(tmp_path, AuxFile(clock=clock).build(()))
    shown = stock.run("script", "-D", "-i", path).stdout
    values = dict(re.findall(r"^  ([A-Z][\w :-]+?)\s+(\w+)$", shown, re.MULTILINE))
    assert (
        values
        | {
            "PMU Type": "9",
            "Time Shift": "10",
            "Time Muliplier": "400",
            "Time Zero": "77",
            "Cap Time Zero": "1",
            "TSC bit": "0x400",
            "NoRETComp bit": "0x800",
            "Have sched_switch": "3",
            "Snapshot mode": "0",
            "Per-cpu maps": "1",
            "MTC bit": "0x200",
            "MTC freq bits": "0x3c000",
            "CYC bit": "0x2",
            "Max non-turbo ratio": "24",
        }
        == values
    )


def test_lost_trace_is_told(stock: Perf, tmp_path: Path) -> None:
    """A TRUNCATED record is an error that perf lists, and the trace goes on behind it."""
    file, made = AuxFile(), trace()
    data = bytes(made.data)
    records = (file.side(Aux(0, len(data), TRUNCATED), 5_000), file.piece(data))
    path = written(tmp_path, file.build(records))
    done = stock.run("script", "-i", path, "--itrace=qie", *_FIELDS)
    assert done.returncode == 0
    assert "Lost trace data" in done.stdout + done.stderr
    assert "AUX data lost 1 times out of 1" in done.stderr


@pytest.mark.parametrize(
    ("aux", "protocol"),
    [(ETMV4, "ETMV4I"), (ETE, "ETE"), (ETMV3, "PTM")],
    ids=["etmv4", "ete", "etmv3"],
)
def test_coresight(stock: Perf, tmp_path: Path, aux: AuxPmuFacts, protocol: str) -> None:
    """Both take the header, and find the trace unit that each piece comes from."""
    file = AuxFile(aux=aux, config=_ETM_CONFIG)
    payload = bytes(64)
    records = (file.side(Aux(0, len(payload)), 5_000), file.piece(payload))
    path = written(tmp_path, file.build(records))
    shown = stock.run("script", "-D", "-i", path)
    assert shown.returncode == 0, shown.stderr
    assert f"CoreSight {protocol} Trace data: size 0x40 bytes" in shown.stdout
    read = stock.run("script", "-i", path, "--itrace=i0ns")
    assert read.returncode == 0
    assert "auxtrace buffer" not in read.stderr


@pytest.mark.parametrize("aux", [ETMV4, ETE], ids=["etmv4", "ete"])
def test_coresight_packets(stock: Perf, tmp_path: Path, aux: AuxPmuFacts) -> None:
    """The decoder that perf makes of the header takes packets with the id of that CPU."""
    file = AuxFile(aux=aux, config=_ETM_CONFIG)
    payload = bytes.fromhex(_ETM_FRAME.format(id=0x10 << 1 | 1))
    records = (file.side(Aux(0, len(payload)), 5_000), file.piece(payload))
    shown = stock.run("script", "-D", "-i", written(tmp_path, file.build(records)))
    assert re.search(r"ID:10;\s*I_ASYNC", shown.stdout), shown.stdout
    assert re.search(r"ID:10;\s*I_TRACE_INFO", shown.stdout)


def test_coresight_ids_in_records(perfs: tuple[Perf, ...], tmp_path: Path) -> None:
    """Perf 6.12 takes ids that the kernel chose, though the header has the version of 6.1."""
    file = AuxFile(aux=ETMV4, config=_ETM_CONFIG)
    payload = bytes.fromhex(_ETM_FRAME.format(id=0x31 << 1 | 1))
    ids = [file.side(AuxOutputHwId(0x31 + cpu), 900, cpu) for cpu in (0, 1)]
    records = (*ids, file.side(Aux(0, len(payload)), 5_000), file.piece(payload))
    path = written(tmp_path, file.build(records))
    for stock in perfs:
        shown = stock.run("script", "-D", "-i", path)
        assert shown.returncode == 0, shown.stderr
    assert re.search(r"ID:31;\s*I_ASYNC", shown.stdout), shown.stdout


def test_coresight_registers(stock: Perf, tmp_path: Path) -> None:
    """Options of the event are shown as the register that the driver makes of them."""
    path = written(tmp_path, AuxFile(aux=ETMV4, config=_ETM_CONFIG).build(()))
    shown = stock.run("script", "-D", "-i", path).stdout
    values = dict(re.findall(r"^\t([A-Z][\w /]+?)\s{2,}(\w+)$", shown, re.MULTILINE))
    assert values | {"TRCCONFIGR": "840", "TRCTRACEIDR": "12", "TRCIDR2": "20001088"} == values


def test_spe(stock: Perf, tmp_path: Path) -> None:
    """The PMU's type and the kind of its rings are told; the trace is dumped."""
    file = AuxFile(aux=SPE, config=0)
    payload = bytes(64)
    records = (file.side(Aux(0, len(payload)), 5_000), file.piece(payload))
    path = written(tmp_path, file.build(records))
    shown = stock.run("script", "-D", "-i", path)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"PMU Type\s+9\b", shown.stdout)
    assert "ARM SPE data: size 0x40 bytes" in shown.stdout
    read = stock.run("script", "-i", path, "--itrace=i1i")
    assert read.returncode == 0, read.stderr


def test_hidden_trace_is_passed_by(stock: Perf, tmp_path: Path) -> None:
    """Perf lists all samples of a file with a trace that it cannot decode, and says no word."""
    file = AuxFile(aux=None)
    records = []
    for number in range(40):
        time_ns = 1_000 * (number + 1)
        payload = bytes(range(256)) * 3 * number
        records += [
            file.sample(time_ns, number % 2),
            file.side(Aux(0, len(payload)), time_ns + 1),
            file.piece(payload, 768 * number),
        ]
    path = written(tmp_path, file.build(records))
    assert len(stock.script(path)) == 40


def test_shown_trace_needs_its_info(stock: Perf, tmp_path: Path) -> None:
    """Why other traces are hidden: without AUXTRACE_INFO perf gives the whole file up."""
    shown = replace(AuxFile(), aux=None)
    records = (shown.sample(1_000), AuxFile().piece(bytes(64)), shown.sample(2_000))
    done = stock.run("script", "-i", written(tmp_path, shown.build(records)))
    assert done.returncode != 0 or "failed to process type: 71" in done.stderr
