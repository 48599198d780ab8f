# SPDX-License-Identifier: Apache-2.0
"""The test kernel modules: load them with parameters, turn their knobs, read their counters.

    with loaded_pmu(chunk_bytes=4096) as pmu:
        ...
        pmu.freeze()
        assert pmu.counters()[0].balanced

What the knobs do is told in modules/test_pmu/README.md and modules/test_relay/README.md. All of it
needs root and the guest, where the modules are built beside their sources.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
from array import array
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES: Final = Path(__file__).resolve().parent / "modules"
WORD_BYTES: Final = 8
PAD_WORD: Final = 2**64 - 1
_COUNTER_BITS: Final = 56
_DEVICE: Final = Path("/dev/collectord_test_pmu")
_UPLOAD_APPEND: Final = 1
_RELAY: Final = Path("/sys/kernel/debug/collectord_relay")
_RECORD: Final = struct.Struct("<IHHQ")  # struct record of test_relay.c
_RECORD_MAGIC: Final = 0x52544C43
_HEADER: Final = struct.Struct("<IIII")  # struct header of test_relay.c
_HEADER_MAGIC: Final = 0x48544C43

Parameter = bool | int | str


def _text(value: Parameter) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def loaded(module: str, /, **parameters: Parameter) -> Iterator[Path]:
    """Have a test module loaded.

    Args:
        module: its name and its folder's.
        parameters: as insmod takes them.

    Yields:
        The folder of its parameters.
    """
    arguments = [f"{key}={_text(value)}" for key, value in parameters.items()]
    subprocess.run(["insmod", MODULES / module / f"{module}.ko", *arguments], check=True)
    try:
        yield Path("/sys/module") / module / "parameters"
    finally:
        subprocess.run(["rmmod", module], check=True)


def _rows(text: str) -> Iterator[dict[str, int]]:
    for line in text.splitlines():
        yield {key: int(value) for key, value in (pair.split("=") for pair in line.split())}


# --- test_pmu ---


@dataclass(frozen=True, slots=True)
class PmuCounters:
    """The PMU's counters on one CPU since the module was loaded.

    Attributes:
        active: 1 while an event produces.
        halted: 1 from a TRUNCATED until the event is started again.
        next_word: number of the next counter word.
        produced_bytes: written, truncated or in the backlog.
        truncated_bytes: produced without room for them: the gap in the words.
        skipped_bytes: of padding that no AUX record covers.
        open_bytes: written and not yet published by aux_head.
        backlog_bytes: produced and not yet written (flush_on_stop).
        transactions: ended ones.
        records: of these, those for which the kernel tries to post an AUX record.
        halted_ns: from a TRUNCATED to the next start of the same event, or to now.
    """

    cpu: int
    active: int
    halted: int
    next_word: int
    produced_bytes: int
    written_bytes: int
    truncated_bytes: int
    skipped_bytes: int
    open_bytes: int
    backlog_bytes: int
    upload_position: int
    upload_size: int
    transactions: int
    records: int
    begin_failed: int
    truncated_flags: int
    partial_flags: int
    collision_flags: int
    starts: int
    stops: int
    halts: int
    halted_ns: int
    pauses: int
    resumes: int
    filter_syncs: int
    ticks: int
    missed_ticks: int

    @property
    def balanced(self) -> bool:
        """Whether everything produced is accounted for."""
        known = self.written_bytes + self.truncated_bytes + self.backlog_bytes
        return self.produced_bytes == known

    @property
    def last_word(self) -> int:
        """The newest counter word; meaningless before the first."""
        return word(self.cpu, self.next_word - 1)


@dataclass(frozen=True, slots=True)
class AddressFilter:
    """The address filter at the last start of a CPU's event: [start, end)."""

    cpu: int
    action: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Pmu:
    """The loaded test PMU.

    Attributes:
        name: of the PMU.
        parameters: the folder of its knobs.
    """

    name: str
    parameters: Path

    @property
    def folder(self) -> Path:
        """The module's folder in sysfs."""
        return Path("/sys/bus/event_source/devices") / self.name

    @property
    def type(self) -> int:
        """The type for perf_event_attr."""
        return int((self.folder / "type").read_text())

    def set(self, **knobs: Parameter) -> None:
        """Turn knobs, all of which take effect at the next tick."""
        for knob, value in knobs.items():
            (self.parameters / knob).write_text(_text(value))

    def freeze(self) -> None:
        """End production on every CPU: no tick is at work when this returns."""
        self.set(running=False)

    def thaw(self) -> None:
        """Let production continue."""
        self.set(running=True)

    def counters(self) -> dict[int, PmuCounters]:
        """Return counters by CPU; the figures of one CPU are of one instant."""
        names = {field.name for field in fields(PmuCounters)}
        rows = list(_rows(_DEVICE.read_text()))
        return {row["cpu"]: PmuCounters(**{name: row[name] for name in names}) for row in rows}

    def upload(self, cpu: int, data: bytes, *, append: bool = False) -> None:
        """Give a CPU the bytes that it produces while the knob `upload` is on."""
        header = struct.pack("<iIQ", cpu, _UPLOAD_APPEND if append else 0, len(data))
        device = os.open(_DEVICE, os.O_WRONLY)
        try:
            os.write(device, header + data)
        finally:
            os.close(device)

    def filters(self) -> list[AddressFilter]:
        """Return the address filters of each CPU, as they were set by the last start."""
        filters = []
        for line in (self.folder / "filters").read_text().splitlines():
            cpu, action, span = line.split()
            start, end = span.split("-")
            filters.append(AddressFilter(int(cpu), action, int(start, 16), int(end, 16)))
        return filters


