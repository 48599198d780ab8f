# SPDX-License-Identifier: Apache-2.0
"""The text of a daemon's start: one screen at 80 columns, with commands that can be typed."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from collectord.cli.start_text import start_lines
from collectord.config.load import load
from collectord.plan.build import build
from tests.support.hosts import host

if TYPE_CHECKING:
    from collectord.config.schema import Config
    from collectord.config.schema_session import SessionConfig

ROOT: Final = Path(__file__).parents[3]
PLACES: Final = ["metrics  http://127.0.0.1:9590/metrics"]


@pytest.fixture(scope="module")
def shipped() -> Config:
    """The configuration that is installed."""
    return load([ROOT / "config/collectord.toml"])


def lines_of(config: Config) -> list[str]:
    """Return the text for a configuration on a known host."""
    return [*start_lines(build(config, host()), config, PLACES)]


def test_the_shipped_configuration_fits_a_screen(shipped: Config) -> None:
    """It has a line for each session, the places, and no more than 24 lines of 80 columns."""
    lines = lines_of(shipped)
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    sessions = {line.split()[0] for line in lines if line.startswith("  ")}
    assert {one.name for one in shipped.session} <= sessions
    assert PLACES[0] in lines
    text = " ".join(" ".join(lines).split())
    assert "a flight recorder, of 30 s" in text
    assert "the budget is 0.5% of all CPUs" in text


def test_the_commands_parse(shipped: Config) -> None:
    """Each of the commands to type next is one that the program takes."""
    changed = msgspec.structs.replace(
        shipped, daemon=msgspec.structs.replace(shipped.daemon, state_dir="/srv/traces")
    )
    lines = lines_of(changed)
    first = next(number for number, line in enumerate(lines) if line.startswith("next "))
    commands = [shlex.split(line.removeprefix("next")) for line in lines[first:]]
    assert [words[1] for words in commands] == ["top", "snapshot", "flame"]
    for _, verb, *words in commands:
        joined = [word.replace("-2m", "12:00") for word in words]
        importlib.import_module(f"collectord.cli.{verb}").parser().parse_intermixed_args(joined)
    assert commands[2][-1] == "/srv/traces"


def test_only_what_there_is_is_offered(shipped: Config) -> None:
    """Without a flight recorder, call chains and control socket, only answers are left."""
    (exec_,) = (one for one in shipped.session if one.name == "exec")
    config = _with(shipped, exec_)
    lines = lines_of(config)
    assert [line.split()[1:3] for line in lines if "collectord " in line and "`" not in line] == [
        ["collectord", "answer"]
    ]


def _with(config: Config, session: SessionConfig) -> Config:
    control = msgspec.structs.replace(config.control, socket="")
    return msgspec.structs.replace(config, session=(session,), control=control)
