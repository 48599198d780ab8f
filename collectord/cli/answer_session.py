# SPDX-License-Identifier: Apache-2.0
"""The recording that an answer needs: a command line, and a session for the configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from collectord.cli.answer_file import BPF
from collectord.codec.perf_columns import SOFTWARE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.cli.answer_file import AnswerHead

_INDENT: Final = "    "


def recording_of(name: str, head: AnswerHead) -> Iterator[str]:
    """Yield lines that say how to record the events of an answer, for each list that it needs."""
    for index, need in enumerate(head.needs):
        wanted = need if index else _first(head)
        yield "record them:" if not index else "or record these:"
        yield from _ways(name, wanted, call_chains=head.call_chains)


def recording_for(name: str, heads: Sequence[AnswerHead]) -> Iterator[str]:
    """Yield lines that say how to record what several answers need, in one session."""
    wanted = dict.fromkeys(event for head in heads for event in _first(head))
    yield "record them:"
    yield from _ways(name, [*wanted], call_chains=any(head.call_chains for head in heads))


def _first(head: AnswerHead) -> tuple[str, ...]:
    """Return the first list of events, and those beside it that one recording may have with it.

    Programs are recorded by themselves.
    """
    need = head.needs[0]
    if any(_is_program(event) for event in need):
        return need
    return (*need, *(event for event in head.optional if not _is_program(event)))


def _ways(name: str, wanted: Sequence[str], *, call_chains: bool) -> Iterator[str]:
    """Yield a command line, and a session, that record some events."""
    events, programs = _split(wanted)
    yield f"{_INDENT}{command_of(name, events, programs, call_chains=call_chains)}"
    yield "or add a session to the configuration:"
    for line in session_of(name, events, programs, call_chains=call_chains):
        yield f"{_INDENT}{line}"


def command_of(
    name: str, events: Sequence[str], programs: Sequence[str], *, call_chains: bool = False
) -> str:
    """Return a command line that records some tracepoints and programs."""
    words = ["collectord record -a", *(["-g"] if call_chains else [])]
    words += [f"--bpf {program}" for program in programs]
    words += [f"-e {','.join(events)}"] if events else []
    return " ".join([*words, f"--duration 10s --output-dir {name}"])


def session_of(
    name: str, events: Sequence[str], programs: Sequence[str], *, call_chains: bool = False
) -> Iterator[str]:
    """Yield the lines of a session that records some tracepoints and programs."""
    yield "[[session]]"
    yield f'name = "{name}"'
    if events:
        yield "[[session.source]]"
        yield 'kind = "perf"'
        yield f"events = {json.dumps(events)}"
        if call_chains:
            yield 'call_graph = "fp"'
    for program in programs:
        yield "[[session.source]]"
        yield f'kind = "{BPF}"'
        yield f'program = "{program}"'


def _split(events: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the tracepoints and software events among some events, and the BPF programs."""
    programs = [event.removeprefix(f"{BPF}:") for event in events if _is_program(event)]
    others = (event for event in events if not _is_program(event))
    return [event.removeprefix(f"{SOFTWARE}:") for event in others], programs


def _is_program(event: str) -> bool:
    return event.startswith(f"{BPF}:")
