# SPDX-License-Identifier: Apache-2.0
"""Plain values alone cross the kernel's port, so that another process can stand behind it."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ForwardRef

import msgspec
import pytest

from collectord.kernel.port import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN: Final = {"bool", "bytes", "float", "int", "str", "None", "Path", "date", "datetime"}
# Containers of plain values, with a length: no iterator, which would act when it is read.
CONTAINERS: Final = {
    *("Collection", "Mapping", "Sequence", "dict", "frozenset", "tuple"),
    *("ClassVar", "Final", "Literal"),
}
# Classes that cross and are no frozen values. None is added.
OTHERS: Final[set[str]] = set()


def parts() -> list[type]:
    """Return the port and the protocols that it is made of."""
    return [one for one in Kernel.__mro__ if one.__module__.startswith("collectord.")]


def annotated(protocol: type) -> Iterator[tuple[str, str]]:
    """Yield each method of a protocol with each of its annotations."""
    for name, member in vars(protocol).items():
        call = member.fget if isinstance(member, property) else member
        if inspect.isfunction(call) and not name.startswith("_"):
            yield from ((f"{name}()", text) for text in call.__annotations__.values())


def named(module: str) -> dict[str, str]:
    """Return where the names of a module come from, those for types alone too."""
    path = Path(inspect.getfile(importlib.import_module(module)))
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {alias.asname or alias.name: node.module for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            found[node.name] = module
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = module
    return found


def words(annotation: object) -> Iterator[str]:
    """Yield the names in an annotation; values of Literal are none."""
    if isinstance(annotation, ForwardRef):  # a field of a named tuple
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    tree = ast.parse(text, mode="eval")
    literal = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal")
        for inner in ast.walk(node.slice)
    }
    for node in ast.walk(tree):
        if id(node) in literal:
            continue
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from words(node.value)


def is_frozen(value: Any) -> bool:  # noqa: ANN401 - any class
    """Whether instances of a class cannot be changed, and have fields alone."""
    if dataclasses.is_dataclass(value):
        parameters = value.__dataclass_params__  # type: ignore[union-attr]
        return bool(parameters.frozen)
    if issubclass(value, msgspec.Struct):
        return bool(value.__struct_config__.frozen)
    return issubclass(value, Enum) or (issubclass(value, tuple) and hasattr(value, "_fields"))


def strangers(where: str, module: str, annotation: object, seen: set[str]) -> Iterator[str]:
    """Yield what an annotation names, itself or in a field, that is no plain value."""
    for word in words(annotation):
        if word in PLAIN | CONTAINERS:
            continue
        home = named(module).get(word, "")
        if not home.startswith("collectord."):
            yield f"{where}: {word}"
            continue
        found = getattr(importlib.import_module(home), word)
        name = f"{home}.{word}"
        if name in seen:
            continue
        seen.add(name)
        if not isinstance(found, type):
            yield from strangers(where, home, found, seen)
            continue
        if not is_frozen(found):
            yield f"{where}: {name}"
        for one in found.__mro__:
            if one.__module__.startswith("collectord.") and not issubclass(one, Enum):
                for field in vars(one).get("__annotations__", {}).values():
                    yield from strangers(f"{where} {word}", one.__module__, field, seen)


@pytest.mark.parametrize("protocol", parts(), ids=lambda one: one.__name__)
def test_plain_values_cross(protocol: type) -> None:
    """Numbers, text, paths, descriptors and frozen values of these: no stack, call or mapping."""
    seen: set[str] = set()
    found = {
        told
        for where, text in annotated(protocol)
        for told in strangers(where, protocol.__module__, text, seen)
    }
    assert {told.rpartition(" ")[2] for told in found} <= OTHERS, found


def test_the_port_is_whole() -> None:
    """Each part has calls, so that a part without any annotation is no way around the rule."""
    for protocol in parts():
        calls = [name for name in vars(protocol) if not name.startswith("_")]
        assert calls
        assert {where.removesuffix("()") for where, _ in annotated(protocol)} >= {*calls}
