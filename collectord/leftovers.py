# SPDX-License-Identifier: Apache-2.0
"""What a killed predecessor left: segments that nobody sealed, traces, and rings of ftrace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.kernel.instance_note import read_note, remove_note
from collectord.salvage import salvage_leftovers
from collectord.sink.repair import Action, repair
from collectord.sink.store import count_unclean_stops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectord.kernel.host import Host
    from collectord.kernel.port import Kernel
    from collectord.plan.session import Plan
    from collectord.sink.repair import Outcome

_LOG: Final = structlog.get_logger()


def repair_leftovers(plan: Plan, state: Path) -> int:
    """Seal what was not, where the plan's sessions write, and below the state directory.

    A single file is its own sink's to make way for.

    Returns:
        how many processes have ended without sealing what they wrote, until now.

    Raises:
        SinkError: a directory cannot be read, or the count not written.
    """
    rotated = [Path(s.sink.directory) for s in plan.sessions if not s.sink.single_file]
    elsewhere = {path for path in rotated if state not in (path, path.parent)}
    places = [path for path in (state, *sorted(elsewhere)) if rotated and path.is_dir()]
    if not places:
        return 0
    outcomes = [outcome for place in places for outcome in repair(place)]
    _tell_repairs(outcomes)
    recovered = any(outcome.action is Action.RECOVERED for outcome in outcomes)
    return count_unclean_stops(places[0], add=recovered)


def salvage_traces(
    plan: Plan,
    state: Path,
    *,
    kernel: Kernel,
    host: Host,
    make_room: Callable[[int], bool],
    everything: bool,
) -> None:
    """Take the rest out of ftrace rings, to where their sessions wrote, and end block traces.

    Args:
        plan: whose sessions' rings are looked for.
        state: where sessions of which nothing else is known write.
        kernel: has the rings.
        host: for the manifests.
        make_room: see `FileSink`.
        everything: those of other sessions too.

    Raises:
        KernelError: rings cannot be read.
        SinkError: a segment cannot be written.
    """
    own = {s.name: Path(s.sink.directory) for s in plan.sessions if s.ftrace is not None}

    def place(instance: str, session: str) -> Path | None:
        if session not in own and not everything:
            return None
        directory = read_note(instance) or own.get(session) or state / session
        _tell_repairs(repair(directory) if directory.is_dir() else [])
        return directory

    if everything:
        for left in kernel.end_left_traces():
            _LOG.warning("trace_left_behind", **left._asdict())
    for salvaged in salvage_leftovers(kernel, host, place, make_room):
        remove_note(salvaged.instance)
        _LOG.warning(
            "instance_salvaged",
            instance=salvaged.instance,
            path=str(salvaged.path) if salvaged.path is not None else None,
            **salvaged.ledger,
        )


def _tell_repairs(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        _LOG.warning(
            "segment_repaired",
            path=str(outcome.path),
            action=str(outcome.action),
            detail=outcome.detail,
            samples=outcome.samples,
        )
