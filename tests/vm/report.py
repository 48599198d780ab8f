# SPDX-License-Identifier: Apache-2.0
"""The check of the guest's report, which decides whether the run passed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests.vm.layers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class CollectionFailed(Exception):
    """pytest could not collect the tests on this machine; the text is its message."""


def collect(words: Sequence[str]) -> frozenset[str]:
    """Return the node ids of the tests marked `vm` that `words` select, as this checkout has them.

    Raises:
        CollectionFailed: there is none, or pytest failed.
    """
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "vm", *words),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CollectionFailed((done.stdout + done.stderr).strip())
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results of the tests, by their names in a report.

    Attributes:
        passed: names.
        failed: pytest's message for each, errors of fixtures included.
        skipped: reasons.
        missing: wanted and not in the report.
    """

    passed: frozenset[str] = frozenset()
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()

    @property
    def is_good(self) -> bool:
        """Whether tests passed, and none failed, was skipped or is missing."""
        return bool(self.passed) and not (self.failed or self.skipped or self.missing)

    @property
    def only_failed(self) -> bool:
        """Whether tests failed, and none was skipped or is missing."""
        return bool(self.failed) and not (self.skipped or self.missing)

    def text(self) -> str:
        """The failures in full, problems one a line, and the figures as the last line."""
        told = (("FAILED", self.failed), ("SKIPPED", self.skipped))
        lines = [f"{'_' * 20} {name}\n{said}" for name, said in self.failed.items()]
        lines += [
            f"vm: {word} {name}: {said.strip().splitlines()[0] if said.strip() else ''}"
            for word, tests in told
            for name, said in tests.items()
        ]
        lines += [f"vm: DID NOT RUN {name}" for name in sorted(self.missing)]
        lines.append(
            f"vm: {len(self.passed)} passed, {len(self.failed) + len(self.missing)} failed, "
            f"{len(self.skipped)} skipped"
        )
        return "\n".join(lines)


def judge(wanted: Iterable[str], reports: Iterable[str]) -> Verdict:
    """Return the verdict of reports in JUnit's XML on the tests with these node ids.

    Raises:
        ValueError: it is not a complete report, for example because pytest was killed.
    """
    try:
        cases = [
            case
            for text in reports
            for case in ET.fromstring(text).iter("testcase")  # noqa: S314  # from our own guest
        ]
    except ET.ParseError as error:
        message = f"the report is cut off or no XML: {error}"
        raise ValueError(message) from error
    seen: set[str] = set()
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        seen.add(name)
        for outcome in case:
            said = f"{outcome.get('message') or ''}\n{outcome.text or ''}"
            if outcome.tag in {"failure", "error"}:  # a test may have both
                failed[name] = failed.get(name, "") + said
            elif outcome.tag == "skipped":
                skipped[name] = said
    return Verdict(
        passed=frozenset(seen - failed.keys() - skipped.keys()),
        failed=failed,
        skipped=skipped,
        missing=frozenset(map(report_name, wanted)) - seen,
    )


def report_name(node_id: str) -> str:
    """Return the class and name that pytest gives a node id in a report, joined by a dot."""
    path, _, names = node_id.partition("::")
    names, bracket, parameters = names.partition("[")
    module = path.removesuffix(".py").replace("/", ".")
    return f"{module}.{names.replace('::', '.')}{bracket}{parameters}"
