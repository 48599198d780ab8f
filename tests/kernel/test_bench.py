# SPDX-License-Identifier: Apache-2.0
"""`make bench` keeps the figures that it has, and starts the daemon below any path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.bench import __main__ as bench
from tests.bench.daemons import daemon, default_config
from tests.bench.row import Row, Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.generator import Generator


def test_a_row_that_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is in the file, and in the table, as soon as it is done."""
    result = tmp_path / "result.json"
    seen: list[Any] = []

    def first(_settings: Settings) -> list[Row]:
        """A row that gets done."""
        return [Row("work that got done", "1", "2", 0.5, 1, "x")]

    def second(_settings: Settings) -> list[Row]:
        """A row that does not."""
        seen.extend(json.loads(result.read_text())["rows"])
        raise OSError

    monkeypatch.setattr(bench, "ROWS", {"first": first, "second": second})
    with pytest.raises(OSError):  # noqa: PT011  # the row's own
        bench.main(["--json", str(result), "--dir", str(tmp_path / "runs")])
    assert [(row["work"], row["value"], row["within"]) for row in seen] == [
        ("work that got done", 0.5, True)
    ]
    assert "work that got done" in capsys.readouterr().out


@pytest.mark.usefixtures("tracefs")
def test_the_daemon_starts_below_a_long_path(tmp_path: Path, generator: Generator) -> None:
    """Its sockets' names fit all the same."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    settings = Settings(generator, folder / "run", events=0, repeats=0, seconds=0)
    with daemon(settings, default_config()) as pid:
        assert pid > 0
    assert not list(folder.iterdir())
