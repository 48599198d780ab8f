# SPDX-License-Identifier: Apache-2.0
"""Parser actions for options of `record` that belong to the one before: filters and parameters."""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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


def _action(take: Callable[[ArgumentParser, Namespace, Any], None]) -> type[Action]:
    """Return an action that calls a function with the options so far and the value."""

    class Taking(Action):
        def __call__(
            self,
            parser: ArgumentParser,
            namespace: Namespace,
            values: Any,  # noqa: ANN401  # argparse's signature
            _option: str | None = None,
        ) -> None:
            take(parser, namespace, values)

    return Taking


@_action
def add_program(parser: ArgumentParser, options: Namespace, name: str) -> None:
    """Begin another program, --bpf NAME, which no other --bpf may name."""
    if any(program.name == name for program in options.programs):
        parser.error(f"--bpf {name} is given twice")
    options.programs = [*options.programs, ProgramOption(name, {})]


@_action
def set_program_argument(parser: ArgumentParser, options: Namespace, text: str) -> None:
    """Set a parameter of the last program, --bpf-arg K=V, once."""
    if not options.programs:
        parser.error("--bpf-arg applies to the preceding --bpf, and there is none")
    program = options.programs[-1]
    name, equals, value = text.partition("=")
    if not equals or not name:
        parser.error(f"--bpf-arg {text!r} is not NAME=VALUE")
    if name in program.arguments:
        parser.error(f"--bpf-arg {name} of {program.name} is given twice")
    program.arguments[name] = value


@_action
def add_event(_parser: ArgumentParser, options: Namespace, choices: EventChoices) -> None:
    """Begin another event, -e EVENT."""
    options.events = [*options.events, EventOption(choices, [])]


@_action
def add_filter(parser: ArgumentParser, options: Namespace, text: str) -> None:
    """Add to the filters of the last event, --filter F; all of them must hold."""
    if not options.events:
        parser.error("--filter applies to the preceding -e, and there is none")
    options.events[-1].filters.append(text)
