# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the manifest beside each segment, what it says and how it is written down.

A running segment has an open manifest, `<segment>.json.partial`: what its repair needs and the
file itself cannot tell. A sealed one has `<segment>.json`. Keys keep the order of the fields
here; unknown keys of the same schema are ignored, a later schema is left to its own version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence  # noqa: TC003 - msgspec reads annotations
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from collectord import __version__
from collectord.codec.bpf_struct import (
    Layout,
    decoder,
)
from collectord.errors import CodecError
from collectord.model import ClockReading  # noqa: TC001 - msgspec reads annotations
from collectord.programs.program_manifest import (
    ColumnConfig,  # noqa: TC001 - msgspec reads annotations
)
from collectord.text.foreign import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA: Final = 2
# That are read: in the first, the data had one checksum of all their bytes.
SCHEMAS: Final = frozenset({1, SCHEMA})
# Clock readings at flushes that a manifest keeps, spread evenly over the segment.
FLUSH_CLOCKS_MAX: Final = 64
# No count, size or place in a file is beyond it, and sums of a few stay numbers of 64 bits.
COUNT_MAX: Final = 1 << 61

# Ranges hold where a manifest is read: anybody may have written it.
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
TimeNs = Annotated[int, msgspec.Meta(ge=0)]  # a damaged record may tell any of 64 bits
Number = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 31) - 1)]  # -1: none
FileName = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.\.?\Z)[^/\0]+\Z", max_length=255)]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose segments these are: constant for a sink's life.

    Attributes:
        kernel: release of the running kernel, as `uname -r` prints it.
        scope: `model.Scope.describe()`.
    """

    host: str
    boot_id: str
    kernel: str
    session: str
    source: str
    scope: str


class RingEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One ring that fed the segment; `samples` and `bytes` are what this segment holds of it.

    Attributes:
        offset: where the ring's sub-buffers begin in the file; 0 where rings share one section.
        stored_total: events of it in this segment and in those of its run that were sealed before,
            those that were deleted since included. Of an open segment: those sealed before its
            creation.
    """

    ring: Count
    role: str
    cpu: Number
    tid: Number = -1
    data_bytes: Count
    watermark_bytes: Count
    samples: Count = 0
    bytes: Count = 0
    offset: Count = 0
    stored_total: Count = 0


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the file and its checksum, 16 hex digits: the XXH3-64 of its bytes.

    That of data is of the checksums of their chunks, and `chunks` names these, see `sink.sums`.

    The spans of a perf.data segment cover the file without gap: `head` up to the data, `data` as
    the writer wrote it, `tail` from there on (loss records of the close, feature table and
    sections). A trace.dat segment has a `data` span for each ring with data in it, and holes
    between them.
    """

    part: Literal["head", "data", "tail"]
    offset: Count
    bytes: Count
    xxh3: str
    chunks: str = ""


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of the perf clock, MONOTONIC and REALTIME that place the segment in time."""

    open: ClockReading
    flushes: tuple[ClockReading, ...] = ()
    close: ClockReading | None = None


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest sealed before this one in the directory, by name and hash of its bytes."""

    manifest: FileName
    sha256: str


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the file that was damaged: a repair has made it into what readers pass over."""

    offset: Count
    bytes: Count


