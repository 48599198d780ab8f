# SPDX-License-Identifier: Apache-2.0
"""Encoding of a schema's structs to the plain values of a file, from which `decode` makes them."""

from __future__ import annotations

import typing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec.structs import fields

from collectord.config.decode import Spelt, fields_of, is_struct
from collectord.text.units import (
    Bytes,
    Least,
    Nanoseconds,
    RingSize,
    Share,
    show_least,
    show_share,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import msgspec


def encode(made: msgspec.Struct) -> dict[str, Any]:
    """Return the keys of a struct that differ from their defaults."""
    struct = type(made)
    defaults = {field.name: field.default for field in fields(struct)}
    tag = struct.__struct_config__.tag_field
    document: dict[str, Any] = {tag: struct.__struct_config__.tag} if tag else {}
    for name, (field, kind, _) in fields_of(struct).items():
        value = getattr(made, field)
        if value is not None and value != defaults[field]:
            document[name] = _plain(value, kind)
    return document


def _plain(value: Any, kind: Any) -> Any:  # noqa: ANN401 - of that type
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is Annotated:
        spelt: Spelt = arguments[1]
        return _plain(value, arguments[0]) if spelt.short else spelt.spell(value)
    if is_struct(type(value)):
        return encode(value)
    if isinstance(value, tuple):
        return [_plain(item, arguments[0]) for item in value]
    if isinstance(value, StrEnum):
        return str(value)
    spell = _SPELLINGS.get(type(value))
    return spell(value) if spell is not None else value


def _ring_size(size: RingSize) -> str:
    return f"{size.pages}pages" if size.pages else f"{size.bytes}B"


_SPELLINGS: Final[Mapping[type, Callable[[Any], str]]] = {
    Bytes: lambda size: f"{size}B",
    Nanoseconds: lambda duration: f"{duration}ns",
    RingSize: _ring_size,
    Share: show_share,
    Least: show_least,
}
