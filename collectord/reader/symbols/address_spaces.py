# SPDX-License-Identifier: Apache-2.0
"""The address spaces of processes: the file at each address, at any time of a recording."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# More than a host has; a damaged or made-up file must not take all memory.
MAPPINGS_MAX: Final = 2_000_000


class Mapping(NamedTuple):
    """A mapped file, or memory of another kind, as a record says it.

    Attributes:
        begin: its first address.
        end: the address behind it.
        file_offset: the offset in the file of the first byte.
        file: its path, or such as `//anon` and `[vdso]`.
        build_id: of the file, if the record has it.
        inode: of the file, 0 if the record does not have it.
    """

    begin: int
    end: int
    file_offset: int
    file: str
    build_id: bytes = b""
    inode: int = 0

    def agrees(self, other: Mapping) -> bool:
        """Whether an address in both is the same place of the same file."""
        own, others = self.begin - self.file_offset, other.begin - other.file_offset
        return self.file == other.file and (own == others or not self.file.startswith("/"))


class Epoch:
    """The mappings of a process while no address changes its meaning; they do not overlap."""

    def __init__(self, since_ns: int, mappings: list[Mapping]) -> None:
        self.since_ns = since_ns
        self.mappings = mappings
        self._begins = [one.begin for one in mappings]

    def find(self, address: int) -> Mapping | None:
        """Return what is mapped at an address."""
        at = bisect.bisect_right(self._begins, address) - 1
        return self.mappings[at] if at >= 0 and address < self.mappings[at].end else None

    def overlapped(self, new: Mapping) -> tuple[int, int]:
        """Return the range of the mappings that a new one overlaps."""
        first = bisect.bisect_right(self._begins, new.begin)
        if first and self.mappings[first - 1].end > new.begin:
            first -= 1
        return first, max(first, bisect.bisect_left(self._begins, new.end))

    def put(self, new: Mapping) -> None:
        """Map something; of what was there the parts beside it stay."""
        first, last = self.overlapped(new)
        kept = [new]
        for old in self.mappings[first:last]:
            if old.begin < new.begin:
                kept.insert(0, old._replace(end=new.begin))
            if old.end > new.end:
                moved = new.end - old.begin
                kept.append(old._replace(begin=new.end, file_offset=old.file_offset + moved))
        self.mappings[first:last] = kept
        self._begins[first:last] = [one.begin for one in kept]


class AddressSpaces:
    """The address spaces of processes, made from records in the order of time.

    Attributes:
        left_out: mappings that were ignored because there were too many.
    """

    def __init__(self) -> None:
        self._epochs: dict[int, list[Epoch]] = {}
        self._room = MAPPINGS_MAX
        self.left_out = 0

    def fork(self, time_ns: int, pid: int, parent: int) -> None:
        """Begin a process with a copy of its parent's mappings."""
        there = self._epochs.get(parent)
        self._begin(pid, time_ns, [*there[-1].mappings] if there else [])

    def execute(self, time_ns: int, pid: int) -> None:
        """Note that a process runs another program: nothing stays mapped."""
        self._begin(pid, time_ns, [])

    def map(self, time_ns: int, pid: int, new: Mapping) -> None:
        """Map something into a process."""
        if new.end <= new.begin:
            return
        if self._room <= 0:
            self.left_out += 1
            return
        self._room -= 1
        epochs = self._epochs.setdefault(pid, [])
        if not epochs:
            epochs.append(Epoch(time_ns, []))
        first, last = epochs[-1].overlapped(new)
        if not all(new.agrees(old) for old in epochs[-1].mappings[first:last]):
            self._begin(pid, time_ns, [*epochs[-1].mappings])
        epochs[-1].put(new)

    def _begin(self, pid: int, time_ns: int, mappings: list[Mapping]) -> None:
        if len(mappings) > self._room:
            self.left_out += len(mappings)
            mappings = []
        self._room -= len(mappings)
        epochs = self._epochs.setdefault(pid, [])
        if epochs and (epochs[-1].since_ns == time_ns or not epochs[-1].mappings):
            # The last epoch goes: no time passed in it, or nothing was mapped.
            time_ns = epochs.pop().since_ns
        epochs.append(Epoch(time_ns, mappings))

    def changes(self) -> Iterator[tuple[int, int]]:
        """Yield {process, time} of each epoch of processes that have several."""
        for pid, epochs in self._epochs.items():
            if len(epochs) > 1:
                for epoch in epochs:
                    yield pid, epoch.since_ns

    def find(self, pid: int, since_ns: int | None, address: int) -> Mapping | None:
        """Return what was mapped at an address of a process.

        Args:
            pid: the process.
            since_ns: the beginning of the epoch, as `changes` yields it; None: the first one.
            address: in it.
        """
        epochs = self._epochs.get(pid)
        if not epochs:
            return None
        return epochs[self.epoch(pid, since_ns)].find(address)

    def epoch(self, pid: int, at_ns: int | None) -> int:
        """Return the number of the epoch that a process is in at a time; None: the first one."""
        epochs = self._epochs.get(pid, ())
        if at_ns is None or len(epochs) <= 1:
            return 0
        return max(bisect.bisect_right(epochs, at_ns, key=lambda one: one.since_ns) - 1, 0)

    def mapping(self, mapped: Mapping) -> Iterator[int]:
        """Yield the processes that have a mapping at some time."""
        for pid, epochs in self._epochs.items():
            if any(epoch.find(mapped.begin) == mapped for epoch in epochs):
                yield pid
