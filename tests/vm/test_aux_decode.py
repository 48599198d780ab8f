# SPDX-License-Identifier: Apache-2.0
"""Traces of the test PMU under the names of real ones, recorded here and decoded by perf."""

from __future__ import annotations

import json
import re
import signal
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import segments as cli_segments
from collectord.kernel.linux import LinuxKernel
from tests.support import daemons
from tests.support.daemons import wait_for
from tests.support.pt import PAD, PtTrace, tnt, tsc
from tests.support.recording import daemon, daemon_config
from tests.vm.support_modules import loaded_pmu

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.perf_tools import Perf
    from tests.support.recording import Start
    from tests.vm.support_modules import Pmu

# A unit begins with a PSB and fills a page: records of the kernel end between two.
UNIT_BYTES: Final = 4096
UNITS: Final = 240
TIPS: Final = 25
AUX: Final = "512KiB"
# So slow that none is lost, and that it takes six seconds.
RATE: Final = {
    "chunk_bytes": UNIT_BYTES,
    "period_us": 25_000,
    "aux_record_bytes": 8 * UNIT_BYTES,
    "catch_up_ticks": 8,
}
_LISTED: Final = re.compile(r"\s*\[(\d+)\]\s+instructions\S*\s+([0-9a-f]+)")


def code(cpu: int) -> int:
    """Return the address where a CPU's branches begin."""
    return 0x40_0000_0000 + (cpu << 32)


def unit(cpu: int, number: int, time_tsc: int | None) -> PtTrace:
    """Return a page of packets: a PSB, then branches to addresses that no other unit has."""
    made = PtTrace()
    made.psb(ip=code(cpu), time=time_tsc)
    for tip in range(TIPS):
        made.add(tnt("TNNT"[: 1 + tip % 4]))
        made.tip(code(cpu) + 0x1000 + (number * TIPS + tip) * 16)
        if time_tsc is not None and tip % 5 == 0:
            made.add(tsc(time_tsc + tip))
    return made.add(PAD * (UNIT_BYTES - len(made.data)))


def upload(pmu: Pmu, cpus: int) -> dict[int, list[list[int]]]:
    """Give each CPU its trace; returns the branches of each unit."""
    clock = LinuxKernel().time_conversion()
    now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    tips: dict[int, list[list[int]]] = {}
    for cpu in range(cpus):
        made = []
        for number in range(UNITS):
            time_ns = now_ns + number * RATE["period_us"] * 1000
            ticks = ((time_ns - clock.zero) % (1 << 64) << clock.shift) // max(clock.mult, 1)
            made.append(unit(cpu, number, ticks if clock.zero_known else None))
        pmu.upload(cpu, b"".join(bytes(u.data) for u in made))
        tips[cpu] = [u.tips for u in made]
    return tips


def finished(pmu: Pmu, cpus: int) -> bool:
    """Return whether all CPUs have produced their trace."""
    rows = pmu.counters()
    return all(rows[cpu].upload_position == rows[cpu].upload_size for cpu in range(cpus))


def record(start_cli: Start, pmu: Pmu, cpus: int, *words: str | Path) -> None:
    """Run `collectord record WORDS...` until all is produced."""
    process = start_cli("record", *words)
    wait_for(lambda: finished(pmu, cpus), "the trace to be produced")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGINT), errors


def decoded(perf: Perf, segment: Path) -> dict[int, list[int]]:
    """Return the branches that quick decoding lists, by CPU in the order of the list."""
    found: dict[int, list[int]] = {}
    for line in perf.script(segment, "--itrace=qi", "-F", "cpu,event,ip"):
        match = _LISTED.match(line)
        if match is None:
            continue
        cpu, address = int(match[1]), int(match[2], 16)
        if address != code(cpu):  # that of the PSBs
            found.setdefault(cpu, []).append(address)
    return found


def extracted(
    segment: Path, directory: Path, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, Any]]:
    """Return the output of `segments aux` for a segment."""
    assert not cli_segments.run(
        ["aux", "--json", str(segment), "--output-dir", str(directory / "raw")]
    )
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["traces"]
    return rows


