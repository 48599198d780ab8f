# SPDX-License-Identifier: Apache-2.0
"""Sessions in the hands of a daemon's users: paused, resumed, started and stopped on request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.control import client
from collectord.errors import CollectordError, ConfigError, NotAllowed, UsageError
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER
from tests.support.somebody import SOMEBODY, somebody

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

COUNT: Final = 20_000
GROUP: Final = 54_323
SOURCE: Final = f"""
[[session.source]]
kind = "KIND"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "4MiB"
"""
TRACE: Final = f"ftrace{NUMBER}"
SESSIONS: Final = "".join(
    f'[[session]]\nname = "{name}"\n{SOURCE.replace("KIND", kind)}'
    for name, kind in (("calls", "perf"), (TRACE, "tracefs"), ("witness", "perf"))
)
TABLE: Final[dict[str, Any]] = {
    "source": [{"kind": "perf", "events": [EVENT], "filter": FILTER, "ring": "4MiB"}],
    "duration": "10m",
}


def await_stored(daemon: Daemon, name: str, count: int) -> dict[str, Any]:
    """Wait until a session has stored so many records; return its entry."""
    daemons.wait_for(lambda: daemon.session(name)["stored"] >= count, f"{count} in {name}")
    return daemon.session(name)


def load(generator: Generator, daemon: Daemon) -> None:
    """Make events, and wait until the session that is never paused has all of them."""
    before = daemon.session("witness")["stored"]
    with generator.start("count", count=COUNT, nr=NUMBER) as running:
        running.run()
    await_stored(daemon, "witness", before + COUNT)


def total(state: Path, name: str) -> int:
    """Return how many samples a session's segments have, by their manifests."""
    found = (json.loads(one.read_text()) for one in (state / name).glob("*.json"))
    return sum(manifest["samples"] for manifest in found)


