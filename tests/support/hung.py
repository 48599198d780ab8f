# SPDX-License-Identifier: Apache-2.0
"""One session whose disk does not answer for some time, and two others on another disk."""

from __future__ import annotations

import json
import re
import signal
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.errors import CollectordError
from tests.support import daemons, overload
from tests.support.overload import BUSY, QUIET, RECORDER, SESSIONS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.generator import Generator

# Work while the disk hangs: segments of `quiet`, one a second, and figures of each session.
_SEALED: Final = 10
_CHANGES: Final = 12
# The words of the busy session on its disk, the time after which it says them, and one that no
# disk of a test hangs for.
_WAITS: Final = re.compile(
    r"records have waited (?P<seconds>\d+) s for the disk of (?P<directory>.*)"
)
_WAIT_LIMIT_S: Final = 10
_LIFE_MAX_S: Final = 1000
# A session that comes while the disk hangs.
_ADDED: Final = "added"


def _last_ledger(directory: Path) -> dict[str, Any]:
    """Return the balance in a folder's last manifest; empty if there is none."""
    manifests = sorted(directory.glob("*.json"))
    return dict(json.loads(manifests[-1].read_text())["ledger"]) if manifests else {}


def _is_closed(directory: Path) -> bool:
    return bool(_last_ledger(directory).get("closed"))


class _Figures:
    """Counts how often the figures of each session changed; the others must lose nothing."""

    def __init__(self, daemon: daemons.Daemon) -> None:
        self.changes = dict.fromkeys(SESSIONS, 0)
        self._daemon = daemon
        self._produced: dict[str, int] = {}

    def poll(self) -> bool:
        """See what is told now; returns whether each changed often enough."""
        for one in self._daemon.status()["sessions"]:
            name = one["name"]
            assert name == BUSY or not any(one["lost"].values()), one["lost"]
            self.changes[name] += one["produced"] != self._produced.get(name)
            self._produced[name] = one["produced"]
        return min(self.changes.values()) >= _CHANGES


def _write_config(directory: Path, state: Path, busy: Path) -> Path:
    """Configure all sessions, of which `busy` writes to the disk that hangs."""
    return overload.write_config(
        directory,
        state,
        busy=busy,
        flush="500ms",
        staging="16MiB",
        chunk="128KiB",
        segment="16MiB",
        retained="1GiB",
    )


def check_others_go_on(
    tmp_path: Path,
    start_cli: Callable[..., subprocess.Popen[str]],
    generator: Generator,
    busy: Path,
    hung: Callable[[], AbstractContextManager[None]],
) -> None:
    """Check that the others' figures, seals, snapshot and end come while the disk of `busy` hangs.

    Args:
        tmp_path: where the others write.
        start_cli: starts the daemon.
        generator: makes the events.
        busy: a folder on the disk that hangs.
        hung: has it hang for a block.
    """
    state = tmp_path / "state"
    config = _write_config(tmp_path, state, busy)

    def sealed() -> int:
        return len(overload.segments(state, QUIET))

    def waits() -> bool:
        told = _WAITS.search("\n".join(daemon.session(BUSY)["degraded"]))
        if told is None:
            return False
        assert _WAIT_LIMIT_S <= int(told["seconds"]) < _LIFE_MAX_S, told[0]
        assert told["directory"] == str(busy)
        return True

    with daemons.running(start_cli, config) as daemon:
        with overload.loads(generator) as load:
            daemons.wait_for(lambda: daemon.session(BUSY)["stored"], "records on the disk")
            with hung():
                figures, before = _Figures(daemon), sealed()
                daemons.wait_for(
                    lambda: figures.poll() and sealed() >= before + _SEALED,
                    f"figures and segments: {figures.changes}",
                )
                (snapshot,) = daemon.post("/v1/snapshot", {})["snapshots"]
                assert snapshot["samples"] > 0
                stored = daemon.session(BUSY)["stored"]
                assert daemon.session(BUSY)["losing"]
                daemons.wait_for(waits, "that records wait for the disk")
            daemons.wait_for(lambda: daemon.session(BUSY)["stored"] > stored, "more records")
            daemons.wait_for(lambda: not waits(), "that none waits any more")
        with hung():
            daemon.process.send_signal(signal.SIGTERM)
            for one in (state / QUIET, state / RECORDER):
                daemons.wait_for(partial(_is_closed, one), f"the end of {one.name}")
            assert daemon.process.poll() is None
        ended = daemon.await_end()
    assert ended.status == 0, ended.log
    for name in SESSIONS:
        ledger = _last_ledger(busy if name == BUSY else state / name)
        assert (ledger["basis"], ledger["closed"]) == ("exact", True)
        told = f"{name}: {load[name].made} made; {ledger}"
        assert (ledger["unaccounted"], ledger["produced"]) == (0, load[name].made), told
        assert (sum(ledger["lost"].values()) > 0) == (name == BUSY)


