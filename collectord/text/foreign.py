# SPDX-License-Identifier: Apache-2.0
r"""Foreign text for people and for JSON: characters that cannot be shown are made visible.

Paths and command lines are bytes. Python represents those that are not UTF-8 by lone surrogates
(PEP 383), which cannot be encoded; here byte 0xff becomes `\xff`.
"""

from __future__ import annotations

import re
import threading
from dataclasses import fields
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_PREPARING: Final = threading.Lock()
_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BYTE_0: Final = 0xDC00  # PEP 383: the bytes 0x80 to 0xff are U+DC80 to U+DCFF
_BYTES: Final = range(_BYTE_0 + 0x80, _BYTE_0 + 0x100)


def visible(text: str) -> str:
    r"""Make control and other unprintable characters of foreign text visible: ESC is `\x1b`.

    Text from the traced system (comm, paths, command lines) is whatever a process chose, escape
    sequences for a terminal included. Backslashes are left alone: the result is for people.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def encodable(value: Any) -> Any:  # noqa: ANN401  # plain data of any shape
    r"""Return plain data (dicts, lists, scalars) whose strings UTF-8 can encode."""
    if isinstance(value, str):
        return _SURROGATE.sub(lambda match: _escape(match[0]), value)
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(item) for item in value]
    return value


def encode_json(value: Any) -> bytes:  # noqa: ANN401  # whatever msgspec encodes
    """Encode valid JSON in UTF-8, whatever bytes a path has.

    A number of a class of its own (`text.units`) is a number; a value without a form in JSON
    becomes its `str`.
    """
    return msgspec.json.encode(encodable(msgspec.to_builtins(value, enc_hook=_plain)))


def plain(value: Any, *without: str) -> dict[str, Any]:  # noqa: ANN401  # any dataclass
    """Return a dataclass's fields as plain data for JSON, in their order and without some."""
    return {
        item.name: plain_value(getattr(value, item.name))
        for item in fields(value)
        if item.name not in without
    }


def plain_value(value: Any) -> Any:  # noqa: ANN401  # any value
    """Return a value as plain data for JSON."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def decode_json(data: bytes | str, kind: type[T]) -> T:
    """Parse JSON that anybody may have written.

    Raises:
        msgspec.DecodeError: it is not JSON or not UTF-8, it is nested too deeply, or its values
            are not of `kind`.
    """
    try:
        return _decoder(kind).decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


def decoded(data: bytes, kind: type[T]) -> T | None:
    """Parse JSON that anybody may have written; None if `decode_json` raises."""
    try:
        return decode_json(data, kind)
    except msgspec.DecodeError:
        return None


def convert(value: object, kind: type[T]) -> T:
    """Return plain data as a value of a type. Raises msgspec.ValidationError."""
    _decoder(kind)
    return msgspec.convert(value, kind)


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type.

    msgspec prepares a type, and those that it contains, at the first use. Two threads that do so
    at once crash the process (msgspec 0.22): one uses what the other has half made.
    """
    with _PREPARING:
        found = _DECODERS.get(kind)
        if found is None:
            found = _DECODERS[kind] = msgspec.json.Decoder(kind)
        return found


def _plain(value: object) -> int | str:
    return int(value) if isinstance(value, int) else str(value)


def _escape(char: str) -> str:
    code = ord(char)
    if code in _BYTES:
        return f"\\x{code - _BYTE_0:02x}"
    return char.encode("unicode_escape").decode()
