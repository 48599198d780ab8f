# SPDX-License-Identifier: Apache-2.0
"""Tables of `collectord query` from manifests that are damaged, or that anybody wrote."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import query
from tests.support.segments import make_sink
from tests.support.told_segments import (
    FULL,
    balance,
    change,
    manifest_path,
    told_segment,
    utc,
    write_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from collectord.sink.base import SegmentInfo
    from tests.support.asking import Ask, Rows

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

TABLES: Final = ("ledger", "clocks", "coverage", "snapshots")


@pytest.fixture(name="three")
def run_of_three(tmp_path: Path) -> list[SegmentInfo]:
    """The segments of one run, in their order."""
    return write_run(tmp_path)


def _all(capsys: pytest.CaptureFixture[str], target: Path) -> tuple[int, dict[str, Rows], str]:
    """Return the status, the rows of each table that has any, and what is said of them."""
    parts = (f"FROM {name} r SELECT '{name}', to_json(r)::VARCHAR" for name in (*TABLES, "damage"))
    status = query.run(["--json", " UNION ALL ".join(f"({part})" for part in parts), str(target)])
    captured = capsys.readouterr()
    rows: dict[str, Rows] = {}
    for line in captured.out.splitlines():
        table, row = json.loads(line).values()
        rows.setdefault(table, []).append(json.loads(row))
    return status, rows, captured.err


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _replace(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _large(path: Path) -> None:
    os.truncate(path, 1 << 40)


def _values(**values: Any) -> Callable[[Path], object]:  # noqa: ANN401 - JSON
    return lambda path: path.write_text(json.dumps(json.loads(path.read_bytes()) | values))


@pytest.mark.parametrize(
    ("spoil", "told"),
    {
        "cut": (_cut, "truncated"),
        "not JSON": (_replace(b"\xff\xfe\0"), "manifest"),
        "nested": (_replace(b"[" * 200_000), "manifest"),
        "of nothing": (_replace(b"{}"), "missing required field"),
        "of a later version": (_values(schema=99), "has schema 99, and this version"),
        "a wrong type": (_values(samples="many"), "samples"),
        "a negative count": (_values(bytes=-1), "bytes"),
        "a link outside": (_values(previous={"manifest": "../x", "sha256": ""}), "previous"),
        "a symbolic link": (_link, "is a link"),
        "a folder": (_folder, "not a regular file"),
        "a pipe": (_pipe, "not a regular file"),
        "too large": (_large, "has more than 16777216 bytes"),
        "a ledger of text": (_values(ledger=balance(stored="x")), "the ledger in the manifest"),
        "a ledger below 0": (_values(ledger=balance(lost={FULL: -1})), "ledger"),
        "a pause of nothing": (_values(ledger=balance(pauses=[7])), "ledger"),
    }.values(),
)
def test_a_damaged_manifest_is_told_and_others_are_read(
    spoil: Callable[[Path], object],
    told: str,
    tmp_path: Path,
    three: list[SegmentInfo],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is a row of `damage` and a line on stderr, and the status says so; others have rows."""
    first, damaged, last = three
    spoil(manifest_path(damaged))
    status, rows, told_to_people = _all(capsys, tmp_path)
    assert status == 1
    (line,) = told_to_people.splitlines()
    assert str(damaged.path) in line
    assert told in line
    (row,) = rows["damage"]
    assert row["file"] == str(damaged.path)
    assert told in row["reason"]
    for table in ("ledger", "clocks"):
        assert {row["file"] for row in rows[table]} >= {str(first.path), str(last.path)}
    (row,) = rows["coverage"]
    assert (row["since"], row["until"]) == (utc(100), utc(130))
    for table in (*TABLES, "damage"):
        assert query.run([f"FROM {table}", str(tmp_path)]) == 1
    capsys.readouterr()
    assert query.run(["FROM segments", str(tmp_path)]) == 0


