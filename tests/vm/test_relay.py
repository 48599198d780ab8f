# SPDX-License-Identifier: Apache-2.0
"""Relay files on a kernel where they can be read: blktrace, and a client with numbered records."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import Counter
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.codec.blktrace import kinds
from collectord.sink.repair import repair
from tests.support import block_traces, daemons, kills, recording, relay_segments
from tests.support.block_traces import bases, disk, events, parsed, traces_of, write_requests
from tests.support.daemons import wait_for
from tests.support.kills import Instant
from tests.support.patience import patient
from tests.support.relay_records import requests
from tests.vm.support_modules import RelayRecord, loaded_relay, relay_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

REQUESTS: Final = 300
_LETTERS: Final = {kind.name: kind.letter for kind in kinds()}
CPUS: Final = os.cpu_count() or 1
RELAY_KILLS: Final = int(os.environ.get("COLLECTORD_KILLS", "12")) // 6


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """Provide an idle block device, of which no trace is left at the end."""
    with disk(tmp_path) as found:
        yield found
        assert traces_of(found) == []


def write_config(directory: Path, source: str, *, session: str = "", flush: str = "100ms") -> Path:
    """Configure one session, `disk`, with a relay source."""
    disk_session = f"""
[[session]]
name = "disk"
{session}

[[session.source]]
kind = "relay"
{source}
"""
    return daemons.write_sessions(directory, disk_session, flush=flush, staging="8MiB")


def balanced(session: dict[str, Any]) -> None:
    """Check that every event is stored or lost."""
    assert session["ledger_basis"] == "exact"
    assert session["unaccounted"] == session["in_flight"] == 0, session
    assert session["produced"] == told(session), session


def await_stored(daemon: daemons.Daemon, count: int) -> None:
    """Wait until so many events or bytes are on disk."""
    wait_for(lambda: daemon.session("disk")["stored"] >= count, f"{count} stored")


def told(session: dict[str, Any]) -> int:
    """Return the events or bytes in the ledger, stored and lost."""
    return int(session["stored"] + sum(session["lost"].values()))


def numbers(file: Path) -> list[int]:
    """Return the record numbers in a file of the test module's channel, without headers."""
    found = relay_records(file.read_bytes())
    return [one.n for one in found if isinstance(one, RelayRecord)]


def stored(directory: Path) -> int:
    """Return the events in the manifests of blktrace's segments."""
    return sum(daemons.manifest(path)["samples"] for path in directory.rglob("*.blktrace.?"))


def _values(one: dict[str, Any]) -> tuple[str, ...]:
    """Return what `block_traces.values` has of an event."""
    told = one["fields"]
    letter = _LETTERS[one["event"].partition(":")[2]]
    device = told["device"].replace(":", ",")
    numbers = (told["sector"], told["bytes"], told["error"], one["pid"])
    return (
        str(one["cpu"]),
        str(told["sequence"]),
        letter,
        told["rwbs"],
        device,
        *map(str, numbers),
    )


def test_blktrace_counts_the_same(tmp_path: Path, run_cli: Run, device: Path) -> None:
    """Our files have each request's completion, and blktrace's own have as many."""
    load = ("dd", "if=/dev/zero", f"of={device}", "bs=4096", f"count={REQUESTS}", "oflag=direct")
    done = run_cli("record", "--relay", device, "-o", "ours", "--json", "--", *load)
    assert done.returncode == 0, done.stderr
    session = recording.result_of(done.stdout)
    balanced(session)
    assert sum(session["lost"].values()) == 0
    ours = parsed(tmp_path / "ours")
    assert block_traces.written(ours) == REQUESTS
    assert events(ours) == session["stored"]
    assert session["segments"] == [str(tmp_path / f"ours.blktrace.{n}") for n in range(CPUS)]

    with blktrace(tmp_path, device):
        subprocess.run(load, check=True, capture_output=True)
    assert block_traces.written(parsed(tmp_path / "theirs")) == REQUESTS

    decoded = run_cli("events", "--json", tmp_path / "ours")
    assert decoded.returncode == 0, decoded.stderr
    found = [json.loads(line) for line in decoded.stdout.splitlines()]
    completed = [one["fields"] for one in found if one["event"] == "blktrace:complete"]
    ended = [one for one in completed if "W" in one["rwbs"]]
    assert len(ended) == REQUESTS
    assert {one["bytes"] for one in ended} == {4096}
    assert "dd" in {one["comm"] for one in found if one["event"] == "blktrace:queue"}
    requests = [one for one in found if "sequence" in one["fields"]]
    assert Counter(map(_values, requests)) == block_traces.values(tmp_path / "ours")
    assert [one["time_ns"] for one in found] == sorted(one["time_ns"] for one in found)


