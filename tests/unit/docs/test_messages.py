# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md has every message that the program can end with, and what to do."""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING, Final

from collectord import errors
from tests.support import manual

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLASSES: Final = {
    name
    for name, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, errors.CollectordError)
}
# Errors of damaged files: `segments verify` and `repair` tell of them as damage, with the place.
OF_BYTES: Final = "CodecError"
# These have messages too, each with the place of its text: a broken rule of the configuration, a
# value of the wrong type in it, and an option of the command line that cannot be.
OTHERS: Final = {"Problem": 1, "place.error": 0, "parser.error": 0, "ArgumentTypeError": 0}
LEVELS: Final = ("warning", "error", "critical")
LEAST_LETTERS: Final = 8
GAP: Final = "…"


def template(node: ast.expr) -> str:
    """Return the text of a message, with a gap for what is put into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return GAP


def messages() -> Iterator[tuple[str, str]]:
    """Each message that the program's text has, and where."""
    for path, call in calls():
        name = ast.unparse(call.func)
        is_error = name.rpartition(".")[2] in CLASSES - {OF_BYTES}
        index = OTHERS.get(name, 0)
        if (is_error or name in OTHERS) and "/codec/" not in str(path) and index < len(call.args):
            yield template(call.args[index]), place(path, call)


def lines_of_the_log() -> Iterator[tuple[str, str]]:
    """Each line of the log that is a warning or an error, and where; some have parts as names."""
    for path, call in calls():
        owner, _, level = ast.unparse(call.func).rpartition(".")
        if level in LEVELS and owner.lower().endswith(("log", "get_logger()")):
            yield template(call.args[0]), place(path, call)


def calls() -> Iterator[tuple[Path, ast.Call]]:
    """Each call with an argument in the program's text."""
    for path in sorted((manual.ROOT / "collectord").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                yield path, node


def place(path: Path, node: ast.expr) -> str:
    """Return where a call is."""
    return f"{path.relative_to(manual.ROOT)}:{node.lineno}"


def test_every_answer_is_whole() -> None:
    """It ends with a whole sentence, and has nothing of the source text's quoting."""
    text = (manual.DOCS / "troubleshooting.md").read_text()
    answers = re.findall(r"^\| `.+?` \| ([^`|].{9,}) \|$", text, re.MULTILINE)
    assert answers
    torn = re.compile(r"…\W*$|\b(a|the|of|with|by|than)\.$|[^.)]$|\\\"")
    assert [answer for answer in answers if torn.search(answer) and "Meaning," not in answer] == []


def test_every_message_is_told() -> None:
    """By its longest part; what is made of a library's or the kernel's words has none."""
    text = (manual.DOCS / "troubleshooting.md").read_text()
    rows = "\n".join(re.findall(r"^\| `(.+?)` \| .{10,} \|$", text, re.MULTILINE))
    missing = [
        f"{place}: {message}"
        for message, place in messages()
        for part in [max(message.split(GAP), key=len).strip()]
        if len(part) >= LEAST_LETTERS and part not in rows
    ]
    assert missing == []


def test_every_warning_of_the_log_is_told() -> None:
    """So is every error in it, with its meaning and what to do."""
    text = (manual.DOCS / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| .{10,} \|$", text, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    found = dict(lines_of_the_log())
    assert "write_failed" in found
    names = {name: where for name, where in found.items() if GAP not in name}
    assert [f"{where}: {name}" for name, where in names.items() if name not in told] == []
