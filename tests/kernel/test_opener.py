# SPDX-License-Identifier: Apache-2.0
"""The opener holds rings: a restart or a kill of the daemon loses nothing that nobody counts."""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli.daemon_config import read as load
from collectord.codec.perf_attr import EventType, PerfEventAttr
from collectord.config.schema import Config
from collectord.config.schema_session import SessionConfig
from collectord.daemon.host_facts import daemon_facts, host_facts
from collectord.errors import CollectordError, KernelError
from collectord.kernel.bpf import bpf_calls
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.values.kept_rings import KeptRings, Prior
from collectord.opener.held_session import HeldSession, Priors
from collectord.plan.build import build
from collectord.source.bcc_child import NEVER
from collectord.source.perf_kept import ask_opener, own_given
from tests.support import bpf, daemons
from tests.support.configs import perf_source
from tests.support.daemons import wait_for
from tests.support.openers import (
    all_counted,
    allowed,
    configured,
    held,
    lost,
    opening,
    place_of,
    stored,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = pytest.mark.usefixtures("tracefs")

CALLS: Final = 80_000
RATE: Final = 100_000.0
RESTARTED: Final = 1  # a status after which systemd starts the service again
SAMPLED: Final = """
[[session]]
name = "sampled"

[[session.source]]
kind = "perf"
events = ["cpu-clock"]
"""
# At kernel.perf_event_paranoid 2 and 3 a process without these opens no event of a whole CPU.
BARE: Final = ("setpriv", "--bounding-set=-sys_admin,-perfmon")


@pytest.mark.alone
def test_a_restart_loses_nothing(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """Events between a stop and the next start are in the files of the next daemon."""
    config = configured(tmp_path, "16MiB")
    state = tmp_path / "state"
    with opening(start_cli, config) as opener:
        with generator.start("count", count=CALLS, rate=RATE, nr=daemons.NUMBER) as running:
            with daemons.running(start_cli, config) as daemon:
                running.go()
                daemon.await_stored(CALLS // 10)
                first = daemon.stop()
            made = running.result()["events"]  # the rest comes while no daemon runs
        with daemons.running(start_cli, config) as daemon:
            wait_for(lambda: all_counted(daemon, made, state), "all events")
            balance = daemon.session()
            last = daemon.stop()
        assert balance["unaccounted"] == 0
        assert set(lost(balance)) <= allowed(last)
        assert first.status == last.status == 0
        assert stored(state, perfs) + sum(lost(balance).values()) == made
        events = held(opener)
        with daemons.running(start_cli, config) as daemon:
            daemon.stop()
        assert held(opener) == events > 0


def test_a_start_that_fails_leaves_what_it_has_drained(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """The rings are drained as soon as they are open, and another session cannot be opened."""
    config = configured(tmp_path)
    good = config.read_text()
    state = tmp_path / "state"
    with opening(start_cli, config):
        with daemons.running(start_cli, config) as daemon:
            daemon.kill()
        with generator.start("count", count=20_000, nr=daemons.NUMBER) as running:
            made = running.run()["events"]
        wrong = SAMPLED.replace('"cpu-clock"', f'"{daemons.EVENT}"') + 'filter = "nowhere == 1"\n'
        config.write_text(good + wrong)
        failed = start_cli("run", "--config", config)
        assert "nowhere" in failed.communicate(timeout=60)[1]
        assert failed.returncode
        assert stored(state, perfs) == made
        config.write_text(good)
        with daemons.running(start_cli, config) as daemon:
            assert (daemon.session()["stored"], lost(daemon.session())) == (0, {})
            assert daemon.stop().status == 0


def test_a_full_ring_is_counted_by_the_next_daemon(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """While no daemon runs, the kernel counts what the rings refuse."""
    config = configured(tmp_path, "64KiB")
    state = tmp_path / "state"
    with opening(start_cli, config):
        with daemons.running(start_cli, config) as daemon:
            daemon.stop()
        with generator.start("count", count=20_000, nr=daemons.NUMBER) as running:
            made = running.run()["events"]
        with daemons.running(start_cli, config) as daemon:
            daemon.await_told(made)
            balance = daemon.session()
            daemon.stop()
        with daemons.running(start_cli, config) as daemon:
            again = daemon.session()
    full = balance["lost"]["kernel_ring/ring_full"]
    assert full > 0
    assert (balance["unaccounted"], balance["stored"] + full) == (0, made)
    assert stored(state, perfs) == made - full
    assert lost(again) == {}


def asked(place: Path, *, message: bytes) -> dict[str, Any]:
    """Return the opener's answer to a message."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.settimeout(60)
        one.connect(str(place))
        one.send(message)
        data, fds, _, _ = socket.recv_fds(one, 65536, 253)
        for fd in fds:
            os.close(fd)
        assert not fds or data
        answer: dict[str, Any] = json.loads(data)
        return answer


def test_clients_get_nothing_that_is_not_configured(tmp_path: Path, start_cli: Start) -> None:
    """A request names a session; a wrong digest, other names, and attributes are refused."""
    config = configured(tmp_path)
    place = place_of(config)
    with opening(start_cli, config) as opener:
        for ask in (
            {"type": "rings", "session": "calls", "digest": "0" * 64},
            {"type": "rings", "session": "others", "digest": "0" * 64},
            {"type": "rings", "session": "calls", "digest": "", "attr": "00" * 128},
            {"type": "rings", "session": "../calls", "digest": ""},
            {"type": "facts", "session": "calls"},
            {"type": "others"},
            {"session": "calls", "digest": "0" * 64},
            [1],
            {},
        ):
            answer = asked(place, message=json.dumps(ask).encode())
            assert answer["refused"], ask
        assert asked(place, message=b"\xff" * 2000)["refused"]
        assert held(opener) == 0
        with daemons.running(start_cli, config) as daemon:
            text = config.read_text()
            again = {"type": "rings", "session": "calls", "digest": ""}
            answered = asked(place, message=json.dumps(again).encode())
            assert "another process" in answered["refused"]
            daemon.stop()
        # A daemon of another configuration gets nothing of this one's, and opens its own rings.
        events = held(opener)
        other = tmp_path / "other.toml"
        other.write_text(re.sub(r"filter = .*", 'filter = "id == 1"', text))
        with daemons.running(start_cli, other) as daemon:
            assert any("opener" in reason for reason in daemon.session()["degraded"])
            assert held(opener) == events
            ended = daemon.stop()
        assert "not planned so" in ended.named("rings_not_held")[0]["error"]


def test_a_daemon_needs_no_privilege_that_the_opener_has(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """It plans with the opener's, also when it reloads, and drains all that is in the rings."""
    config = configured(tmp_path)
    config.write_text(config.read_text() + SAMPLED)
    with (
        opening(start_cli, config),
        daemons.running(start_cli, config, prefix=BARE) as daemon,
    ):
        for count in (5_000, 10_000):
            with generator.start("count", count=5_000, nr=daemons.NUMBER) as running:
                running.run()
            daemon.await_stored(count)
            answer = daemon.post("/v1/reload", {})["sessions"]
            assert {one["kind"] for one in answer} == {"unchanged"}
        assert daemon.session("sampled")["degraded"] == []
        balance = daemon.session()
        ended = daemon.stop()
    assert balance["degraded"] == []
    assert (balance["unaccounted"], lost(balance)) == (0, {})
    assert (ended.status, balance["stored"]) == (0, 10_000)
    assert not ended.named("opener_not_answering") + ended.named("rings_not_held")
    assert stored(tmp_path / "state" / "calls", perfs) == 10_000


def test_a_reload_that_fails_leaves_a_daemon_without_privilege_its_rings(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """The opener has closed them for those that were wanted, and opens them anew."""
    config = configured(tmp_path)
    good = config.read_text()
    with (
        opening(start_cli, config),
        daemons.running(start_cli, config, prefix=BARE) as daemon,
    ):
        wrong = SAMPLED.replace('"cpu-clock"', f'"{daemons.EVENT}"') + 'filter = "nowhere == 1"\n'
        config.write_text(good.replace('ring = "8MiB"', 'ring = "4MiB"') + wrong)
        with pytest.raises(CollectordError, match="nowhere"):
            daemon.post("/v1/reload", {})
        (session,) = daemon.status()["sessions"]
        assert (session["name"], session["state"] == "failed") == ("calls", False)
        with generator.start("count", count=5_000, nr=daemons.NUMBER) as running:
            running.run()
        daemon.await_stored(5_000)
        assert daemon.session()["degraded"] == []
        ended = daemon.stop()
    assert [one["session"] for one in ended.named("rings_not_held")] == ["sampled"]


@pytest.mark.alone
def test_the_opener_looks_for_programs_that_hide_events(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """A daemon without privilege has the time in which they may have, and is exact again."""
    config = configured(tmp_path)
    with ExitStack() as stack:
        opener = stack.enter_context(opening(start_cli, config))
        daemon = stack.enter_context(daemons.running(start_cli, config, prefix=BARE))
        assert daemon.session()["ledger_basis"] == "exact"
        with hiding() as program:
            wait_for(lambda: daemon.session()["suppression_possible"], "the program is seen")
            during = daemon.session()
            assert (during["ledger_basis"], during["state"]) == ("lost_only", "degraded")
        wait_for(lambda: not daemon.session()["suppression_possible"], "its end")
        with generator.start("count", count=5_000, nr=daemons.NUMBER) as running:
            running.run()
        daemon.await_stored(5_000)
        after = daemon.session()
        assert (after["ledger_basis"], after["unaccounted"]) == ("exact", 0)
        (window,) = after["suppressed"]
        assert window["programs"] == [program]
        opener.kill()
        wait_for(lambda: len(daemon.session()["degraded"]) == 2, "that nobody looks any more")
        assert any("cannot be listed" in reason for reason in daemon.session()["degraded"])
        assert daemon.stop().status == 0


@contextmanager
def hiding() -> Iterator[int]:
    """Have a program hide the events of the tracepoint from all; yields its number."""
    system, _, name = daemons.EVENT.partition(":")
    number = int(Path(f"/sys/kernel/tracing/events/{system}/{name}/id").read_text())
    kernel = LinuxKernel()
    attr = PerfEventAttr(type=EventType.TRACEPOINT, config=number, disabled=True)
    with bpf.program(0, b"hides") as program, ExitStack() as stack:
        event = kernel.perf_event_open(attr, pid=-1, cpu=0)
        stack.callback(os.close, event)
        bpf.attach(event, program)
        yield bpf_calls.program_info(program).id


def test_questions_are_of_the_session_that_is_drained(tmp_path: Path, start_cli: Start) -> None:
    """Another request ends the connection."""
    config = configured(tmp_path)
    kernel = LinuxKernel()
    loaded = load(config)
    with opening(start_cli, config), ExitStack() as stack:
        facts = daemon_facts(kernel, loaded.config, mount=False)
        (plan,) = build(loaded.config, facts).sessions
        given = ask_opener(kernel, plan)
        assert isinstance(given, KeptRings)
        own_given(kernel, given, stack)
        for ring in given.rings:
            for fd in ring.fds:
                stack.callback(os.close, fd)
        for _ in range(2):
            assert kernel.hiding_programs(given.connection) == {0: ()}
        os.write(given.connection, b'{"type":"rings","session":"calls","digest":""}')
        with pytest.raises(KernelError):
            kernel.hiding_programs(given.connection)


def test_a_daemon_cannot_take_the_openers_memory_away() -> None:
    """It writes its notes there; the opener reads them whatever became of the daemon."""
    kernel = LinuxKernel()
    session = SessionConfig(name="held", source=(perf_source("cpu-clock"),))
    config = Config(session=(session,))
    (plan,) = build(config, host_facts(kernel, config, mount=False)).sessions
    session_held = HeldSession(kernel, plan, Priors(), abort=NEVER)
    try:
        for size in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(session_held.memory, size)
        assert os.pwrite(session_held.memory, b"{}", 0) == 2
    finally:
        assert session_held.end() == Priors(Prior("{}"))


def test_without_an_opener_a_daemon_plans_as_it_may(tmp_path: Path, start_cli: Start) -> None:
    """It says that none answers, and what it lacks itself."""
    config = configured(tmp_path)
    process = start_cli("run", "--config", config, prefix=BARE)
    _, said = process.communicate(timeout=60)
    assert process.returncode == RESTARTED
    assert "opener_not_answering" in said
    assert re.search("no opener answers at .* may not open them: .* needs CAP_PERFMON", said)