def test_each_segment_alone(
    start_cli: Start, tmp_path: Path, perf: Perf, capsys: pytest.CaptureFixture[str]
) -> None:
    """For each rotated segment, perf lists exactly the branches whose packets are in it."""
    cpus = len(LinuxKernel().online_cpus())
    config = daemon_config(
        tmp_path,
        session='segment_bytes = "0"\nsegment_age = "1s"',
        core='flush_interval = "100ms"',
        events='["intel_pt//"]',
        source=f'aux = "{AUX}"',
    )
    with loaded_pmu("intel_pt", upload=1, **RATE) as pmu:
        tips = upload(pmu, cpus)
        with daemon(start_cli, config):
            wait_for(lambda: finished(pmu, cpus), "the trace to be produced")
        truncated = [row.truncated_bytes for row in pmu.counters().values()]
    assert not any(truncated)
    segments = daemons.sealed(tmp_path / "state")
    assert len(segments) >= 3
    listed: dict[int, list[int]] = {cpu: [] for cpu in range(cpus)}
    for segment in segments:
        expected: dict[int, list[int]] = {}
        for row in extracted(segment, tmp_path, capsys):
            assert not row["gaps"]
            first, rest = divmod(row["offset"], UNIT_BYTES)
            units, more = divmod(row["bytes"], UNIT_BYTES)
            assert (rest, more) == (0, 0), "a piece ended inside of a unit"
            expected[row["cpu"]] = list(chain(*tips[row["cpu"]][first : first + units]))
        found = decoded(perf, segment)
        assert found == {cpu: addresses for cpu, addresses in expected.items() if addresses}
        for cpu, addresses in found.items():
            listed[cpu] += addresses
    assert listed == {cpu: list(chain(*units)) for cpu, units in tips.items()}


def test_snapshot(start_cli: Start, tmp_path: Path, perf: Perf) -> None:
    """A window that has wrapped holds the newest trace, up to the last branch."""
    cpus = len(LinuxKernel().online_cpus())
    out = tmp_path / "snapshot.perf.data"
    with loaded_pmu("intel_pt", upload=1, **RATE) as pmu:
        tips = upload(pmu, cpus)
        words = ("-a", "-e", "intel_pt//", "-m", ",64K", "-S", "-o", out, "--json")
        record(start_cli, pmu, cpus, *words)
    found = decoded(perf, out)
    window = (64 << 10) // UNIT_BYTES
    for cpu, units in tips.items():
        everything = list(chain(*units))
        listed = found[cpu]
        assert listed == everything[-len(listed) :], "not the newest, or not in one piece"
        assert len(listed) >= (window - 1) * TIPS


@pytest.mark.parametrize(
    ("name", "terms", "shown"),
    [("cs_etm", "cs_etm//", "CoreSight"), ("arm_spe_0", "arm_spe_0//", "ARM SPE data")],
)
def test_structure(
    start_cli: Start, tmp_path: Path, perf: Perf, *, name: str, terms: str, shown: str
) -> None:
    """Perf takes files with traces of Arm's PMUs, and finds the piece that each record is of."""
    cpus = len(LinuxKernel().online_cpus())
    out = tmp_path / "out.perf.data"
    with loaded_pmu(name, upload=1, **RATE) as pmu:
        for cpu in range(cpus):
            pmu.upload(cpu, bytes(50 * UNIT_BYTES))
        record(start_cli, pmu, cpus, "-a", "-e", terms, "-m", f",{AUX}", "-o", out, "--json")
    dumped = perf.run("script", "-D", "-i", out)
    assert dumped.returncode == 0, dumped.stderr
    assert shown in dumped.stdout
    sizes = re.findall(r"PERF_RECORD_AUXTRACE size: (0x[0-9a-f]+)", dumped.stdout)
    assert sum(int(size, 16) for size in sizes) == cpus * 50 * UNIT_BYTES
    read = perf.run("script", "-i", out, "--itrace=i1000i")
    assert read.returncode == 0, read.stderr
    assert "auxtrace buffer" not in read.stderr
