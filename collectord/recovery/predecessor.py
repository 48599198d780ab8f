# SPDX-License-Identifier: Apache-2.0
"""Recovery after a killed predecessor: unsealed segments, block traces, and rings of ftrace."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from collectord.errors import SinkError
from collectord.recovery.ftrace_rings import SOURCE, salvage_leftovers
from collectord.recovery.gap import extend_covered
from collectord.recovery.left_blocks import write_left_blocks
from collectord.recovery.left_staging import Memory, write_left
from collectord.recovery.unclean_stops import count_unclean_stops
from collectord.sink.outcome import UNREPAIRED, Action, Outcome
from collectord.sink.repair import is_left, repair
from collectord.sink.segment import PARTIAL, group_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from collectord.folders.folder import Folder
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.host import Host
    from collectord.kernel.values.kept_staging import LeftStaging
    from collectord.plan.plan import Plan

_LOG: Final = structlog.get_logger()
_NO_TRACES: Final[Mapping[str, int]] = MappingProxyType({})


class Repaired(NamedTuple):
    """The result of the repairs at the start.

    Attributes:
        unclean_stops: processes so far that ended without sealing what they wrote.
        damaged_files: segments that were left alone, and manifests that cannot be read.
    """

    unclean_stops: int = 0
    damaged_files: int = 0


class Leftovers:
    """The unsealed segments of killed processes, where a plan's sessions write.

    Those of sessions whose rings the opener holds are sealed later, while the rings are drained. A
    single file is left to its own sink.

    Args:
        plan: has the sessions.
        state: the directory of sessions that are otherwise unknown.

    Attributes:
        repaired: the result so far.
    """

    def __init__(self, plan: Plan, state: Path) -> None:
        rotated = {Path(s.sink.directory): s for s in plan.sessions if not s.sink.single_file}
        elsewhere = {path for path in rotated if state not in (path, path.parent)}
        self._places = [path for path in (state, *sorted(elsewhere)) if rotated]
        self._lasting = {path for path, session in rotated.items() if session.opener}
        self._later: dict[Path, tuple[str, ...]] = {}  # names of segments, by their folder
        self.repaired = Repaired()

    def begin(
        self, left: LeftStaging | None = None, traces: Mapping[str, int] = _NO_TRACES
    ) -> None:
        """Write what was left in staging, and seal the segments that are not sealed later.

        Args:
            left: the staging.
            traces: the memory of block traces that go on, by device.

        Raises:
            SinkError: a directory cannot be read, or the count not written.
        """
        places = [path for path in self._places if path.is_dir()]
        if not places:
            return
        memory = Memory(left) if left is not None else None
        first = partial(self._first, memory, traces)
        outcomes = [outcome for place in places for outcome in repair(place, first=first)]
        _tell_repairs(outcomes)
        unclean = any(map(_tells_of_a_kill, outcomes)) or any(self._later.values())
        self.repaired = Repaired(
            unclean_stops=count_unclean_stops(places[0], add=unclean),
            damaged_files=sum(outcome.damaged for outcome in outcomes),
        )

    def _first(self, memory: Memory | None, traces: Mapping[str, int], folder: Folder) -> bool:
        if memory is not None:
            write_left(memory, folder)
            write_left_blocks(memory, folder, traces)
        if folder.path not in self._lasting or not is_left(folder):
            return False
        self._later[folder.path] = tuple(group.paths.name for group in group_files(folder))
        return True

    def repair(self, directory: Path) -> None:
        """Seal the segments of a folder that are sealed later. Any thread may call it."""
        names = self._later.pop(directory, ())
        if not names:
            return
        try:
            outcomes = repair(directory, names=names)
        except SinkError as error:
            outcomes = [Outcome(directory, Action.FAILED, str(error))]
        _tell_repairs(outcomes)
        damaged = self.repaired.damaged_files + sum(outcome.damaged for outcome in outcomes)
        self.repaired = self.repaired._replace(damaged_files=damaged)

    def repair_rest(self, besides: Collection[Path] = ()) -> None:
        """Seal the remaining segments, of sessions that could not be opened.

        Args:
            besides: folders of sessions that are still to be opened.
        """
        for directory in self._later.keys() - {*besides}:
            self.repair(directory)


def _tells_of_a_kill(outcome: Outcome) -> bool:
    """Whether the outcome shows a kill: a clean stop leaves no open segment, even if empty."""
    if outcome.action is Action.REMOVED:
        return outcome.path.name.endswith(PARTIAL)
    return outcome.action in {Action.RECOVERED, Action.COMPLETED}


def salvage_traces(
    plan: Plan,
    state: Path,
    *,
    kernel: Kernel,
    host: Host,
    room_for: Callable[[Path], Callable[[int], bool]],
    everything: bool,
    resumable: Collection[str] = (),
    lasting: Collection[str] = (),
) -> int:
    """Salvage the rest of ftrace rings to where their sessions wrote, and end block traces.

    Args:
        plan: has the sessions whose rings are salvaged.
        state: the directory of sessions that are otherwise unknown.
        kernel: has the rings, and the notes of where their segments are.
        host: for the manifests.
        room_for: see `salvage_leftovers`.
        everything: also salvage the rings of other sessions.
        resumable: names of instances that sessions of the plan go on with.
        lasting: digests of the plans of block traces that go on.

    Returns:
        records of block traces that are in no segment: they were unread, or had found no room.

    Raises:
        KernelError: rings cannot be read.
        SinkError: a segment cannot be written.
    """
    places: dict[str, Path] = {}
    own = {s.name: Path(s.sink.directory) for s in plan.sessions if s.payload.has_instance}

    def place(instance: str, session: str) -> Path | None:
        if instance in resumable or (session not in own and not everything):
            return None
        note = kernel.noted_instance(instance)
        directory = note.directory if note is not None else own.get(session) or state / session
        _tell_repairs(repair(directory) if directory.is_dir() else [])
        places[instance] = directory
        return directory

    left_traces = kernel.end_left_traces(lasting) if everything else ()
    for left in left_traces:
        event, fields = left.told("trace_left_behind")
        _LOG.warning(event, **fields)
    for salvaged in salvage_leftovers(kernel, host, place, room_for):
        kernel.forget_instance(salvaged.instance)
        _note_covered(places[salvaged.instance], host, kernel)
        _LOG.warning(
            "instance_salvaged",
            instance=salvaged.instance,
            path=str(salvaged.path) if salvaged.path is not None else None,
            **salvaged.ledger.to_json(),
        )
    return sum(left.unread + left.dropped for left in left_traces)


def _note_covered(directory: Path, host: Host, kernel: Kernel) -> None:
    """Note that rings which outlived their process recorded until now; else it is a gap."""
    try:
        if directory.is_dir():
            extend_covered(directory, SOURCE, host.boot_id, kernel.clocks())
    except SinkError as error:
        _LOG.error("covered_time_not_noted", error=str(error))


def _tell_repairs(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        event = "segment_repaired"
        if outcome.action is Action.IN_USE:
            event = "segment_in_use"
        elif outcome.action in UNREPAIRED:
            event = "segment_not_repaired"
        _LOG.warning(
            event,
            path=str(outcome.path),
            action=str(outcome.action),
            detail=outcome.detail,
            samples=outcome.samples,
        )
