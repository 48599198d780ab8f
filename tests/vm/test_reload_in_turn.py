# SPDX-License-Identifier: Apache-2.0
"""Reloads of sessions that cannot be open twice: blktrace of a device, and AUX areas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.errors import CollectordError
from tests.support import daemons
from tests.support.block_traces import bases, disk, parsed, traces_of, write_requests, written
from tests.support.daemons import wait_for
from tests.vm import test_aux, test_relay
from tests.vm.support_modules import WORD_BYTES, loaded_pmu

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.aux_words import Checker
    from tests.support.daemons import Daemon

    Start = Callable[..., subprocess.Popen[str]]

REQUESTS: Final = 100
WORDS: Final = test_aux.MIB // WORD_BYTES
checker = test_aux.checker


def reloaded(daemon: Daemon, name: str) -> dict[str, Any]:
    """Reload, which changes one session; return its entry, and check that its gap is told."""
    (change,) = daemon.post("/v1/reload", {})["sessions"]
    assert (change["name"], change["kind"]) == (name, "changed")
    session = daemon.session(name)
    assert session["state"] == "running", session
    assert session["gaps_ns"]["reload"] > 0
    return session


def test_a_block_trace_is_closed_and_opened_again(tmp_path: Path, start_cli: Start) -> None:
    """Requests before and after are stored, the time between is a gap; what fails changes none."""
    with disk(tmp_path) as device:
        config = test_relay.write_config(tmp_path, f'device = "{device}"')
        with daemons.running(start_cli, config) as daemon:
            write_requests(device, REQUESTS)
            wait_for(lambda: daemon.session("disk")["stored"] >= REQUESTS, "the requests")
            test_relay.write_config(tmp_path, f'device = "{device}"\nsubbufs = 8')
            reloaded(daemon, "disk")
            write_requests(device, REQUESTS)

            test_relay.write_config(tmp_path, 'device = "/dev/nosuch"')
            with pytest.raises(CollectordError, match="nosuch"):
                daemon.post("/v1/reload", {})
            assert daemon.session("disk")["state"] == "running"
            write_requests(device, REQUESTS)
            ended = daemon.stop()
        assert ended.status == 0, ended.log
        assert traces_of(device) == []
    sets = bases(tmp_path / "state")
    assert sum(written(parsed(base)) for base in sets) == 3 * REQUESTS
    for base in sets:
        ledger = daemons.manifest(base.with_name(f"{base.name}.blktrace.0"))["ledger"]
        assert (ledger["unaccounted"], ledger["basis"]) == (0, "exact")
        assert ledger["produced"] == ledger["stored"] + sum(ledger["lost"].values())


def test_aux_areas_are_closed_and_opened_again(
    tmp_path: Path, start_cli: Start, checker: Checker
) -> None:
    """Each byte of both is stored or truncated, in areas of the old and of the new size."""
    with loaded_pmu(test_aux.PMU) as pmu:
        config = test_aux.write_config(tmp_path, aux="2MiB")
        with daemons.running(start_cli, config) as daemon:
            test_aux.await_traced(pmu)
            test_aux.await_words(pmu, WORDS)
            test_aux.write_config(tmp_path, aux="1MiB")
            session = reloaded(daemon, "trace")
            assert {area["capacity_bytes"] for area in session["aux"]} == {test_aux.MIB}
            test_aux.await_traced(pmu)
            test_aux.await_words(pmu, WORDS)
            ended = daemon.stop()
        assert ended.status == 0, ended.log
        now = pmu.counters()
    segments = daemons.sealed(tmp_path / "state")
    found = checker(segments)
    assert not any(words.disorder for words in found.words)
    test_aux.check_words(found, now)
    for segment in segments:
        areas = daemons.manifest(segment)["ledger"]["aux"]
        assert {area["unaccounted_bytes"] for area in areas} == {0}