@contextlib.contextmanager
def loaded_pmu(name: str = "collectord_test", **parameters: Parameter) -> Iterator[Pmu]:
    """Load the test PMU under a name for a block."""
    with loaded("test_pmu", name=name, **parameters) as folder:
        yield Pmu(name, folder)


def word(cpu: int, n: int) -> int:
    """Return counter word number `n` of a CPU."""
    return cpu << _COUNTER_BITS | n


@dataclass(frozen=True, slots=True)
class WordCheck:
    """Result of a check of counter words.

    Attributes:
        words: counter words, without padding.
        first: the oldest, None if there is none.
        last: the newest.
        gaps: (number of the last word before a gap, words missing there).
        disorder: words that are repeated, go back, are torn or of another CPU.
    """

    words: int
    first: int | None
    last: int | None
    gaps: tuple[tuple[int, int], ...]
    disorder: tuple[int, ...]

    @property
    def missing(self) -> int:
        """Words missing between the first and the last."""
        return sum(missing for _, missing in self.gaps)


def check_words(payload: bytes | memoryview, cpu: int) -> WordCheck:
    """Read the payload of one CPU as counter words.

    Raises:
        ValueError: the payload does not consist of whole words.
    """
    words = array("Q")
    words.frombytes(payload)
    gaps: list[tuple[int, int]] = []
    disorder: list[int] = []
    first: int | None = None
    last: int | None = None
    count = 0
    for value in words:
        if value == PAD_WORD:
            continue
        count += 1
        if last is not None and value == last + 1:
            last = value
            continue
        if value >> _COUNTER_BITS != cpu or (last is not None and value <= last):
            disorder.append(value)
            continue
        if last is not None:
            gaps.append((last - word(cpu, 0), value - last - 1))
        else:
            first = value
        last = value
    return WordCheck(count, first, last, tuple(gaps), tuple(disorder))


# --- test_relay ---


@dataclass(frozen=True, slots=True)
class RelayCounts:
    """The relay client's counters on one CPU since the module was loaded.

    Attributes:
        open: 1 if the channel has a buffer for the CPU.
        next: number of the next record.
        rejected: records for which the buffer was full.
        too_big: records longer than a sub-buffer holds.
        padding_bytes: unused at the end of sub-buffers that were left.
        subbufs: begun, those of an earlier channel included.
        produced: sub-buffers completed, by the kernel's count of the open channel.
        consumed: sub-buffers read, likewise.
        offset: of the next byte in its sub-buffer; one more than the size of a sub-buffer when
            the buffer is full.
    """

    cpu: int
    open: int
    next: int
    written: int
    written_bytes: int
    rejected: int
    too_big: int
    padding_bytes: int
    subbufs: int
    produced: int
    consumed: int
    offset: int

    @property
    def balanced(self) -> bool:
        """Whether each record was written or counted as rejected."""
        return self.next == self.written + self.rejected + self.too_big


