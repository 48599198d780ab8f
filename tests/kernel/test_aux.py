# SPDX-License-Identifier: Apache-2.0
"""AUX areas on whatever kernel this is: what refuses one says so. See tests/vm for real ones."""

from __future__ import annotations

import errno
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collectord.codec.perf_attr import EventType, PerfEventAttr, SoftwareId
from collectord.errors import MissingFeature
from collectord.kernel.aux_trial import has_aux, with_aux
from collectord.kernel.linux import LinuxKernel
from collectord.plan.facts import PmuFacts

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

STATUS_FEATURE = 5
STATUS_CONFIG = 6
SOFTWARE = PmuFacts(type=EventType.SOFTWARE)
ABSENT = next(
    name
    for name in ("intel_pt", "cs_etm", "arm_spe_0")
    if not Path("/sys/bus/event_source/devices", name).exists()
)


def test_an_event_without_aux_refuses_the_area() -> None:
    """The error says what is missing, not EOPNOTSUPP alone."""
    kernel = LinuxKernel()
    attr = PerfEventAttr(type=EventType.SOFTWARE, config=SoftwareId.DUMMY, disabled=True)
    with ExitStack() as stack:
        fd = kernel.perf_event_open(attr, pid=0, cpu=-1)
        stack.callback(kernel.close, fd)
        ring = kernel.map_ring(fd, kernel.page_bytes)
        stack.callback(ring.close)
        with pytest.raises(MissingFeature, match="no AUX area") as caught:
            kernel.map_aux(fd, ring, kernel.page_bytes, snapshot=False)
    assert (caught.value.feature, caught.value.errno) == ("AUX", errno.EOPNOTSUPP)


def test_a_trial_tells_pmus_apart() -> None:
    """One without an area has none, and one whose event cannot be opened is not said to have."""
    kernel = LinuxKernel()
    cpu = kernel.online_cpus()[0]
    assert not has_aux(kernel, SOFTWARE, cpu)
    assert not has_aux(kernel, PmuFacts(type=0x7FFFFFFF), cpu)
    known = {"software": SOFTWARE, "intel_pt": PmuFacts(type=0x7FFFFFFF, aux=True)}
    assert with_aux(kernel, known, ["software", "intel_pt", "none"]) == known


def test_the_counters_clock_is_told() -> None:
    """What is known of the conversion is whole: a zero never comes without its factor."""
    found = LinuxKernel().time_conversion()
    if found.zero_known:
        assert found.mult > 0
        assert found.shift < 64


def test_absent_hardware_has_a_status(run_cli: Run, tmp_path: Path) -> None:
    """5 for what the machine lacks, 6 for a plan that makes no sense on any."""
    words = ("-a", "-o", "x.data", "--duration", "1s")
    done = run_cli("record", "-e", f"{ABSENT}//", *words)
    assert done.returncode == STATUS_FEATURE
    assert f"no PMU '{ABSENT}'" in done.stderr
    none = run_cli("record", "-e", "cs", "-m", ",1M", *words)
    assert none.returncode == STATUS_CONFIG
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