class SnapshotNote(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that a segment of a flight recorder belongs to; several may belong to one.

    How far back the segment reaches is in its `first_ns` and `last_ns`.

    Attributes:
        trigger: what asked for it: "request", "signal", "freeze" or "end".
        taken_ns: MONOTONIC when it did.
        paused_ns: time that the rings stood still for it.
        repeated: samples that were left out, because the snapshot before has them.
        repeated_bytes: the same, with records that are no samples.
    """

    trigger: str
    taken_ns: TimeNs
    paused_ns: Count = 0
    repeated: Count = 0
    repeated_bytes: Count = 0


class EventLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What the samples of an event carry as raw data.

    Attributes:
        program: that submits them.
        layout: of the struct.
        columns: what a table shows of it, in this order; none: all fields.
    """

    program: str
    layout: Layout
    columns: tuple[ColumnConfig, ...] = ()


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """What the open and the sealed manifest share.

    Attributes:
        segment: name of the data file once sealed.
        started_ns: REALTIME at creation; tells two recordings of one name apart.
        direct: data was written with O_DIRECT, else through the page cache.
        data_offset: where the data section starts, in bytes.
        events: names of the events, in the order of the file's attributes.
        rings: the rings that feed it; those known at creation in the open manifest.
        run: one value for all segments of one stream, another for each other stream.
        stored_before: events in the segments of this run that were sealed before this one, those
            that were deleted since included. Of an open one: sealed before its creation.
        layouts: what is in the samples, by the name of the event, for events whose raw data have
            no description elsewhere.
        clock: which of a `ClockReading` stamps the records.
    """

    schema: int = SCHEMA
    format: str
    writer: str = f"collectord {__version__}"
    segment: str
    host: str
    boot_id: str
    kernel: str
    session: str
    source: str
    scope: str
    started_ns: TimeNs
    direct: bool
    data_offset: Count
    events: tuple[str, ...]
    rings: tuple[RingEntry, ...]
    clocks: Clocks
    run: str = ""
    stored_before: Count = 0
    layouts: Mapping[str, EventLayout] = {}
    clock: Literal["monotonic", "perf"] = "monotonic"


class OpenManifest(Common, frozen=True, kw_only=True):
    """Manifest of a running segment; all else that its repair needs is in the file's head."""


class Manifest(Common, frozen=True, kw_only=True):
    """Manifest of a sealed segment.

    Attributes:
        complete: the segment holds all that was stored for it, sealed by its own sink.
        recovered: sealed by a repair, after the process that wrote it had died.
        first_ns, last_ns: lowest and highest sample time, 0 where there is no sample.
        records: records in the data section but padding and rounds, replay and loss included;
            None where nobody counted.
        samples: events: PERF_RECORD_SAMPLE among them, or ftrace's.
        replayed: sideband records of the replay among them; None where nobody counted.
        produced: events that the kernel counted; None where the basis is not `exact`.
        ledger: the balance with its basis, as the ledger gives it.
        lost_samples: event id to samples lost in this segment, also in the file as LOST_SAMPLES.
        bytes: size of the file.
        allocated_bytes: blocks that the file occupies.
        build_ids: path to build-id, where known.
        previous: None for the first manifest of its directory.
        snapshot: what asked for the segment, of a flight recorder; None where nobody knows.
        cut: what a repair has cut out.
        cut_samples: events that the segment held before; None where nobody knows.
        replaces: SHA-256 of the manifest of the seal, of a segment that was damaged since; "" of
            others.
        early: it ended before all was read that names its samples: the next one may have that.
    """

    complete: bool
    recovered: bool
    first_ns: TimeNs
    last_ns: TimeNs
    records: Count | None
    samples: Count
    replayed: Count | None
    produced: Count | None
    ledger: Mapping[str, Any]
    lost_samples: Mapping[str, Count]
    bytes: Count
    allocated_bytes: Count
    data_bytes: Count
    spans: tuple[Span, ...]
    build_ids: Mapping[str, str]
    previous: Link | None
    snapshot: SnapshotNote | None = None
    cut: tuple[Cut, ...] = ()
    cut_samples: Count | None = None
    replaces: str = ""
    early: bool = False


class _SchemaOnly(msgspec.Struct):
    schema: int


M = TypeVar("M", OpenManifest, Manifest)


def encode(manifest: OpenManifest | Manifest) -> bytes:
    """Give the manifest as indented JSON with a newline at its end."""
    return msgspec.json.format(encode_json(manifest), indent=1) + b"\n"


def events_bytes(names: Sequence[str], layouts: Mapping[str, EventLayout]) -> int:
    """What names and descriptions of events take of a manifest as `encode` gives it, in bytes."""
    told = {"events": names, "layouts": dict(layouts)}
    return len(msgspec.json.format(encode_json(told), indent=1))


def decode(data: bytes, kind: type[M]) -> M | None:
    """Read a manifest of this schema; None if the bytes are no such thing (damaged, foreign)."""
    try:
        manifest = decode_json(data, kind)
    except msgspec.DecodeError:
        return None
    return manifest if manifest.schema in SCHEMAS else None


def foreign_schema(data: bytes) -> int | None:
    """Tell the schema of a manifest that only another version reads; None for others, or none."""
    try:
        schema = decode_json(data, _SchemaOnly).schema
    except msgspec.DecodeError:
        return None
    return schema if schema not in SCHEMAS else None


class Damage(NamedTuple):
    """Why bytes are no manifest, in one line; `readable` but for values that cannot be."""

    reason: str
    readable: bool


def damage(data: bytes, kind: type[OpenManifest | Manifest]) -> Damage | None:
    """Say why bytes are no manifest; None for one of any version, and for no bytes."""
    if not data or foreign_schema(data) is not None:
        return None
    try:
        decode_json(data, kind)
    except msgspec.ValidationError as error:
        return Damage(str(error), readable=_is_of_this_version(data))
    except msgspec.DecodeError as error:
        return Damage(str(error), readable=False)
    return None


def _is_of_this_version(data: bytes) -> bool:
    try:
        return decode_json(data, _SchemaOnly).schema in SCHEMAS
    except msgspec.DecodeError:
        return False


def layout_faults(manifest: OpenManifest | Manifest) -> Iterator[str]:
    """Say which events are described as they cannot be; nothing else tells what their data are."""
    events = frozenset(manifest.events)
    for event, described in manifest.layouts.items():
        if event not in events:
            yield f"it describes {event}, which is none of its events"
        try:
            decoder(described.layout)
        except CodecError as error:
            yield f"it does not describe {event} as it can be: {error}"


def is_manifest(data: bytes) -> bool:
    """Tell whether the bytes are a manifest, of whatever version."""
    return decode(data, Manifest) is not None or foreign_schema(data) is not None


def with_counts(
    rings: Sequence[RingEntry], counts: Mapping[int, tuple[int, int]]
) -> tuple[RingEntry, ...]:
    """Enter samples and bytes of the rings, by ring id; one that is not in `counts` had none."""
    return tuple(
        msgspec.structs.replace(entry, samples=samples, bytes=size)
        for entry in rings
        for samples, size in [counts.get(entry.ring, (0, 0))]
    )


def data_times(manifest: Manifest) -> tuple[int, int] | None:
    """REALTIME of the first and the last record, in ns; None where no record tells its time."""
    if not manifest.last_ns:
        return None
    opened = manifest.clocks.open
    closed = manifest.clocks.close or opened
    stamps = [getattr(reading, f"{manifest.clock}_ns") for reading in (opened, closed)]
    if not all(stamps):
        return None
    return (
        manifest.first_ns + opened.realtime_ns - stamps[0],
        manifest.last_ns + closed.realtime_ns - stamps[1],
    )


def link(name: str, data: bytes) -> Link:
    """Refer to the manifest `name` with these bytes."""
    return Link(manifest=name, sha256=hashlib.sha256(data).hexdigest())


def thin(readings: Sequence[ClockReading]) -> tuple[ClockReading, ...]:
    """Keep at most FLUSH_CLOCKS_MAX readings, evenly spread, the first and the last included."""
    last = len(readings) - 1
    if last < FLUSH_CLOCKS_MAX:
        return tuple(readings)
    steps = FLUSH_CLOCKS_MAX - 1
    return tuple(readings[index * last // steps] for index in range(FLUSH_CLOCKS_MAX))


def common_fields(manifest: OpenManifest | Manifest) -> dict[str, Any]:
    """Give the fields that go from the open manifest to the sealed one of this schema, by name."""
    fields = {name: getattr(manifest, name) for name in Common.__struct_fields__}
    return fields | {"schema": SCHEMA}
