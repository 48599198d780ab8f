# SPDX-License-Identifier: Apache-2.0
"""TOML files to a Config: one file, then its drop-ins."""

from __future__ import annotations

import pwd
import re
import tomllib
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from collectord.config.check import check_config
from collectord.config.schema import CODE_ONLY, Config
from collectord.errors import ConfigError
from collectord.plan.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DEFAULT_PATH: Final = Path("/etc/collectord/collectord.toml")
DROP_IN_DIRECTORY: Final = "collectord.d"

_LIMIT_BYTES: Final = 4 << 20
_PLACE: Final = re.compile(r"(.*) - at `(?:key in )?\$\.?(.*)`", re.DOTALL)


def config_files(path: Path = DEFAULT_PATH) -> tuple[Path, ...]:
    """The file and the drop-ins beside it, `collectord.d/*.toml` by name."""
    return (path, *sorted((path.parent / DROP_IN_DIRECTORY).glob("*.toml")))


def load(paths: Sequence[Path]) -> Config:
    """Read and merge configuration files.

    Of a table's keys the last one wins; a session replaces the earlier one of its name. Each
    file is checked by itself first, so an error names the file that has it.

    Raises:
        ConfigError: unreadable, no TOML, an unknown key, a wrong type, unit or combination.
    """
    tables: dict[str, dict[str, Any]] = {}
    sessions: dict[str, dict[str, Any]] = {}
    for path in paths:
        document = _read(path)
        _check_document(document, str(path))
        for key, value in document.items():
            if key != "session":
                tables[key] = tables.get(key, {}) | value
        for session in document.get("session", ()):
            sessions[session["name"]] = session | {"origin": str(path)}
    merged = {**tables, "session": tuple(sessions.values())}
    config = _convert(merged, "")
    # Values that each file may have had right alone, such as staging and chunk.
    _raise_first(config, ", ".join(map(str, paths)))
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot be read: {reason}", path=str(path)) from error
    if len(data) > _LIMIT_BYTES:
        raise ConfigError("is too large for a configuration", path=str(path))
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not TOML: {error}", path=str(path)) from error
    for session in _sessions(document):
        _resolve_user(session, str(path))
    return document


def _sessions(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sessions = document.get("session")
    for session in sessions if isinstance(sessions, list) else ():
        if isinstance(session, dict):
            yield session


def _resolve_user(session: dict[str, Any], path: str) -> None:
    """Put a user's id in the place of its name."""
    target = session.get("target")
    name = target.get("user") if isinstance(target, dict) else None
    if not isinstance(target, dict) or not isinstance(name, str):
        return
    try:
        target["user"] = int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise ConfigError(
            f"no user {name!r}",
            path=path,
            key="session.target.user",
            hint=did_you_mean(name, (entry.pw_name for entry in pwd.getpwall())),
        ) from error


def _check_document(document: dict[str, Any], path: str) -> None:
    for key, name, known in _unknown_keys(document, Config, ""):
        hint = did_you_mean(name, known) or f"allowed: {', '.join(known)}"
        raise ConfigError(f"unknown key {name!r}", path=path, key=key, hint=hint)
    _raise_first(_convert(document, path), path)


def _unknown_keys(
    value: object, kind: object, place: str
) -> Iterator[tuple[str, str, Sequence[str]]]:
    """(dotted key, name, allowed names) of keys that a struct of type `kind` has not."""
    if isinstance(value, list):
        items = _item_type(kind)
        for index, item in enumerate(value):
            yield from _unknown_keys(item, items, f"{place}[{index}]")
    if not isinstance(value, dict):
        return
    struct = _struct_of(kind, value)
    if struct is None:
        return
    hints = typing.get_type_hints(struct)
    known = [name for name in struct.__struct_fields__ if name not in CODE_ONLY]
    tag = struct.__struct_config__.tag_field
    for name, item in value.items():
        key = f"{place}.{name}" if place else name
        if name == tag:
            continue
        if name not in known:
            yield key, name, known
        else:
            yield from _unknown_keys(item, hints[name], key)


def _item_type(kind: object) -> object:
    """X of tuple[X, ...]."""
    arguments = typing.get_args(kind)
    return arguments[0] if arguments else None


def _struct_of(kind: object, table: Mapping[str, object]) -> type[msgspec.Struct] | None:
    """The struct that a table of this type is; of several the one that its tag names."""
    candidates = _structs(kind)
    for struct in candidates:
        config = struct.__struct_config__
        if config.tag_field is None or table.get(config.tag_field) == config.tag:
            return struct
    return None


def _structs(kind: object) -> list[type[msgspec.Struct]]:
    """The structs among the types of a union."""
    candidates: Iterable[object] = (kind, *typing.get_args(kind))
    return [
        candidate
        for candidate in candidates
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct)
    ]


def _convert(document: dict[str, Any], path: str) -> Config:
    try:
        return msgspec.convert(document, Config, dec_hook=_decode)
    except msgspec.ValidationError as error:
        match = _PLACE.fullmatch(str(error))
        message, key = (match[1], match[2]) if match else (str(error), "")
        hint = ""
        wrong = re.fullmatch(r"Invalid (?:enum )?value '(.*)'", message)
        if wrong is not None:
            allowed = _choices(document, key)
            message = f"{wrong[1]!r} is not known"
            hint = f"allowed: {', '.join(allowed)}"
            near = did_you_mean(wrong[1], allowed)
            hint = f"{near} {hint}" if near else hint
        raise ConfigError(_readable(message), path=path, key=key, hint=hint) from error


def _choices(document: object, key: str) -> list[str]:
    """What a dotted key may be, e.g. "session[0].target.scope"."""
    kind: object = Config
    value = document
    for name in re.findall(r"\w+", key):
        if isinstance(value, (list, tuple)):
            kind, value = _item_type(kind), value[int(name)]
            continue
        table = value if isinstance(value, dict) else {}
        structs = _structs(kind)
        tags = {s.__struct_config__.tag_field: s.__struct_config__.tag for s in structs}
        if name in tags:
            return [str(s.__struct_config__.tag) for s in structs]
        struct = _struct_of(kind, table)
        kind = typing.get_type_hints(struct)[name] if struct else None
        value = table.get(name)
    return [str(choice) for choice in typing.get_args(kind)]


def _decode(kind: Any, value: object) -> object:  # noqa: ANN401 - msgspec's hook
    """Make a value with a unit: every type that msgspec does not know has `parse`."""
    parsed: object = kind.parse(value)
    return parsed


_TYPE_NAMES: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _readable(message: str) -> str:
    """Say in TOML's words what msgspec says in Python's."""

    def types(match: re.Match[str]) -> str:
        # TOML has no null: a key is left out instead.
        names = [name for name in match[1].split(" | ") if name != "null"]
        if not set(names) <= set(_TYPE_NAMES):
            return match[1]
        return " or ".join(_TYPE_NAMES[name] for name in names)

    message = re.sub(r"`([^`]+)`", types, message)
    return message[:1].lower() + message[1:]


def _raise_first(config: Config, path: str) -> None:
    for problem in check_config(config):
        raise ConfigError(problem.message, path=path, key=problem.key, hint=problem.hint)