def test_blktraces_own_tools_see_the_same(tmp_path: Path, run_cli: Run, device: Path) -> None:
    """Each tool's report on our files equals that on blktrace's, for one load."""
    load = ("dd", "if=/dev/zero", f"of={device}", "bs=4096", f"count={REQUESTS}", "oflag=direct")
    done = run_cli("record", "--relay", device, "-o", "ours", "--json", "--", *load)
    assert done.returncode == 0, done.stderr
    with blktrace(tmp_path, device):
        subprocess.run(load, check=True, capture_output=True)
    ours, theirs = (block_traces.tools_say(tmp_path / name) for name in ("ours", "theirs"))
    assert ours == theirs
    assert len(ours["blkparse"]) >= 4 * REQUESTS
    assert ("Q2C", str(REQUESTS)) in ours["btt"]
    assert ours["blkrawverify"] == ours["btrecord"] == []
    assert ours["iowatcher"]


@pytest.mark.parametrize("seed", [None, 1], ids=["zeros", "random"])
def test_blkparse_reads_both_sides_of_a_hole(tmp_path: Path, seed: int | None) -> None:
    """After the repair of a torn file, blkparse lists each event that is kept."""
    torn = bytes(1 << 16) if seed is None else random.Random(seed).randbytes(1 << 16)  # noqa: S311
    data = b"".join(requests(6000))
    sink = relay_segments.make_sink(tmp_path)
    segment = relay_segments.filled(sink, 1, {4: data, 5: b""})
    sink.close()
    with segment.paths.partial.open("r+b") as file:
        file.seek(len(data) // 2)
        file.write(torn)
    mended = next(one for one in repair(tmp_path) if one.samples)
    listed = parsed(mended.path.with_name(mended.path.name.removesuffix(".blktrace.0")))
    assert listed == {"D W": mended.samples}
    assert mended.samples > 4000


@contextmanager
def blktrace(directory: Path, device: Path, *, end: int = signal.SIGINT) -> Iterator[int]:
    """Have blktrace trace the device into `theirs`, reads included; returns its pid."""
    words = ("blktrace", "-d", device, "-o", "theirs", "-b", "4", "-n", "256")
    tool = subprocess.Popen(words, cwd=directory, stdout=subprocess.DEVNULL)
    with tool:
        read = ("dd", f"if={device}", "of=/dev/null", "bs=4096", "count=16", "iflag=direct")

        def traces() -> bool:
            subprocess.run(read, check=True, capture_output=True)
            files = directory.glob("theirs.blktrace.*")
            return any(path.read_bytes()[:4].strip(b"\0") for path in files)

        wait_for(traces, "a sub-buffer of blktrace's")
        yield tool.pid
        tool.send_signal(end)


@pytest.mark.parametrize("stopped", [False, True], ids=["drained", "stopped"])
def test_tiny_buffers(tmp_path: Path, start_cli: Start, device: Path, *, stopped: bool) -> None:
    """The kernel counts records that found no room; with them the balance is complete."""
    source = f'device = "{device}"\nsubbuf = "4KiB"\nsubbufs = 2'
    with daemons.running(start_cli, write_config(tmp_path, source)) as daemon:
        with recording.stopped(daemon.process) if stopped else nullcontext():
            write_requests(device, REQUESTS)
        if stopped:
            wait_for(
                lambda: daemon.session("disk")["lost"]["kernel_ring/dropped"], "dropped records"
            )
            labels = 'reason="dropped",session="disk",source="relay",stage="kernel_ring"'
            assert daemon.metric(f"collectord_lost_records_total{{{labels}}}") > 0
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    sets = bases(tmp_path / "state")
    found = sum(events(parsed(base)) for base in sets)
    assert found == stored(tmp_path / "state")
    last = max(sets)
    ledger = daemons.manifest(last.with_name(f"{last.name}.blktrace.0"))["ledger"]
    assert ledger["closed"]
    assert ledger["unaccounted"] == 0
    assert ledger["stored"] == found
    assert ledger["produced"] == found + sum(ledger["lost"].values())


def test_rotation(tmp_path: Path, run_cli: Run, start_cli: Start, device: Path) -> None:
    """Each set of files is whole for blkparse, and together they have every request once."""
    source = f'device = "{device}"'
    config = write_config(tmp_path, source, session='segment_bytes = "32KiB"')
    with daemons.running(start_cli, config) as daemon:
        for _ in range(3):
            before = daemon.session("disk")["stored"]
            write_requests(device, REQUESTS)
            await_stored(daemon, before + REQUESTS)
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    sets = bases(tmp_path / "state")
    assert len(sets) > 2
    assert sum(block_traces.written(parsed(base)) for base in sets) == 3 * REQUESTS
    verified = run_cli("segments", "verify", tmp_path / "state")
    assert verified.returncode == 0, verified.stdout
    listed = json.loads(run_cli("segments", "list", "--json", tmp_path / "state").stdout)
    assert len(listed["segments"]) == len(sets) * CPUS


def test_killed_daemon(tmp_path: Path, start_cli: Start, device: Path) -> None:
    """Its trace is ended by the next one, its segments are repaired, and a new trace begins."""
    config = write_config(tmp_path, f'device = "{device}"')
    with daemons.running(start_cli, config) as daemon:
        write_requests(device, REQUESTS)
        wait_for(lambda: daemon.session("disk")["stored"] >= REQUESTS, "stored")
        daemon.kill()
    assert len(traces_of(device)) == CPUS
    kept = bases(tmp_path / "state")
    write_requests(device, 10)
    with daemons.running(start_cli, config) as successor:
        write_requests(device, REQUESTS)
        left = successor.metric("collectord_records_left_behind_total")
        ended = successor.stop()
    (told,) = ended.named("trace_left_behind")
    assert left == told["unread"] + told["dropped"]
    assert told["session"] == "disk"
    assert told["unread"] >= 10
    assert told["dropped"] == 0
    sets = bases(tmp_path / "state")
    assert len(sets) > len(kept)
    recovered = [base for base in sets if daemons.manifest(_first(base))["recovered"]]
    assert recovered
    assert block_traces.written(parsed(max(sets))) == REQUESTS
    assert sum(events(parsed(base)) for base in sets) == stored(tmp_path / "state")


@pytest.mark.parametrize("seed", range(RELAY_KILLS))
def test_killed_at_any_instant(
    tmp_path: Path, run_cli: Run, start_cli: Start, device: Path, seed: int
) -> None:
    """Killed in a start, at work or in a stop, it leaves no trace behind the next daemon's start.

    Each set of files is whole for blkparse, and has what was known to be on disk.
    """
    dice = random.Random(seed)  # noqa: S311  # no secret
    instant = (Instant.START, Instant.STOP, Instant.WORK)[seed % 3]
    config = write_config(tmp_path, f'device = "{device}"', session='segment_bytes = "32KiB"')
    state = tmp_path / "state"
    least = 0
    if instant is Instant.START:
        process = start_cli("run", "--config", config)
        kills.pause(dice, patient(1.5))
        process.kill()
        process.communicate()
    else:
        load = ("dd", "if=/dev/zero", f"of={device}", "bs=4096", f"count={REQUESTS}")
        with (
            daemons.running(start_cli, config) as daemon,
            subprocess.Popen((*load, "oflag=direct"), stderr=subprocess.DEVNULL) as writing,
        ):
            if instant is Instant.WORK:
                await_stored(daemon, dice.randrange(1, 3 * REQUESTS))
                least = daemon.session("disk")["stored"]
            else:
                writing.wait()
                daemon.process.send_signal(signal.SIGTERM)
                kills.pause(dice, patient(0.1))
            daemon.kill()
    was_traced = bool(traces_of(device))
    with daemons.running(start_cli, config) as successor:
        ended = successor.stop()
    assert (ended.status, traces_of(device)) == (0, []), ended.log
    assert bool(ended.named("trace_left_behind")) == was_traced
    sets = bases(state)
    for base in sets:
        kills.check_ledger(_first(base))
    found = sum(events(parsed(base)) for base in sets)
    assert stored(state) == found >= least
    assert not [path for path in state.rglob("*") if "partial" in path.name]
    assert run_cli("segments", "verify", state).returncode == 0


def _first(base: Path) -> Path:
    return base.with_name(f"{base.name}.blktrace.0")


def test_traced_already(tmp_path: Path, run_cli: Run, device: Path) -> None:
    """A trace of another process is left alone, and the process is named."""
    with blktrace(tmp_path, device) as pid:
        done = run_cli("record", "--relay", device, "--duration", "1")
        assert done.returncode == 1
        assert f"{device} is already being traced" in done.stderr
        assert f"blktrace (pid {pid})" in done.stderr
        assert len(traces_of(device)) == CPUS


def test_nobody_reads_the_trace(tmp_path: Path, run_cli: Run, device: Path) -> None:
    """A trace that is neither ours nor read stays: its owner may come back."""
    with blktrace(tmp_path, device, end=signal.SIGKILL):
        pass
    done = run_cli("record", "--relay", device, "--duration", "1")
    assert done.returncode == 1
    assert f"blktrace -d {device} -k" in done.stderr
    assert len(traces_of(device)) == CPUS
    subprocess.run(["blktrace", "-d", device, "-k"], check=True)


@pytest.mark.parametrize("header", [0, 16], ids=["bare", "headers"])
@pytest.mark.parametrize("one", [False, True], ids=["per-cpu", "global"])
@pytest.mark.parametrize("mode", ["no_overwrite", "overwrite"])
def test_channel(
    tmp_path: Path, run_cli: Run, start_cli: Start, *, mode: str, one: bool, header: int
) -> None:
    """Every record that found room is in the files, once and in order, whatever the channel is.

    The buffers do not come around: from then on a read of the sub-buffer that is still written
    goes by the padding of a round before (relay_file_read_consume() in kernel/relay.c), and may
    skip what comes behind. That is counted as overrun.
    """
    count = 200
    with loaded_relay(mode=mode, subbuf_size=512, n_subbufs=128, vary=40) as relay:
        # Obeyed by the next channel.
        relay.close()
        relay.set(header_bytes=header, **{"global": one})
        relay.open()
        path = relay.file(0) if one else relay.base
        source = f'path = "{path}"\nsubbuf = "512B"\nsubbufs = 128'
        with daemons.running(start_cli, write_config(tmp_path, source)) as daemon:
            for cpu in range(CPUS):
                relay.write(cpu, count)
                want = sum(one.written_bytes for one in relay.counts().values())
                await_stored(daemon, want)
            session = daemon.session("disk")
            ended = daemon.stop()
        assert ended.status == 0, ended.log
        counts = relay.counts()
    assert (session["ledger_basis"], session["produced"]) == ("none", None)
    assert sum(session["lost"].values()) == 0
    files = sorted((tmp_path / "state").rglob("*.relay.?"))
    assert len(files) == (1 if one else CPUS)
    found: dict[int, list[int]] = {cpu: [] for cpu in range(CPUS)}
    for file in files:
        for record in relay_records(file.read_bytes(), header):
            if isinstance(record, RelayRecord):
                found[record.cpu].append(record.n)
    if one:
        (only,) = (row for row in counts.values() if row.open)
        assert only.rejected == 0
        assert sum(map(len, found.values())) == only.written == count * CPUS
    else:
        assert found == {cpu: list(range(count)) for cpu in range(CPUS)}
    verified = run_cli("segments", "verify", tmp_path / "state")
    assert verified.returncode == 0, verified.stdout


@pytest.mark.parametrize("mode", ["no_overwrite", "overwrite"])
def test_full_channel(tmp_path: Path, start_cli: Start, *, mode: str) -> None:
    """An overwritten buffer's loss is known in bytes; that of a rejecting one is unknown."""
    with loaded_relay(mode=mode, subbuf_size=256, n_subbufs=4) as relay:
        config = write_config(tmp_path, f'path = "{relay.base}"')
        with daemons.running(start_cli, config) as daemon:
            relay.write(0, 4)
            wait_for(lambda: daemon.session("disk")["stored"] >= 4 * 32, "stored")
            with recording.stopped(daemon.process):
                relay.write(0, 1000)
                relay.flush()
            want = relay.counts()[0].written_bytes
            wait_for(lambda: told(daemon.session("disk")) == want, "the rest")
            ended = daemon.stop()
        assert ended.status == 0, ended.log
        row = relay.counts()[0]
    (file,) = (tmp_path / "state").rglob("*.relay.0")
    found = numbers(file)
    assert found == sorted(set(found))
    lost = daemons.manifest(file)["ledger"]["lost"]["kernel_ring/overrun"]
    if mode == "overwrite":
        assert row.rejected == 0
        assert found[-1] == row.next - 1
        assert file.stat().st_size + lost == row.written_bytes
    else:
        assert row.rejected > 0
        assert lost == 0
        assert file.stat().st_size == row.written_bytes


def test_reset(tmp_path: Path, start_cli: Start) -> None:
    """A reset takes unread data, and reading continues from the beginning.

    Nothing tells of it: relay counts nothing.
    """
    with loaded_relay(subbuf_size=512, n_subbufs=32) as relay:
        config = write_config(tmp_path, f'path = "{relay.base}"')
        with daemons.running(start_cli, config) as daemon:
            relay.write(0, 20)  # into the second sub-buffer
            await_stored(daemon, 20 * 32)
            relay.reset()
            relay.write(0, 4)
            await_stored(daemon, 24 * 32)
            with recording.stopped(daemon.process):
                relay.write(0, 3)
                relay.reset()
                relay.write(0, 40)
            await_stored(daemon, 64 * 32)
            assert daemon.session("disk")["degraded"] == []
            ended = daemon.stop()
        assert ended.status == 0, ended.log
        row = relay.counts()[0]
    assert (row.next, row.rejected) == (67, 0)
    (file,) = (tmp_path / "state").rglob("*.relay.0")
    assert numbers(file) == [*range(24), *range(27, 67)]


@pytest.mark.parametrize("end", ["finalize", "close"])
def test_channel_ends(tmp_path: Path, start_cli: Start, end: str) -> None:
    """When the client closes it, the session says so, and keeps its data."""
    with loaded_relay(subbuf_size=512, n_subbufs=32) as relay:
        config = write_config(tmp_path, f'path = "{relay.base}"')
        with daemons.running(start_cli, config) as daemon:
            relay.write(0, 10)
            wait_for(lambda: daemon.session("disk")["stored"] >= 320, "stored")
            getattr(relay, end)()
            wait_for(lambda: daemon.session("disk")["degraded"], "the channel's end")
            session = daemon.session("disk")
            assert session["state"] == "degraded"
            assert any("its channel was closed" in reason for reason in session["degraded"])
            ended = daemon.stop()
        assert ended.status == 0, ended.log
    (file,) = (tmp_path / "state").rglob("*.relay.0")
    assert numbers(file) == list(range(10))


def test_no_such_channel(run_cli: Run) -> None:
    """The message names the missing channel, with the status for that."""
    done = run_cli("record", "--relay", "/sys/kernel/debug/nothing/here", "--duration", "1")
    assert done.returncode == 5
    assert "no relay channel /sys/kernel/debug/nothing/here" in done.stderr
