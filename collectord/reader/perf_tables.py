# SPDX-License-Identifier: Apache-2.0
"""Read stage: the tables that a perf.data has, of a session or of `perf record`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.codec import bpf_struct
from collectord.codec.ftrace_columns import columns_of
from collectord.codec.perf_attr import EventType, ReadFormat, SoftwareId
from collectord.codec.perf_columns import (
    AUX,
    AUX_COLUMNS,
    AUX_LABELS,
    CGROUP_COLUMN,
    MAPPING_COLUMNS,
    MAPPINGS,
    SAMPLES,
    SOFTWARE,
    SOFTWARE_NAMES,
    TASK_COLUMNS,
    TASK_LABELS,
    TASKS,
    has_cgroup,
    raw_columns,
    sample_columns,
    struct_columns,
)
from collectord.codec.perf_data import AttrSection, decode_event_desc, parse_feature_table
from collectord.codec.perf_features import decode_build_ids, decode_clock_data
from collectord.codec.perf_section import Feature
from collectord.codec.tracepoint import Tracepoint
from collectord.codec.tracing_data import parse_events
from collectord.errors import CodecError, SinkError
from collectord.reader.event_file import (
    INT64_MAX,
    UNREADABLE,
    EventFile,
    FileEvent,
    Records,
    Source,
    nameless,
    shown,
)
from collectord.reader.perf_expand import expand
from collectord.sink.manifest import Manifest
from collectord.sink.perf_file import read_head
from collectord.sink.scan import mapped
from collectord.sink.segment import sink_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from collectord.codec.ftrace_columns import FieldColumn
    from collectord.codec.ftrace_format import EventFormat
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.perf_data import Head, Section
    from collectord.reader.event_file import Span
    from collectord.sink.manifest import EventLayout

_PERF: Final = "perf"
_BPF: Final = "bpf"
# More than a kernel has of formats.
_SECTION_MAX_BYTES: Final = 64 << 20
_TABLE_BYTES: Final = 4096


class _Attr(NamedTuple):
    """An event of the file, by the name that tools print."""

    name: str
    attr: PerfEventAttr
    ids: tuple[int, ...]

    def told(self, wanted: Iterable[_Attr]) -> tuple[int, int, bool, bool, tuple[int, ...]]:
        """Return the description in the form that the decoder takes."""
        attr = self.attr
        is_wanted = any(one is self for one in wanted)
        return attr.sample_type, attr.read_format, attr.sample_id_all, is_wanted, self.ids


def _is_program(attr: PerfEventAttr) -> bool:
    return (attr.type, attr.config) == (EventType.SOFTWARE, SoftwareId.BPF_OUTPUT)


def _place(name: str) -> Tracepoint:
    """Return system and name of a program's event: a record may stand for a tracepoint."""
    named = Tracepoint.parse(name)
    return named if all(named) else Tracepoint(_BPF, name)


def _is_sound(described: EventLayout) -> bool:
    try:
        bpf_struct.decoder(described.layout)
    except CodecError:
        return False
    return True


def _cgroups(attrs: Iterable[_Attr]) -> Iterator[FieldColumn]:
    """Yield the column of the cgroups, if samples of an event have them."""
    if any(has_cgroup(one.attr.sample_type) for one in attrs):
        yield CGROUP_COLUMN


