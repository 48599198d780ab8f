# SPDX-License-Identifier: Apache-2.0
"""The manual: its commands parse, its configurations load, its names and links lead somewhere."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Final

import pytest

from collectord import cli
from collectord.cli import record_config, record_options
from collectord.cli.times import TIMES, joined
from collectord.config.load import load
from collectord.errors import UsageError
from tests.support import manual

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.manual import Block

README_LINES: Final = 150
LANGUAGES: Final = {"console", "sh", "toml", "ini", "c", "text"}
_TEST: Final = re.compile(r"^def (test_\w+)", re.MULTILINE)


def place(block: Block) -> str:
    """Return the id of a block for a test's name."""
    return block.place


def parse(words: list[str]) -> None:
    """Parse one command line by the parser of its verb, as the program does.

    Raises:
        UsageError: it does not parse.
    """
    verb, *rest = words
    if verb in {"--help", "--version"}:
        return
    if verb not in cli.VERBS:
        raise UsageError(f"no verb {verb!r}")
    if verb == "record":
        args, command = record_options.parse(rest)
        record_config.config_of(args, with_command=bool(command))
        return
    importlib.import_module(f"collectord.cli.{verb}").parser().parse_intermixed_args(
        joined(rest, TIMES)
    )


@pytest.mark.parametrize("page", manual.PAGES, ids=lambda page: page.name)
def test_each_block_has_a_known_language(page: Path) -> None:
    """Commands are in console blocks; no block has a language that no test reads."""
    assert {block.language for block in manual.blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("block", manual.all_blocks("console"), ids=place)
def test_each_command_parses(block: Block) -> None:
    """Those of blocks that not every host can run, too."""
    found = [words for step in block.steps() for words in manual.our_commands(step.command)]
    for words in found:
        parse(words)
    assert found or not block.parsed_only, "nothing of ours, and nobody runs it"


@pytest.mark.parametrize("block", manual.all_blocks("toml"), ids=place)
def test_each_configuration_loads(block: Block, tmp_path: Path) -> None:
    """A block is configuration or, where its first line says so, the manifest of a program."""
    if manual.named_file(block, "/etc/collectord/bpf"):
        return  # compiled with its program, in the kernel lane
    path = tmp_path / "collectord.toml"
    path.write_text(block.text)
    loaded = load([path])
    assert loaded.session or loaded.trigger


def test_links_of_the_readme() -> None:
    """Each leads to a file of the repository; `make docs` looks after those of docs/."""
    links = re.findall(r"\]\(([^)]+)\)", manual.README.read_text())
    targets = [link.partition("#")[0] for link in links if "://" not in link]
    assert targets
    assert [target for target in targets if not (manual.ROOT / target).exists()] == []


def test_every_page_is_in_the_list() -> None:
    """A page that the list of mkdocs.yml lacks is found by nobody."""
    listed = set(
        re.findall(r"^ +- ([\w/.-]+\.md)$", (manual.ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    )
    assert listed == {str(page.relative_to(manual.DOCS)) for page in manual.DOCS.rglob("*.md")}


def test_places_that_the_architecture_names() -> None:
    """A file that moved, or went, is told by its new name."""
    text = (manual.DOCS / "architecture.md").read_text()
    named = set(re.findall(r"`((?:collectord|config|docs|tests)/[\w/.]+)`", text))
    assert len(named) > len(list((manual.ROOT / "collectord").iterdir())) / 2
    assert sorted(path for path in named if not (manual.ROOT / path).exists()) == []


def test_the_readme_is_short() -> None:
    """Longer texts have pages of their own."""
    assert len(manual.README.read_text().splitlines()) <= README_LINES


def test_what_the_readme_shows_is_run_or_marked_elsewhere() -> None:
    """So its commands are run, or known not to run everywhere, without running them twice."""
    blocks = manual.all_blocks("console")

    def commands(*, in_readme: bool) -> set[tuple[str, bool]]:
        return {
            (step.command.partition(" | head")[0], bool(block.parsed_only))
            for block in blocks
            if (block.page == manual.README) == in_readme
            for step in block.steps()
        }

    assert commands(in_readme=True) - commands(in_readme=False) == set()


def test_tests_that_contributing_chooses_are_there() -> None:
    """Each `-k WORD` of a command is in the name of a test below the path before it."""
    text = (manual.ROOT / "CONTRIBUTING.md").read_text()
    chosen = re.findall(r"(tests/\S+) -k (\w+)", text)
    assert len(chosen) > 3
    for path, word in chosen:
        place = manual.ROOT / path
        files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
        names = [*files, *(name for one in files for name in _TEST.findall(one.read_text()))]
        assert any(word in str(name) for name in names), (path, word)
