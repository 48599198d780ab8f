# SPDX-License-Identifier: Apache-2.0
"""BPF ring buffers: exact balances over loss, rotation and restart, and the same as by perf."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.codec.perf_attr import RecordType
from tests.support import daemons
from tests.support.daemons import NUMBER, wait_for
from tests.support.recording import (
    AT_USUAL_PRIORITY,
    USUAL_PRIORITY,
    check_balance,
    daemon,
    daemon_result,
    outputs_of,
    record_types,
    result_of,
    script,
    segments_of,
    stopped,
    told_losses,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Perfs = tuple[Perf, ...]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.beside]

COUNT: Final = 60_000
FAST: Final = 1_000_000
FEW: Final = 20_000
BURSTS: Final = 3
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
RING_FULL: Final = "kernel_ring/ring_full"
BY_BUFFER: Final = ("--bpf", "syscall_stream", "--transport", "ringbuf")
SERVED: Final = (AT_USUAL_PRIORITY,)  # several starts have this prefix
# The shipped programs that submit events.
SHIPPED: Final = (
    *("biosnoop", "dnssnoop", "execsnoop", "exitsnoop", "fileslower", "oomkill", "opensnoop"),
    *("runqslower", "syscall_stream", "tcpconnect", "tcplife", "tcpretrans"),
)


def _config(directory: Path, *, session: str = "", core: str = "", ring: str = "16MiB") -> Path:
    """Configure a session, `calls`, of this run's marked system calls, by a ring buffer."""
    path = directory / "collectord.toml"
    path.write_text(
        f"""
[daemon]
state_dir = "{directory}/state"
log_level = "warning"
flush_interval = "100ms"
chunk = "128KiB"
staging = "16MiB"
{core}
[metrics]
listen = "127.0.0.1:0"
per_cpu = true
[control]
socket = "{directory}/control.sock"
[[session]]
name = "calls"
{session}
[[session.source]]
kind = "bpf"
program = "syscall_stream"
arguments = {{ nr = {NUMBER} }}
transport = "ringbuf"
ring = "{ring}"
when = "always"
"""
    )
    return path


def _recorded(run_cli: Run, directory: Path, *words: object, command: object) -> dict[str, Any]:
    """Return the result of a `record` with these options, around a command."""
    out = ("--output-dir", directory / "out", "--json")
    assert isinstance(command, list | tuple)
    done = run_cli("record", *words, *out, "--", *command, prefix=AT_USUAL_PRIORITY)
    assert done.returncode == 0, done.stderr
    return result_of(done.stdout)


