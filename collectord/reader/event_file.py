# SPDX-License-Identifier: Apache-2.0
"""Read stage: a file of anybody, open for its records to be decoded into columns of tables."""

from __future__ import annotations

import bisect
import tempfile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.codec.ftrace_format import parse_format
from collectord.codec.perf_attr import SampleType
from collectord.errors import CodecError
from collectord.folders.walk import open_folder
from collectord.sink.manifest import Manifest, OpenManifest, decode
from collectord.sink.segment import PARTIAL, SegmentPaths, read_other_manifest, sink_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from collectord.codec.ftrace_columns import FieldColumn
    from collectord.codec.ftrace_format import EventFormat
    from collectord.sink.manifest import EventLayout

UNREADABLE: Final = "cannot read the segment"
# The name of thread 0, which no record tells.
IDLE: Final = "<idle>"
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
_UINT16_MAX: Final = (1 << 16) - 1


class Window(NamedTuple):
    """A span of time in ns, both ends included; None: without an end."""

    since_ns: int | None = None
    until_ns: int | None = None

    @property
    def everything(self) -> bool:
        """Whether the window covers all times."""
        return self.since_ns is None and self.until_ns is None

    def overlaps(self, since_ns: int | None, until_ns: int | None) -> bool:
        """Whether some of a time may be in it, of which None is an end that nothing tells."""
        if self.until_ns is not None and since_ns is not None and since_ns > self.until_ns:
            return False
        return self.since_ns is None or until_ns is None or until_ns >= self.since_ns


Span = tuple[int, int, int]  # {CPU or -1, offset, bytes}


class Source(NamedTuple):
    """Records in an open file, as `Scan.add` of the decoder takes them."""

    fd: int
    kind: str
    spans: tuple[Span, ...]
    options: Mapping[str, Any]


class Records(NamedTuple):
    """The records of a file that are one table's.

    Attributes:
        system: of the event, "" for a table of all events.
        name: of the event or the table.
        columns: the table's, and where the records have their values.
        sources: where the records are.
    """

    system: str
    name: str
    columns: tuple[FieldColumn, ...]
    sources: tuple[Source, ...]


class FileEvent(NamedTuple):
    """An event of a file.

    Attributes:
        keys: `common_type` of its records, or the places of its attrs in a perf.data.
        system: of a tracepoint, "" for others.
        name: of the event.
        layout: of a tracepoint, None for others.
        is_program: a BPF program submits it.
        described: the layout of what the program submits, None if nothing tells it.
        sample_type: of its samples, None in others.
        letter: of an action of blktrace, as blkparse prints it, "" for others.
        program_table: SYSTEM:NAME of the table of a program's records, "" for others.
    """

    keys: tuple[int, ...]
    system: str
    name: str
    layout: EventFormat | None = None
    is_program: bool = False
    described: EventLayout | None = None
    sample_type: int | None = None
    letter: str = ""
    program_table: str = ""

    @property
    def full_name(self) -> str:
        """SYSTEM:NAME of a tracepoint."""
        return f"{self.system}:{self.name}" if self.system else self.name

    @property
    def table_name(self) -> str:
        """SYSTEM:NAME of the table of its records, if they have one of their own."""
        return self.program_table or self.full_name

    @property
    def has_table(self) -> bool:
        """Whether its records are a table of their own, with the event's fields."""
        return self.layout is not None or self.is_program

    @property
    def has_chain(self) -> bool:
        """Whether its samples have call chains."""
        return bool((self.sample_type or 0) & SampleType.CALLCHAIN)

    @property
    def is_profile(self) -> bool:
        """Whether it is no tracepoint, and no program's: its samples are of an address."""
        return self.sample_type is not None and not self.has_table

    @property
    def is_placed(self) -> bool:
        """Whether its samples tell which functions ran, by a call chain or the address alone."""
        return self.has_chain or (
            self.is_profile and bool((self.sample_type or 0) & SampleType.IP)
        )


