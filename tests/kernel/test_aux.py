# SPDX-License-Identifier: Apache-2.0
"""AUX areas on whatever kernel this is: what refuses one says so. See tests/vm for real ones."""

from __future__ import annotations

import asyncio
import errno
import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collectord.codec.perf_attr import EventType, PerfEventAttr, ReadFormat, SoftwareId
from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import PerfSourceConfig, SessionConfig
from collectord.daemon.daemon import Daemon
from collectord.daemon.host_facts import host_facts
from collectord.errors import KernelError, MissingFeature
from collectord.facts.kernel_facts import PmuFacts
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.mappings import map_aux, map_ring
from collectord.kernel.probe.aux_trial import can_pause, has_aux, with_aux
from collectord.source.aux import await_resumed
from collectord.source.ring import CounterFd
from tests.support.configs import perf_source
from tests.support.daemons import running

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from collectord.config.schema_session import When
    from collectord.ledger.record_ledger import SessionBalance

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

STATUS_FEATURE = 5
STATUS_USAGE = 2
SOFTWARE = PmuFacts(type=EventType.SOFTWARE)
ABSENT = next(
    name
    for name in ("intel_pt", "cs_etm", "arm_spe_0")
    if not Path("/sys/bus/event_source/devices", name).exists()
)


def test_an_event_without_aux_refuses_the_area() -> None:
    """The error names the missing part, instead of EOPNOTSUPP alone."""
    kernel = LinuxKernel()
    attr = PerfEventAttr(type=EventType.SOFTWARE, config=SoftwareId.DUMMY, disabled=True)
    with ExitStack() as stack:
        fd = kernel.perf_event_open(attr, pid=0, cpu=-1)
        stack.callback(kernel.close, fd)
        ring = map_ring(fd, kernel.page_bytes, kernel.limits)
        stack.callback(ring.close)
        with pytest.raises(MissingFeature, match="no AUX area") as caught:
            map_aux(fd, ring, kernel.page_bytes, kernel.limits, snapshot=False)
    assert (caught.value.feature, caught.value.errno) == ("AUX", errno.EOPNOTSUPP)


def test_a_trial_tells_pmus_apart() -> None:
    """A PMU without an area has none; one whose event cannot be opened is not said to have one."""
    kernel = LinuxKernel()
    cpu = kernel.online_cpus()[0]
    assert not has_aux(kernel, SOFTWARE, cpu)
    assert not has_aux(kernel, PmuFacts(type=0x7FFFFFFF), cpu)
    known = {"software": SOFTWARE, "intel_pt": PmuFacts(type=0x7FFFFFFF, aux=True)}
    assert with_aux(kernel, known, ["software", "intel_pt", "none"], {}) == known


def test_a_trial_tells_what_cannot_be_paused() -> None:
    """An event without an AUX area leads a group in which nothing can pause it."""
    kernel = LinuxKernel()
    assert not can_pause(kernel, SOFTWARE, None, kernel.online_cpus()[0])


def test_the_counters_clock_is_told() -> None:
    """The known parts of the conversion are complete: a zero never comes without its factor."""
    found = LinuxKernel().time_conversion()
    if found.zero_known:
        assert found.mult > 0
        assert found.shift < 64


def test_absent_hardware_has_a_status(run_cli: Run, tmp_path: Path) -> None:
    """The status is 5 for a lack of this machine, 2 for options that make no sense on any."""
    words = ("-a", "-o", "x.data", "--duration", "1s")
    done = run_cli("record", "-e", f"{ABSENT}//", *words)
    assert done.returncode == STATUS_FEATURE
    assert f"no PMU '{ABSENT}'" in done.stderr
    none = run_cli("record", "-e", "cs", "-m", ",1M", *words)
    assert none.returncode == STATUS_USAGE
    assert "no event of the source has an AUX area" in none.stderr
    config = tmp_path / "c.toml"
    config.write_text(
        f"""
[[session]]
name = "trace"
[[session.source]]
kind = "perf"
events = ["{ABSENT}//"]
when = "present"
[[session.source]]
kind = "perf"
events = ["cs"]
"""
    )
    checked = run_cli("check", config, "--json")
    assert checked.returncode == 0, checked.stderr
    (session,) = json.loads(checked.stdout)["sessions"]
    assert f"no PMU '{ABSENT}'" in session["degraded"][0]
    assert [event["name"] for event in session["events"]] == ["cs", "dummy:HG"]


