# SPDX-License-Identifier: Apache-2.0
"""The facts of another host, from the document that `doctor` has written there."""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from collectord.codec.tracepoint import Tracepoint
from collectord.errors import ConfigError
from collectord.facts.kernel_facts import FACTS_VERSION, KernelFacts
from collectord.text.foreign import convert, decode_json


def read_facts(data: bytes | str, *, path: str = "") -> KernelFacts:
    """Read the output of `KernelFacts.to_json`. Fields that are not known are ignored.

    Args:
        data: the document, or a `doctor --json` report that holds it under "facts".
        path: the file's name, for errors.

    Raises:
        ConfigError: not JSON, not facts, or facts of another version.
    """
    hint = "write it with `collectord doctor --json` on the host in question"
    try:
        document = decode_json(data, object)
        if isinstance(document, dict) and isinstance(document.get("facts"), dict):
            document = document["facts"]
        if isinstance(document, dict):
            document = _with_tracepoints(document)
        facts = convert(document, KernelFacts)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"these are not kernel facts: {error}", path=path, key=_wrong_in(document), hint=hint
        ) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"not JSON: {error}", path=path, hint=hint) from error
    if facts.version != FACTS_VERSION:
        raise ConfigError(
            f"the kernel facts have version {facts.version}, not {FACTS_VERSION}",
            path=path,
            key="version",
            hint=hint,
        )
    if not facts.cpus_online or facts.page_size <= 0 or facts.page_size % 1024:
        raise ConfigError("they have no online CPU or no page size", path=path, hint=hint)
    return facts


def _with_tracepoints(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the values of tracepoints; what is no text stays as it is."""
    known, of_tasks = document.get("tracepoints"), document.get("task_tracepoints")
    parsed: dict[str, Any] = {}
    if isinstance(known, dict):
        parsed["tracepoints"] = {Tracepoint.parse(one): number for one, number in known.items()}
    if isinstance(of_tasks, list):
        parsed["task_tracepoints"] = [
            Tracepoint.parse(one) if isinstance(one, str) else one for one in of_tasks
        ]
    return document | parsed


def _wrong_in(document: object) -> str:
    """Return the name of the first field whose value is not of its type, "" if none has one."""
    values = document if isinstance(document, dict) else {}
    for name, kind in typing.get_type_hints(KernelFacts).items():
        try:
            convert(values[name], kind)
        except KeyError:
            continue
        except msgspec.ValidationError:
            return name
    return ""
