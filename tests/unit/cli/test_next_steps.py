# SPDX-License-Identifier: Apache-2.0
"""Advice at the end of a recording: what may prevent its losses, and how to look at its files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from collectord.cli import next_steps
from collectord.model import LOSS_PAIRS, Stage, loss_name
from tests.support import balances

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.ledger.record_ledger import SessionBalance


def lossy(source: str, *names: str, capacity_bytes: int = 1 << 19) -> SessionBalance:
    """Return a session of two rings, the first of which has one loss of each name."""
    made = balances.session("s")
    lost = balances.no_loss(source)
    first = replace(
        made.rings[0], capacity_bytes=capacity_bytes, lost=lost | dict.fromkeys(names, 1)
    )
    rings = (first, replace(made.rings[1], capacity_bytes=capacity_bytes << 4, lost=lost))
    return replace(made, source=source, rings=rings, lost=lost | dict.fromkeys(names, 1))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("perf", "kernel_ring/ring_full"),
        ("bpf", "kernel_ring/ring_full"),
        ("tracefs", "kernel_ring/overrun"),
        ("tracefs", "kernel_ring/dropped"),
    ],
)
@pytest.mark.parametrize(
    ("capacity_bytes", "size"), [(4096, "1M"), (1 << 19, "2M"), (1 << 28, "1024M")]
)
def test_full_rings_are_to_be_larger(
    source: str, name: str, capacity_bytes: int, size: str
) -> None:
    """The size is four times that of the ring that lost; rings without loss do not matter."""
    (line,) = next_steps.loss_remedies([lossy(source, name, capacity_bytes=capacity_bytes)])
    assert f"(-m {size})" in line
    assert "--filter" in line


@pytest.mark.parametrize(
    ("source", "capacity_bytes"),
    [("perf", 1 << 29), ("tracefs", 1 << 30), ("relay", 1 << 19), ("relay-2", 1 << 19)],
)
def test_rings_that_cannot_be_larger(source: str, capacity_bytes: int) -> None:
    """At the largest size, and where others made the rings, only fewer events help."""
    name = "kernel_ring/ring_full" if source == "perf" else "kernel_ring/overrun"
    (line,) = next_steps.loss_remedies([lossy(source, name, capacity_bytes=capacity_bytes)])
    assert "-m" not in line
    assert "--filter" in line


def test_each_remedy_once() -> None:
    """Losses of one cause in two sessions have one line, and other causes lines of their own."""
    names = ("kernel_ring/ring_full", "sink/disk_full")
    lines = list(next_steps.loss_remedies([lossy("perf", *names), lossy("perf", *names)]))
    assert len(lines) == 2
    assert "disk" in lines[1]


def test_every_loss_that_a_user_can_prevent_has_a_remedy() -> None:
    """Only a pause, invalid contents and what a killed process had are nobody's choice."""
    silent = {
        loss_name(key)
        for source, keys in LOSS_PAIRS.items()
        for key in keys
        if not list(next_steps.loss_remedies([lossy(source, loss_name(key))]))
    }
    assert silent == {
        "kernel_ring/paused",
        *(f"{Stage.STAGING}/{reason}" for reason in ("quarantined", "dropped")),
    }


def test_no_advice_without_loss() -> None:
    """A recording that lost nothing is not told how to lose less."""
    assert list(next_steps.loss_remedies([lossy("perf")])) == []


@pytest.mark.parametrize(
    ("source", "file", "shown"),
    [
        ("perf", "x.data", "collectord events x.data, or perf script -i x.data"),
        ("bpf", "x.data", "collectord events x.data, or perf script -i x.data"),
        ("tracefs", "a b.dat", "collectord events 'a b.dat', or trace-cmd report -i 'a b.dat'"),
        ("relay", "d.blktrace.1", "collectord events d, or blkparse -i d"),
        ("relay-2", "e.blktrace.0", "collectord events e, or blkparse -i e"),
    ],
)
def test_how_to_look_at_a_file(
    source: str, file: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands can be typed as they stand, with the path as seen from here."""
    monkeypatch.chdir(tmp_path)
    made = replace(lossy(source), segments=("older", str(tmp_path / file)))
    assert list(next_steps.viewers([made])) == [f"to look at it: {shown}"]


def test_a_file_elsewhere_has_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that would begin with .. is given from the root."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    made = replace(lossy("perf"), segments=(str(tmp_path / "x.data"),))
    (line,) = next_steps.viewers([made])
    assert f"events {tmp_path}/x.data," in line


@pytest.mark.parametrize(
    ("source", "stored", "segments"),
    [("perf", 0, ("x.data",)), ("perf", 9, ()), ("relay", 9, ("/d/sent.relay.0",))],
)
def test_nothing_to_look_at(source: str, stored: int, segments: tuple[str, ...]) -> None:
    """An empty recording, one without files, and a channel of an unknown client have no line."""
    assert (
        list(next_steps.viewers([replace(lossy(source), stored=stored, segments=segments)])) == []
    )