def test_many_damaged_manifests_are_a_few_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has all of them."""
    sink = make_sink(tmp_path)
    for _ in range(6):
        _cut(manifest_path(told_segment(sink, (100, 110), (5,))))
    assert query.run(["SELECT count(*) n FROM damage", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out.split() == ["n", "6"]
    assert len(captured.err.splitlines()) == 5
    assert "2 more manifests are damaged" in captured.err


def test_a_statement_about_records_reads_no_manifest_for_these_tables(
    tmp_path: Path, three: list[SegmentInfo], ask: Ask
) -> None:
    """Damage that touches none of what is asked is not told."""
    change(three[1], ledger=balance(stored="x"))
    (row,) = ask("SELECT count(*) n FROM sys_enter_getppid", tmp_path)
    assert row == {"n": 383}


HUGE: Final = 10**30
MOST: Final = 1 << 61
CLOCK_OF_DAMAGE: Final = dict.fromkeys(
    ("monotonic_ns", "realtime_ns", "perf_ns", "bracket_ns"), HUGE
)
NAMES: Final = [f"{number}/x" for number in range(16)]


@pytest.mark.parametrize(
    "changes",
    [
        {"clocks": {"open": CLOCK_OF_DAMAGE, "close": CLOCK_OF_DAMAGE}},
        {"clocks": {"open": dict.fromkeys(CLOCK_OF_DAMAGE, -HUGE), "flushes": [CLOCK_OF_DAMAGE]}},
        {"clocks": {"open": dict.fromkeys(CLOCK_OF_DAMAGE, 0)}},
        {"clocks": {"open": dict.fromkeys(CLOCK_OF_DAMAGE, (1 << 63) - 1)}},
        {"started_ns": HUGE, "first_ns": HUGE, "last_ns": HUGE},
        {"samples": MOST, "stored_before": MOST, "bytes": MOST},
        {"ledger": balance(lost=dict.fromkeys(NAMES, MOST), produced=MOST, in_flight=-MOST)},
        {"ledger": balance(stored=MOST, in_flight=MOST, unaccounted=-MOST, overwritten=MOST)},
        {"ledger": balance(since_ns=HUGE, until_ns=0, basis="\x1b[31m\0")},
        {"ledger": balance(pauses=[{"cause": "\0", "since_ns": HUGE, "until_ns": 0}] * 2)},
        {"ledger": balance(lost={"a\0'\"\x1b": 3})},
        {"ledger": {}},
        {"session": "'; DROP TABLE ledger; --\0\x1b[31m", "source": "../../\0", "run": "\0"},
        {"source": "../../etc/passwd", "clocks": {"open": CLOCK_OF_DAMAGE}},
        {"source": "x\0y", "clocks": {"open": dict.fromkeys(CLOCK_OF_DAMAGE, 1)}},
        {"source": "n" * 5000, "clocks": {"open": dict.fromkeys(CLOCK_OF_DAMAGE, 1)}},
        {"segment": "../../../etc/passwd", "format": "blktrace.99999999999", "host": ""},
        {"format": "relay.\u0663", "rings": []},
        {"gap": {"from_ns": HUGE, "until_ns": 0, "cause": "\0"}},
        {
            "snapshot": {
                "trigger": "\x1b",
                "taken_ns": HUGE,
                "paused_ns": MOST,
                "repeated": MOST,
                "repeated_bytes": MOST,
            }
        },
        {
            "rings": [
                {
                    "ring": 0,
                    "role": "data",
                    "cpu": 2147483647,
                    "data_bytes": 0,
                    "watermark_bytes": 0,
                    "samples": MOST,
                    "bytes": MOST,
                }
            ]
            * 9
        },
    ],
    ids=" ".join,
)
def test_a_manifest_may_say_anything(
    changes: dict[str, Any],
    tmp_path: Path,
    three: list[SegmentInfo],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A value that no column can have is null, and the other segments have their rows."""
    first, hostile, last = three
    change(hostile, **changes)
    status, rows, told = _all(capsys, tmp_path)
    assert (status, told) == (0, "")
    for table in ("ledger", "clocks"):
        assert {row["file"] for row in rows[table]} >= {str(first.path), str(last.path)}
    stored = {row["file"]: row["stored"] for row in rows["ledger"]}
    assert (stored[str(first.path)], stored[str(last.path)]) == (98, 105)
    assert {row["what"] for row in rows["coverage"]} >= {"recorded"}
    assert "damage" not in rows
    # People are shown them as well.
    assert query.run(["FROM ledger, coverage, snapshots", str(tmp_path)]) == 0
    assert query.run(["FROM ledger, coverage", str(tmp_path)]) == 0
    assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_links_between_manifests_may_go_in_circles(
    tmp_path: Path, three: list[SegmentInfo], ask: Ask
) -> None:
    """Each is followed once."""
    names = [manifest_path(info).name for info in three]
    for at, info in enumerate(three):
        before = {"manifest": names[at - 1], "sha256": ""}
        change(info, previous=before, run=str(at), stored_before=7)
    rows = ask("SELECT produced, stored FROM ledger ORDER BY file", tmp_path)
    assert rows == [{"produced": None, "stored": stored} for stored in (98, 180, 105)]
    change(three[0], previous={"manifest": names[0], "sha256": ""})
    assert len(ask("FROM ledger", tmp_path)) == 3


def test_a_manifest_speaks_for_its_own_file_alone(
    tmp_path: Path, three: list[SegmentInfo], ask: Ask
) -> None:
    """One that claims to be another's takes no part of that one's balance."""
    expected = ask("FROM ledger ORDER BY file", tmp_path)
    change(three[2], segment=three[0].path.name)
    assert ask("FROM ledger ORDER BY file", tmp_path) == expected
