# SPDX-License-Identifier: Apache-2.0
"""AUX areas that the opener holds: daemons come and go, and every byte is stored once, or lost.

The opener has the privileges; the daemon is somebody without any capability.
"""

from __future__ import annotations

import os
import pwd
import random
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import daemons, kills
from tests.support.daemons import wait_for
from tests.support.openers import opening, with_opener
from tests.support.somebody import SOMEBODY
from tests.vm import test_aux
from tests.vm.service import PARANOID
from tests.vm.support_modules import WORD_BYTES, Pmu, PmuCounters

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.aux_words import Checker
    from tests.support.daemons import Daemon
    from tests.support.recording import Start
    from tests.vm.test_aux import Load

checker = test_aux.checker
load_pmu = test_aux.load_pmu

KILLS: Final = 3
FLUSH_S: Final = 0.2
# At a timer of 1 ms, bytes of each tick: 8 MiB are not full for two minutes without a daemon.
SLOW: Final = 64
# More than the areas of 1 MiB while a daemon starts, and no more than one can drain.
BRISK: Final = 512
FAST: Final = 16384
TRUNCATED: Final = test_aux.TRUNCATED
# Lost behind the kernel's count of what it has handed over.
LATER: Final = ("kernel_ring/dropped", "staging/dropped")
CLOSED: Final = "3"
USER: Final = pwd.getpwuid(SOMEBODY).pw_name
# It may open no event: the opener has what that takes.
UNPRIVILEGED: Final = (
    *("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"),
    *("--inh-caps=-all", "--bounding-set=-all"),
)


@pytest.fixture
def place(stage: Path) -> Iterator[Path]:
    """Provide the daemon's directory, where nobody may open events without a privilege."""
    os.chown(stage, SOMEBODY, SOMEBODY)
    stage.chmod(0o2755)  # the opener's socket is for its group, as with its unit
    before = PARANOID.read_text()
    PARANOID.write_text(CLOSED)
    yield stage
    PARANOID.write_text(before)


def told(state: Path) -> tuple[int, Counter[str], int]:
    """Return what manifests tell of all runs: stored and lost bytes, and unaccounted ones."""
    stored, unaccounted = 0, 0
    lost: Counter[str] = Counter()
    by_run: dict[str, list[dict[str, Any]]] = {}
    for path in daemons.sealed(state):
        manifest = daemons.manifest(path)
        by_run.setdefault(manifest["run"], []).append(manifest)
    for manifests in by_run.values():
        rings = [ring for one in manifests for ring in one["rings"] if ring["role"] == "aux"]
        stored += sum(ring["bytes"] for ring in rings)
        areas = [one["ledger"].get("aux", []) for one in manifests]
        for area in max(areas, key=lambda found: sum(a["stored_bytes"] for a in found)):
            lost.update({name: n or 0 for name, n in area["lost_bytes"].items()})
            unaccounted += area["unaccounted_bytes"] or 0
    return stored, +lost, unaccounted


def known_now(daemon: Daemon, state: Path) -> int:
    """Return the bytes in sealed segments, and those that this daemon stored or lost."""
    known, _, _ = told(state)
    for area in daemon.session("trace")["aux"]:
        known += area["stored_bytes"] + sum(area["lost_bytes"][name] for name in LATER)
    return known


def handed_over(counters: PmuCounters) -> int:
    """Return the bytes that a CPU's areas have got."""
    return counters.written_bytes - counters.skipped_bytes - counters.open_bytes


def all_handed_over(pmu: Pmu) -> int:
    """Return the bytes that all areas have got."""
    return sum(map(handed_over, pmu.counters().values()))


def configure(directory: Path, aux: str) -> Path:
    """Return a configuration with one session whose areas the opener holds."""
    return with_opener(test_aux.write_config(directory, aux=aux))


def settle(pmu: Pmu, daemon: Daemon, state: Path) -> dict[int, PmuCounters]:
    """End the production, and wait until all that was handed over is stored."""
    pmu.freeze()
    wait_for(lambda: known_now(daemon, state) >= all_handed_over(pmu), "all bytes")
    return pmu.counters()


