# SPDX-License-Identifier: Apache-2.0
"""The reference pages have every key and option that the program takes, and no other."""

from __future__ import annotations

import argparse
import enum
import re
import types
import typing
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from collectord import cli
from collectord.config import schema, schema_session, schema_trigger
from collectord.config.decode import Spelt
from collectord.config.load import load
from collectord.config.scheduling import DrainCpus, DrainPriority
from collectord.config.trace_probe import Probe
from collectord.text.units import Bytes, Least, Nanoseconds, RingSize, Share
from docs.tools import manual_pages
from tests.support import manual

if typing.TYPE_CHECKING:
    from pathlib import Path

SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "`[daemon]`": schema.DaemonConfig,
    "`[metrics]`": schema.MetricsConfig,
    "`[control]`": schema.ControlConfig,
    "`[retention]`": schema.RetentionConfig,
    "`[incidents]`": schema.IncidentsConfig,
    "`[ship]`": schema.ShipConfig,
    "`[alertmanager]`": schema.AlertmanagerConfig,
    "`[bpf]`": schema.BpfConfig,
    "`[[session]]`": schema_session.SessionConfig,
    "An entry of `redact`": schema_session.RedactConfig,
    "`[session.target]`": schema_session.TargetConfig,
    "A source of kind `perf`": schema_session.PerfSourceConfig,
    "An entry of `events`": schema_session.EventConfig,
    "A source of kind `tracefs`": schema_session.TracefsSourceConfig,
    "An entry of `events` of a tracefs source": schema_session.TraceEventConfig,
    "An entry of `probes`": Probe,
    "A source of kind `bpf`": schema_session.BpfSourceConfig,
    "A source of kind `relay`": schema_session.RelaySourceConfig,
    "An entry of `[[trigger]]`": schema_trigger.TriggerConfig,
}
TYPES: Final[dict[Any, str]] = {
    str: "string",
    int: "integer",
    bool: "boolean",
    Bytes: "size",
    Nanoseconds: "duration",
    RingSize: "ring size",
    Share: "share",
    Least: "limit",
    DrainPriority: "priority",
    DrainCpus: "CPU list",
}
# The order in which the types of a key are named.
ORDER: Final = ("integer", "string", "list of strings", "table")
REQUIRED: Final = "required"
NONE: Final = "none"
# The keys that a source must have besides its defaults, to be one.
LEAST: Final = {"perf": 'events = ["cpu-clock"]', "bpf": 'program = "opensnoop"'}


class Key(NamedTuple):
    """A row of the configuration reference; the default as TOML has it."""

    name: str
    type: str
    default: str


def section(page: str, title: str) -> str:
    """Return the text below a heading of the second level."""
    text = (manual.DOCS / page).read_text()
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no section {title}"
    return found[1]


def documented_keys(title: str) -> list[Key]:
    """Return the keys of a section, in their order."""
    rows = re.findall(
        r"^\| `(\w+)` \| (.*?) \| (.*?) \| .+ \|$",
        section("configuration.md", title),
        re.MULTILINE,
    )
    return [Key(name, kind, default.strip("`")) for name, kind, default in rows]


def is_spelt(hint: Any) -> bool:  # noqa: ANN401  # whatever a schema has
    """Return whether a file spells values of a type only as strings."""
    found = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Spelt)]
    return any(not one.short for one in found)


