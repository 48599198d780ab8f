# SPDX-License-Identifier: Apache-2.0
"""The criteria for a pass of the guest's tests, and the inputs of its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.vm import layers, report

if TYPE_CHECKING:
    from pathlib import Path

PASSED = '<testcase classname="tests.vm.test_a" name="test_one" time="1"/>'
WITH_PARAMETERS = '<testcase classname="tests.vm.test_a.TestIt" name="test_two[a::b/c.py]"/>'
FAILED = (
    '<testcase classname="tests.vm.test_a" name="test_bad">'
    '<failure message="assert 1 == 2">the text</failure>'
    '<error message="failed on teardown">more</error></testcase>'
)
SKIPPED = (
    '<testcase classname="tests.vm.test_a" name="test_no">'
    '<skipped message="this kernel lacks it">where</skipped></testcase>'
)
ONE = "tests/vm/test_a.py::test_one"
TWO = "tests/vm/test_a.py::TestIt::test_two[a::b/c.py]"


def _judge(*cases: str, wanted: tuple[str, ...] = (ONE,)) -> report.Verdict:
    reports = (f"<testsuites><testsuite>{case}</testsuite></testsuites>" for case in cases)
    return report.judge(wanted, reports)


def test_all_that_is_wanted_passed() -> None:
    """Parameters and classes have the names that a report gives them."""
    verdict = _judge(PASSED, WITH_PARAMETERS, wanted=(ONE, TWO))
    assert verdict.is_good
    assert verdict.text() == "vm: 2 passed, 0 failed, 0 skipped"


def test_what_did_not_run_fails() -> None:
    """A test that this checkout has and the report has not is a failure, and named."""
    verdict = _judge(PASSED, wanted=(ONE, TWO))
    assert not verdict.is_good
    assert verdict.missing == {"tests.vm.test_a.TestIt.test_two[a::b/c.py]"}
    assert "DID NOT RUN tests.vm.test_a.TestIt.test_two" in verdict.text()
    assert verdict.text().endswith("vm: 1 passed, 1 failed, 0 skipped")


def test_a_failure_is_told_whole() -> None:
    """A test with a failure and an error is one that failed, with both texts."""
    verdict = _judge(PASSED, FAILED)
    assert not verdict.is_good
    assert list(verdict.failed) == ["tests.vm.test_a.test_bad"]
    for words in ("assert 1 == 2", "the text", "failed on teardown", "more"):
        assert words in verdict.text()
    assert verdict.text().endswith("vm: 1 passed, 1 failed, 0 skipped")


def test_a_skip_fails() -> None:
    """In the guest every feature is there."""
    verdict = _judge(PASSED, SKIPPED)
    assert not verdict.is_good
    assert "SKIPPED tests.vm.test_a.test_no: this kernel lacks it" in verdict.text()


def test_nothing_is_no_pass() -> None:
    """A run without a test proves nothing."""
    assert not _judge(wanted=()).is_good


def test_a_report_that_is_cut_off_is_told() -> None:
    """Such a report is left by a pytest that was killed while it wrote."""
    with pytest.raises(ValueError, match="cut off"):
        report.judge((ONE,), ["<testsuites><testsuite><testc"])


def _snapshot(folder: Path, **files: str) -> layers.Snapshot:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return layers.Snapshot(folder, {name: f"-{text}" for name, text in sorted(files.items())})


def test_a_key_is_of_the_contents(tmp_path: Path) -> None:
    """Equal files have one key wherever they are; another text or name has another."""
    first = _snapshot(tmp_path / "a", code="x", tests="y")
    assert first.key("") == _snapshot(tmp_path / "b", code="x", tests="y").key("")
    assert first.key("") != _snapshot(tmp_path / "c", code="x", tests="z").key("")
    assert first.key("") != _snapshot(tmp_path / "d", code="x", other="y").key("")
    assert first.key("", beside="tests") == first.key("code")


def test_packages_are_those_of_the_makefile() -> None:
    """The guest has what `make setup` would install, or it could not run it without a network."""
    root = layers.ROOT
    packages = layers.Snapshot(root, {}).packages()
    assert {"python3-venv", "linux-perf", "trace-cmd", "python3-bpfcc", "cmake"} <= set(packages)


def test_a_snapshot_has_what_git_would_take(tmp_path: Path) -> None:
    """Files of the checkout, and nothing that git ignores."""
    snapshot = layers.Snapshot.take(tmp_path)
    assert snapshot.digests.keys() >= {"Makefile", "pyproject.toml", "collectord/__init__.py"}
    assert not any(name.endswith((".pyc", ".so")) for name in snapshot.digests)
    assert (tmp_path / "Makefile").read_bytes() == (layers.ROOT / "Makefile").read_bytes()
