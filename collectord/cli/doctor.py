# SPDX-License-Identifier: Apache-2.0
"""`collectord doctor`: the abilities of this kernel and user, and how to get the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_OK
from collectord.cli.output import emit, say, wrapped
from collectord.cli.parser import Parser
from collectord.config.schema import BpfConfig
from collectord.daemon.host_facts import bpf_wanted
from collectord.kernel.values.facts_wanted import FactsWanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.facts.kernel_facts import Check, KernelFacts
    from collectord.kernel.port import Kernel

_TITLES: Final = ("CHECK", "STATE", "RESULT, AND -> HOW TO CHANGE IT")
_REMEDY: Final = "    -> "


def parser() -> Parser:
    """Return the parser of `doctor`."""
    made = Parser(
        "doctor",
        ("[--json]",),
        (
            "collectord doctor",
            "collectord doctor --json > facts.json",
            "collectord check --facts facts.json collectord.toml",
        ),
    )
    made.add_json("print the facts as JSON, for `collectord check --facts` (default: a table)")
    return made


def run(arguments: Sequence[str], kernel: Kernel) -> int:
    """Probe this host and print what was found."""
    args = parser().parse_args(arguments)
    programs = bpf_wanted(BpfConfig(), None)
    facts = kernel.facts(FactsWanted(ftrace=True, measure=True, bpf=programs, relay=True))
    if args.json:
        emit(facts.to_json().decode() + "\n")
    else:
        _print_checks(facts)
    return EXIT_OK


def _print_checks(facts: KernelFacts) -> None:
    say(f"Linux {facts.release} on {facts.arch}, {len(facts.cpus_online)} CPUs online")
    rows = [(check.name, _state(check), check.detail) for check in facts.checks]
    names, states = (
        max(map(len, cells)) for cells in zip(_TITLES[:2], *(row[:2] for row in rows), strict=True)
    )
    remedies = ["", *(check.remedy for check in facts.checks)]
    for (name, state, detail), remedy in zip([_TITLES, *rows], remedies, strict=True):
        start = f"{name.ljust(names)}  {state.ljust(states)}  "
        for line in wrapped(detail, first=start, rest=" " * len(start)):
            say(line)
        for line in wrapped(remedy, first=_REMEDY, rest=" " * len(_REMEDY)) if remedy else ():
            say(line)


def _state(check: Check) -> str:
    if check.ok:
        return "ok"
    return "unknown" if check.unknown else "missing"