class PerfTables(EventFile):
    """A perf.data whose records are tables.

    Attributes:
        write_offset: where its writer began behind the records that were known at open.

    Raises:
        SinkError: it cannot be read, or its head is damaged.
    """

    def __init__(self, fd: int, path: Path, stack: ExitStack) -> None:
        super().__init__(path)
        self._fd = fd
        self._stack = stack
        self._contents: tuple[int, tuple[Span, ...]] | None = None
        with sink_errors(UNREADABLE, path, reading=True):
            try:
                head = read_head(self._fd)
            except CodecError as error:
                raise SinkError(
                    f"it does not have the layout of a segment, {error.message}",
                    path=str(path),
                    hint="`perf script` may still read it",
                ) from error
            self._spans = self._data(fd, head)
            self._is_packed = bool(head.header.features >> Feature.COMPRESSED & 1)
            self.write_offset = head.write_offset
            self._features = sections = self._sections(head)
            self._attrs = tuple(self._named(head, sections))
            self.lost_known = self._counted_losses()
            formats = self._read(sections, Feature.TRACING_DATA, parse_events) or {}
            if not self.clock:
                found = self._read(sections, Feature.CLOCK_DATA, decode_clock_data)
                self.clock = ((found.clockid_ns, found.wall_ns),) if found else ()
        self.sources = (self._source("samples", ()),)
        layouts = {layout.id: (system, layout) for system, layout in self.layouts(formats.items())}
        self.records = (*self._events(layouts), *self._of_all())
        self.software = tuple(self._software())
        self.events = tuple(self._known(layouts))
        of_events = {key: event for event in self.events for key in event.keys}
        self.silent_keys = tuple({*range(len(self._attrs))} - of_events.keys())
        tabled = (key for key, event in of_events.items() if event.has_table)
        self.tabled = frozenset(self._attrs[key].name for key in tabled)

    def _counted_losses(self) -> int | None:
        """Return the losses by the events' counters, if all events have one; see `lost_known`."""
        manifest = self.manifest
        if not isinstance(manifest, Manifest) or not manifest.complete or self.wraps:
            return None
        if not all(one.attr.read_format & ReadFormat.LOST for one in self._attrs):
            return None
        return sum(manifest.lost_samples.values())

    def build_ids(self) -> Mapping[str, bytes]:
        """Return what a sealed file, or perf, has at its end."""
        with sink_errors(UNREADABLE, self.path, reading=True):
            found = self._read(self._features, Feature.BUILD_ID, decode_build_ids) or ()
        return {shown(one.filename): one.build_id for one in found}

    @property
    def attrs(self) -> tuple[AttrSection, ...]:
        """The events, in the order of the file."""
        return tuple(AttrSection(one.attr, one.ids, one.name) for one in self._attrs)

    def feature_sections(self) -> Mapping[int, bytes]:
        """Return what the file says of its host and its recording, as it is encoded."""
        with sink_errors(UNREADABLE, self.path, reading=True):
            try:
                head = read_head(self._fd)
                sections = {**head.sections, **self._behind(head)}
            except CodecError as error:
                self.damage = f"its head: {error.message}"
                return {}
            return {
                feature: os.pread(self._fd, size, offset)
                for feature, (offset, size) in sections.items()
                if size <= _SECTION_MAX_BYTES
            }

    def _behind(self, head: Head) -> Mapping[int, Section]:
        """Return the features of a sealed file, or one of perf, whose table is behind the data."""
        if not head.header.sealed:
            return {}
        try:
            table = os.pread(self._fd, _TABLE_BYTES, min(sum(head.header.data), INT64_MAX))
            return parse_feature_table(table, head.header, os.fstat(self._fd).st_size)
        except CodecError as error:
            self.damage = f"its feature table: {error.message}"
            return {}

    def line_sources(self, wanted: Collection[int]) -> tuple[Source, ...]:
        """Return where the samples of some events are."""
        return (self._source("samples", [self._attrs[key] for key in wanted]),)

    def _known(self, layouts: Mapping[int, tuple[str, EventFormat]]) -> Iterator[FileEvent]:
        """Yield the events; a tracepoint may have several attrs."""
        tracepoints: dict[tuple[int, int], list[int]] = {}
        for key, one in enumerate(self._attrs):
            attr = one.attr
            if attr.type == EventType.TRACEPOINT and attr.config in layouts:
                tracepoints.setdefault((attr.config, attr.sample_type), []).append(key)
            elif _is_program(attr):
                layout = self.manifest.layouts.get(one.name) if self.manifest else None
                if layout is not None and not _is_sound(layout):
                    layout = None
                yield FileEvent(
                    keys=(key,),
                    system="",
                    name=one.name,
                    is_program=True,
                    described=layout,
                    sample_type=attr.sample_type,
                    program_table=str(_place(one.name)),
                )
            elif (attr.type, attr.config) != (EventType.SOFTWARE, SoftwareId.DUMMY):
                yield FileEvent((key,), "", one.name, sample_type=attr.sample_type)
        for (number, sample_type), keys in tracepoints.items():
            system, format_ = layouts[number]
            yield FileEvent(tuple(keys), system, format_.name, format_, sample_type=sample_type)

    def contents(self, source: Source) -> tuple[int, tuple[Span, ...]]:
        """Return where the records are; a file that cannot be unpacked has none."""
        del source  # all of them are in one section
        if self._contents is None:
            try:
                self._contents = (
                    self._decompressed() if self._is_packed else (self._fd, self._spans)
                )
            except SinkError as error:
                self.damage = error.message
                self._contents = self._fd, ()
        return self._contents

    def _decompressed(self) -> tuple[int, tuple[Span, ...]]:
        """Return a nameless file with the records as they were, and where they are in it."""
        copy = nameless(self._stack)
        spans = []
        with (
            sink_errors(UNREADABLE, self.path, reading=True),
            mapped(self._fd, os.fstat(self._fd).st_size) as view,
        ):
            for cpu, offset, size in self._spans:
                end = expand(view, offset, min(offset + size, len(view)), copy)
                spans.append((cpu, offset, end - offset))
        return copy, tuple(spans)

    def _data(self, fd: int, head: Head) -> tuple[Span, ...]:
        """Return where the records are: what the header shows, or up to the end if it does not."""
        offset, size = head.header.data
        size = size or max(os.fstat(fd).st_size - offset, 0)
        if offset + size > INT64_MAX:
            self.damage = f"its header tells of {size:,} bytes of records"
            return ()
        return ((-1, offset, size),)

    def _sections(self, head: Head) -> Mapping[int, Section]:
        """Find the features; those known at open are in the head of files of this program.

        A file that its recorder left open has no others.
        """
        if head.sections or not head.header.sealed:
            return head.sections
        return self._behind(head)

    def _read(self, sections: Mapping[int, Section], feature: Feature, decode: Any) -> Any:  # noqa: ANN401
        """Return what a feature says, None if there is none, or it is damaged."""
        section = sections.get(feature)
        if section is None:
            return None
        data = os.pread(self._fd, min(section.size, _SECTION_MAX_BYTES), section.offset)
        try:
            return decode(data)
        except CodecError as error:
            self.damage = f"its feature {feature.name}: {error.message}"
            return None

    def _named(self, head: Head, sections: Mapping[int, Section]) -> Iterator[_Attr]:
        described = self._read(sections, Feature.EVENT_DESC, decode_event_desc) or ()
        names = [one.name for one in described]
        for index, one in enumerate(head.attrs):
            name = names[index] if index < len(names) else ""
            fallback = f"{one.attr.type}:{one.attr.config:#x}"
            yield _Attr(shown(name) or fallback, one.attr, one.ids)

    def _source(
        self, rows: str, wanted: Iterable[_Attr], labels: tuple[str, ...] | None = None
    ) -> Source:
        options = {
            "rows": rows,
            "attrs": [one.told(wanted) for one in self._attrs],
            "labels": [one.name for one in self._attrs] if labels is None else labels,
        }
        return Source(self._fd, _PERF, self._spans, options)

    def _events(self, layouts: Mapping[int, tuple[str, EventFormat]]) -> Iterator[Records]:
        """Yield the tracepoints that are described, and the events of BPF programs."""
        tracepoints: dict[int, list[_Attr]] = {}
        for one in self._attrs:
            if one.attr.type == EventType.TRACEPOINT and one.attr.config in layouts:
                tracepoints.setdefault(one.attr.config, []).append(one)
            elif _is_program(one.attr):
                columns = (*self._described(one.name), *_cgroups((one,)))
                yield Records(*_place(one.name), columns, (self._source("raw", (one,)),))
        for number, attrs in tracepoints.items():
            system, layout = layouts[number]
            columns = (*columns_of(layout), *_cgroups(attrs))
            yield Records(system, layout.name, columns, (self._source("raw", attrs),))

    def _software(self) -> Iterator[Records]:
        """Yield the samples of software events, whatever modifiers their names have."""
        kinds: dict[tuple[str, int, int], list[_Attr]] = {}
        for one in self._attrs:
            if one.attr.type == EventType.SOFTWARE and one.attr.config in SOFTWARE_NAMES:
                key = SOFTWARE_NAMES[one.attr.config], one.attr.sample_type, one.attr.read_format
                kinds.setdefault(key, []).append(one)
        for (name, sample_type, _), attrs in kinds.items():
            source = self._source("samples", attrs)
            yield Records(SOFTWARE, name, sample_columns(sample_type), (source,))

    def _described(self, event: str) -> tuple[FieldColumn, ...]:
        """Return the columns of a BPF program's event."""
        described = self.manifest.layouts.get(event) if self.manifest else None
        if described is None:
            return raw_columns()
        try:
            bpf_struct.decoder(described.layout)
        except CodecError as error:
            self.damage = f"the layout of {event}: {error.message}"
            return raw_columns()
        return tuple(struct_columns(described.layout, described.comms))

    def _of_all(self) -> Iterator[Records]:
        """Yield what there is for the tables of all events."""
        kinds: dict[tuple[int, int], list[_Attr]] = {}
        for one in self._attrs:
            kinds.setdefault((one.attr.sample_type, one.attr.read_format), []).append(one)
        for (sample_type, _), attrs in kinds.items():
            source = self._source("samples", attrs)
            yield Records("", SAMPLES, sample_columns(sample_type), (source,))
        tasks = self._source(TASKS, (), TASK_LABELS)
        yield Records("", TASKS, TASK_COLUMNS, (tasks,))
        yield Records("", AUX, AUX_COLUMNS, (self._source(AUX, (), AUX_LABELS),))
        for rows, columns in MAPPING_COLUMNS.items():
            yield Records("", MAPPINGS, columns, (self._source(rows, ()),))
