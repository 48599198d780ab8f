# SPDX-License-Identifier: Apache-2.0
"""Maps of programs as metrics of a daemon: exact, consistent, never less, and bounded."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import bpf_load, daemons
from tests.support.bpf_counts import child, unprobed
from tests.support.bpf_load import request
from tests.support.daemons import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.bpf_counts import Start

    Require = Callable[[str], None]
    Labels = frozenset[tuple[str, str]]
    Scrape = dict[tuple[str, Labels], float]

pytestmark = pytest.mark.usefixtures("tracefs", "bcc")

TIMES: Final = 300
READS: Final = 200
WRITES: Final = 100
BLOCK: Final = 4096
DISK_BYTES: Final = 4 << 20
LABELS_MAX: Final = 16
DEVICES: Final = LABELS_MAX + 2
PREFIX: Final = "collectord_bpf_"
WAITS: Final = "run_queue_wait_seconds"
LATENCY: Final = "block_io_latency_seconds"
DEPTH: Final = "block_io_depth"
OTHER: Final = "other"
MISSES: Final = "program_recursion_misses_total"
# Some hosts issue or complete a request now and then without telling tracepoints.
UNSEEN_MAX: Final = 5
SLEEP_S: Final = 0.001
RESOLUTION_S: Final = 0.000_001  # of what slots hold
SCRAPES: Final = 5


def _config(directory: Path, **programs: str) -> Path:
    """Configure a session for each program, with lines that give its arguments."""
    sessions = "".join(
        f'[[session]]\nname = "{name}"\n[[session.source]]\nkind = "bpf"\nprogram = "{name}"\n'
        f"arguments = {{ {arguments} }}\n"
        for name, arguments in programs.items()
    )
    path = directory / "collectord.toml"
    path.write_text(
        f"""
[daemon]
state_dir = "{directory}/state"
flush_interval = "100ms"
[metrics]
listen = "127.0.0.1:0"
[control]
socket = "{directory}/control.sock"
{sessions}
"""
    )
    return path


def _scrape(daemon: daemons.Daemon) -> Scrape:
    """Return all that programs count: value by name, without the prefix, and labels."""
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(daemon.metrics())
        if family.name.startswith(PREFIX)
        for sample in family.samples
    }


def _value(scrape: Scrape, name: str, **labels: str) -> float:
    """Return the sum of the series of a name that have these labels."""
    return sum(
        value
        for (series, found), value in scrape.items()
        if series == name and found >= labels.items()
    )


def _is_counter(name: str) -> bool:
    return name.endswith(("_total", "_bucket", "_count", "_sum"))


def _check_grown(earlier: Scrape, later: Scrape) -> None:
    """No series is gone, and none that counts is less than before."""
    assert earlier.keys() <= later.keys()
    assert all(later[key] >= value for key, value in earlier.items() if _is_counter(key[0]))


def _check_histograms(scrape: Scrape, name: str, **wanted: str) -> None:
    """Buckets add up to the count, and the sum is one that these counts can have."""
    counts = {
        labels: count
        for (series, labels), count in scrape.items()
        if series == f"{name}_count" and labels >= wanted.items()
    }
    assert counts
    for labels, count in counts.items():
        buckets = sorted(
            (float(dict(found)["le"]), value)
            for (series, found), value in scrape.items()
            if series == f"{name}_bucket" and labels < found
        )
        assert buckets[-1] == (float("inf"), count)
        low = high = below = counted = 0.0
        for bound, cumulative in buckets:
            assert cumulative >= counted
            low += (cumulative - counted) * below
            if cumulative > counted:
                high += (cumulative - counted) * (bound + RESOLUTION_S)
            below, counted = bound, cumulative
        assert low <= scrape[f"{name}_sum", labels] <= high, dict(labels)


def test_waits_and_times(tmp_path: Path, start_cli: Start) -> None:
    """A process's waits are in the metrics, and never decrease."""
    with child() as sleeper:
        chosen = f"pid = {sleeper.pid}"
        config = _config(tmp_path, runqlat=chosen, offcputime=chosen)
        with daemons.running(start_cli, config) as daemon:
            before = sleeper.switches()
            sleeper.begin("sleep", TIMES)
            scrapes = [_scrape(daemon) for _ in range(SCRAPES)]
            sleeper.finish()
            switches = sleeper.switches().since(before)

            def told() -> tuple[float, float]:
                scrapes.append(_scrape(daemon))
                waits = _value(scrapes[-1], f"{WAITS}_count")
                times = _value(scrapes[-1], "off_cpu_times_total")
                return (
                    waits + _value(scrapes[-1], "runqlat_unmatched_total"),
                    times + _value(scrapes[-1], "offcputime_unmatched_total"),
                )

            wait_for(lambda: told() == (sum(switches), TIMES), "all that was counted")
            ended = daemon.stop()
    assert (ended.status, {line["level"] for line in ended.events()}) == (0, {"info"})
    for earlier, later in pairwise(scrapes):
        _check_grown(earlier, later)
    last = scrapes[-1]
    _check_histograms(last, WAITS)
    times = _value(last, "off_cpu_times_total")
    assert times > 0
    assert _value(last, "off_cpu_seconds_total") >= times * SLEEP_S
    assert {labels for name, labels in last if name == f"{WAITS}_count"} == {
        frozenset({"session": "runqlat", "program": "runqlat"}.items())
    }


