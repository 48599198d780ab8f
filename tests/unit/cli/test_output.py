# SPDX-License-Identifier: Apache-2.0
"""Results: JSON, tables, the summary and the live line."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collectord.cli.live_line import LiveLine
from collectord.cli.output import bytes_text, count_text, print_json
from collectord.cli.summary import print_result
from collectord.cli.text_table import Column, print_table
from collectord.model import Basis
from collectord.sink.pack import Attempt, Compressed, Result
from tests.support import balances

if TYPE_CHECKING:
    from collectord.session.daemon_status import DaemonStatus


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stdout and stderr one wide terminal, for the rest of the test."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    return stream


EVIL = ["[red]x[/red]", "a\x1b[2Jb\nc"]


def test_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Away from a terminal a table is aligned text, one line a row, figures to the right."""
    print_table([Column("NAME"), Column("N", "right")], [["a", "1"], ["long", "1000"]])
    assert capsys.readouterr().out == "NAME     N\na        1\nlong  1000\n"


def test_foreign_text_in_a_plain_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A control character in a cell is made visible and breaks no line."""
    print_table([Column("A"), Column("B")], [EVIL])
    out = capsys.readouterr().out
    assert out.count("\n") == 2
    assert "[red]x[/red]" in out
    assert "a\\x1b[2Jb\\nc" in out


def test_foreign_text_in_a_rich_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal markup in a cell stays text, and no control character passes."""
    terminal = as_terminal(monkeypatch)
    print_table([Column("A"), Column("B")], [EVIL])
    assert "[red]x[/red]" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()
    assert "a\\x1b[2Jb\\nc" in terminal.getvalue()


def test_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A table without rows prints nothing, not a lonely header."""
    print_table([Column("A")], [])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (5 << 50, "5120 TiB")],
)
def test_bytes_text(count: int, text: str) -> None:
    """Sizes have binary units."""
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (12_345, "12.3k"), (2e6, "2M"), (5e12, "5000G")]
)
def test_count_text(count: float, text: str) -> None:
    """Counts have decimal units."""
    assert count_text(count) == text


def test_json_takes_paths(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON result is one document; paths are strings."""
    print_json({"path": Path("/a"), "n": None})
    assert json.loads(capsys.readouterr().out) == {"path": "/a", "n": None}


def test_json_result_has_the_fixed_shape(capsys: pytest.CaptureFixture[str]) -> None:
    """--json has the documented keys, null where the basis is not exact."""
    print_result(
        [balances.session("exec"), balances.session("profile", basis=Basis.LOST_ONLY)],
        as_json=True,
    )
    exact, sampled = json.loads(capsys.readouterr().out)["sessions"]
    assert exact.keys() >= {
        *("name", "source", "scope", "ledger_basis", "produced", "stored", "lost"),
        *("overwritten", "unaccounted", "rings", "segments"),
    }
    assert exact["rings"][0].keys() >= {
        *("cpu", "ledger_basis", "capacity_bytes", "high_watermark_bytes", "produced", "stored"),
        *("lost", "unaccounted", "bytes", "wakeups"),
    }
    assert exact["rings"][0]["wakeups"].keys() == {"watermark", "timer"}
    assert (exact["produced"], exact["unaccounted"]) == (200, 0)
    assert (sampled["produced"], sampled["unaccounted"]) == (None, None)
    assert sampled["ledger_basis"] == "lost_only"


def test_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """The text result has each session's balance, rings with loss, reasons and files."""
    quiet = replace(
        balances.session("quiet", basis=Basis.LOST_ONLY),
        lost=balances.no_loss(),
        rings=(),
        degraded_reasons=("no cycles on this machine",),
        segments=("/data/evil\x1b[2J",),
    )
    loud = balances.session("exec")
    whole = replace(loud.rings[0], lost=balances.no_loss())
    loud = replace(loud, rings=(whole, *loud.rings[1:]))
    print_result([loud, quiet], as_json=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "exec system exact 200 180 20 0" in lines
    assert "quiet system lost_only - 180 0 -" in lines
    assert "exec/perf/data/cpu1 exact 100 90 10 0 50%" in lines
    assert "exec/perf/sideband/cpu1 exact - 0 3 - 50%" in lines
    assert not any(line.startswith("exec/perf/data/cpu0") for line in lines)
    assert "exec: lost 20 at kernel_ring/ring_full" in lines
    assert "quiet: degraded, no cycles on this machine" in lines
    assert "wrote /data/evil\\x1b[2J" in lines


def test_result_tells_of_compressed_files(capsys: pytest.CaptureFixture[str]) -> None:
    """With both sizes, or why a file stays as it is."""
    done = [
        Compressed(Path("/data/a"), Attempt(Result.PACKED), 10 << 20, 1 << 20),
        Compressed(Path("/data/b"), Attempt(Result.KEPT, "too little"), 4096, 4096),
    ]
    print_result([], as_json=False, compressed=done)
    assert capsys.readouterr().out.splitlines() == [
        "compressed /data/a: 1 MiB of 10 MiB",
        "/data/b stays as it is: too little: 4 KiB",
    ]
    print_result([], as_json=True, compressed=done)
    assert json.loads(capsys.readouterr().out)["compressed"][0] == {
        "path": "/data/a",
        "result": "packed",
        "detail": "",
        "before_bytes": 10 << 20,
        "after_bytes": 1 << 20,
    }


def test_summary_names_quarantined_rings(capsys: pytest.CaptureFixture[str]) -> None:
    """A ring that is not read any more is named with the reason."""
    session = balances.session("exec")
    bad = balances.in_quarantine(session.rings[0], "bad_size")
    print_result([replace(session, rings=(bad, *session.rings[1:]))], as_json=False)
    assert "exec/perf/data/cpu0: quarantined, bad_size" in capsys.readouterr().out


def with_records(records: int, lost: int) -> DaemonStatus:
    """Return a status whose one data ring has read so many records."""
    session = balances.session("exec", cpus=1)
    counters = session.rings[0].counters._replace(records=records, bytes=records * 100)
    ring = replace(session.rings[0], counters=counters)
    return balances.status(
        replace(session, rings=(ring,), lost=balances.no_loss() | {"kernel_ring/ring_full": lost})
    )


def test_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line shows what was read, how full the rings are and what was lost."""
    terminal = as_terminal(monkeypatch)
    with LiveLine() as line:
        line.update(with_records(1_000, 0))
        assert "1k records  fill 25% (peak 50%)  " in terminal.getvalue()
        assert "lost 0" in terminal.getvalue()
        line.update(with_records(3_000, 7))
    shown = terminal.getvalue()
    assert "3k records" in shown
    assert "lost 7" in shown
    assert "rec/s" in shown


def test_live_line_before_any_ring_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sessions the line stands at zero."""
    terminal = as_terminal(monkeypatch)
    with LiveLine() as line:
        line.update(replace(balances.status(), sessions=()))
    assert "0 rec/s  0 B/s  0 records  fill 0% (peak 0%)  " in terminal.getvalue()
