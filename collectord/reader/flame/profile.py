# SPDX-License-Identifier: Apache-2.0
"""Samples of files as stacks of frames, counted."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from collectord.codec.ftrace_columns import CGROUP
from collectord.codec.perf_columns import has_cgroup
from collectord.errors import UsageError
from collectord.reader.embedded_db import connect
from collectord.reader.event_file import Window
from collectord.reader.event_tables import tables_of
from collectord.reader.sql import Database
from collectord.reader.symbols.frame import UNKNOWN, Frame
from collectord.reader.symbols.sample_names import CHAIN, names_of, of_events

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from collectord.reader.event_file import EventFile, FileEvent
    from collectord.reader.event_tables import TableScan
    from collectord.reader.sql import Nearest
    from collectord.reader.symbols.symbol_cache import SymbolCache

Stacks = Counter[tuple[Frame, ...]]
By = Literal["comm", "pid", "cpu", "cgroup"]
# The columns that the outermost frame is made of, by what is asked for.
_COLUMNS: Final = {"comm": ("comm",), "pid": ("comm", "pid"), "cpu": ("cpu",), CGROUP: (CGROUP,)}
_SAMPLES: Final = "samples"
EPOCH: Final = "epoch"
_PROCESS, _CHAIN = "process", "chain"
# More different stacks than that are counted together, or they would take all memory.
_STACKS_MAX: Final = 1_000_000
_OTHERS: Final = Frame("[other stacks]")


class Asked(NamedTuple):
    """The wishes for a profile.

    Attributes:
        window: of time.
        globs: of events; none: the one whose samples are taken by frequency or period.
        by: what the outermost frame is.
        cache: of symbols.
        shown: makes unprintable characters visible.
        nearest: says which name may have been meant.
    """

    window: Window
    globs: Sequence[str]
    by: By
    cache: SymbolCache | None
    shown: Callable[[str], str]
    nearest: Nearest


@dataclass(slots=True)
class Waits:
    """The waits that are not seen as a whole.

    Attributes:
        pairs: those that are.
        open: those that had not ended, and are counted up to the end.
        begun_before: those that had begun before, and are not counted.
        unfinished: those whose end is missing, and are not counted.
    """

    pairs: int = 0
    open: int = 0
    begun_before: int = 0
    unfinished: int = 0


@dataclass(slots=True)
class Profile:
    """Stacks from the outermost frame on, and how often each was seen.

    Attributes:
        stacks: of it.
        unit: of the counts.
        scans: what was read for it.
        nameless: files of whose kernel no list of functions is known.
        left_out: mappings that were too many to be remembered.
        placeless: files whose samples have no cgroups, though they are asked for.
        waits: of a profile of waits.
    """

    stacks: Stacks = field(default_factory=Counter)
    unit: str = _SAMPLES
    scans: list[TableScan] = field(default_factory=list)
    nameless: list[EventFile] = field(default_factory=list)
    left_out: int = 0
    placeless: list[EventFile] = field(default_factory=list)
    waits: Waits | None = None

    def add(self, frames: tuple[Frame, ...], count: int) -> None:
        """Count a stack; beyond very many different ones only its outermost frame is kept."""
        if len(self.stacks) >= _STACKS_MAX and frames not in self.stacks:
            frames = (frames[0], _OTHERS)
        self.stacks[frames] += count


class OpenedFile:
    """A file with the tables of its records, and names for the addresses in its samples.

    Args:
        file: the file.
        events: whose samples are wanted.
        database: its records at the time that is wanted.
        whole: all of its records.
        asked: the wishes.

    Attributes:
        wanted: SQL of a condition, for the samples.
        named: the names.
        columns: SQL by name, of what the frames of a sample are made of.
    """

    def __init__(
        self,
        file: EventFile,
        events: Sequence[str],
        database: Database,
        whole: Database,
        asked: Asked,
    ) -> None:
        self._file = file
        self._database = database
        self._asked = asked
        self.wanted = of_events(events)
        pids = self.ask(
            f"SELECT DISTINCT pid FROM samples WHERE {self.wanted} AND pid IS NOT NULL"  # noqa: S608
        )
        self.named = names_of(
            file,
            whole.rows,
            [pid for (pid,) in pids],
            cache=asked.cache,
            shown=asked.shown,
        )
        self._by = _COLUMNS[asked.by]
        self.columns = {
            _PROCESS: f"s.pid AS {_PROCESS}",
            EPOCH: f"{self.named.since} AS {EPOCH}",
            _CHAIN: CHAIN,
            **{f"s_{one}": f"s.{one} AS s_{one}" for one in self._by},
        }

    def ask(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement over the records."""
        return self._database.rows(sql)

    def frames(self, row: Sequence[Any]) -> tuple[Frame, ...] | None:
        """Return the stack of a sample by the values of `columns`; None for one without."""
        pid, since_ns, chain, *values = row
        if chain is None:
            return None
        outermost = _outermost(dict(zip(self._by, values, strict=True)))
        frames = self.named.symbolizer.frames(pid, since_ns, chain)
        return Frame(self._asked.shown(outermost)), *frames

    def add_gaps_to(self, profile: Profile) -> None:
        """Note in a profile which names and records are missing."""
        if self.named.symbolizer.lacks_kernel and not self.named.knows_kernel:
            profile.nameless.append(self._file)
        profile.left_out += self.named.left_out
        profile.scans += self._database.scans


