# SPDX-License-Identifier: Apache-2.0
"""The fenced blocks of the manual: README.md and the pages of docs/.

A block of the language `console` is a session of a shell: lines that begin with `$ ` are commands,
a `> ` goes on with one, and all others are what it prints. A comment before a block,
`<!-- parsed only: REASON -->`, says why not every host can run it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
README: Final = ROOT / "README.md"
PAGES: Final = (README, *sorted(DOCS.rglob("*.md")))

_FENCE: Final = re.compile(
    r"^(?:<!-- parsed only: (?P<reason>[^\n]+) -->\n)?"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Where one command of a line of a shell ends.
_SEPARATORS: Final = frozenset({"|", ";", "&&", "||", "&", "(", ")", "do", "done", "then"})


class Step(NamedTuple):
    """A command of a console block, with the lines of output that the manual shows."""

    command: str
    shown: tuple[str, ...]


class Block(NamedTuple):
    """A fenced block: its page, the number of its first line, and why it is only parsed, if so."""

    page: Path
    line: int
    language: str
    text: str
    parsed_only: str

    @property
    def place(self) -> str:
        """Its location, for a message."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def steps(self) -> list[Step]:
        """Return the commands of a console block with their output."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.startswith("> ") and found and not found[-1][1]:
                found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
            else:
                assert found, f"{self.place}: output before a command"
                found[-1][1].append(line)
        return [Step(command, tuple(shown)) for command, shown in found]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, which all name their language."""
    text = page.read_text()
    found = [
        Block(
            page,
            text.count("\n", 0, match.start("language")) + 2,
            match["language"],
            match["text"],
            match["reason"] or "",
        )
        for match in _FENCE.finditer(text)
    ]
    assert text.count("\n```") == 2 * len(found), f"{page}: a fence without a language"
    return found


def all_blocks(language: str) -> list[Block]:
    """Return the blocks of one language, page by page."""
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def our_commands(command: str) -> Iterator[list[str]]:
    """Yield the words of each call of collectord in a line of a shell, from the verb on."""
    lexer = shlex.shlex(command.replace("$$", "1"), posix=True, punctuation_chars="|;&()<>")
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in [*lexer, ";"]:
        if word in _SEPARATORS:
            if words[:1] == ["collectord"]:
                yield words[1:]
            words, redirected = [], False
        elif set(word) <= {"<", ">"}:
            redirected = True
        elif redirected:
            redirected = False
        elif word not in {"sudo", "exec"} or words:
            words.append(word)


def named_file(block: Block, folder: str) -> str | None:
    """Return the path below `folder` that a block's first line names, as in `# FOLDER/x.toml`."""
    first = block.text.partition("\n")[0]
    found = re.fullmatch(rf"(?:# |/\* ){re.escape(folder)}/(\S+?)(?: \*/)?", first)
    return found[1] if found else None
