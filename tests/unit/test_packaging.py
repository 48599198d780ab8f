# SPDX-License-Identifier: Apache-2.0
"""The Debian package's papers agree with the program and with what it brings along."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from collectord import __version__

ROOT: Final = Path(__file__).resolve().parents[2]
DEBIAN: Final = ROOT / "packaging/debian"
# The oldest and the newest Python: what both need, and what one of them needs.
_PYTHONS: Final = ("3.11", "3.13")


def _needs(name: str) -> list[str]:
    """Return what a package requires; one that only other Pythons need is not installed here."""
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def _vendored() -> set[str]:
    """Return the names of the Python packages that pip installs with the program."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    left = list(project["dependencies"])
    while left:
        requirement = Requirement(left.pop())
        marker = requirement.marker
        if marker and not any(
            marker.evaluate({"python_version": python, "extra": ""}) for python in _PYTHONS
        ):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found:
            found.add(name)
            left += _needs(name)
    return found


def test_the_package_has_the_programs_version() -> None:
    """The newest entry of Debian's changelog is of it."""
    newest = (DEBIAN / "changelog").read_text().partition("\n")[0]
    assert re.fullmatch(r"collectord \((.+)-\d+\) unstable; .*", newest)
    assert f"({__version__}-" in newest


def test_the_licence_of_each_python_package_is_told() -> None:
    """And of no other; each licence that is named has its text."""
    text = (DEBIAN / "copyright").read_text()
    assert set(re.findall(r"^Comment: Python package (\S+)", text, re.MULTILINE)) == _vendored()
    named = re.findall(r"^Files: .*\nCopyright: .*(?:\n .*)*\nLicense: (.*)$", text, re.MULTILINE)
    texts = re.findall(r"^License: (\S+)\n ", text, re.MULTILINE)
    assert {word for line in named for word in re.split(" and | or ", line)} == set(texts)