def test_kills_and_a_stop_lose_no_byte(
    load_pmu: Load, start_cli: Start, place: Path, checker: Checker
) -> None:
    """A daemon without any capability goes on at the position where the last one stopped."""
    dice = random.Random("areas")  # noqa: S311 - no secret
    state = place / "state"
    pmu = load_pmu(chunk_bytes=SLOW)
    config = configure(place, "8MiB")
    with ExitStack() as stack:
        stack.enter_context(opening(start_cli, config, "--user", USER))
        for number in range(KILLS + 1):
            with daemons.running(start_cli, config, prefix=UNPRIVILEGED) as daemon:
                test_aux.await_words(pmu, 4096)
                assert daemon.session("trace")["degraded"] == []
                kills.pause(dice, 2 * FLUSH_S)
                if number < KILLS:
                    daemon.kill()
                else:
                    assert daemon.stop().status == 0
        with daemons.running(start_cli, config, prefix=UNPRIVILEGED) as daemon:
            test_aux.await_words(pmu, 4096)
            now = settle(pmu, daemon, state)
            assert daemon.stop().status == 0
    found = checker(daemons.sealed(state))
    assert found.in_order, found
    produced = 0
    for words in found.words:
        assert (words.first, words.gaps) == (0, 0)
        assert words.words * WORD_BYTES == handed_over(now[words.cpu])
        produced += words.words * WORD_BYTES
    assert sorted(found.of_cpu()) == list(test_aux.CPUS)
    assert told(state) == (produced, {}, 0)
    recovered = [daemons.manifest(path)["recovered"] for path in daemons.sealed(state)]
    assert recovered.count(True) >= KILLS


def test_full_areas_go_on_and_what_found_no_room_is_told_once(
    load_pmu: Load, start_cli: Start, place: Path, checker: Checker
) -> None:
    """The kernel stops their events while no daemon runs; the next one starts them again."""
    state = place / "state"
    pmu = load_pmu(chunk_bytes=SLOW, produce_while_stopped=True)
    config = configure(place, "1MiB")
    with opening(start_cli, config, "--user", USER):
        with daemons.running(start_cli, config, prefix=UNPRIVILEGED) as daemon:
            test_aux.await_words(pmu, 4096)
            daemon.kill()
        pmu.set(chunk_bytes=FAST)
        wait_for(
            lambda: all(c.halted and c.halted_ns > test_aux.NS for c in pmu.counters().values()),
            "areas that were full for a second",
        )
        pmu.set(chunk_bytes=BRISK)
        with daemons.running(start_cli, config, prefix=UNPRIVILEGED) as daemon:
            wait_for(lambda: not any(c.halted for c in pmu.counters().values()), "new starts")
            test_aux.await_words(pmu, 4096)
            now = settle(pmu, daemon, state)
            assert daemon.stop().status == 0
        # The rest of what was truncated is certain once the areas are closed.
        lost = sum(c.truncated_bytes for c in now.values())
        stored, known, unaccounted = told(state)
        areas = len(test_aux.CPUS) * test_aux.MIB
        assert lost - areas <= known[TRUNCATED] <= lost
        assert (set(known), unaccounted) == ({TRUNCATED}, 0)
    found = checker(daemons.sealed(state))
    assert found.in_order
    for words in found.words:
        assert words.missing * WORD_BYTES == now[words.cpu].truncated_bytes > 0
    assert stored == sum(words.words for words in found.words) * WORD_BYTES


def test_areas_that_the_opener_replaces_leave_what_was_unread(
    load_pmu: Load, start_cli: Start, place: Path
) -> None:
    """With another size they are new, and the next daemon tells what nobody has read."""
    state = place / "state"
    pmu = load_pmu(chunk_bytes=SLOW)
    config = configure(place, "8MiB")
    with opening(start_cli, config, "--user", USER):
        with daemons.running(start_cli, config, prefix=UNPRIVILEGED) as daemon:
            test_aux.await_words(pmu, 4096)
            assert daemon.stop().status == 0
        first, lost, _ = told(state)
        assert not lost
        test_aux.await_words(pmu, 4096)
        config.write_text(config.read_text().replace('aux = "8MiB"', 'aux = "4MiB"'))
        with daemons.running(start_cli, config, prefix=UNPRIVILEGED) as daemon:
            test_aux.await_words(pmu, 4096)
            now = settle(pmu, daemon, state)
            assert daemon.stop().status == 0
    stored, lost, unaccounted = told(state)
    assert stored > first
    assert set(lost) == {"kernel_ring/dropped"}
    assert unaccounted == 0
    assert stored + sum(lost.values()) == sum(map(handed_over, now.values()))
