# SPDX-License-Identifier: Apache-2.0
"""TOML text to the structs of a schema: errors name file, key and what was probably meant."""

from __future__ import annotations

import re
import tomllib
import typing
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from collectord.errors import ConfigError
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

# Far more than a configuration has, and less than exhausts anybody's stack.
_DEPTH_MAX: Final = 32
_DEEP_KEY: Final = re.compile(rb"(?<![\w\"'.-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){%d}" % _DEPTH_MAX)
_TOO_DEEP: Final = f"is nested more than {_DEPTH_MAX} deep"
_INTEGER_LIMIT: Final = 1 << 63
_PLACE: Final = re.compile(r"(.*) - at `(?:key in )?\$\.?(.*)`", re.DOTALL)
# How msgspec names a key that the schema leaves free.
_SOME_KEY: Final = "[...]"
_STEPS: Final = re.compile(r"\[\.\.\.\]|\w+")

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def parse(data: bytes, path: str) -> dict[str, Any]:
    """The document that a file's bytes are, of plain values that any consumer can hold.

    Raises:
        ConfigError: they are no TOML, nested too deeply, or have a number beyond TOML's 64 bits
            or a NUL in a string, which no path or name can have.
    """
    # The parser's time grows with the square of a dotted key's length.
    if _DEEP_KEY.search(data):
        raise ConfigError(_TOO_DEEP, path=path)
    try:
        document = tomllib.loads(data.decode())
    except RecursionError as error:
        raise ConfigError(_TOO_DEEP, path=path) from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError too
        raise ConfigError(f"not TOML: {error}", path=path) from error
    for key, problem in _unusable(document):
        raise ConfigError(problem, path=path, key=key)
    return document


def _unusable(document: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(dotted key, problem) of values that nobody can use."""
    level: list[tuple[str, object]] = list(document.items())
    for _ in range(_DEPTH_MAX):
        below: list[tuple[str, object]] = []
        for key, value in level:
            if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
                yield key, "beyond the 64 bits of an integer"
            elif isinstance(value, str) and "\0" in value:
                yield key, "a NUL character"
            elif isinstance(value, dict):
                below += [(f"{key}.{name}", item) for name, item in value.items()]
            elif isinstance(value, list):
                below += [(f"{key}[{index}]", item) for index, item in enumerate(value)]
        if not below:
            return
        level = below
    yield level[0][0], _TOO_DEEP


def check_keys(
    document: Mapping[str, object],
    kind: type[msgspec.Struct],
    path: str,
    *,
    hidden: Container[str] = (),
) -> None:
    """Look for a key that the schema does not have, at any depth.

    Args:
        document: a file's.
        kind: the schema.
        path: the file's.
        hidden: fields of the schema that are no keys.

    Raises:
        ConfigError: there is one; the hint has the nearest known spelling.
    """
    for key, name, fields in _unknown_keys(document, kind, "", hidden):
        hint = did_you_mean(name, fields) or f"allowed: {', '.join(fields)}"
        raise ConfigError(f"unknown key {name!r}", path=path, key=key, hint=hint)


def convert(document: Mapping[str, object], kind: type[_Struct], path: str) -> _Struct:
    """The struct that a document describes. Raises ConfigError for a wrong type or choice."""
    try:
        return msgspec.convert(document, kind, dec_hook=_decode)
    except msgspec.ValidationError as error:
        match = _PLACE.fullmatch(str(error))
        message, key = (match[1], match[2]) if match else (str(error), "")
        key = _named(document, kind, key)
        hint = ""
        wrong = re.fullmatch(r"Invalid (?:enum )?value '(.*)'", message)
        if wrong is not None:
            allowed = _choices(document, kind, key)
            message = f"{wrong[1]!r} is not known"
            hint = f"allowed: {', '.join(allowed)}"
            near = did_you_mean(wrong[1], allowed)
            hint = f"{near} {hint}" if near else hint
        raise ConfigError(_readable(message), path=path, key=key, hint=hint) from error


def _unknown_keys(
    value: object, kind: object, place: str, hidden: Container[str]
) -> Iterator[tuple[str, str, Sequence[str]]]:
    """(dotted key, name, allowed names) of keys that a struct of type `kind` has not."""
    if isinstance(value, list):
        items = _item_type(kind)
        for index, item in enumerate(value):
            yield from _unknown_keys(item, items, f"{place}[{index}]", hidden)
    if not isinstance(value, dict):
        return
    if _is_free(kind):
        for name, item in value.items():
            yield from _unknown_keys(item, _item_type(kind), f"{place}.{name}", hidden)
        return
    struct = _struct_of(kind, value)
    if struct is None:
        return
    hints = typing.get_type_hints(struct)
    known = [name for name in struct.__struct_fields__ if name not in hidden]
    tag = struct.__struct_config__.tag_field
    for name, item in value.items():
        key = f"{place}.{name}" if place else name
        if name == tag:
            continue
        if name not in known:
            yield key, name, known
        else:
            yield from _unknown_keys(item, hints[name], key, hidden)


def _is_free(kind: object) -> bool:
    """A table of any keys."""
    return typing.get_origin(kind) is dict


def _item_type(kind: object) -> object:
    """X of tuple[X, ...] and of dict[str, X]."""
    arguments = typing.get_args(kind)
    return arguments[_is_free(kind)] if arguments else None


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


def _at(document: object, kind: object, key: str) -> tuple[object, object]:
    """Value and type at a dotted key, e.g. "session[0].target.scope"; of a tag, the structs'."""
    value = document
    for name in _STEPS.findall(key):
        if isinstance(value, (list, tuple)):
            kind, value = _item_type(kind), value[int(name)]
            continue
        table = value if isinstance(value, dict) else {}
        value = table.get(name)
        if _is_free(kind):
            kind = _item_type(kind)
            continue
        structs = _structs(kind)
        tags = {s.__struct_config__.tag_field: s.__struct_config__.tag for s in structs}
        if name in tags:
            names = tuple(str(s.__struct_config__.tag) for s in structs)
            return value, typing.Literal[names]
        struct = _struct_of(kind, table)
        kind = typing.get_type_hints(struct)[name] if struct else None
    return value, kind


def _choices(document: object, kind: object, key: str) -> list[str]:
    """What the value of a dotted key may be."""
    return [str(choice) for choice in typing.get_args(_at(document, kind, key)[1])]


def _named(document: object, kind: object, key: str) -> str:
    """The dotted key with the name of a free key, which msgspec does not give."""
    before, free, after = key.partition(_SOME_KEY)
    if not free:
        return key
    table, tables = _at(document, kind, before)
    for name, item in table.items() if isinstance(table, dict) else ():
        try:
            msgspec.convert(item, _item_type(tables), dec_hook=_decode)
        except msgspec.ValidationError:
            return _named(document, kind, f"{before}.{name}{after}")
    return key


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
    if message[:2].isupper():  # CPU
        return message
    return message[:1].lower() + message[1:]
