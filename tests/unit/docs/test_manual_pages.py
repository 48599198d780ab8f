# SPDX-License-Identifier: Apache-2.0
"""The manual pages and the shells' completion that `make man` writes."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from collectord import cli
from docs.tools import manual_pages
from tests.support import manual

if TYPE_CHECKING:
    from pathlib import Path

OPTION: Final = re.compile(r"--[a-z][a-z0-9-]+")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files written by the program that `make man` runs."""
    into = tmp_path_factory.mktemp("man")
    command = [sys.executable, "docs/tools/manual_pages.py", str(into)]
    subprocess.run(command, cwd=manual.ROOT, check=True)
    return into


def long_options(verb: str) -> set[str]:
    """Return the long options of a verb."""
    parser = manual_pages.verb_parser(verb)
    strings = {text for action in parser._actions for text in action.option_strings}
    return {text for text in strings if text.startswith("--")} - {"--help"}


def test_the_page_of_the_commands_has_every_verb_and_option(written: Path) -> None:
    """Each verb has a section with its options."""
    text = (written / "man1/collectord.1").read_text().replace("\\-", "-")
    for verb in cli.VERBS:
        part = re.search(
            rf"^\.SS .*collectord {verb}\b.*?(?=^\.SS |^\.SH |\Z)", text, re.MULTILINE | re.DOTALL
        )
        assert part, verb
        assert long_options(verb) <= set(OPTION.findall(part[0]))


@pytest.mark.parametrize("page", ["man1/collectord.1", "man5/collectord.toml.5"])
def test_no_text_is_taken_for_a_request(written: Path, page: str) -> None:
    """A line that begins with a dot would be lost: only roff's own begin so."""
    requests = set(re.findall(r"^[.'](\S*)", (written / page).read_text(), re.MULTILINE))
    assert requests <= {"B", "PP", "RE", "RS", "SH", "SS", "TH", "TP", "br", "fi", "nf"}


def test_the_page_of_the_configuration_has_every_key(written: Path) -> None:
    """It has the keys of the reference, and no Markdown is left."""
    text = (written / "man5/collectord.toml.5").read_text()
    keys = re.findall(
        r"^\| `(\w+)` \|", (manual.DOCS / "configuration.md").read_text(), re.MULTILINE
    )
    assert re.findall(r"^\.B (\w+)\n\(", text, re.MULTILINE) == keys
    assert not re.search(r"`|\]\(|^\||^#", text, re.MULTILINE)


@pytest.mark.parametrize("shell", manual_pages.COMPLETIONS)
def test_completion_knows_every_verb_and_option(shell: str, written: Path) -> None:
    """For each shell, under the name that it looks for."""
    text = (written / "completion" / shell / manual_pages.COMPLETIONS[shell]).read_text()
    for verb in cli.VERBS:
        assert re.search(rf"\b{verb}\b", text)
        for option in long_options(verb):
            assert option in text or re.search(rf"-l {option[2:]}\b", text), (verb, option)


def test_bash_completes_a_verb(written: Path) -> None:
    """It does so in a shell that has read the file."""
    script = (
        f"source {written}/completion/bash/collectord\n"
        "COMP_WORDS=(collectord segm) COMP_CWORD=1\n"
        "$(complete -p collectord | sed 's/.*-F \\([^ ]*\\).*/\\1/') collectord segm collectord\n"
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["segments"]