class EventFile:
    """An open file, sealed or running, with what was in it when it was opened.

    Attributes:
        path: of the file.
        session: that wrote it, "" if no manifest says it.
        manifest: beside it, None if there is none.
        clock: readings of {stamp, UTC} in ns, the earliest first; empty if they are not known.
        overwrites: records were overwritten before it was taken, as a flight recorder does.
        wraps: what it tells as missing was overwritten. Of slots of BPF programs it was lost: what
            they overwrite is in the ledger alone.
        lost_known: records that were lost while it was written, as the kernel counted them; None
            if nothing but notes among the records tells it.
        events: of which there may be records.
        silent_keys: keys of others, which are there for the sake of other records.
        records: of each of its tables; an event without a sound layout has none.
        software: samples of software events, each as of a table of its own, for answers.
        sources: all of its records, for losses and damage.
        tabled: names in the table of samples of events that have tables of their own too.
        damage: what is wrong with the part that describes the events, "" if nothing is.
        move: why records are missing that a seal was moving, "" if none are.
        skips: what is left out behind damage in the records of a CPU.
    """

    skips = "the rest of the page is skipped"

    def __init__(self, path: Path) -> None:
        self.path = path
        with sink_errors(UNREADABLE, path, reading=True):
            self.manifest = manifest = read_manifest(path)
        self.session = manifest.session if manifest else ""
        self.overwrites = isinstance(manifest, Manifest) and bool(
            manifest.ledger.get("overwritten")
        )
        self.wraps = self.overwrites and manifest is not None and manifest.source != "bpf"
        self.lost_known: int | None = None
        self.clock = _readings(manifest) if manifest else ()
        self.events: tuple[FileEvent, ...] = ()
        self.silent_keys: tuple[int, ...] = ()
        self.records: tuple[Records, ...] = ()
        self.software: tuple[Records, ...] = ()
        self.sources: tuple[Source, ...] = ()
        self.tabled: frozenset[str] = frozenset()
        self.damage = ""
        self.move = ""
        self._stamps = (0, 0)
        if isinstance(manifest, Manifest):
            self._stamps = manifest.first_ns, manifest.last_ns

    def comms(self) -> Sequence[tuple[int, int, str]]:
        """Return {thread, stamp from which it has the name, name}, unless the records tell."""
        return ()

    def build_ids(self) -> Mapping[str, bytes]:
        """Return the build-ids of files whose code ran, by name, as far as the file has them."""
        return {}

    def contents(self, source: Source) -> tuple[int, tuple[Span, ...]]:
        """Return the open file with the records of a source, and where they are in it.

        Compressed files are unpacked when they are first read; what is damaged is noted.
        """
        return source.fd, source.spans

    def line_sources(self, wanted: Collection[int]) -> tuple[Source, ...]:
        """Return where the records of events with these keys are, for lines of them."""
        del wanted
        return self.sources

    @property
    def path_text(self) -> str:
        """The path as text that UTF-8 can encode."""
        return shown(str(self.path))

    def window(self, asked: Window) -> Window | None:
        """Return a span of UTC in the clock of the file; None if the file cannot tell."""
        if asked.everything:
            return asked
        if not self.clock:
            return None
        since_ns, until_ns = (None if at is None else self._stamp(at) for at in asked)
        return Window(since_ns, until_ns)

    @property
    def first_utc_ns(self) -> int:
        """UTC of the first record of a sealed file, 0 if it is not known."""
        first_ns, _ = self._stamps
        if not first_ns or not self.clock:
            return 0
        stamp_ns, utc_ns = self.clock[-1]
        return utc_ns + first_ns - stamp_ns

    def is_outside(self, window: Window) -> bool:
        """Whether it is known that no record is in a span of the file's clock."""
        first_ns, last_ns = self._stamps
        return bool(last_ns) and (
            (window.since_ns is not None and last_ns < window.since_ns)
            or (window.until_ns is not None and first_ns > window.until_ns)
        )

    def _stamp(self, utc_ns: int) -> int:
        """Return the stamp at a time of UTC, within 64 bits."""
        at = max(bisect.bisect_right([utc for _, utc in self.clock], utc_ns) - 1, 0)
        stamp_ns, reading_ns = self.clock[at]
        past_ns = utc_ns - reading_ns
        if past_ns > 0 and at + 1 < len(self.clock):
            behind = self.clock[at + 1]
            past_ns = past_ns * (behind[0] - stamp_ns) // max(behind[1] - reading_ns, 1)
        return min(max(stamp_ns + past_ns, 0), (1 << 64) - 1)

    def layouts(
        self, formats: Iterable[tuple[str, Iterable[bytes]]]
    ) -> Iterator[tuple[str, EventFormat]]:
        """Yield {system, layout} of the events that are described; note those that are not."""
        for raw, texts in formats:
            system = shown(raw) or "?"
            for text in texts:
                try:
                    layout = parse_format(text)
                except CodecError as error:
                    self.damage = f"the layout of an event of {system}: {error.message}"
                    continue
                if layout.id > _UINT16_MAX:
                    self.damage = f"the layout of {system}:{layout.name} has an impossible id"
                else:
                    yield system, layout


def nameless(stack: ExitStack) -> int:
    """Return a file without a name, which goes when the stack ends."""
    file = tempfile.TemporaryFile(prefix="collectord-")  # noqa: SIM115  # the stack closes it
    return stack.enter_context(file).fileno()


def shown(name: str) -> str:
    """Return a name in a file as text that UTF-8 can encode."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def read_manifest(path: Path) -> Manifest | OpenManifest | None:
    """Read the manifest beside a segment, sealed or running; None without one.

    Raises OSError.
    """
    paths = SegmentPaths(path.parent, path.name.removesuffix(PARTIAL))
    with open_folder(path.parent) as folder:
        if path == paths.partial:
            running = decode(read_other_manifest(folder, paths.open_manifest), OpenManifest)
            if running is not None:
                return running
        return decode(read_other_manifest(folder, paths.manifest), Manifest)


def _readings(manifest: Manifest | OpenManifest) -> tuple[tuple[int, int], ...]:
    clocks = manifest.clocks
    last = () if clocks.close is None else (clocks.close,)
    found: Mapping[int, int] = {
        getattr(reading, f"{manifest.clock}_ns"): reading.realtime_ns
        for reading in (clocks.open, *clocks.flushes, *last)
    }
    return tuple(sorted((at, utc) for at, utc in found.items() if 0 < at <= INT64_MAX >= abs(utc)))
