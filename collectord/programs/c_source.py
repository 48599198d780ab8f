# SPDX-License-Identifier: Apache-2.0
"""A BPF program's C text, read as far as what it declares, attaches to and returns.

Nothing is expanded or compiled: text that a macro or an #if hides counts as if it were there, so
that what is said of a program holds whichever way it is compiled.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SPLICE: Final = re.compile(r"\\[ \t]*\r?\n")
_OPAQUE: Final = re.compile(
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
_RETURN: Final = re.compile(r"\breturn\b([^;]*)")
_ONE: Final = re.compile(r"\s*(?:1|\(\s*1\s*\))\s*")
_ENDS_WITH_ONE: Final = re.compile(r"\breturn\b\s*(?:1|\(\s*1\s*\))\s*;\s*\Z")
_TAIL_CALL: Final = re.compile(r"\bbpf_tail_call\b|\.\s*call\s*\(")


def strip(source: str, *, literals: bool = False) -> str:
    """The text without comments and continued lines; literals are emptied, or kept.

    A comment is one space even if it had several lines, as the compiler takes it.
    """

    def replace(match: re.Match[str]) -> str:
        if match["comment"]:
            return " "
        return match[0] if literals else match[0][0] * 2

    return _OPAQUE.sub(replace, _SPLICE.sub("", source))


def words(code: str) -> frozenset[str]:
    """All identifiers of a stripped text."""
    return frozenset(_WORD.findall(code))


def includes(source: str, name: str) -> int:
    """Where `#include "name"` begins in the text stripped but for its literals, -1 if nowhere."""
    pattern = rf'^[ \t]*#[ \t]*include[ \t]*"{re.escape(name)}"'
    found = re.search(pattern, strip(source, literals=True), re.MULTILINE)
    return found.start() if found else -1


def defined(source: str, name: str) -> int:
    """Where `#define name` begins, in the same terms."""
    for match in _DEFINE.finditer(strip(source, literals=True)):
        if match[1] == name:
            return match.start()
    return -1


def unconditional(code: str) -> str:
    """What of a stripped text is outside of every #if."""
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
    """Arguments of each `macro(...)` of plain words in a stripped text."""
    for match in re.finditer(rf"\b{macro}\s*\(([^()]*)\)", _DIRECTIVE.sub("", code)):
        yield tuple(part.strip() for part in match[1].split(","))


def always_returns_one(source: str, heads: Iterable[str]) -> bool:
    """Whether some functions end by `return 1` on every way out.

    Args:
        source: the program's text.
        heads: patterns of what stands before the parenthesis of their arguments.
    """
    code = strip(source)
    macros: dict[str, str] = {}
    for name, text in _DEFINE.findall(code):
        macros[name] = macros.get(name, "") + text
    for head in heads:
        # One that a macro makes cannot be looked into.
        if any(re.search(rf"\b(?:{head})", text) for text in macros.values()):
            return False
    plain = _DIRECTIVE.sub("", code)
    for head in heads:
        for match in re.finditer(rf"\b(?:{head})\s*\(", plain):
            end = _closing(plain, match.end() - 1, "()")
            start = end + len(plain[end:]) - len(plain[end:].lstrip())
            if plain[start : start + 1] != "{":
                continue  # a declaration or a call
            if not _returns_one(plain[start + 1 : _closing(plain, start, "{}") - 1], macros):
                return False
    return True


def _closing(code: str, start: int, pair: str) -> int:
    """Behind the partner of the bracket at `start`; the text's end if it has none."""
    depth = 0
    for match in re.finditer(f"[{re.escape(pair)}]", code[start:]):
        depth += 1 if match[0] == pair[0] else -1
        if not depth:
            return start + match.end()
    return len(code)


def _returns_one(body: str, macros: dict[str, str]) -> bool:
    texts = [body]
    left = dict(macros)
    for text in texts:  # grows by what the texts so far expand to
        texts += [left.pop(word) for word in words(text) & left.keys()]
    for text in texts:
        if _TAIL_CALL.search(text):
            return False
        if not all(_ONE.fullmatch(value) for value in _RETURN.findall(text)):
            return False
    return _ENDS_WITH_ONE.search(body) is not None
