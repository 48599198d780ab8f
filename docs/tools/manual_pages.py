# SPDX-License-Identifier: Apache-2.0
"""Write the manual pages and the shells' completion, from the parsers and the reference.

`make man` runs it: `python docs/tools/manual_pages.py DIRECTORY` writes

    man1/collectord.1               from the parsers of all verbs
    man5/collectord.toml.5          from the tables of docs/configuration.md
    completion/{bash,zsh,fish}/...  under the names that these shells look for
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from pathlib import Path
from typing import Final

import shtab
from argparse_manpage.manpage import Manpage

from collectord import __version__, cli

DOCS: Final = Path(__file__).resolve().parents[1]
SUMMARY: Final = "empty the kernel's trace buffers into files and account for every record"
COMPLETIONS: Final = {"bash": "collectord", "zsh": "_collectord", "fish": "collectord.fish"}

_MANUAL: Final = "collectord"
_FILES: Final = frozenset({"FILE", "SEGMENT"})
_FOLDERS: Final = frozenset({"DIR"})
# A line that begins with a name such as .svg: the page's requests to roff are shorter.
_WORD: Final = re.compile(r"^(?=\.[a-z]{3})", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """Give the parser of one verb; that of `record` is in a module of its own."""
    module = importlib.import_module(f"collectord.cli.{verb}")
    if not hasattr(module, "parser"):
        module = importlib.import_module(f"collectord.cli.{verb}_options")
    parser: argparse.ArgumentParser = module.parser()
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Join the verbs' parsers, which stand alone in the program, as subcommands of one."""
    whole = argparse.ArgumentParser(prog="collectord", description=f"Commands {SUMMARY}.")
    whole.add_argument(
        "--version", action="version", version=__version__, help="print the version"
    )
    verbs = whole.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb, summary in cli.VERBS.items():
        one = verb_parser(verb)
        made = verbs.add_parser(
            verb,
            parents=[one],
            add_help=False,
            help=summary,
            description=one.description,
            epilog=one.epilog,
            formatter_class=one.formatter_class,
            usage=one.usage,
        )
        for action in made._actions:  # noqa: SLF001  # shtab is told by an attribute of each
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.metavar in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return whole


def commands_page() -> str:
    """Give collectord(1)."""
    page = Manpage(  # type: ignore[no-untyped-call]  # it has no annotations
        whole_parser(), format="single-commands-section"
    )
    page.manual, page.source = _MANUAL, f"collectord {__version__}"
    page.description = SUMMARY
    page.synopsis = ["collectord", "VERB", "[OPTIONS]"]
    return _WORD.sub(r"\\&", str(page))


def configuration_page() -> str:
    """Give collectord.toml(5)."""
    lines = [
        f'.TH COLLECTORD.TOML "5" "" "collectord {__version__}" "{_MANUAL}"',
        ".SH NAME",
        r"collectord.toml \- configuration of collectord",
    ]
    in_code = False
    for line in (DOCS / "configuration.md").read_text().splitlines():
        if line.startswith("```"):
            in_code = not in_code
            lines.append(".nf" if in_code else ".fi")
        elif in_code:
            lines.append(_roff(line))
        elif line.startswith("# "):
            lines.append(".SH DESCRIPTION")
        elif line.startswith("## "):
            title = _roff(line[3:])
            lines.append(f".SH {title if title.startswith('[') else title.upper()}")
        elif line.startswith("| `"):
            lines += _key(line)
        elif line.startswith(("|---", "| Key |", "| Type |")):
            continue
        elif line.startswith("| "):
            first, meaning = (_roff(cell) for cell in _cells(line))
            lines += [".TP", f".B {first}", meaning]
        else:
            lines.append(_roff(line) or ".PP")
    return "\n".join(lines) + "\n"


def _cells(line: str) -> list[str]:
    """Split a row of a table, in whose cells a bar is written with a backslash."""
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [cell.strip().replace("\\|", "|") for cell in cells]


def _key(line: str) -> list[str]:
    """Set one key: its name, its type and default, its meaning."""
    name, kind, default, meaning = (_roff(cell) for cell in _cells(line))
    detail = (
        f"{kind}, {default}" if default == "required" else f"{kind}, default {default or 'none'}"
    )
    return [".TP", f".B {name}", f"({detail})", ".br", meaning]


def _roff(text: str) -> str:
    """Turn a line of Markdown into text that roff takes as it is."""
    plain = _LINK.sub(r"\1", text).replace("`", "").replace("\\", r"\e").replace("-", r"\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def main() -> None:
    """Write all of them below a directory."""
    into = Path(sys.argv[1])
    texts = {
        "man1/collectord.1": commands_page(),
        "man5/collectord.toml.5": configuration_page(),
    }
    for shell, name in COMPLETIONS.items():
        texts[f"completion/{shell}/{name}"] = shtab.complete(whole_parser(), shell=shell)
    for name, text in texts.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