def test_every_submission_is_in_the_balance(
    run_cli: Run, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """On one CPU the program's own count, the stored records, and those that perf lists agree."""
    command = generator.command("count", cpu=0, nr=NUMBER, count=COUNT)
    session = _recorded(run_cli, tmp_path, *BY_BUFFER, "-C", "0", "-m", "16M", command=command)
    check_balance(session, perfs)
    assert not any(session["lost"].values())
    (ring,) = session["rings"]
    assert (ring["cpu"], ring["tid"], ring["capacity_bytes"]) == (-1, -1, 16 << 20)
    found = run_cli("events", "--json", "--filter", f"nr == {NUMBER}", *segments_of(session))
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(lines) == COUNT
    assert {line["cpu"] for line in lines} == {0}
    assert {line["tid"] for line in lines} == {lines[0]["fields"]["tid"]}


@pytest.mark.vm
def test_all_cpus(run_cli: Run, tmp_path: Path, *, generator: Generator, perfs: Perfs) -> None:
    """One ring takes the records of all CPUs at once, and perf finds them in order."""
    command = generator.command("count", threads=4, nr=NUMBER, count=COUNT // 4)
    words = ("--bpf-arg", f"nr={NUMBER}", "-m", "64M")
    session = _recorded(run_cli, tmp_path, *BY_BUFFER, *words, command=command)
    check_balance(session, perfs, generated=COUNT)
    assert session["stored"] == COUNT
    for segment in segments_of(session):
        times = [float(line.rstrip(": ")) for line in script(perfs[0], segment, "-F", "time")]
        assert times == sorted(times)


@pytest.mark.parametrize("cpus", [("-C", "0"), ()], ids=["one CPU", "all"])
def test_a_ring_of_one_page_counts_what_it_loses(
    run_cli: Run, tmp_path: Path, *, generator: Generator, perfs: Perfs, cpus: tuple[str, ...]
) -> None:
    """The program counts failed reservations, and the file has the count too."""
    if cpus:
        command = generator.command("count", nr=NUMBER, count=FAST // 4, cpu=0)
    else:
        command = generator.command("count", nr=NUMBER, count=FAST // 4, threads=4)
    words = (*cpus, "-m", "1", "--bpf-arg", f"nr={NUMBER}")
    session = _recorded(run_cli, tmp_path, *BY_BUFFER, *words, command=command)
    (ring,) = session["rings"]
    assert ring["capacity_bytes"] == PAGE
    lost = session["lost"][RING_FULL]
    assert 0 < lost == sum(session["lost"].values())
    check_balance(session, perfs)
    (program,) = session["programs"]
    assert program["failures"]["ENOSPC"] == lost
    told = sum(told_losses(path)[RecordType.LOST_SAMPLES] for path in segments_of(session))
    assert told == lost


def test_the_daemon_is_woken_at_the_watermark(
    run_cli: Run, tmp_path: Path, *, generator: Generator
) -> None:
    """It wakes when the ring is as full as the watermark; otherwise only by its timer."""
    command = generator.command("count", cpu=0, nr=NUMBER, count=COUNT)
    words = ("-C", "0", "-m", "1M", "--bpf-arg", f"nr={NUMBER}")
    session = _recorded(run_cli, tmp_path, *BY_BUFFER, *words, command=command)
    (ring,) = session["rings"]
    in_ring = session["produced"] * 72  # with the ring's own header, and rounded up
    watermark = (1 << 20) // 4
    woken = ring["wakeups"]["watermark"]
    assert 0 < woken <= in_ring // watermark + ring["wakeups"]["timer"]


def test_perf_shows_the_same_as_of_its_own_rings(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """Two sessions of one program see the same calls, by a ring buffer and by rings of perf."""
    config = _config(tmp_path)
    text = config.read_text()
    head, own = text.split("[[session]]")
    other = own.replace('"calls"', '"perf"').replace('"ringbuf"', '"perf"')
    config.write_text(f"{head}[[session]]{own}[[session]]{other}")
    with daemon(start_cli, config) as running:
        with generator.start("count", nr=NUMBER, count=FEW, threads=2) as load:
            load.run()
        wait_for(
            lambda: all(running.session(name)["stored"] == 2 * FEW for name in ("calls", "perf")),
            "all calls in both",
        )
    by_name = {name: daemons.sealed(tmp_path / "state" / name) for name in ("calls", "perf")}
    (buffer,), (perf_rings,) = by_name.values()
    for reader in perfs:
        # Events of several CPUs at once have no one order.
        shown, expected = (_threads(outputs_of(reader, f)) for f in (buffer, perf_rings))
        assert shown == expected
        assert sum("BPF output: " in line for thread in shown.values() for line in thread) >= (
            2 * FEW
        )
    assert record_types(buffer)[RecordType.SAMPLE] == 2 * FEW


def _threads(lines: list[str]) -> dict[str, list[str]]:
    """Lines of `perf script` by the thread that they begin with; others go with that before."""
    found: dict[str, list[str]] = {}
    thread = ""
    for line in lines:
        if "[0" in line:
            thread = line.split("[")[0]
        found.setdefault(thread, []).append(line.strip())
    return found


@pytest.mark.parametrize(
    ("rotation", "segments"),
    [
        ('segment_bytes = "512KiB"\nsegment_age = "0"', 4),
        ('segment_bytes = "0"\nsegment_age = "300ms"', 3),
    ],
    ids=["by bytes", "by age"],
)
def test_rotation_loses_nothing(  # noqa: PLR0917  # fixtures
    start_cli: Start,
    tmp_path: Path,
    generator: Generator,
    perfs: Perfs,
    rotation: str,
    segments: int,
) -> None:
    """The samples of all segments together are the calls, and each manifest has its share."""
    config = _config(tmp_path, session=rotation)
    with (
        generator.start("count", nr=NUMBER, count=2 * FEW, rate=30_000) as running,
        daemon(start_cli, config),
    ):
        running.run()
    session = daemon_result(tmp_path)
    check_balance(session, perfs, generated=2 * FEW)
    assert session["stored"] == 2 * FEW
    manifests = [daemons.manifest(segment) for segment in segments_of(session)]
    assert len(manifests) >= segments
    assert sum(manifest["samples"] for manifest in manifests) == 2 * FEW
    for manifest in manifests:
        ledger = manifest["ledger"]
        assert (ledger["basis"], ledger["unaccounted"]) == ("exact", 0)
        assert ledger["produced_before"] <= ledger["produced"] == ledger["produced_after"]


def test_losses_are_told_while_they_happen(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """Status and metrics show each once over all segments, and nothing is unaccounted."""
    config = _config(
        tmp_path,
        core=USUAL_PRIORITY,
        session='segment_bytes = "0"\nsegment_age = "150ms"',
        ring="4pages",
    )
    with daemon(start_cli, config) as running:
        for burst in range(1, BURSTS + 1):
            with generator.start("count", nr=NUMBER, count=FEW) as load, stopped(running.process):
                load.run()
            wait_for(
                lambda: running.session()["produced"] == burst * FEW,  # noqa: B023  # at once
                "all attempts",
            )
        shown = running.session()
        assert shown["lost"][RING_FULL] > 0
        own = 'session="calls",source="bpf"'
        why = f'cpu="-1",reason="ring_full",{own},stage="kernel_ring"'
        assert (
            running.metric(f"collectord_lost_records_total{{{why}}}") == shown["lost"][RING_FULL]
        )
        produced = running.metric(f'collectord_produced_records_total{{cpu="-1",{own}}}')
        assert produced == BURSTS * FEW
        assert running.metric(f'collectord_unaccounted_records{{cpu="-1",{own}}}') == 0
    session = daemon_result(tmp_path)
    check_balance(session, perfs, generated=BURSTS * FEW)
    told = [told_losses(path)[RecordType.LOST_SAMPLES] for path in segments_of(session)]
    assert sum(told) == session["lost"][RING_FULL] == sum(session["lost"].values())


def test_a_restart_begins_anew(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """Each run has a ring of its own; a kill leaves what was written, and no record twice."""
    config = _config(tmp_path)
    for number in range(2):
        with daemons.running(start_cli, config) as running:
            with generator.start("count", nr=NUMBER, count=FEW) as load:
                load.run()
            running.await_stored(FEW)
            session = running.session()
            assert (session["produced"], session["stored"]) == (FEW, FEW)
            if number == 0:
                running.kill()
            else:
                assert running.stop().status == 0
    segments = daemons.sealed(tmp_path / "state")
    assert len(segments) == 2
    assert daemons.readable_samples(perfs, segments) == 2 * FEW
    assert daemons.manifest(segments[-1])["ledger"]["produced"] == FEW


def test_programs_of_a_session_by_either(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """Two have ring buffers, one has rings of perf: each ring balances, and one file has all."""
    config = _config(tmp_path)
    more = '[[session.source]]\nkind = "bpf"\nprogram = "{}"\ntransport = "{}"\n'
    others = more.format("opensnoop", "perf") + more.format("execsnoop", "ringbuf")
    config.write_text(config.read_text() + others)
    with daemon(start_cli, config) as running:
        with generator.start("count", nr=NUMBER, count=FEW) as load:
            load.run()
        running.await_stored(FEW + 1)
        rings = running.session()["rings"]
    cpus = os.sysconf("SC_NPROCESSORS_ONLN")
    assert sorted(ring["cpu"] for ring in rings) == [-1, -1, *range(cpus)]
    buffers = [ring for ring in rings if ring["cpu"] < 0]
    assert (buffers[0]["produced"], buffers[0]["stored"]) == (FEW, FEW)
    # Others exec on, between the reading of what was produced and that of what is stored, too.
    assert buffers[1]["produced"] > 0
    session = daemon_result(tmp_path)
    check_balance(session, perfs)
    (segment,) = segments_of(session)
    names = {line.split()[-1].rstrip(":") for line in script(perfs[0], segment, "-F", "event")}
    assert names == {"syscall_stream", "opensnoop", "execsnoop"}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_programs_take_either(run_cli: Run, tmp_path: Path, name: str) -> None:
    """They are compiled for a ring buffer, and the kernel takes them."""
    words = ("--bpf", name, "--transport", "ringbuf")
    session = _recorded(run_cli, tmp_path, *words, command=("true",))
    assert session["unaccounted"] == 0
    assert [ring["cpu"] for ring in session["rings"]] == [-1]
