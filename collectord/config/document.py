# SPDX-License-Identifier: Apache-2.0
"""TOML text to plain values that any consumer can hold."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from collectord.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Far more than a configuration has, and too little to exhaust a stack.
_DEPTH_MAX: Final = 32
_DEEP_KEY: Final = re.compile(rb"(?<![\w\"'.-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){%d}" % _DEPTH_MAX)
_TOO_DEEP: Final = f"is nested more than {_DEPTH_MAX} deep"
_INTEGER_LIMIT: Final = 1 << 63


def parse(data: bytes, path: str) -> dict[str, Any]:
    """Parse a file's bytes to a document of plain values that any consumer can hold.

    Raises:
        ConfigError: they are not TOML, nested too deeply, or have a number beyond TOML's 64 bits
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
    refuse_unusable(document, path)
    return document


def refuse_unusable(document: Mapping[str, object], path: str) -> None:
    """Raise ConfigError for a document with a value that nobody can use."""
    for key, problem in _unusable(document):
        raise ConfigError(problem, path=path, key=key)


def _unusable(document: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, problem) of values that nobody can use."""
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
