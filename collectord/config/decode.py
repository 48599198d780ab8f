# SPDX-License-Identifier: Apache-2.0
"""Decoding of plain values to the structs of a schema; errors name key, problem and remedy."""

from __future__ import annotations

import functools
import types
import typing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, Union

import msgspec
from msgspec.structs import replace

from collectord.errors import ConfigError, UsageError
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_UNIONS: Final = (Union, types.UnionType)
_TYPE_NAMES: Final[dict[object, str]] = {
    str: "a string",
    object: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}
# Types that a value with a unit may have been meant as: an error about its unit says more.
_WORDS: Final = (str, int, float)


class Spelt(msgspec.Struct, frozen=True):
    """An annotation of a type whose values a file spells as a string.

    Attributes:
        parse: makes the value from the string. Raises UsageError.
        short: the string is a short form of what the type also takes, such as a table.
        spell: makes the string from the value.
    """

    parse: Callable[[str], object]
    short: bool = False
    spell: Callable[[Any], str] = str


def optional(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Return a parser for which an empty string is None."""
    return lambda text: parse(text) if text else None


class _Place(msgspec.Struct, frozen=True):
    """The place of a value: a file and a dotted key."""

    path: str
    key: str = ""

    def at(self, name: str | int) -> _Place:
        """Return the place of a part."""
        if isinstance(name, int):
            return replace(self, key=f"{self.key}[{name}]")
        return replace(self, key=f"{self.key}.{name}" if self.key else name)

    def error(self, message: str, hint: str = "") -> ConfigError:
        """Return the error for the value here."""
        return ConfigError(message, path=self.path, key=self.key, hint=hint)


def decode(document: Mapping[str, object], kind: type[_Struct], path: str) -> _Struct:
    """Decode a document to a struct; fields in a struct's `code_only` are not keys.

    Args:
        document: plain values of a file.
        kind: the schema.
        path: path of the file, for errors.

    Raises:
        ConfigError: an unknown key, with the nearest known spelling; a missing one; a wrong type,
            choice or spelling.
    """
    made: _Struct = _value(document, kind, _Place(path))
    return made


def _value(value: object, kind: object, place: _Place) -> Any:  # noqa: ANN401 - of that type
    options = _options(kind)
    given = type(value)
    for takes, make in options:
        if given is takes or (takes is object and given in _WORDS):
            return make(value, place)
    wanted = dict(options)
    names = dict.fromkeys(name for takes, name in _TYPE_NAMES.items() if takes in wanted)
    name = _TYPE_NAMES.get(given, "a date or a time")
    raise place.error(f"expected {' or '.join(names)}, got {name}")


_Option = tuple[object, "Callable[[Any, _Place], object]"]


@functools.cache
def _options(kind: Any) -> tuple[_Option, ...]:  # noqa: ANN401 - a type of any form
    """Return the types of plain values that a schema's type accepts, each with its decoder."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        return tuple(_union(arguments))
    if origin is Annotated:
        spelt: Spelt = arguments[1]
        text = (str, functools.partial(_parsed, spelt.parse))
        return (text, *_options(arguments[0])) if spelt.short else (text,)
    option: _Option = (kind, lambda value, _place: value)
    if origin is Literal:
        option = (str, functools.partial(_chosen, {name: name for name in arguments}))
    elif origin is tuple:
        option = (list, functools.partial(_items, arguments[0]))
    elif origin is dict:
        option = (dict, functools.partial(_entries, arguments[1]))
    elif is_struct(kind):
        option = (dict, functools.partial(_table, (kind,)))
    elif issubclass(kind, StrEnum):
        option = (str, functools.partial(_chosen, {str(one): one for one in kind}))
    elif hasattr(kind, "parse"):
        option = (object, functools.partial(_parsed, kind.parse))
    return (option,)


def _union(kinds: tuple[Any, ...]) -> Iterator[_Option]:
    """Yield options of several types. TOML has no null: a key is left out instead."""
    structs = tuple(kind for kind in kinds if is_struct(kind))
    if structs:
        yield dict, functools.partial(_table, structs)
    for kind in kinds:
        if kind not in (*structs, type(None)):
            yield from _options(kind)


def is_struct(kind: object) -> bool:
    """Whether a type is a struct of the schema."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _parsed(parse: Callable[[Any], object], value: object, place: _Place) -> object:
    try:
        return parse(value)
    except UsageError as error:
        raise place.error(error.message, error.hint) from error


def _chosen(choices: Mapping[str, object], name: str, place: _Place) -> object:
    if name not in choices:
        near = did_you_mean(name, choices)
        allowed = f"allowed: {', '.join(choices)}"
        raise place.error(f"{name!r} is unknown", f"{near} {allowed}" if near else allowed)
    return choices[name]


def _items(kind: object, items: list[object], place: _Place) -> tuple[object, ...]:
    return tuple(_value(item, kind, place.at(index)) for index, item in enumerate(items))


def _entries(kind: object, table: dict[str, object], place: _Place) -> dict[str, object]:
    return {name: _value(item, kind, place.at(name)) for name, item in table.items()}


def _table(
    structs: Sequence[type[msgspec.Struct]], table: Mapping[str, object], place: _Place
) -> msgspec.Struct:
    """Return the struct of a table; of several structs the one that its tag names."""
    struct = structs[0]
    tag = struct.__struct_config__.tag_field
    if tag is not None:
        if tag not in table:
            raise place.error(f"missing required field {tag}")
        kinds = {str(one.__struct_config__.tag): one for one in structs}
        name = _value(table[tag], Literal[tuple(kinds)], place.at(tag))
        struct = kinds[name]
    fields = fields_of(struct)
    for name in table:
        if name not in fields and name != tag:
            hint = did_you_mean(name, fields) or f"allowed: {', '.join(fields)}"
            raise place.at(name).error(f"unknown key {name!r}", hint)
    values = {
        field: _value(table[name], kind, place.at(name))
        for name, (field, kind, _) in fields.items()
        if name in table
    }
    for name, (field, _, required) in fields.items():
        if required and field not in values:
            raise place.error(f"missing required field {name}")
    try:
        return struct(**values)
    except UsageError as error:
        raise place.error(error.message, error.hint) from error


@functools.cache
def fields_of(struct: type[msgspec.Struct]) -> dict[str, tuple[str, object, bool]]:
    """Return each key's field, its type, and whether it is required."""
    hints = typing.get_type_hints(struct, include_extras=True)
    code_only = getattr(struct, "code_only", ())
    return {
        field.encode_name: (field.name, hints[field.name], field.required)
        for field in msgspec.structs.fields(struct)
        if field.name not in code_only
    }