def choices(hint: Any) -> list[str]:  # noqa: ANN401  # whatever a schema has
    """Return the values of a type that has few."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [str(member.value) for member in hint]
    return [*typing.get_args(hint)] if typing.get_origin(hint) is typing.Literal else []


def type_name(hint: Any) -> str:  # noqa: ANN401  # whatever a schema has
    """Return the reference's name for a type of the schema."""
    if hint in TYPES or is_spelt(hint):
        return TYPES.get(hint, "string")
    if choices(hint):
        return "one of " + ", ".join(f'`"{value}"`' for value in choices(hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:  # a string is its short form
        return " or ".join(sorted(("string", type_name(arguments[0])), key=ORDER.index))
    if origin is tuple:
        # Its choices are named where the list is explained.
        items = "string" if choices(arguments[0]) else type_name(arguments[0])
        return "list of " + " or ".join(f"{item}s" for item in items.split(" or "))
    if origin in {types.UnionType, typing.Union}:
        kinds = (type_name(one) for one in arguments if one is not type(None))
        return " or ".join(dict.fromkeys(kinds))
    assert origin is dict or issubclass(hint, msgspec.Struct), hint
    return "table"


@pytest.mark.parametrize(("title", "struct"), SECTIONS.items(), ids=SECTIONS)
def test_keys_and_types_are_those_of_the_schema(title: str, struct: type[msgspec.Struct]) -> None:
    """Every key of the schema with its type, and no other."""
    hints = typing.get_type_hints(struct, include_extras=True)
    expected = {
        field.encode_name: type_name(hints[field.name])
        for field in msgspec.structs.fields(struct)
        if field.name not in schema_session.SessionConfig.code_only
    }
    assert {key.name: key.type for key in documented_keys(title)} == expected


@pytest.mark.parametrize(("title", "struct"), SECTIONS.items(), ids=SECTIONS)
def test_what_is_required_and_what_has_no_default(
    title: str, struct: type[msgspec.Struct]
) -> None:
    """A key without a default is required; one whose default is None has none to show."""
    shown = {key.name: key.default for key in documented_keys(title)}
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        if field.name not in schema_session.SessionConfig.code_only:
            key = field.encode_name
            assert (shown[key] == REQUIRED) == field.required, key
            none = field.default is None and not is_spelt(hints[field.name])  # else it is ""
            assert (shown[key] == NONE) == none, key


def with_defaults(title: str) -> str:
    """Return the keys of a section that have defaults, set to what the reference says."""
    keys = documented_keys(title)
    return "".join(
        f"{key.name} = {key.default}\n" for key in keys if key.default not in {REQUIRED, NONE, ""}
    )


def test_documented_defaults_of_the_tables_change_nothing(tmp_path: Path) -> None:
    """With all of them written down the configuration is the empty one."""
    path = tmp_path / "collectord.toml"
    tables = [title for title in SECTIONS if title.startswith("`[") and "session" not in title]
    path.write_text("".join(f"{title.strip('`')}\n{with_defaults(title)}" for title in tables))
    assert load([path]) == schema.Config()


@pytest.mark.parametrize("kind", ["perf", "tracefs", "bpf"])
def test_documented_defaults_of_sessions_change_nothing(kind: str, tmp_path: Path) -> None:
    """Nor do those of a session, of what it observes and of its source."""
    path = tmp_path / "collectord.toml"
    least = LEAST.get(kind, 'events = ["sched:sched_switch"]')

    def read(session: str, target: str, source: str) -> schema_session.SessionConfig:
        source = re.sub(r"^events = \[\]\n", "", source, flags=re.MULTILINE)
        path.write_text(
            f'[[session]]\nname = "a"\n{session}[session.target]\n{target}'
            f'[[session.source]]\nkind = "{kind}"\n{least}\n{source}'
        )
        return load([path]).session[0]

    assert read(
        with_defaults("`[[session]]`"),
        with_defaults("`[session.target]`"),
        with_defaults(f"A source of kind `{kind}`"),
    ) == read("", "", "")


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Options with their values, and positional arguments, as the help spells them."""
    formatter = parser._get_formatter()
    found = set()
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        if action.option_strings:
            value = formatter._format_args(action, "") if action.nargs != 0 else ""
            found.add(f"{', '.join(action.option_strings)} {value}".strip())
        else:
            found.add(str(action.metavar))
    return found


@pytest.mark.parametrize("verb", cli.VERBS)
def test_options_are_those_of_the_verb(verb: str) -> None:
    """docs/cli.md has every option and argument of each verb, and no other."""
    rows = re.findall(r"^\| `([^`]+)` \|", section("cli.md", verb), re.MULTILINE)
    assert {row.replace("\\|", "|") for row in rows} == options_of(manual_pages.verb_parser(verb))
    assert f"| [`{verb}`](#{verb}) |" in (manual.DOCS / "cli.md").read_text()