def test_a_session_pauses_and_resumes_on_request(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """The time is a gap and no loss, across rotations, and until a stop of the daemon.

    All others record on, and their balance stays exact.
    """
    config = daemons.write_sessions(tmp_path, SESSIONS)
    with daemons.running(start_cli, config) as daemon:

        def ask(name: str, verb: str) -> dict[str, Any]:
            (session,) = daemon.post(f"/v1/sessions/{name}/{verb}", {})["sessions"]
            return dict(session)

        def paused(name: str, cause: str = "request") -> float:
            source = daemon.session(name)["source"]
            labels = f'cause="{cause}",session="{name}",source="{source}"'
            return daemon.metric(f"collectord_session_paused{{{labels}}}")

        load(generator, daemon)
        for name in ("calls", TRACE):
            await_stored(daemon, name, COUNT)
            assert paused(name) == 0
            session = ask(name, "pause")
            assert (session["state"], session["paused"]) == ("degraded", ["request"])
            assert f"paused: `collectord sessions resume {name}` ends it" in session["degraded"]
            assert (paused(name), paused(name, "shed")) == (1, 0)
            assert ask(name, "pause")["paused"] == ["request"]
        load(generator, daemon)
        daemon.post("/v1/rotate", {})
        load(generator, daemon)
        for name in ("calls", TRACE):
            assert daemon.session(name)["stored"] == COUNT
            assert ask(name, "resume")["paused"] == []
            assert ask(name, "resume")["paused"] == []
        load(generator, daemon)
        for name in ("calls", TRACE):
            await_stored(daemon, name, 2 * COUNT)
            session = ask(name, "pause")
            assert session["gaps_ns"]["request"] > 0
            assert sum(session["lost"].values()) == 0
        with pytest.raises(CollectordError, match="no session 'call'"):
            ask("call", "pause")
        with pytest.raises(NotAllowed, match="max_sessions is 0"):
            daemon.post("/v1/sessions", TABLE)
        witness = daemon.session("witness")
        assert (witness["produced"], witness["unaccounted"]) == (4 * COUNT, 0)
        ended = daemon.stop()
    assert (ended.status, ended.complaints()) == (0, [])
    for name in ("calls", TRACE):
        assert total(tmp_path / "state", name) == 2 * COUNT
        *_, last = sorted((tmp_path / "state" / name).glob("*.json"))
        pauses = json.loads(last.read_text())["ledger"]["pauses"]
        assert [pause["cause"] for pause in pauses] == ["request", "request"]
        assert all(pause["since_ns"] < pause["until_ns"] for pause in pauses)


def test_a_user_of_the_group_records_through_the_daemon(  # noqa: PLR0915 - of one daemon
    stage: Path, start_cli: Start, run_cli: Run, generator: Generator
) -> None:
    """A session ends at its time, on request, or when it has recorded too much; others go on.

    What is beyond the limits is refused, and leaves nothing behind.
    """
    config = daemons.write_sessions(stage, SESSIONS)
    limits = '[control]\nmax_sessions = 2\nmax_bytes = "8MiB"\nmax_memory = "64MiB"\n'
    config.write_text(config.read_text().replace("[control]\n", limits))
    path, state = stage / "control.sock", stage / "state"
    as_group = ("setpriv", f"--regid={GROUP}", "--clear-groups")
    with daemons.running(start_cli, config, prefix=as_group) as daemon:

        def start(**changed: object) -> str:
            with somebody(GROUP):
                answer = client.post(path, "/v1/sessions", TABLE | changed)
            assert answer["ends_ns"] > 0
            return str(answer["session"])

        def stop(name: str) -> list[dict[str, Any]]:
            with somebody(GROUP):
                return list(client.post(path, f"/v1/sessions/{name}/stop", {})["sessions"])

        def is_gone(name: str) -> bool:
            return name not in {one["name"] for one in daemon.status()["sessions"]}

        def events() -> int:
            return daemon.fds().count("anon_inode:[perf_event]")

        before = events()
        name = start()
        assert name == "timed-1"
        other = start(name="second", source=[{**TABLE["source"][0], "kind": "tracefs"}])
        with pytest.raises(UsageError, match="as many sessions as may be started run"):
            start()
        load(generator, daemon)
        for one in (name, other):
            session = await_stored(daemon, one, COUNT)
            assert (session["produced"], session["unaccounted"]) == (COUNT, 0)
            assert session["ends_ns"] > 0
        assert f'session="{name}"' in daemon.metrics()
        (ended,) = stop(name)
        assert (ended["state"], ended["stored"], ended["unaccounted"]) == ("stopped", COUNT, 0)
        assert (is_gone(name), total(state, name)) == (True, COUNT)
        assert f'session="{name}"' not in daemon.metrics()
        assert stop(other)[0]["stored"] == COUNT
        assert total(state, other) == COUNT
        assert events() == before
        assert not [one for one in daemon.fds() if f"/{name}" in one or f"/{other}" in one]

        for changed, error, match in (
            ({"duration": "11m"}, ConfigError, "duration: 11m is not allowed; above 0, up to 10m"),
            ({"name": "calls"}, ConfigError, "there is a session 'calls'"),
            ({"source": [{"kind": "perf", "events": ["sched:no"]}]}, UsageError, "sched:no"),
            ({"directory": "/tmp"}, ConfigError, "unknown key 'directory'"),  # noqa: S108
            (
                {"source": [{"kind": "perf", "events": ["cpu-clock"], "ring": "64MiB"}]},
                ConfigError,
                "`max_memory` allows 64MiB",
            ),
        ):
            with pytest.raises(error, match=match):
                start(**changed)
        with pytest.raises(UsageError, match="nobody has started session calls"):
            stop("calls")
        done = run_cli(
            *("sessions", "start", "-e", EVENT, "--filter", FILTER, "--duration", "100ms"),
            *("--socket", path),
            prefix=("setpriv", f"--reuid={SOMEBODY}", f"--regid={GROUP}", "--clear-groups"),
        )
        assert (done.returncode, done.stdout.split(" until")[0]) == (
            0,
            "session timed-1 records",
        )
        daemons.wait_for(lambda: is_gone("timed-1"), "the end of timed-1")
        start(name="much", duration="10m")
        for _ in range(20):
            if is_gone("much"):
                break
            load(generator, daemon)
        assert is_gone("much")
        daemons.wait_for(lambda: total(state, "much") > 0, "its sealed segment")

        last = start(name="last")
        load(generator, daemon)
        ended_daemon = daemon.stop()
    assert (ended_daemon.status, total(state, last)) == (0, COUNT)
    assert [line["why"] for line in ended_daemon.named("timed_session_ended")] == [
        *("request", "request", "duration", "bytes")
    ]
    changes = ended_daemon.named("control_request")
    assert {line["uid"] for line in changes} == {SOMEBODY}
    assert not daemons.left_open(state)
