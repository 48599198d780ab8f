# SPDX-License-Identifier: Apache-2.0
"""The parameters of BPF programs and answers: their declaration, values and text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

from collectord.errors import ConfigError, UsageError
from collectord.text.nearest import did_you_mean
from collectord.text.units import Bytes, Nanoseconds, show_bytes, show_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

ParameterType = Literal["int", "bool", "duration", "bytes", "string"]

_INT: Final = re.compile(r"[+-]?(?:0[xX][0-9A-Fa-f]{1,16}|[0-9]{1,20})", re.ASCII)
_INT_MIN: Final = -(1 << 63)
_INT_MAX: Final = (1 << 64) - 1
_TRUTHS: Final[Mapping[str, int]] = {
    "true": 1,
    "yes": 1,
    "1": 1,
    "false": 0,
    "no": 0,
    "0": 0,
}
# A program's stack has 512 bytes; a string that it only compares with may be longer.
STRING_MAX_BYTES: Final = 4096


class ParameterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A constant that the program gets as PARAMETER_NAME: `[parameter.NAME]`.

    Attributes:
        type: durations arrive in ns, sizes in bytes, truths as 0 and 1, strings as C literals.
        help: its effect.
        default: a value of the type, spelt as in a configuration ("10ms", "64KiB"); a number in
            ns, bytes or as it is, 0 or 1, or text, once the manifest is loaded.
        unit: unit of an int; shown only.
        min, max: limits of a number, in ns and bytes where it has a unit.
        max_bytes: limit of a string.
        choices: all values that a string can have; none where it can have any.
    """

    type: ParameterType
    help: str
    default: int | str | bool
    unit: str = ""
    min: int | None = None
    max: int | None = None
    max_bytes: int | None = None
    choices: tuple[str, ...] = ()


def values_of(
    owner: str, known: Mapping[str, ParameterConfig], given: Mapping[str, str]
) -> dict[str, int | str]:
    """Return values of all parameters, given ones and defaults of the others.

    Args:
        owner: the name of the program or answer that has them.
        known: its parameters.
        given: texts as on a command line, by name.

    Returns:
        numbers in ns, bytes or as they are, 0 or 1, or text.

    Raises:
        UsageError: there is no such parameter, or it does not take the value.
    """
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or (
                f"it has {', '.join(known)}" if known else "it has none"
            )
            raise UsageError(f"{owner} has no parameter {name!r}", hint=hint)
    values = {}
    for name, parameter in known.items():
        if name not in given:
            values[name] = parameter.default
            continue
        try:
            values[name] = read_value(parameter, given[name])
        except ValueError as error:
            hint = f"{parameter.help} (default {show_default(parameter)})"
            raise UsageError(f"{owner}: {name}: {error}", hint=hint) from error
    return values


def with_defaults(
    parameters: Mapping[str, ParameterConfig], path: str
) -> dict[str, ParameterConfig]:
    """Return parameters whose defaults are values. Raises ConfigError."""
    return {
        name: replace(parameter, default=_default(parameter, path, f"parameter.{name}.default"))
        for name, parameter in parameters.items()
    }


def _default(parameter: ParameterConfig, path: str, key: str) -> int | str:
    """Return a parameter's default as a value, read here once."""
    given = parameter.default
    if isinstance(given, str) and parameter.type in ("int", "bool"):
        message = f"{given!r} is a string, not of type {parameter.type!r}"
        raise ConfigError(message, path=path, key=key)
    try:
        return read_value(parameter, given)
    except ValueError as error:
        raise ConfigError(str(error), path=path, key=key) from error


def show_default(parameter: ParameterConfig) -> str:
    """Return the default with its unit, e.g. "10ms" or "0 us"."""
    if parameter.default == "":
        return '""'
    text = show_value(parameter, parameter.default)
    return f"{text} {parameter.unit}" if parameter.unit else text


def read_value(parameter: ParameterConfig, given: str | int | bool) -> int | str:
    """Parse a parameter's value: a number in ns, bytes or as it is, 0 or 1, or text.

    Args:
        parameter: its type and limits.
        given: text as on a command line, or a value of TOML.

    Raises:
        ValueError: it is not of this type, or out of range; the text says what is permitted.
    """
    if parameter.type == "string":
        return _string(parameter, given)
    if parameter.type == "bool":
        return _truth(given)
    value = _number(parameter, given)
    if parameter.min is not None and value < parameter.min:
        raise ValueError(f"{given} is below {show_value(parameter, parameter.min)}")
    if parameter.max is not None and value > parameter.max:
        raise ValueError(f"{given} is above {show_value(parameter, parameter.max)}")
    return value


def show_value(parameter: ParameterConfig, value: int | str) -> str:
    """Return a value as it would be given, with its unit."""
    if isinstance(value, str):
        return value
    if parameter.type == "bool":
        return "true" if value else "false"
    if parameter.type == "duration":
        return show_ns(value)
    if parameter.type == "bytes":
        return show_bytes(value)
    return f"{value}"


def _string(parameter: ParameterConfig, given: str | int | bool) -> str:
    if not isinstance(given, str):
        raise ValueError(f"{as_text(given)} is not a string")  # noqa: TRY004 - its value
    if "\0" in given:
        raise ValueError("a string cannot hold a NUL")
    limit = STRING_MAX_BYTES if parameter.max_bytes is None else parameter.max_bytes
    size = len(encode(given))
    if size > limit:
        raise ValueError(f"{size} bytes are more than {limit}")
    if parameter.choices and given not in parameter.choices:
        raise ValueError(f"{given!r} is none of {', '.join(parameter.choices)}")
    return given


def encode(text: str) -> bytes:
    """Return the bytes of a string; foreign bytes that are not UTF-8 stay the same."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} has no bytes") from error


def _truth(given: str | int | bool) -> int:
    word = as_text(given).lower()
    if word not in _TRUTHS or (isinstance(given, int) and not isinstance(given, bool)):
        raise ValueError(f"{as_text(given)} is neither true nor false")
    return _TRUTHS[word]


def _number(parameter: ParameterConfig, given: str | int | bool) -> int:
    if isinstance(given, bool):
        raise ValueError(f"{as_text(given)} is not of type {parameter.type}")  # noqa: TRY004 - its value
    if parameter.type == "int":
        if isinstance(given, str) and _INT.fullmatch(given) is None:
            raise ValueError(f"{given!r} is not an integer, e.g. 10 or 0x1f")
        value = int(given, 16 if "x" in given.lower() else 10) if isinstance(given, str) else given
        if not _INT_MIN <= value <= _INT_MAX:
            raise ValueError(f"{given} does not fit 64 bits")
        return value
    unit = Nanoseconds if parameter.type == "duration" else Bytes
    try:
        return int(unit.parse(given))
    except UsageError as error:
        raise ValueError(str(error)) from error


def as_text(value: str | int | bool) -> str:
    """Return a value as TOML has it, texts without their quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)
