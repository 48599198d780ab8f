# SPDX-License-Identifier: Apache-2.0
"""Decoding of plain values into the structs of a schema."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest

from collectord.config.decode import Spelt, decode, optional
from collectord.errors import ConfigError, UsageError
from collectord.text.units import Bytes  # noqa: TC001 - decode reads annotations


class Colour(StrEnum):
    """A string with two allowed values."""

    RED = "red"
    GREEN = "green"


def even(text: str) -> int:
    """Read an even number."""
    if int(text) % 2:
        raise UsageError(f"{text} is odd", hint="2, 4, ...")
    return int(text)


class Part(msgspec.Struct, frozen=True):
    """A table that checks itself."""

    low: int
    high: int = 9

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise UsageError("low is above high")


def low_part(text: str) -> Part:
    """Read a part that is no more than its lower end."""
    return Part(int(text))


class Round(msgspec.Struct, frozen=True, tag_field="shape", tag="round"):
    """A round shape, one of two tables."""

    radius: int


class Square(msgspec.Struct, frozen=True, tag_field="shape", tag="square"):
    """A square shape, the other table."""

    side: int


class Whole(msgspec.Struct, frozen=True):
    """A schema with a field of each form."""

    code_only: ClassVar[frozenset[str]] = frozenset({"made_by"})

    number: int = 0
    size: Bytes | None = None
    colour: Colour = Colour.RED
    mode: Literal["a", "b"] = "a"
    evens: tuple[Annotated[int, Spelt(even)], ...] = ()
    maybe: Annotated[int | None, Spelt(optional(even))] = None
    part: Annotated[Part, Spelt(low_part, short=True)] = Part(0)
    free: dict[str, str | int | bool] = {}
    shapes: tuple[Round | Square, ...] = ()
    origin: Literal["here", "there"] = msgspec.field(default="here", name="from")
    made_by: str = ""


@pytest.mark.parametrize(
    ("key", "given", "made"),
    [
        ("number", 3, 3),
        ("size", "4KiB", 4096),
        ("colour", "green", Colour.GREEN),
        ("mode", "b", "b"),
        ("evens", ["2", "4"], (2, 4)),
        ("maybe", "", None),
        ("maybe", "2", 2),
        ("part", "3", Part(3)),
        ("part", {"low": 3, "high": 4}, Part(3, 4)),
        ("free", {"a": "x", "b": 1, "c": True}, {"a": "x", "b": 1, "c": True}),
        ("shapes", [{"shape": "square", "side": 1}], (Square(1),)),
    ],
)
def test_values(key: str, given: object, made: object) -> None:
    """Every form of a field has its value."""
    assert getattr(decode({key: given}, Whole, "f"), key) == made


def test_a_key_that_is_no_name_in_python() -> None:
    """The schema names the field otherwise, files know only the key."""
    assert decode({"from": "there"}, Whole, "f").origin == "there"


@pytest.mark.parametrize(
    ("document", "key", "said"),
    [
        ({"number": True}, "number", "expected an integer, got true or false"),
        ({"number": 1.5}, "number", "expected an integer, got a number"),
        ({"number": dt.date(2000, 1, 1)}, "number", "got a date or a time"),
        ({"size": 4}, "size", "KiB, MiB"),
        ({"size": [4]}, "size", "expected a string, got a list"),
        ({"colour": "gren"}, "colour", 'did you mean "green"? allowed: red, green'),
        ({"colour": 1}, "colour", "expected a string, got an integer"),
        ({"mode": "c"}, "mode", "'c' is unknown; allowed: a, b"),
        ({"evens": ["2", "3"]}, "evens[1]", "3 is odd; 2, 4, ..."),
        ({"evens": [2]}, "evens[0]", "expected a string, got an integer"),
        ({"part": 1}, "part", "expected a string or a table, got an integer"),
        ({"part": {"low": 10}}, "part", "low is above high"),
        ({"part": {}}, "part", "missing required field low"),
        ({"part": {"low": "1"}}, "part.low", "expected an integer, got a string"),
        ({"free": {"a": {}}}, "free.a", "expected a string or an integer or true or false"),
        ({"shapes": [{"side": 1}]}, "shapes[0]", "missing required field shape"),
        ({"shapes": [{"shape": "rond"}]}, "shapes[0].shape", 'did you mean "round"?'),
        ({"shapes": [{"shape": "round", "side": 1}]}, "shapes[0].side", "allowed: radius"),
        ({"from": "nowhere"}, "from", "allowed: here, there"),
        ({"origin": "here"}, "origin", "unknown key"),
        ({"made_by": "me"}, "made_by", "unknown key"),
        ({"colours": "red"}, "colours", 'did you mean "colour"?'),
    ],
)
def test_errors_have_the_key(document: dict[str, Any], key: str, said: str) -> None:
    """The file, the key at any depth, what is wrong and what would do."""
    with pytest.raises(ConfigError) as caught:
        decode(document, Whole, "f.toml")
    assert (caught.value.path, caught.value.key) == ("f.toml", key)
    assert said in str(caught.value)
