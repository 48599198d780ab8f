# SPDX-License-Identifier: Apache-2.0
"""A core that forgets one record after the walk, with the rings that only a guest has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support import block_traces
from tests.support import mutant as mutants
from tests.vm.support_modules import WORD_BYTES, loaded_pmu

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS: Final = 300


def test_a_forgotten_request_is_missed(tmp_path: Path, mutant: Path) -> None:
    """The ledger of a device's trace misses the one event, and blkparse lists what is stored."""
    with block_traces.disk(tmp_path) as device:
        load = ("dd", "if=/dev/zero", f"of={device}", "bs=4096", f"count={REQUESTS}")
        words = ("--relay", device)
        session = mutants.record(mutant, tmp_path, (*load, "oflag=direct"), words)
        assert block_traces.traces_of(device) == []
    assert session["ledger_basis"] == "exact"
    assert session["unaccounted"] == 1
    assert session["produced"] == session["stored"] + sum(session["lost"].values()) + 1
    (base,) = block_traces.bases(tmp_path / "out")
    assert block_traces.events(block_traces.parsed(base)) == session["stored"]


def test_a_forgotten_word_is_missed(tmp_path: Path, mutant: Path) -> None:
    """The ledger of the AUX areas misses the bytes of the one word."""
    with loaded_pmu("collectord_test") as pmu:
        words = ("-a", "-e", f"{pmu.name}/trace/", "-m", ",8M")
        session = mutants.record(mutant, tmp_path, ("sleep", "1"), words)
    assert {area["ledger_basis"] for area in session["aux"]} == {"exact"}
    assert sum(area["unaccounted_bytes"] for area in session["aux"]) == WORD_BYTES
    for area in session["aux"]:
        told = area["stored_bytes"] + sum(area["lost_bytes"].values())
        assert area["produced_bytes"] == told + area["unaccounted_bytes"]
