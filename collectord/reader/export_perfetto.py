# SPDX-License-Identifier: Apache-2.0
"""Read stage: records as a trace of Perfetto, by its own protocol buffers.

Records of tracepoints are packets of ftrace, so that Perfetto makes its tracks of scheduling, of
frequencies and others from them; profile samples are perf samples with their call chains. Events
of BPF programs and losses are instants on tracks of their own.

Times are the trace's BOOTTIME; a clock snapshot ties it to UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.errors import CollectordError, install_command
from collectord.reader.event_tables import LOSSES
from collectord.reader.export_rows import LOSS_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from collectord.reader.event_tables import EventTable
    from collectord.reader.export_rows import NamesOf, Row, TimeLine
    from collectord.reader.symbols.frame import Frame

_U32_MAX: Final = (1 << 32) - 1  # a damaged number of a thread may be negative
_BPF: Final = "bpf"
_TASKS: Final = "tasks"
_PREFIX: Final = "event_"
_BUNDLE_EVENTS: Final = 1024
_FRAMES_MAX: Final = 1 << 16
# Senders of packets, whose order is told by themselves.
_OF_RECORDS: Final = 1
_OF_SAMPLES: Final = 2
_OF_TRACKS: Final = 3


class _Field(NamedTuple):
    """A field of a message of Perfetto, and the place of its value in a row."""

    name: str
    place: int
    bits: int  # 0: text
    signed: bool
    repeated: bool


def write_perfetto(line: TimeLine, write: Callable[[bytes], object], named: NamesOf) -> int:
    """Write records as one trace, and return their number.

    Args:
        line: the records.
        write: takes the bytes of the file.
        named: gives the names for samples of a file.

    Raises:
        CollectordError: Perfetto's protocol buffers are not installed, or records cannot be read.
    """
    trace = _Trace(_protos(), write)
    trace.put_clocks(line.base_ns)
    if _TASKS in line.tables:
        trace.put_tasks(line.rows(line.tables[_TASKS], ()))
    count = 0
    for table in line.events:
        put = trace.put_instants if table.system == _BPF else trace.put_tracepoints
        fields = line.fields(table)
        count += put(table, fields, line.rows(table, fields))
    count += trace.put_samples(line.stacks(named))
    lost = line.tables[LOSSES]
    trace.put_instants(lost, LOSS_FIELDS, line.rows(lost, LOSS_FIELDS))
    return count


def _protos() -> Any:  # noqa: ANN401  # a generated module
    try:
        # This export alone needs them; they are heavy, generated, and without types.
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: PLC0415
    except ImportError as error:
        raise CollectordError(
            "the export needs Perfetto's protocol buffers, which are not installed",
            hint=f"{install_command('perfetto')}, or perfetto beside it",
        ) from error
    return perfetto_trace_pb2


class _Trace:
    """Writes packets."""

    def __init__(self, protos: Any, write: Callable[[bytes], object]) -> None:  # noqa: ANN401
        self._protos = protos
        self._write = write
        self._begun: set[int] = set()
        self._tracks = 0

    def _packet(self, sender: int, at_ns: int | None = None) -> Any:  # noqa: ANN401
        packet = self._protos.TracePacket
        flags = packet.SEQ_NEEDS_INCREMENTAL_STATE
        if sender not in self._begun:
            self._begun.add(sender)
            flags |= packet.SEQ_INCREMENTAL_STATE_CLEARED
        return packet(trusted_packet_sequence_id=sender, sequence_flags=flags, timestamp=at_ns)

    def _put(self, packet: Any) -> None:  # noqa: ANN401
        trace = self._protos.Trace()
        trace.packet.append(packet)
        self._write(trace.SerializeToString())

    def put_clocks(self, base_ns: int) -> None:
        """Write the UTC of the time 0, if it is known."""
        packet = self._packet(_OF_RECORDS)
        boottime = self._protos.BUILTIN_CLOCK_BOOTTIME
        snapshot = self._protos.ClockSnapshot(primary_trace_clock=boottime)
        # A reading of 0 stands for none, so both are of a nanosecond later.
        snapshot.clocks.add(clock_id=boottime, timestamp=1)
        if base_ns:
            realtime = self._protos.BUILTIN_CLOCK_REALTIME
            snapshot.clocks.add(clock_id=realtime, timestamp=base_ns + 1)
        packet.clock_snapshot.CopyFrom(snapshot)
        self._put(packet)

    def put_tasks(self, rows: Iterable[Row]) -> None:
        """Write the processes and threads that are known, with their last names."""
        names = {(row.pid, row.tid): row.comm for row in rows if row.pid and row.tid}
        packet = self._packet(_OF_RECORDS, 0)
        tree = packet.process_tree
        for (pid, tid), comm in names.items():
            if pid == tid:
                process = tree.processes.add(pid=pid)
                if comm is not None:
                    process.cmdline.append(comm)
            else:
                tree.threads.add(tid=tid, tgid=pid, name=comm)
        if names:
            self._put(packet)

    def put_tracepoints(
        self, table: EventTable, fields: Sequence[str], rows: Iterable[Row]
    ) -> int:
        """Write records of a tracepoint as events of ftrace, and return their number."""
        described = self._protos.FtraceEvent.DESCRIPTOR.fields_by_name
        found = described.get(table.event)
        message = found.message_type if found is not None else None
        known = [] if message is None else list(_fields(message, fields))
        count = 0
        packets: dict[int, Any] = {}
        for row in rows:
            cpu = max(row.cpu, 0)
            packet = packets.get(cpu)
            if packet is None:
                packet = packets[cpu] = self._packet(_OF_RECORDS)
                packet.ftrace_events.cpu = cpu
            event = packet.ftrace_events.event.add(
                timestamp=row.at_ns, pid=(row.tid or 0) & _U32_MAX
            )
            if known and found is not None:
                of_event = getattr(event, found.name)
                of_event.SetInParent()
                _fill(of_event, known, row.values)
            else:
                event.generic.CopyFrom(self._generic(table.name, fields, row.values))
            count += 1
            if len(packet.ftrace_events.event) >= _BUNDLE_EVENTS:
                self._put(packets.pop(cpu))
        for packet in packets.values():
            self._put(packet)
        return count

    def _generic(self, name: str, fields: Sequence[str], values: Sequence[Any]) -> Any:  # noqa: ANN401
        """Return the record of an event that Perfetto has no message for."""
        message = self._protos.GenericFtraceEvent(event_name=name)
        for field, value in zip(fields, values, strict=True):
            if value is not None:
                plain = str(value) if isinstance(value, float) else value
                message.field.add(
                    name=field.removeprefix(_PREFIX), **_field_of(plain, "str_value")
                )
        return message

    def put_samples(self, samples: Iterable[tuple[Row, Sequence[Frame]]]) -> int:
        """Write samples with their frames, the outermost first, and return their number."""
        stacks = _Stacks()
        count = 0
        for row, frames in samples:
            if len(stacks) >= _FRAMES_MAX:
                stacks = _Stacks()
                self._begun.discard(_OF_SAMPLES)
            packet = self._packet(_OF_SAMPLES, row.at_ns)
            modes = self._protos.Profiling
            in_kernel = bool(frames) and frames[-1].is_kernel
            sample = self._protos.PerfSample(
                cpu=max(row.cpu, 0),
                pid=(row.pid or 0) & _U32_MAX,
                tid=(row.tid or 0) & _U32_MAX,
                cpu_mode=modes.MODE_KERNEL if in_kernel else modes.MODE_USER,
                callstack_iid=stacks.number(frames, packet.interned_data) if frames else None,
            )
            packet.perf_sample.CopyFrom(sample)
            self._put(packet)
            count += 1
        return count

    def put_instants(self, table: EventTable, fields: Sequence[str], rows: Iterable[Row]) -> int:
        """Write records as instants on a track of their own, and return their number."""
        count = 0
        track = 0
        for row in rows:
            if not track:
                self._tracks += 1
                track = self._tracks
                named = self._packet(_OF_TRACKS)
                named.track_descriptor.uuid = track
                named.track_descriptor.name = table.name
                self._put(named)
            packet = self._packet(_OF_TRACKS, row.at_ns)
            kind = self._protos.TrackEvent
            event = kind(type=kind.TYPE_INSTANT, track_uuid=track, name=row.comm or table.name)
            told = (("cpu", row.cpu), ("pid", row.pid), ("tid", row.tid))
            for name, value in (*told, *zip(fields, row.values, strict=True)):
                if value is not None:
                    event.debug_annotations.add(name=name, **_field_of(value, "string_value"))
            packet.track_event.CopyFrom(event)
            self._put(packet)
            count += 1
        return count


class _Stacks:
    """The call chains, frames and files that were told, each once."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self._frames: dict[Frame, int] = {}
        self._modules: dict[str, int] = {}

    def __len__(self) -> int:
        return max(len(self._frames), len(self._stacks))

    def number(self, frames: Sequence[Frame], interned: Any) -> int:  # noqa: ANN401
        """Return the number of a chain, and add what is new to the data of a packet."""
        key = tuple(frames)
        number = self._stacks.get(key)
        if number is None:
            number = self._stacks[key] = len(self._stacks) + 1
            frame_ids = [self._frame(frame, interned) for frame in frames]
            interned.callstacks.add(iid=number, frame_ids=frame_ids)
        return number

    def _frame(self, frame: Frame, interned: Any) -> int:  # noqa: ANN401
        number = self._frames.get(frame)
        if number is None:
            number = self._frames[frame] = len(self._frames) + 1
            interned.function_names.add(iid=number, str=frame.name.encode())
            mapping = self._module(frame.module, interned)
            interned.frames.add(iid=number, function_name_id=number, mapping_id=mapping)
        return number

    def _module(self, module: str, interned: Any) -> int:  # noqa: ANN401
        number = self._modules.get(module)
        if number is None:
            number = self._modules[module] = len(self._modules) + 1
            interned.mapping_paths.add(iid=number, str=module.encode())
            interned.mappings.add(iid=number, path_string_ids=[number])
        return number