def check_removed_waits_alone(
    tmp_path: Path,
    start_cli: Callable[..., subprocess.Popen[str]],
    generator: Generator,
    busy: Path,
    hung: Callable[[], AbstractContextManager[None]],
) -> None:
    """Check that a reload removes `busy`, another adds a session, and a stop ends all others.

    Args:
        tmp_path: where the others write.
        start_cli: starts the daemon.
        generator: makes the events.
        busy: a folder on the disk that hangs.
        hung: has it hang for a block.
    """
    state = tmp_path / "state"
    config = _write_config(tmp_path, state, busy)
    whole = config.read_text()
    head, first, *others = whole.split("[[session]]")
    assert f'"{BUSY}"' in first
    without = "[[session]]".join((head, *others))
    added = "[[session]]" + others[0].replace(f'"{QUIET}"', f'"{_ADDED}"')

    def reload(text: str) -> dict[str, Any]:
        config.write_text(text)
        return daemon.post("/v1/reload", {})

    with daemons.running(start_cli, config) as daemon, overload.loads(generator):
        daemons.wait_for(lambda: daemon.session(BUSY)["stored"], "records on the disk")
        with hung():
            daemons.wait_for(lambda: daemon.session(BUSY)["losing"], "that staging is full")
            assert reload(without)["ending"] == [BUSY]
            status = daemon.status()
            assert [one["name"] for one in status["sessions"]] == [QUIET, RECORDER]
            assert [(one["name"], one["state"]) for one in status["ending"]] == [(BUSY, "ending")]
            with pytest.raises(CollectordError, match=f"'{BUSY}' is still ending"):
                reload(whole)
            assert reload(without + added)["sessions"][-1]["kind"] == "added"
            daemon.process.send_signal(signal.SIGTERM)
            for name in (QUIET, RECORDER, _ADDED):
                daemons.wait_for(partial(_is_closed, state / name), f"the end of {name}")
            assert daemon.process.poll() is None
        ended = daemon.await_end()
    assert ended.status == 0, ended.log
    for directory in (busy, state / QUIET, state / RECORDER, state / _ADDED):
        ledger = _last_ledger(directory)
        assert (ledger["basis"], ledger["closed"], ledger["unaccounted"]) == ("exact", True, 0)


def _sessions(config: Path) -> tuple[str, str, list[str]]:
    """Return the head of a configuration, the table of `busy`, and those of the others."""
    head, busy, *others = config.read_text().split("[[session]]")
    return head, "[[session]]" + busy, ["[[session]]" + other for other in others]


def _beginning(daemon: daemons.Daemon) -> list[str]:
    """Return the sessions that do not record yet, as the status says."""
    told = daemon.status()["beginning"]
    for one in told:
        assert one["state"] == "beginning", one
        assert one["degraded"] == [f"its disk does not answer: {one['directory']}"]
    return sorted(one["name"] for one in told)