def test_requests(tmp_path: Path, start_cli: Start, require: Require) -> None:
    """Those of a device are counted by operation, with their size, and how many there were."""
    require("loop devices")
    with ExitStack() as stack:
        device, marker = (
            stack.enter_context(bpf_load.loop_device(tmp_path / name, DISK_BYTES))
            for name in ("image", "marker")
        )
        stack.enter_context(unprobed(device))
        daemon = stack.enter_context(
            daemons.running(start_cli, _config(tmp_path, biolatency="queued = true"))
        )
        request(device, [0] * READS, BLOCK, write=False)
        request(device, [0] * WRITES, 2 * BLOCK, write=True)

        def told() -> float:
            request(marker, [0], BLOCK, write=False)
            return _value(_scrape(daemon), f"{LATENCY}_count", device=marker.name)

        wait_for(told, "what came later")
        scrape = _scrape(daemon)
    lacks = _value(scrape, MISSES) + UNSEEN_MAX
    for operation, (times, size) in {"read": (READS, 1), "write": (WRITES, 2)}.items():
        labels = {"device": device.name, "operation": operation}
        found = _value(scrape, f"{LATENCY}_count", **labels)
        assert times - lacks <= found <= times
        assert _value(scrape, "block_io_bytes_total", **labels) == found * size * BLOCK
    found = _value(scrape, f"{LATENCY}_count", device=device.name)
    depth = _value(scrape, f"{DEPTH}_bucket", device=device.name, le="+Inf")
    assert READS + WRITES - lacks <= depth <= READS + WRITES
    assert _value(scrape, f"{DEPTH}_bucket", device=device.name, le="0.0") == 0
    assert _value(scrape, f"{DEPTH}_bucket", device=device.name, le="1.0") > 0
    assert 0 <= _value(scrape, "block_io_in_flight", device=device.name) <= lacks
    assert _value(scrape, "block_io_errors_total", device=device.name) == 0
    _check_histograms(scrape, LATENCY, device=device.name)


def test_labels_are_bounded(tmp_path: Path, start_cli: Start, require: Require) -> None:
    """Each shown device has its own label, and all others share one."""
    require("loop devices")
    with ExitStack() as stack:
        devices = []
        for number in range(DEVICES):
            image = tmp_path / f"image{number}"
            devices.append(stack.enter_context(bpf_load.loop_device(image, DISK_BYTES)))
            stack.enter_context(unprobed(devices[-1]))
        daemon = stack.enter_context(daemons.running(start_cli, _config(tmp_path, biolatency="")))
        for device in devices:
            request(device, [0] * READS, BLOCK, write=False)

        def told() -> bool:
            scrape = _scrape(daemon)
            found = _value(scrape, f"{LATENCY}_count", operation="read")
            return found + _value(scrape, MISSES) + UNSEEN_MAX >= DEVICES * READS

        wait_for(told, "all requests")
        scrape = _scrape(daemon)
    names = {device.name for device in devices}
    lacks = _value(scrape, MISSES) + UNSEEN_MAX
    for metric in (f"{LATENCY}_count", f"{DEPTH}_bucket", "block_io_bytes_total"):
        labels = [dict(found) for name, found in scrape if name == metric]
        shown = {found["device"] for found in labels}
        assert OTHER in shown
        assert len(shown) == LABELS_MAX + 1
    shown = {dict(found)["device"] for name, found in scrape if name == f"{LATENCY}_count"}
    for name in names & shown:
        found = _value(scrape, f"{LATENCY}_count", device=name)
        assert READS - lacks <= found <= READS
    rest = _value(scrape, f"{LATENCY}_count", device=OTHER, operation="read")
    assert rest >= len(names - shown) * READS - lacks
