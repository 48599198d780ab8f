# SPDX-License-Identifier: Apache-2.0
"""`make bench` keeps the figures that it has, and starts the daemon below any path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.bench import __main__ as bench
from tests.bench.collectors import Collector, Outcome
from tests.bench.daemons import daemon, default_config
from tests.bench.measure import Stored
from tests.bench.row import Row, Settings
from tests.bench.rows_imposed import Pair, Rounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.generator import Generator


def test_a_row_that_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row is in the file, and in the table, as soon as it is done."""
    result = tmp_path / "result.json"
    seen: list[Any] = []

    def first(_settings: Settings) -> list[Row]:
        """Return a row that is completed."""
        return [Row("work that got done", "1", "2", 0.5, 1, "x")]

    def second(_settings: Settings) -> list[Row]:
        """Return a row that cannot be completed."""
        seen.extend(json.loads(result.read_text())["rows"])
        raise OSError

    monkeypatch.setattr(bench, "ROWS", {"first": first, "second": second})
    with pytest.raises(OSError):  # noqa: PT011  # the row's own
        bench.main(["--json", str(result), "--dir", str(tmp_path / "runs")])
    assert [(row["work"], row["value"], row["within"]) for row in seen] == [
        ("work that got done", 0.5, True)
    ]
    assert "work that got done" in capsys.readouterr().out


@pytest.mark.parametrize("order", [("one", "other"), ("other", "one"), ("other",), ()])
def test_rows_run_alone_and_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    """They run as they are named, all if none is, and none finds what another left."""
    found: dict[str, list[Path]] = {}

    def row_called(name: str) -> Callable[[Settings], list[Row]]:
        def run(settings: Settings) -> list[Row]:
            """Return a row that leaves a file."""
            folder = settings.directory.parent
            found[name] = list(folder.iterdir())
            (folder / "left").touch()
            return [Row(name, "", "", 0, None, "")]

        return run

    rows = {name: row_called(name) for name in ("one", "other")}
    monkeypatch.setattr(bench, "ROWS", rows)
    result = tmp_path / "result.json"
    words = ["--json", str(result), "--dir", str(tmp_path / "runs"), *order]
    assert bench.main(words) == 0
    ran = order or ("one", "other")
    assert list(found) == list(ran)
    assert not any(found.values())
    assert [row["work"] for row in json.loads(result.read_text())["rows"]] == list(ran)


def _outcome(*slices_ns: float) -> Outcome:
    """Return a run of parts of equal size, in which each event took the load so long."""
    return Outcome(
        collector="",
        generated=1000,
        generated_s=1,
        slices=tuple(event_ns * 1e-6 / len(slices_ns) for event_ns in slices_ns),
        cpu=0,
        cpu_children=0,
        cpu_startup=0,
        stored=Stored(0, 0, 0),
        written_bytes=0,
        resident_bytes=0,
        files=0,
        attr="",
        answer=None,
    )


def test_parts_of_a_run_that_are_disturbed_do_not_count() -> None:
    """Other work of the machine makes some parts longer, and none shorter."""
    assert _outcome(300, 300, 300, 300, 900, 500, 700, 300).imposed_ns == pytest.approx(300)


@pytest.mark.parametrize(
    ("ours", "again", "within"),
    [
        ([299, 300, 301], [300, 300, 300], True),
        ([306, 306, 306], [300, 300, 300], False),
        ([302, 302, 302], [303, 300, 297], True),
        ([302, 302, 900], [303, 300, 297], True),
        ([330, 330, 330], [450, 300, 150], False),
    ],
    ids=["no dearer", "dearer", "within noise", "one run disturbed", "dearer than noise excuses"],
)
def test_a_source_may_be_dearer_than_its_peer_by_noise_alone(
    ours: list[float], again: list[float], within: bool
) -> None:
    """The tolerance is the peer's own variation from run to run, with a small maximum."""
    one = Collector("", lambda _: [])
    rounds = Rounds(Pair("s", one, one))
    for mine, other in zip(ours, again, strict=True):
        calm = _outcome(*[100 + mine] * 3), _outcome(*[100 + other] * 3)
        rounds.outcomes.append((_outcome(*[400] * 3), *calm))
    assert rounds.row(bare_ns=100).within is within


@pytest.mark.usefixtures("tracefs")
def test_the_daemon_starts_below_a_long_path(tmp_path: Path, generator: Generator) -> None:
    """Its sockets' names fit all the same."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    settings = Settings(generator, folder / "run", events=0, repeats=0, seconds=0)
    with daemon(settings, default_config()) as pid:
        assert pid > 0
    assert not list(folder.iterdir())