def check_added_begin_later(
    tmp_path: Path,
    start_cli: Callable[..., subprocess.Popen[str]],
    generator: Generator,
    root: Path,
    hung: Callable[[], AbstractContextManager[None]],
) -> None:
    """Check that sessions which a reload adds on a disk that hangs join the others afterwards.

    Args:
        tmp_path: where the others write.
        start_cli: starts the daemon.
        generator: makes the events.
        root: a folder on the disk that hangs.
        hung: has it hang for a block.
    """
    state, there = tmp_path / "state", root / "there"
    config = _write_config(tmp_path, state, root / "made")
    there.mkdir(mode=0o700)
    head, busy, others = _sessions(config)
    second = busy.replace(f'"{BUSY}"', '"second"').replace(str(root / "made"), str(there))
    added = others[0].replace(f'"{QUIET}"', f'"{_ADDED}"')
    config.write_text(head + "".join(others))

    def reload(*tables: str) -> dict[str, Any]:
        config.write_text(head + "".join((*others, *tables)))
        return daemon.post("/v1/reload", {})

    with daemons.running(start_cli, config) as daemon, overload.loads(generator, calm=True):
        with hung():
            assert reload(busy, second)["beginning"] == [BUSY, "second"]
            assert _beginning(daemon) == [BUSY, "second"]
            with pytest.raises(CollectordError, match="'second' is still beginning"):
                reload(busy, second + 'ring = "64KiB"')
            assert reload(busy, second, added)["beginning"] == [BUSY, "second"]
            assert [one["name"] for one in daemon.status()["sessions"]][-1] == _ADDED
            assert reload(second, added)["beginning"] == ["second"]
            sealed = len(overload.segments(state, QUIET))
            daemons.wait_for(
                lambda: len(overload.segments(state, QUIET)) > sealed + 1, "segments of the others"
            )
            assert daemon.post("/v1/snapshot", {})["snapshots"]
        daemons.wait_for(lambda: not _beginning(daemon), "their begin")
        daemons.wait_for(lambda: daemon.session("second")["stored"], "its records")
        names = [one["name"] for one in daemon.status()["sessions"]]
        assert names == [QUIET, RECORDER, "second", _ADDED]
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    for directory in (there, state / QUIET, state / RECORDER, state / _ADDED):
        ledger = _last_ledger(directory)
        assert (ledger["basis"], ledger["closed"], ledger["unaccounted"]) == ("exact", True, 0)


def check_stop_waits_for_none_that_begins(
    tmp_path: Path,
    start_cli: Callable[..., subprocess.Popen[str]],
    generator: Generator,
    root: Path,
    hung: Callable[[], AbstractContextManager[None]],
) -> None:
    """Check that a start and a stop of others do not wait for a disk that hangs all the time.

    Args:
        tmp_path: where the others write.
        start_cli: starts the daemon.
        generator: makes the events.
        root: a folder on the disk that hangs.
        hung: has it hang for a block.
    """
    state, there = tmp_path / "state", root / "there"
    config = _write_config(tmp_path, state, there)
    there.mkdir(mode=0o700)
    head, busy, others = _sessions(config)
    made = busy.replace(f'"{BUSY}"', '"made"').replace(str(there), str(root / "made"))
    config.write_text(head + busy + made + "".join(others))
    with ExitStack() as stack:
        with hung():
            daemon = stack.enter_context(daemons.running(start_cli, config))
            stack.enter_context(overload.loads(generator, calm=True))
            daemons.wait_for(lambda: daemon.session(QUIET)["stored"], "records of the others")
            assert _beginning(daemon) == [BUSY, "made"]
            daemon.process.send_signal(signal.SIGTERM)
            for name in (QUIET, RECORDER):
                daemons.wait_for(partial(_is_closed, state / name), f"the end of {name}")
            daemons.wait_for(partial(daemons.has_left, daemon.pid), "the end")
        ended = daemon.await_end()
    assert ended.status == 0, ended.log
    assert [one["session"] for one in ended.named("session_abandoned")] == [BUSY]
    for name in (QUIET, RECORDER):
        ledger = _last_ledger(state / name)
        assert (ledger["basis"], ledger["closed"], ledger["unaccounted"]) == ("exact", True, 0)