@dataclass(frozen=True, slots=True)
class Relay:
    """The loaded relay client.

    Attributes:
        base: path of its files without the CPU's number.
        parameters: the folder of its parameters.
    """

    base: Path
    parameters: Path

    def file(self, cpu: int) -> Path:
        """Return the buffer of a CPU, or with 0 that of all."""
        return self.base.with_name(f"{self.base.name}{cpu}")

    def set(self, **knobs: Parameter) -> None:
        """Change parameters: those of records at once, those of buffers at the next open."""
        for knob, value in knobs.items():
            (self.parameters / knob).write_text(_text(value))

    def write(self, cpu: int, records: int) -> None:
        """Write records on a CPU; those that find the buffer full are counted as rejected."""
        _order("write", f"{cpu} {records}")

    def flush(self) -> None:
        """Complete the sub-buffer of each CPU."""
        _order("flush")

    def reset(self) -> None:
        """Empty the buffers while readers have them open."""
        _order("reset")

    def finalize(self) -> None:
        """Mark the buffers as ended: poll says POLLERR, and what is left can be read."""
        _order("finalize")

    def close(self) -> None:
        """Close the channel: its files go, and who has them open gets EIO and POLLHUP."""
        _order("close")

    def open(self) -> None:
        """Open the channel again."""
        _order("open")

    def counts(self) -> dict[int, RelayCounts]:
        """Return counts by CPU; with one buffer for all CPUs, all of it under 0."""
        rows = _rows((_RELAY / "ctl/counts").read_text())
        return {row["cpu"]: RelayCounts(**row) for row in rows}


def _order(command: str, text: str = "1") -> None:
    # unbuffered, so that an error is the write's and not a later close's
    with (_RELAY / "ctl" / command).open("wb", buffering=0) as file:
        file.write(text.encode())


@contextlib.contextmanager
def loaded_relay(*, base: str = "channel", **parameters: Parameter) -> Iterator[Relay]:
    """Have the relay client loaded, with an open channel."""
    with loaded("test_relay", base=base, **parameters) as folder:
        yield Relay(_RELAY / base, folder)


@dataclass(frozen=True, slots=True)
class RelayRecord:
    """A record of the relay client, its filler checked."""

    cpu: int
    n: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SubbufHeader:
    """The start of a sub-buffer, with 16 or more reserved bytes.

    Attributes:
        padding_bytes: unused at its end; 0 until the next one begins.
        sequence: its number in its buffer.
    """

    cpu: int
    sequence: int
    padding_bytes: int


def relay_records(payload: bytes, header_bytes: int = 0) -> Iterator[RelayRecord | SubbufHeader]:
    """Yield the records in data read from a relay file.

    Args:
        payload: whole records and headers, without padding.
        header_bytes: of the channel; 0 or at least 16, as shorter headers say less.

    Raises:
        ValueError: neither a whole record nor a whole header is where one has to be.
    """
    at = 0
    while at < len(payload):
        if len(payload) - at < _RECORD.size:
            raise ValueError(f"{len(payload) - at} bytes are left at {at}")
        magic, length, cpu, n = _RECORD.unpack_from(payload, at)
        if magic == _RECORD_MAGIC and _RECORD.size <= length <= len(payload) - at:
            filler = payload[at + _RECORD.size : at + length]
            if filler != bytes((n * 31 + i) & 0xFF for i in range(_RECORD.size, length)):
                raise ValueError(f"record {n} of CPU {cpu} at {at} is torn")
            yield RelayRecord(cpu, n, length)
            at += length
            continue
        padding, sequence, magic, cpu = _HEADER.unpack_from(payload, at)
        if magic != _HEADER_MAGIC or not _HEADER.size <= header_bytes <= len(payload) - at:
            raise ValueError(f"neither record nor header at {at}")
        yield SubbufHeader(cpu, sequence, padding)
        at += header_bytes
