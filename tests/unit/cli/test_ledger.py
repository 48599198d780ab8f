# SPDX-License-Identifier: Apache-2.0
"""`collectord ledger` over directories that the file sink wrote: what is proved, what is not."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from collectord.cli import ledger
from collectord.errors import UsageError
from tests.support.segments import make_sink
from tests.support.told_segments import FULL, SECOND, UTC_NS, balance, manifest_path, told_segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from collectord.sink.base import SegmentInfo


def run_of(directory: Path, *ledgers: dict[str, Any]) -> list[SegmentInfo]:
    """Write a run of segments of ten seconds with 250 events each, from second 100 on."""
    sink = make_sink(directory)
    return [
        told_segment(
            sink,
            (100 + 10 * number, 110 + 10 * number),
            ledger=balance(
                **{
                    "produced": 250 * (number + 1),
                    "stored": 250 * (number + 1),
                    "since_ns": (100 + 10 * number) * SECOND,
                    "until_ns": (110 + 10 * number) * SECOND,
                    **one,
                }
            ),
        )
        for number, one in enumerate(ledgers)
    ]


def asked(
    capsys: pytest.CaptureFixture[str], *words: object
) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Return the status, the only audit, and its findings."""
    status = ledger.run(["--json", *map(str, words)])
    (audit,) = json.loads(capsys.readouterr().out)["sessions"]
    return status, audit, audit["findings"]


def kinds(findings: Sequence[dict[str, Any]]) -> list[str]:
    """Return the kinds of findings."""
    return [finding["what"] for finding in findings]


def test_a_run_without_a_loss_is_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sums are those of all segments, and the exit status is 0."""
    run_of(tmp_path, {}, {}, {})
    status, audit, findings = asked(capsys, tmp_path)
    assert (status, audit["complete"], findings) == (0, True, [])
    (figures,) = audit["figures"]
    assert (figures["produced"], figures["stored"], figures["unaccounted"]) == (750, 750, 0)
    assert ledger.run([str(tmp_path)]) == 0
    assert "exec, perf: complete, " in capsys.readouterr().out


def test_losses_are_findings_with_their_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss within the second segment is of its ten seconds; the first ten are complete."""
    run_of(tmp_path, {}, {"produced": 510, "lost": {FULL: 10}})
    status, _, findings = asked(capsys, tmp_path)
    assert (status, kinds(findings)) == (1, ["lost"])
    assert (findings[0]["detail"], findings[0]["events"]) == (FULL, 10)
    before = ("--until", "2023-11-14T22:15:10Z")
    status, audit, findings = asked(capsys, tmp_path, *before)
    assert (status, findings) == (0, [])
    assert audit["figures"][0]["produced"] == 250


def test_what_waited_at_the_beginning_closes_the_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records that waited to be stored before the window are stored in it, not produced."""
    run_of(tmp_path, {"stored": 240, "in_flight": 10}, {"stored": 497, "in_flight": 3}, {})
    window = ("--since", "2023-11-14T22:15:10Z", "--until", "2023-11-14T22:15:20Z")
    (figures,) = asked(capsys, tmp_path, *window)[1]["figures"]
    assert (figures["in_flight_before"], figures["produced"]) == (10, 250)
    assert (figures["stored"], figures["in_flight"]) == (257, 3)
    ledger.run([*window, str(tmp_path)])
    assert "in flight before 10, produced 250, stored 257, " in capsys.readouterr().out


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("part", ["segment", "manifest", "both"])
def test_what_is_removed_is_found(
    number: int, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first, one between, and the last is found: its data, its manifest, or both."""
    removed = run_of(tmp_path, {}, {}, {})[number]
    if part != "manifest":
        removed.path.unlink()
    if part != "segment":
        manifest_path(removed).unlink()
    status, _, findings = asked(capsys, tmp_path)
    assert status == 1
    assert any(removed.path.name in finding["file"] for finding in findings), findings
    assert "missing" in kinds(findings)


def test_what_is_changed_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A byte of the data, or a figure of a manifest that would hide a loss."""
    first, second = run_of(tmp_path, {"produced": 260, "lost": {FULL: 10}}, {"lost": {FULL: 10}})
    copy = tmp_path.with_name("copy")
    shutil.copytree(tmp_path, copy)
    manifest = manifest_path(first)
    manifest.write_text(manifest.read_text().replace(": 10", ": 0"))
    assert "changed" in kinds(asked(capsys, tmp_path)[2])
    data = bytearray((copy / second.path.name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / second.path.name).write_bytes(data)
    findings = asked(capsys, copy)[2]
    assert any(second.path.name in finding["file"] for finding in findings), findings


def test_a_basis_that_proves_nothing_is_one_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many balances a time has, it is told once."""
    weak = {"basis": "lost_only", "produced": None, "unaccounted": None}
    run_of(tmp_path, weak, weak, weak)
    status, _, findings = asked(capsys, tmp_path)
    assert (status, kinds(findings)) == (1, ["uncounted"])
    times = findings[0]["since_ns"], findings[0]["until_ns"]
    assert times == (UTC_NS + 100 * SECOND, UTC_NS + 130 * SECOND)


def test_a_window_beyond_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The time before the first balance and that behind the last one are findings."""
    run_of(tmp_path, {})
    window = ("--since", "2023-11-14T22:14:00Z", "--until", "2023-11-14T22:16:00Z")
    status, _, findings = asked(capsys, tmp_path, *window)
    assert status == 1
    assert len(findings) == 2


def test_nothing_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty directory proves nothing; a window that ends before it begins is an error."""
    assert ledger.run([str(tmp_path)]) == 1
    assert "nothing is stored" in capsys.readouterr().err
    with pytest.raises(UsageError, match="must be before"):
        ledger.run(["--since", "2023-11-14T22:16:00Z", "--until", "2023-11-14T22:14:00Z"])