def _fields(message: Any, columns: Sequence[str]) -> Iterator[_Field]:  # noqa: ANN401
    """Yield the fields of a message that a table has."""
    for place, column in enumerate(columns):
        field = message.fields_by_name.get(column.removeprefix(_PREFIX))
        kind = _KINDS.get(field.cpp_type) if field is not None else None
        if field is not None and kind is not None:
            yield _Field(field.name, place, *kind, field.is_repeated)


# {bits, signed?} by the protocol buffers' number of a type in memory; 0 bits are text.
_KINDS: Final = {1: (32, True), 2: (64, True), 3: (32, False), 4: (64, False), 9: (0, False)}


def _fill(message: Any, fields: Iterable[_Field], values: Sequence[Any]) -> None:  # noqa: ANN401
    for field in fields:
        value = values[field.place]
        if value is None:
            continue
        several = value if isinstance(value, list) else [value]
        fitting = [_fitting(each, field) for each in several if each is not None]
        if field.repeated:
            getattr(message, field.name).extend(fitting)
        elif fitting and not isinstance(value, list):
            setattr(message, field.name, fitting[0])


def _fitting(value: Any, field: _Field) -> Any:  # noqa: ANN401
    """Return a value as the field has it: numbers as their bits, anything as text."""
    if not field.bits:
        return str(value)
    bits = int(value) & ((1 << field.bits) - 1)
    return bits - (1 << field.bits) if field.signed and bits >> (field.bits - 1) else bits


def _field_of(value: Any, text: str) -> dict[str, Any]:  # noqa: ANN401
    """Return a value by the name of the field for its kind."""
    if isinstance(value, float):
        return {"double_value": value}
    if isinstance(value, int):
        return {"int_value" if value < 0 else "uint_value": value}
    return {text: str(value)}