def read_profile(files: Sequence[EventFile], asked: Asked) -> Profile:
    """Read the samples of files, one after the other: each stands alone.

    Raises:
        UsageError: they have no such samples, or not their cgroups, or they have samples of
            several events, of which one must be chosen.
        CollectordError: DuckDB is not installed, or fails.
    """
    chosen = {file: names for file in files if (names := _chosen(file, asked.globs))}
    if not chosen:
        raise _no_samples(asked.globs)
    if not asked.globs:
        events = {name for names in chosen.values() for name in names}
        if len(events) > 1:
            told = ", ".join(sorted(events))
            raise UsageError(f"there are samples of {told}", hint="choose by -e")
    profile = Profile(placeless=without_cgroups(chosen, asked))
    with ExitStack() as whole:
        base = connect(whole)
        for file, names in chosen.items():
            span = file.window(asked.window)
            if span is None or not file.is_outside(span):
                with ExitStack() as stack:
                    _read(file, names, asked, profile, base=base, stack=stack)
    return profile


def _no_samples(globs: Sequence[str]) -> UsageError:
    if globs:
        return UsageError(f"no file has samples of {', '.join(globs)}")
    return UsageError(
        "no file has samples of a profile",
        hint="`collectord record -a -g -F 99` takes some, and -e chooses tracepoints",
    )


def without_cgroups(chosen: Mapping[EventFile, Collection[str]], asked: Asked) -> list[EventFile]:
    """Return the files without the cgroups of samples, if these are asked for.

    Args:
        chosen: names of the events of each file.
        asked: the wishes.

    Raises:
        UsageError: none of the files has them.
    """
    if asked.by != CGROUP:
        return []
    found = [
        file
        for file, names in chosen.items()
        if not any(
            has_cgroup(event.sample_type or 0) for event in file.events if event.full_name in names
        )
    ]
    if len(found) == len(chosen):
        raise UsageError(
            "no file has the cgroups of these samples",
            hint="`collectord record --all-cgroups` records them, and so does `cgroups = true` in "
            "a perf source",
        )
    return found


def _chosen(file: EventFile, globs: Sequence[str]) -> list[str]:
    """Return the names of the events whose samples are wanted."""
    return [
        event.full_name
        for event in file.events
        if event.sample_type is not None
        and (_matches(event, globs) if globs else event.is_profile)
    ]


def _matches(event: FileEvent, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs for name in (event.name, event.full_name))


def _read(
    file: EventFile,
    names: Sequence[str],
    asked: Asked,
    profile: Profile,
    *,
    base: Any,  # noqa: ANN401  # of DuckDB
    stack: ExitStack,
) -> None:
    tables = tables_of([file])
    whole = Database(tables, {}, Window(), asked.nearest, stack, base=base)
    in_time = Database(tables, {}, asked.window, asked.nearest, stack, base=base)
    opened = OpenedFile(file, names, in_time, whole, asked)
    statement = (
        f"{opened.named.head}SELECT count(*), {', '.join(opened.columns.values())} "  # noqa: S608
        f"FROM {opened.named.samples} WHERE {opened.wanted} GROUP BY ALL"
    )
    for count, *row in opened.ask(statement):
        frames = opened.frames(row)
        if frames is not None:
            profile.add(frames, count)
    opened.add_gaps_to(profile)


def _outermost(values: dict[str, Any]) -> str:
    if "cpu" in values:
        return f"CPU {values['cpu']}"
    if CGROUP in values:
        return str(values[CGROUP] or UNKNOWN)
    comm = values["comm"] if values["comm"] is not None else UNKNOWN
    if "pid" not in values:
        return str(comm)
    return f"{comm}-{values['pid']}" if values["pid"] is not None else str(comm)
