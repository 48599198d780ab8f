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

CLASSES: Final = {
    name
    for name, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, errors.CollectordError)
}
# Errors of damaged files: `segments verify` and `repair` tell of them as damage, with the place.
OF_BYTES: Final = "CodecError"
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
    for path in sorted((manual.ROOT / "collectord").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in CLASSES - {OF_BYTES} and "/codec/" not in str(path):
                yield template(node.args[0]), f"{path.relative_to(manual.ROOT)}:{node.lineno}"


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
