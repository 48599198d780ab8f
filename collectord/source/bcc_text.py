# SPDX-License-Identifier: Apache-2.0
"""The text of a program that BCC compiles: with collectord.h in it and its own line numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.programs.bpf_program import HEADER
from collectord.programs.c_source import OPAQUE

if TYPE_CHECKING:
    from collections.abc import Iterator


_INCLUDE: Final = re.compile(
    rf'^[ \t]*\#[ \t]*include[ \t]*"{re.escape(HEADER)}"[^\n]*', re.MULTILINE
)
_BRACKET: Final = re.compile(r"[(){}]")
_DIRECTIVE: Final = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


def prepare(name: str, source: str, *, header: str, defines: str = "") -> str:
    """Return a program's text as BCC needs it.

    BCC rewrites the methods of maps in the main file only, so the header is put where it is
    included. BCC also puts lines before each function, a struct among them, and behind its first
    brace. So line numbers are set anew behind the first brace of each outermost block, and
    messages of clang and the verifier name the program's own file and lines.

    Args:
        name: name of the program; messages call it NAME.bpf.c.
        source: its text.
        header: text that replaces `#include "collectord.h"`.
        defines: lines for its front.
    """
    file = f"{name}.bpf.c"
    code = OPAQUE.sub(_without_comment, source)
    edits = [*_inclusion(file, source, code, header), *_blocks(file, source)]
    parts, at = [], 0
    for edit in sorted(edits):
        parts += [source[at : edit.start], edit.text]
        at = edit.end
    parts += [source[at:], "" if source.endswith("\n") else "\n"]
    front = f'#line 1 "{name}.toml"\n{defines}' if defines else ""
    return f'{front}#line 1 "{file}"\n' + "".join(parts)


def _blank(match: re.Match[str]) -> str:
    """Return blanks of the same form, so that places in the text stay the same."""
    return re.sub(r"[^\n]", " ", match[0])


def _without_comment(match: re.Match[str]) -> str:
    return _blank(match) if match["comment"] else match[0]


def _inclusion(file: str, source: str, code: str, header: str) -> Iterator[_Edit]:
    for index, match in enumerate(_INCLUDE.finditer(code)):
        here = _line_of(source, match.start())
        text = f'#line 1 "{HEADER}"\n{header}\n#line {here + 1} "{file}"' if not index else ""
        yield _Edit(match.start(), match.end(), text)


def _blocks(file: str, source: str) -> Iterator[_Edit]:
    """Yield a new line count behind the first brace of each outermost block.

    Within parentheses it could be an argument of a macro, where no directive may stand.
    """
    blocks = parentheses = 0
    for match in _BRACKET.finditer(_DIRECTIVE.sub(_blank, OPAQUE.sub(_blank, source))):
        if match[0] in "()":
            parentheses += 1 if match[0] == "(" else -1
        elif match[0] == "}":
            blocks = max(0, blocks - 1)
        else:
            blocks += 1
            if blocks == 1 and not parentheses:
                yield _count_anew(file, source, match.end())


def _count_anew(file: str, source: str, at: int) -> _Edit:
    line_start = source.rfind("\n", 0, at) + 1
    line_end = source.find("\n", at)
    line_end = len(source) if line_end < 0 else line_end
    here = _line_of(source, at)
    if not source[at:line_end].strip():
        return _Edit(line_end, line_end, f'\n#line {here + 1} "{file}"')
    # The rest of the line keeps its columns.
    indent = re.sub(r"[^\t]", " ", source[line_start:at])
    return _Edit(at, at, f'\n#line {here} "{file}"\n{indent}')


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
