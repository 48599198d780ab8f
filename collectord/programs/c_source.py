# SPDX-License-Identifier: Apache-2.0
"""A BPF program's C text, parsed for its declarations and attachments.

Nothing is expanded or compiled: text that a macro or an #if hides counts like any other, so that
statements about a program hold whichever way it is compiled.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPLICE: Final = re.compile(r"\\[ \t]*\r?\n")
# Comments and literals.
OPAQUE: Final = re.compile(
    r"""
    (?P<comment> //[^\n]* | /\*[\s\S]*?(?:\*/|\Z) )
    | "(?:\\.|[^"\\\n])*"
    | '(?:\\.|[^'\\\n])*'
    """,
    re.VERBOSE,
)
_DEFINE: Final = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(.*)$", re.MULTILINE)
_DIRECTIVE: Final = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_CONDITION: Final = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b")
_WORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def strip(source: str, *, literals: bool = False) -> str:
    """Return the text without comments and continued lines; literals are emptied, or kept.

    A comment becomes one space even if it had several lines, as for the compiler.
    """

    def replace(match: re.Match[str]) -> str:
        if match["comment"]:
            return " "
        return match[0] if literals else match[0][0] * 2

    return OPAQUE.sub(replace, _SPLICE.sub("", source))


def words(code: str) -> frozenset[str]:
    """Return all identifiers of a stripped text."""
    return frozenset(_WORD.findall(code))


def includes(source: str, name: str) -> int:
    """Return where `#include "name"` begins in the text stripped but for literals, or -1."""
    pattern = rf'^[ \t]*#[ \t]*include[ \t]*"{re.escape(name)}"'
    found = re.search(pattern, strip(source, literals=True), re.MULTILINE)
    return found.start() if found else -1


def defined(source: str, name: str) -> int:
    """Return where `#define name` begins in the same stripped text, or -1."""
    for match in _DEFINE.finditer(strip(source, literals=True)):
        if match[1] == name:
            return match.start()
    return -1


def unconditional(code: str) -> str:
    """Return the parts of a stripped text that are outside of every #if."""
    lines, depth = [], 0
    for line in code.splitlines():
        word = _CONDITION.match(line)
        if word and word[1] == "endif":
            depth -= 1
        elif word:
            depth += 1
        elif depth <= 0:
            lines.append(line)
    return "\n".join(lines)


def calls(code: str, macro: str) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of each `macro(...)` of plain words in a stripped text."""
    for match in re.finditer(rf"\b{macro}\s*\(([^()]*)\)", _DIRECTIVE.sub("", code)):
        yield tuple(part.strip() for part in match[1].split(","))
