# SPDX-License-Identifier: Apache-2.0
"""The failed tests that `make test` runs a second time, and its messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests import again

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PASSES = "tests/kernel/test_sessions.py::test_one"


@pytest.mark.parametrize(
    "failed",
    [
        [],
        ["tests/native/test_one.py::test_it"],
        [PASSES, "tests/property/test_one.py::test_it"],
        [f"{PASSES}[{number}]" for number in range(again.MOST + 1)],
    ],
    ids=["none", "native", "a_property_too", "many"],
)
def test_what_is_no_accident_is_not_run_again(
    tmp_path: Path, failed: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """No test is run, and the failure stands."""
    remember(tmp_path, failed)
    assert again.main(tmp_path) == 1
    assert capfd.readouterr().out == ""


def test_without_a_cache_the_failure_stands(tmp_path: Path) -> None:
    """A run that ended before its tests began left no cache."""
    assert again.main(tmp_path) == 1


@pytest.mark.parametrize(("holds", "status"), [("True", 0), ("False", 1)])
def test_the_second_run_decides(
    tmp_path: Path,
    holds: str,
    status: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A test that fails again fails the run; one that passes is named as unsteady."""
    place = tmp_path / "tests" / "kernel"
    place.mkdir(parents=True)
    (place / "test_it.py").write_text(f"def test_it() -> None:\n    assert {holds}\n")
    monkeypatch.chdir(tmp_path)
    remember(tmp_path, ["tests/kernel/test_it.py::test_it"])
    assert again.main(tmp_path) == status
    named = (
        "unsteady tests, which failed once and passed alone:\n  tests/kernel/test_it.py::test_it"
    )
    assert (named in capfd.readouterr().out) == (status == 0)


def remember(cache: Path, failed: list[str]) -> None:
    """Write what pytest's cache says of a run's failures."""
    place = cache / "v" / "cache" / "lastfailed"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(dict.fromkeys(failed, True)))
