# SPDX-License-Identifier: Apache-2.0
"""Docstrings, helps and meanings begin with what a thing is or does, not as half a sentence.

"The difference from an earlier reading." is one; "What came to an earlier reading." is a riddle.
"""

from __future__ import annotations

import argparse
import ast
import re
from typing import TYPE_CHECKING, Final

import pytest

from collectord import cli
from docs.tools import manual_pages
from tests.support import manual

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REFUSED: Final = re.compile(r"(?:as|nothing|of|what|who|whom)\b", re.IGNORECASE)
HASHED: Final = r"^(?![ \t]*#).*\n[ \t]*# (.+)"
SETTINGS: Final = (
    "Makefile *.toml *.yml *.service *.socket *.slice *.sysusers *.tmpfiles *.sh rules run"
)
OWNERS: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# A table of the manual whose last column is called Meaning.
MEANINGS: Final = re.compile(r"^\|.*\| Meaning \|\n\|[-|]+\n((?:\|.*\|\n)+)", re.MULTILINE)


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, OWNERS) and (text := ast.get_docstring(node)):
            yield text


@pytest.mark.parametrize("folder", ["collectord", "docs", "tests"])
def test_docstrings(folder: str) -> None:
    """No docstring begins with a word that leaves its subject or verb out."""
    modules = sorted((manual.ROOT / folder).rglob("*.py"))
    assert modules
    assert [
        f"{path.relative_to(manual.ROOT)}: {text.splitlines()[0]}"
        for path in modules
        for text in docstrings(path)
        if REFUSED.match(text)
    ] == []


@pytest.mark.parametrize(
    ("folders", "names", "first_line"),
    [
        ("collectord bpf docs tests", "*.py", HASHED),
        (". .ci config packaging systemd tests/vm", SETTINGS, HASHED),
        ("collectord bpf", "*.[ch]", r"^[ \t]*/\*\s+(?:\* )?(.+)"),
    ],
    ids=["python", "settings", "c"],
)
def test_comments(folders: str, names: str, first_line: str) -> None:
    """Nor does a comment that has its own lines."""
    files = [
        path
        for folder in folders.split()
        for name in names.split()
        for path in sorted((manual.ROOT / folder).glob(name if folder == "." else f"**/{name}"))
    ]
    found = [
        (f"{path.relative_to(manual.ROOT)}: {text}", text)
        for path in files
        for text in re.findall(first_line, path.read_text(), re.MULTILINE)
    ]
    assert len(found) > len(files) > 0
    assert [where for where, text in found if REFUSED.match(text)] == []


@pytest.mark.parametrize("verb", cli.VERBS)
def test_helps(verb: str) -> None:
    """Nor does the help of a verb or of an option."""
    actions = manual_pages.verb_parser(verb)._actions
    helps = [action.help or "" for action in actions if action.help != argparse.SUPPRESS]
    assert len(helps) > 1
    assert [text for text in (cli.VERBS[verb], *helps) if REFUSED.match(text)] == []


@pytest.mark.parametrize("page", ["cli.md", "configuration.md", "metrics.md"])
def test_meanings(page: str) -> None:
    """Nor does what the manual says of an option, a key or a metric, whose help is the same."""
    tables = MEANINGS.findall((manual.DOCS / page).read_text())
    meanings = [row.rsplit(" | ", 1)[1] for table in tables for row in table.splitlines()]
    assert len(meanings) > len(tables) > 0
    assert [meaning for meaning in meanings if REFUSED.match(meaning)] == []