def test_a_session_of_absent_hardware_is_seen(tmp_path: Path, start_cli: Start) -> None:
    """It comes up degraded, says why, is in the metrics, and the others run."""
    config = tmp_path / "collectord.toml"
    config.write_text(
        f"""
[daemon]
state_dir = "{tmp_path / "state"}"
[metrics]
listen = "127.0.0.1:0"
[control]
socket = "{tmp_path / "control.sock"}"
[[session]]
name = "trace"
[[session.source]]
kind = "perf"
events = ["{ABSENT}//"]
aux = "1MiB"
when = "present"
[[session]]
name = "clock"
[[session.source]]
kind = "perf"
events = ["cpu-clock"]
frequency = 19
"""
    )
    with running(start_cli, config) as daemon:
        trace, clock = daemon.session("trace"), daemon.session("clock")
        assert trace["state"] == "degraded"
        assert f"no PMU '{ABSENT}'" in trace["degraded"][0]
        assert (trace["stored"], trace["rings"]) == (0, [])
        assert clock["state"] == "running"
        labels = 'session="trace",source="perf",state="degraded"'
        assert daemon.metric(f"collectord_session_state{{{labels}}}") == 1
        ended = daemon.stop()
    assert ended.status == 0, ended.log


def sources(*when: When, more: tuple[str, ...] = ()) -> tuple[PerfSourceConfig, ...]:
    """A source of hardware that is absent for each of these, and one for each event more."""
    absent = [perf_source(f"{ABSENT}//", when=one) for one in when]
    return (*absent, *(perf_source(event) for event in more))


def run_until_open(state: Path, *sessions: tuple[PerfSourceConfig, ...]) -> list[SessionBalance]:
    """Open sessions with facts that tell of a PMU that the kernel does not have, and end them."""
    config = Config(
        daemon=DaemonConfig(state_dir=str(state)),
        session=tuple(
            SessionConfig(name=f"s{number}", source=one) for number, one in enumerate(sessions)
        ),
    )
    facts = host_facts(LinuxKernel(), config, mount=True)
    pmus = {**facts.pmus, ABSENT: PmuFacts(type=0x7FFFFFFF)}
    daemon = Daemon(LinuxKernel(), config, facts=replace(facts, pmus=pmus))
    seen: list[SessionBalance] = []

    async def scenario() -> None:
        stop = asyncio.Event()

        async def on_open() -> None:
            seen.extend(daemon.status().sessions)
            stop.set()

        await daemon.run(stop, on_open=on_open, salvage_all=False)

    asyncio.run(scenario())
    return seen


def test_hardware_that_turns_out_to_be_absent(tmp_path: Path) -> None:
    """Hardware that was planned and is absent degrades its session, and no other."""
    alone, beside, well = run_until_open(
        tmp_path, sources("present"), sources("present", more=("cs",)), sources(more=("cs",))
    )
    assert (alone.state, beside.state, well.state) == ("degraded", "degraded", "running")
    assert f"cannot open {ABSENT}//" in alone.degraded_reasons[0]
    assert beside.degraded_reasons[0].startswith(f"perf: cannot open {ABSENT}//")
    assert {ring.label.source for ring in beside.rings} == {"perf-2"}
    assert len(beside.rings) == len(well.rings)


def test_hardware_that_is_needed_is_an_error(tmp_path: Path) -> None:
    """Its absence is an error, in whichever source."""
    with pytest.raises(MissingFeature, match=f"cannot open {ABSENT}//"):
        run_until_open(tmp_path, sources("always", more=("cs",)), sources(more=("cs",)))


def armed(kernel: LinuxKernel, software: SoftwareId, stack: ExitStack) -> CounterFd:
    """Return an event on a CPU that is off, and writes into no ring."""
    attr = PerfEventAttr(
        type=EventType.SOFTWARE,
        config=software,
        sample_period=1,
        read_format=ReadFormat.TOTAL_TIME_ENABLED,
        disabled=True,
    )
    fd = kernel.perf_event_open(attr, pid=-1, cpu=kernel.online_cpus()[-1])
    stack.callback(kernel.close, fd)
    return CounterFd(fd, 0, kernel.event_id(fd), attr.read_format)


def test_what_resumes_an_area_has_happened() -> None:
    """The clock's event has fired and is off when the call returns, as often as it is armed."""
    kernel = LinuxKernel()
    with ExitStack() as stack:
        resumer = armed(kernel, SoftwareId.CPU_CLOCK, stack)
        for _ in range(3):
            before = kernel.read_counter(resumer.fd, resumer.read_format)
            kernel.refresh(resumer.fd)
            await_resumed(kernel, resumer)
            after = kernel.read_counter(resumer.fd, resumer.read_format)
            assert after.time_enabled_ns > before.time_enabled_ns
            assert kernel.read_counter(resumer.fd, resumer.read_format) == after


def test_what_never_resumes_is_an_error() -> None:
    """The wait for an event that does not come is limited."""
    kernel = LinuxKernel()
    with ExitStack() as stack:
        never = armed(kernel, SoftwareId.DUMMY, stack)
        kernel.refresh(never.fd)
        with pytest.raises(KernelError, match="does not resume"):
            await_resumed(kernel, never)
