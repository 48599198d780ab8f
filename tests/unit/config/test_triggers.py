# SPDX-License-Identifier: Apache-2.0
"""Triggers in a configuration: how they are spelt, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from collectord.config.load import load
from collectord.config.pressure_limit import PressureLimit
from collectord.config.schema import Config, IncidentsConfig
from collectord.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

SESSION = """
[[session]]
name = "box"
mode = "flight-recorder"
{more}
[[session.source]]
kind = "perf"
events = ["sched:sched_switch"]
"""
FROZEN = SESSION.format(more='freeze_on = "oom:mark_victim"')


def read(folder: Path, text: str, *more: str) -> Config:
    """Load a configuration, and files that follow it."""
    paths = []
    for number, part in enumerate((text, *more)):
        paths.append(folder / f"{number}.toml")
        paths[-1].write_text(part)
    return load(paths)


def trigger(text: str) -> str:
    """Return a table of a trigger; the keys are separated by semicolons."""
    return "[[trigger]]\n" + text.replace("; ", "\n") + "\n"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("io some 1s/2s", PressureLimit("io", "some", 10**9, 2 * 10**9)),
        (" memory  full 250ms / 500ms", PressureLimit("memory", "full", 25 * 10**7, 5 * 10**8)),
        ("irq full 10s/10s", PressureLimit("irq", "full", 10**10, 10**10)),
    ],
)
def test_a_limit_of_pressure(text: str, limit: PressureLimit) -> None:
    """It is a resource, a share, and a time within a window; its text reads the same."""
    assert PressureLimit.parse(text) == limit
    assert PressureLimit.parse(str(limit)) == limit


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("io 1s/2s", "is not a limit"),
        ("disk some 1s/2s", "is not a limit"),
        ("io some 1/2", "has no unit"),
        ("cpu full 1s/2s", "does not count cpu full; cpu some 1s/2s"),
        ("irq some 1s/2s", "does not count irq some"),
        ("io some 1s/20s", "is not between 500ms and 10s"),
        ("io some 1ms/10ms", "is not between"),
        ("io some 3s/2s", "longer than its window"),
        ("io some 0s/2s", "is 0"),
    ],
)
def test_no_limit_of_pressure(text: str, says: str) -> None:
    """A limit that the kernel would refuse is refused before, in words."""
    with pytest.raises(UsageError, match=says):
        PressureLimit.parse(text)


def test_triggers_of_several_files(tmp_path: Path) -> None:
    """A later one of a name replaces an earlier one; its session may be in any file."""
    first = trigger('name = "a"; kind = "oom-kill"') + trigger(
        'name = "f"; kind = "freeze"; session = "box"'
    )
    later = trigger('name = "a"; kind = "loss"; lost = 7; cooldown = "1m"; answers = []')
    config = read(tmp_path, first, later, FROZEN, "[incidents]\nkeep = 3\n")
    assert [(one.name, one.kind) for one in config.trigger] == [("a", "loss"), ("f", "freeze")]
    assert (config.trigger[0].lost, config.trigger[0].answers) == (7, ())
    assert config.trigger[1].answers is None
    assert config.incidents == IncidentsConfig(keep=3)


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ('name = "../x"; kind = "loss"', "trigger[0].name", "not a valid trigger name"),
        ('name = "manual"; kind = "loss"', "trigger[0].name", "not a valid trigger name"),
        ('name = "a"; kind = "los"', "trigger[0].kind", 'did you mean "loss"'),
        ('name = "a"; kind = "pressure"', "trigger[0].pressure", "needs this key"),
        ('name = "a"; kind = "unit"', "trigger[0].unit", "needs this key"),
        ('name = "a"; kind = "freeze"', "trigger[0].session", "needs this key"),
        ('name = "a"; kind = "alert"', "trigger[0].labels", "needs this key"),
        ('name = "a"; kind = "event"', "trigger[0].session", "needs this key"),
        ('name = "a"; kind = "event"; session = "box"; count = 0', "trigger[0].count", "0 events"),
        ('name = "a"; kind = "loss"; metric = "x"', "trigger[0].metric", "another kind"),
        ('name = "a"; kind = "alert"; labels = { a = 1 }', "trigger[0].labels.a", "a string"),
        ('name = "a"; kind = "loss"; labels = { a = "" }', "trigger[0].labels", "another kind"),
        ('name = "a"; kind = "loss"; unit = "x"', "trigger[0].unit", "another kind"),
        ('name = "a"; kind = "oom-kill"; session = "b"', "trigger[0].session", "no session"),
        ('name = "a"; kind = "loss"; session = "bx"', "trigger[0].session", "no session 'bx'"),
        ('name = "a"; kind = "freeze"; session = "loose"', "trigger[0].session", "never frozen"),
        ('name = "a"; kind = "loss"; lost = 0', "trigger[0].lost", "0 records"),
        ('name = "a"; kind = "ring-fill"; fill = "1MiB"', "trigger[0].fill", "not a size"),
        ('name = "a"; kind = "loss"; delay = "11m"', "trigger[0].delay", "longer than 10m"),
        ('name = "a"; kind = "loss"; per_day = 0', "trigger[0].per_day", "0 a day"),
        ('name = "a"; kind = "loss"; answers = ["../x"]', "trigger[0].answers", "no answer"),
    ],
)
def test_a_wrong_trigger(text: str, key: str, says: str, tmp_path: Path) -> None:
    """The error names the key, and says what is wrong with it."""
    loose = SESSION.format(more="").replace('"box"', '"loose"')
    with pytest.raises(ConfigError, match=says) as caught:
        read(tmp_path, FROZEN + loose + trigger(text))
    assert caught.value.key == key


def test_two_triggers_of_one_name(tmp_path: Path) -> None:
    """Within a file that is an error, as with sessions."""
    with pytest.raises(ConfigError, match="second trigger 'a'"):
        read(tmp_path, trigger('name = "a"; kind = "loss"') * 2)


def test_no_session_has_the_folder_of_incidents(tmp_path: Path) -> None:
    """Its segments would be among the incidents."""
    with pytest.raises(ConfigError, match="folder of incidents"):
        read(tmp_path, SESSION.format(more="").replace('"box"', '"incidents"'))


LISTENER: Final = """
[alertmanager]
listen = "127.0.0.1:9591"
certificate = "/x/a.pem"
key = "/x/a.key"
"""


def test_a_listener_for_alerts_needs_its_files(tmp_path: Path) -> None:
    """They may be in another file than its address, and are named by their full paths."""
    config = read(tmp_path, LISTENER, '[alertmanager]\nclient_ca = "/x/ca.pem"\n')
    assert config.alertmanager.client_ca == "/x/ca.pem"
    assert Config().alertmanager.listen is None
    for text, key in ((LISTENER, "client_ca"), (LISTENER.replace("/x/a.key", "a.key"), "key")):
        with pytest.raises(ConfigError) as caught:
            read(tmp_path, text)
        assert caught.value.key == f"alertmanager.{key}"
