# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the manifest beside each segment: its contents and its encoding.

A running segment has an open manifest, `<segment>.json.partial`: the facts that a repair needs and
that the file itself lacks. A sealed one has `<segment>.json`. Keys keep the order of the fields
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
from collectord.model import ClockReading, RingRole
from collectord.programs.program_manifest import (
    ColumnConfig,  # noqa: TC001 - msgspec reads annotations
)
from collectord.sink.series import SeriesText  # noqa: TC001 - msgspec reads annotations
from collectord.text.foreign import decode_json, decoded, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA: Final = 2
# The schemas that can be read: in schema 1 the data had one checksum of all their bytes.
SCHEMAS: Final = frozenset({1, SCHEMA})
# Clock readings at flushes that a manifest keeps, spread evenly over the segment.
FLUSH_CLOCKS_MAX: Final = 64
# No count, size or offset in a file exceeds it, and sums of a few stay within 64 bits.
COUNT_MAX: Final = 1 << 61

# Ranges are checked when a manifest is read: anybody may have written it.
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
TimeNs = Annotated[int, msgspec.Meta(ge=0)]  # a damaged record may hold any number of 64 bits
Number = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 31) - 1)]  # -1: none
FileName = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.\.?\Z)[^/\0]+\Z", max_length=255)]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of segments, constant for a sink's life.

    Attributes:
        kernel: release of the running kernel, as `uname -r` prints it.
        scope: `model.Scope.describe()`.
        plan_sha256: of the plan that the configuration became on this host; "" if unknown.
        filters: by the name of the event, those that the kernel applies.
    """

    host: str
    boot_id: str
    kernel: str
    session: str
    source: str
    scope: str
    plan_sha256: str = ""
    filters: Mapping[str, str] = {}


class RingEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A ring that fed the segment; `samples` and `bytes` are its part of this segment.

    Attributes:
        offset: where the ring's sub-buffers begin in the file; 0 if rings share one section.
        stored_total: events of the ring, or bytes of the AUX area, in this segment and in those of
            its run that were sealed before, including deleted ones. In an open manifest: those
            sealed before its creation.
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

    @property
    def amount(self) -> int:
        """The part of this segment in `stored_total`."""
        return self.bytes if self.role == RingRole.AUX else self.samples


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the file and its checksum, 16 hex digits: the XXH3-64 of its bytes.

    The checksum of data is that of their chunks' checksums, which `chunks` lists; see `sink.sums`.

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
    """A damaged part of the file, which a repair has replaced by bytes that readers skip."""

    offset: Count
    bytes: Count


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """The compressed form of the file, by zstd in the way of its format.

    The manifest is written before the file gets this form, so either may be found.

    Attributes:
        xxh3: the checksum of all its bytes.
    """

    bytes: Count
    allocated_bytes: Count
    xxh3: str


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """The time before a session in which none of its rings was open, in REALTIME.

    Attributes:
        cause: the end of the time before: "stop", "kill", or "boot" if the host was started since.
    """

    from_ns: TimeNs
    until_ns: TimeNs
    cause: str


class SnapshotNote(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that a segment of a flight recorder belongs to; several may belong to one.

    The segment's `first_ns` and `last_ns` tell how far back it reaches.

    Attributes:
        trigger: the cause: "request", "signal", "freeze" or "end".
        taken_ns: MONOTONIC time when it was triggered.
        paused_ns: time during which the rings were stopped for it.
        repeated: samples that were left out, because the snapshot before has them.
        repeated_bytes: bytes of these samples, and of other repeated records.
    """

    trigger: str
    taken_ns: TimeNs
    paused_ns: Count = 0
    repeated: Count = 0
    repeated_bytes: Count = 0


class EventLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The raw data in the samples of an event.

    Attributes:
        program: the program that submits them.
        layout: of the struct.
        columns: the fields that a table shows, in this order; empty: all fields.
        comms: columns with the names of threads, each with the field that has the thread.
    """

    program: str
    layout: Layout
    columns: tuple[ColumnConfig, ...] = ()
    comms: Mapping[str, str] = {}


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """The fields common to the open and the sealed manifest.

    Attributes:
        segment: name of the data file once sealed.
        started_ns: REALTIME at creation; distinguishes two recordings of one name.
        direct: data was written with O_DIRECT, else through the page cache.
        data_offset: where the data section starts, in bytes.
        events: names of the events, in the order of the file's attributes.
        rings: the rings that feed it; those known at creation in the open manifest.
        run: the same value for all segments of one stream, another for each other stream.
        stored_before: events in the segments of this run that were sealed before this one,
            including deleted ones. In an open manifest: sealed before its creation.
        layouts: contents of the samples, by the name of the event, for events whose raw data are
            not described elsewhere.
        clock: the clock of a `ClockReading` that stamps the records.
        gap: the gap before the first segment of this run; None if no earlier run is known.
        staged: events that the process was killed with, which its successor wrote out of staging.
        plan_sha256, filters: see `Identity`.
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
    gap: Gap | None = None
    staged: Count = 0
    plan_sha256: str = ""
    filters: Mapping[str, str] = {}


class OpenManifest(Common, frozen=True, kw_only=True):
    """Manifest of a running segment; the file's head has all else that its repair needs."""


