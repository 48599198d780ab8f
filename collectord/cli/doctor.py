# SPDX-License-Identifier: Apache-2.0
"""`collectord doctor`: the abilities of this kernel and user, and how to get the others."""

from __future__ import annotations

from collections import Counter
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
_ORDER: Final = {"missing": 0, "unknown": 1, "ok": 2}  # what needs attention is first


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
    checks = sorted(facts.checks, key=lambda check: _ORDER[_state(check)])
    counts = Counter(_state(check) for check in checks)
    say(f"Linux {facts.release} on {facts.arch}, {len(facts.cpus_online)} CPUs online")
    say(", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state]))
    rows = [(check.name, _state(check), check.detail) for check in checks]
    names, states = (
        max(map(len, cells)) for cells in zip(_TITLES[:2], *(row[:2] for row in rows), strict=True)
    )
    remedies = ["", *(check.remedy for check in checks)]
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
