# SPDX-License-Identifier: Apache-2.0
"""Parser actions for options of `record` that belong to the one before: filters and parameters."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectord.config.event_spec import EventChoices


@dataclass(slots=True)
class EventOption:
    """An -e with the filters that follow it."""

    choices: EventChoices
    filters: list[str]

    @property
    def filter(self) -> str:
        """The filters joined by `&&`: all of them must hold, as with perf."""
        if len(self.filters) > 1:
            return " && ".join(f"({text})" for text in self.filters)
        return "".join(self.filters)


@dataclass(slots=True)
class ProgramOption:
    """A --bpf with the --bpf-arg options that follow it."""

    name: str
    arguments: dict[str, str]


class AddProgram(argparse.Action):
    """The action of --bpf NAME."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401  # argparse's signature
        _option: str | None = None,
    ) -> None:
        """Begin another program, which no other --bpf may name."""
        if any(program.name == values for program in namespace.programs):
            parser.error(f"--bpf {values} is given twice")
        namespace.programs = [*namespace.programs, ProgramOption(values, {})]


class SetProgramArgument(argparse.Action):
    """The action of --bpf-arg K=V, for the program before it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401  # argparse's signature
        _option: str | None = None,
    ) -> None:
        """Set a parameter of the last program, once."""
        if not namespace.programs:
            parser.error("--bpf-arg applies to the preceding --bpf, and there is none")
        program = namespace.programs[-1]
        name, equals, value = values.partition("=")
        if not equals or not name:
            parser.error(f"--bpf-arg {values!r} is not NAME=VALUE")
        if name in program.arguments:
            parser.error(f"--bpf-arg {name} of {program.name} is given twice")
        program.arguments[name] = value


class AddEvent(argparse.Action):
    """The action of -e EVENT."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401  # argparse's signature
        _option: str | None = None,
    ) -> None:
        """Begin another event."""
        namespace.events = [*namespace.events, EventOption(values, [])]


class AddFilter(argparse.Action):
    """The action of --filter F, for the event before it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401  # argparse's signature
        _option: str | None = None,
    ) -> None:
        """Add to the filters of the last event, which must all hold."""
        if not namespace.events:
            parser.error("--filter applies to the preceding -e, and there is none")
        namespace.events[-1].filters.append(values)