class Manifest(Common, frozen=True, kw_only=True):
    """Manifest of a sealed segment.

    Attributes:
        complete: the segment holds all that was stored for it, sealed by its own sink.
        recovered: sealed by a repair, after the process that wrote it had died.
        first_ns, last_ns: lowest and highest sample time, 0 if there is no sample.
        records: records in the data section except padding and rounds, including replay and loss;
            None if they were not counted.
        samples: events: PERF_RECORD_SAMPLE among them, or ftrace's.
        replayed: sideband records of the replay among them; None if they were not counted.
        produced: events that the kernel counted; None if the basis is not `exact`.
        ledger: the balance with its basis.
        lost_samples: event id to samples lost in this segment, also in the file as LOST_SAMPLES.
        bytes: size of the file, as the spans are: before it was compressed.
        allocated_bytes: blocks that the file occupies, or occupied then.
        build_ids: path to build-id, where known.
        previous: None for the first manifest of its directory.
        snapshot: the snapshot of a flight recorder's segment; None if unknown.
        cut: the parts that a repair has cut out.
        cut_samples: the events in them; None if unknown.
        replaces: SHA-256 of each manifest that this one has replaced, since the segment was
            compressed, or damaged and repaired; the oldest first.
        early: it ended before all records were read that name its samples: the next one may have
            them.
        packed: its compressed form; None if it has none.
        balances: at flush intervals, since the segment before was sealed; None if there are none.
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
    packed: Packed | None = None
    balances: SeriesText | None = None

    @property
    def replaced(self) -> tuple[str, ...]:
        """The hashes of `replaces`."""
        return tuple(self.replaces.split())


class _SchemaOnly(msgspec.Struct):
    schema: int


M = TypeVar("M", OpenManifest, Manifest)


def encode(manifest: OpenManifest | Manifest) -> bytes:
    """Return the manifest as indented JSON with a newline at its end."""
    return msgspec.json.format(encode_json(manifest), indent=1) + b"\n"


def decode(data: bytes, kind: type[M]) -> M | None:
    """Read a manifest of this schema; None if the bytes are not one (damaged, foreign)."""
    manifest = decoded(data, kind)
    return manifest if manifest is not None and manifest.schema in SCHEMAS else None


def foreign_schema(data: bytes) -> int | None:
    """Return the schema of a manifest that only another version reads; None for other bytes."""
    told = decoded(data, _SchemaOnly)
    return told.schema if told is not None and told.schema not in SCHEMAS else None


class Damage(NamedTuple):
    """The reason why bytes are not a manifest; `readable` if only their values are invalid."""

    reason: str
    readable: bool


def damage(data: bytes, kind: type[OpenManifest | Manifest]) -> Damage | None:
    """Return why bytes are not a manifest; None for one of any version, and for no bytes."""
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
    told = decoded(data, _SchemaOnly)
    return told is not None and told.schema in SCHEMAS


def layout_faults(manifest: OpenManifest | Manifest) -> Iterator[str]:
    """Yield the events whose layouts are invalid; nothing else describes their data."""
    events = frozenset(manifest.events)
    for event, described in manifest.layouts.items():
        if event not in events:
            yield f"it describes {event}, which is not one of its events"
        try:
            decoder(described.layout)
        except CodecError as error:
            yield f"it does not describe {event} as it can be: {error}"


def is_manifest(data: bytes) -> bool:
    """Whether the bytes are a manifest of any version."""
    return decode(data, Manifest) is not None or foreign_schema(data) is not None


def with_counts(
    rings: Sequence[RingEntry], counts: Mapping[int, tuple[int, int]]
) -> tuple[RingEntry, ...]:
    """Set samples and bytes of the rings, by ring id; 0 for a ring that is not in `counts`."""
    return tuple(
        msgspec.structs.replace(entry, samples=samples, bytes=size)
        for entry in rings
        for samples, size in [counts.get(entry.ring, (0, 0))]
    )


def data_times(
    manifest: Manifest | OpenManifest, first_ns: int, last_ns: int
) -> tuple[int, int] | None:
    """Return the REALTIME of the first and last record, in ns; None if no record has a time."""
    if not last_ns:
        return None
    opened = manifest.clocks.open
    closed = manifest.clocks.close or opened
    stamps = [getattr(reading, f"{manifest.clock}_ns") for reading in (opened, closed)]
    if not all(stamps):
        return None
    return (
        first_ns + opened.realtime_ns - stamps[0],
        last_ns + closed.realtime_ns - stamps[1],
    )


def utc_at(reading: ClockReading, monotonic_ns: int) -> int:
    """Return the REALTIME at a time of CLOCK_MONOTONIC; 0 by a reading that a repair made up."""
    if not reading.realtime_ns:
        return 0
    return reading.realtime_ns + monotonic_ns - reading.monotonic_ns


def link(name: str, data: bytes) -> Link:
    """Return the link to the manifest `name` with these bytes."""
    return Link(manifest=name, sha256=hashlib.sha256(data).hexdigest())


def sha256_as_sealed(raw: bytes) -> str:
    """Return the hash that a manifest had before its segment was compressed."""
    return hashlib.sha256(sealed_text(raw)).hexdigest()


def sealed_text(raw: bytes) -> bytes:
    """Return a manifest as it was before its segment was compressed. Raises DecodeError."""
    first = decode_json(raw, dict) | {"packed": None, "replaces": ""}
    return msgspec.json.format(msgspec.json.encode(first), indent=1) + b"\n"


def thin(readings: Sequence[ClockReading]) -> tuple[ClockReading, ...]:
    """Keep at most FLUSH_CLOCKS_MAX readings, evenly spread, including the first and the last."""
    last = len(readings) - 1
    if last < FLUSH_CLOCKS_MAX:
        return tuple(readings)
    steps = FLUSH_CLOCKS_MAX - 1
    return tuple(readings[index * last // steps] for index in range(FLUSH_CLOCKS_MAX))


def successor(manifest: Manifest, raw: bytes, **changes: object) -> Manifest:
    """Return the manifest that replaces a sealed one, whose bytes are `raw`."""
    replaces = " ".join([*manifest.replaced, hashlib.sha256(raw).hexdigest()])
    return msgspec.structs.replace(manifest, replaces=replaces, **changes)


def common_fields(manifest: OpenManifest | Manifest) -> dict[str, Any]:
    """Return the fields that a sealed manifest of this schema takes from the open one, by name."""
    fields = {name: getattr(manifest, name) for name in Common.__struct_fields__}
    return fields | {"schema": SCHEMA}
