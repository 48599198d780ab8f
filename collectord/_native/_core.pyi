# SPDX-License-Identifier: Apache-2.0
"""Types of the native core's binding. The contract of each call is in its docstring."""

from collections.abc import Mapping, Sequence
from mmap import mmap
from typing import Final, TypeAlias

from collectord._native.values import AuxCounters as AuxCounters
from collectord._native.values import BlktraceScan as BlktraceScan
from collectord._native.values import CoreCounters as CoreCounters
from collectord._native.values import PageScan as PageScan
from collectord._native.values import RecordScan as RecordScan
from collectord._native.values import RingCounters as RingCounters
from collectord._native.values import RingFault as RingFault
from collectord._native.values import RingHungUp as RingHungUp
from collectord._native.values import SegmentClosed as SegmentClosed
from collectord._native.values import SegmentWanted as SegmentWanted
from collectord._native.values import SidebandCounters as SidebandCounters
from collectord._native.values import SpaceWanted as SpaceWanted
from collectord._native.values import Sum as Sum
from collectord._native.values import WriteFailed as WriteFailed

CHUNK_ALIGN_BYTES: Final[int]  # 4096: chunks, and so data offsets, are multiples of it

Event: TypeAlias = (
    SegmentClosed | SegmentWanted | SpaceWanted | WriteFailed | RingFault | RingHungUp
)

QUARANTINE_REASONS: Final[tuple[str, ...]]
AUX_HIDDEN_MAGIC: Final[
    int
]  # first word of the body of a hidden AUX piece, see `Core.add_aux_ring`
AUX_HEAD_RULES: Final[tuple[str, ...]]  # "monotonic", "offset", "learned"

def scan_records(
    data: bytes | bytearray | memoryview | mmap, *, time_offset: int = 0
) -> RecordScan:
    """Walk whole records from the start of `data` (bytes, mmap, ...); see WALK in `walk.h`."""

def scan_pages(data: bytes | bytearray | memoryview | mmap, subbuf_bytes: int) -> PageScan:
    """Walk whole sub-buffers from the start of `data` to its end, or to a page of zeros.

    A page of zeros is one whose timestamp and commit word are 0: nothing was written there.
    """

def close_gap(fd: int, at: int, size: int) -> None:
    """Take `size` bytes, in which nothing is, out of a file: what is behind them moves to `at`.

    Both are multiples of the filesystem's block.

    Raises:
        OSError: EOPNOTSUPP or EINVAL if the filesystem cannot do that.
    """

def scan_blktrace(
    data: bytes | bytearray | memoryview | mmap, after: int | None = None
) -> BlktraceScan:
    """Walk whole records from the start of `data`; see `blk_walk.h`.

    Args:
        data: records of one CPU.
        after: the number of the one that is before them, None if nobody knows.
    """

class RingMap:
    """Shared mapping of a perf ring: its control page and `data_bytes` of data.

    Works on a perf event fd and, for tests, on any fd whose file has the same layout.
    """

    def __init__(self, fd: int, data_bytes: int, *, overwrite: bool = False) -> None:
        """Map read-write, or to overwrite read-only.

        Raises OSError (EPERM: mlock budget, EINVAL: size or redirected).
        """
    def feed(self, records: bytes) -> bool:
        """Write whole records as the kernel would, into a ring in our own memory, by one writer.

        False: there is no room for all of them, and nothing was written.
        """
    @property
    def data_bytes(self) -> int: ...
    @property
    def head(self) -> int: ...
    def close(self) -> None:
        """Unmap. Raises ValueError while a core still drains the ring."""

class BpfMap:
    """A BPF ring buffer, mapped."""

    def __init__(self, fd: int, data_bytes: int) -> None:
        """Map all of the map `fd`, whose max_entries is `data_bytes`.

        Raises OSError (EINVAL: not a power of two of pages, or no such map).
        """
    def close(self) -> None:
        """Unmap. Raises ValueError while a core still drains the ring."""

class AuxMap:
    """Shared mapping of the AUX area that belongs to a perf ring.

    Works on a perf event fd and, for tests, on any fd whose file has the same layout: control
    page, data, AUX area.
    """

    def __init__(self, fd: int, ring_map: RingMap, aux_bytes: int, *, snapshot: bool) -> None:
        """Map `aux_bytes` (a power of two of pages) behind the ring's data.

        fd: of the event that owns the ring: the one that `ring_map` mapped. snapshot: map it
        read-only, so that the kernel overwrites the oldest bytes; else what is not read yet
        stays, and the kernel stops the event when nothing is free. Raises OSError (EOPNOTSUPP: the
        PMU has no AUX area; EINVAL: size, or mapped before with another one; EPERM: mlock budget).
        """
    @property
    def aux_bytes(self) -> int: ...
    @property
    def head(self) -> int:
        """`aux_head`: how many bytes the kernel has handed over, but see the head rules."""
    def close(self) -> None:
        """Unmap; before the ring's own map. Raises ValueError while a core still drains it."""

class PageMap:
    """Shared mapping of one CPU's `trace_pipe_raw`: the meta page and all sub-buffers.

    The counters are those of the last time that a reader asked for a page, and restart at 0 when
    the ring is reset.
    """

    def __init__(self, fd: int) -> None:
        """Map read-only. Raises OSError.

        ENODEV: this kernel or this ring has no mapping; EBUSY: a snapshot excludes it; EPROTO:
        the meta page is laid out in a way that is not known.
        """
    @property
    def subbuf_bytes(self) -> int: ...
    @property
    def subbufs(self) -> int:
        """How many are mapped: those of the ring and the reader's own."""
    @property
    def read(self) -> int:
        """Events read, by whomever."""
    def close(self) -> None:
        """Unmap. Raises ValueError while a core still drains the ring."""

class Ring:
    """A ring that a core drains."""

    @property
    def id(self) -> int: ...
    @property
    def shard(self) -> int:
        """Whose thread drains it."""
    @property
    def answered(self) -> bool:
        """Whether its shard has done all that the ring was told: it does so at its next pass.

        The core's `notify_fd` becomes readable when it has. Of a core that does not run it is so
        on return of each call.
        """
    def counters(self) -> RingCounters: ...
    def hold(self, held: bool) -> None:
        """Have passes leave a ring alone, or no more; none is at it once it is `answered`.

        What is in it when it is let go comes with the next generation. An overwritable ring is
        always left alone: to let it go copies what it holds, once, and that comes with the next
        generation. Nobody may write to it meanwhile (PERF_EVENT_IOC_PAUSE_OUTPUT).

        A data ring is held together with its AUX ring, which must be a snapshot one. Its oldest
        records are then given up whenever it is more than half full. Letting go fixes the AUX
        window: the events have been disabled before, and are enabled again after the full pass
        that followed.

        Raises OSError (EINVAL: its AUX ring is none of snapshots; EBUSY: the same was asked for
        before, and is not answered yet).
        """
    def warm(self) -> None:
        """Have the memory ready that the next window of an overwritable ring is copied to."""
    def read_all(self) -> None:
        """Have passes read what is in a part of a sub-buffer too, of a relay ring.

        Call it when nothing is written any more: a record that has its room and not yet its
        contents would be met there otherwise. Done before a generation that is begun later. Raises
        OSError (EINVAL: it is another ring; EBUSY: see `hold`).
        """

class AuxRing:
    """The AUX area of a data ring that a core drains."""

    @property
    def id(self) -> int:
        """Of the same numbering as `Ring.id`."""
    @property
    def shard(self) -> int:
        """See `Ring.shard`."""
    @property
    def answered(self) -> bool:
        """See `Ring.answered`."""
    def counters(self) -> AuxCounters: ...
    def stop(self) -> None:
        """Enable nothing any more, and wait for nothing: the events are about to be disabled.

        No pass is in the middle of an ENABLE once it is `answered`. From then on a pass takes
        bytes also where no AUX record says that they are whole.
        """

class Stream:
    """One sequence of segments: what the rings that feed it hold, in files.

    Once neither it nor a ring of it is referred to any more it is finished, if it is not, and its
    memory is freed with that of its rings, which have left the core.
    """

    @property
    def id(self) -> int:
        """No other stream of the core has it, or had it."""
    def prepare(
        self,
        token: int,
        fd: int,
        offset: int,
        limit_bytes: int,
        step_bytes: int = 0,
        tail_bytes: int = 0,
    ) -> None:
        """Hand over the next segment's file.

        The fd stays the caller's and must live until SegmentClosed(token). Data goes to `offset`
        (a multiple of 4096) and on; after the chunk that reaches `limit_bytes` the stream moves on
        to the next prepared segment. `step_bytes` > 0: space is allocated that far ahead, and a
        full disk leaves room behind the data: `tail_bytes`, and an entry of the AUX index for
        each place in `SegmentClosed.aux_index`.
        """
    def prepare_pages(
        self,
        token: int,
        fd: int,
        *,
        offsets: Mapping[int, int],
        capacity_bytes: int,
        limit_bytes: int,
        step_bytes: int = 0,
    ) -> None:
        """Hand over the next segment's file to a page stream.

        `offsets`: where each ring's extent begins, by ring id (multiples of 4096); a ring without
        one ends the segment when it has something to write. Whole sub-buffers are written from
        there on, up to `capacity_bytes`. The stream moves on to the next prepared segment before
        all extents together hold more than `limit_bytes`. `step_bytes` > 0: space is allocated
        that far ahead in each extent. Raises OSError (EBUSY: one is prepared already).
        """
    def prepare_files(self, token: int, *, files: Mapping[int, int], limit_bytes: int) -> None:
        """Hand over the next segment's files to a relay stream: a descriptor by ring id.

        Each ring's data go to its own from offset 0 on. The stream moves on to the next prepared
        segment before all of them together hold more than `limit_bytes`, or where a ring's share
        of a chunk begins. Raises OSError (EBUSY: one is prepared already).
        """
    def track_bytes(self) -> tuple[int, dict[int, int]]:
        """Tell token and bytes per ring id of the running segment, the last page included.

        Token 0, and no rings: none is open. May be called from any thread.
        """
    def issued_generation(self) -> int:
        """The core's last generation."""
    def drained_generation(self) -> int:
        """The last generation that its rings are done with, whatever those of others are at."""
    def written_generation(self) -> int:
        """The last one of which every chunk is on its file (or counted as lost)."""
    def silent_shard(self, generation: int) -> int:
        """Give a drain thread of its rings that made no pass since this was issued; -1: none."""
    def waits_ns(self) -> int:
        """For how long what is written first has waited for its disk; 0: nothing waits."""
    def round_ns(self) -> int:
        """When the generation before the one that was issued last had been written; 0: it is not.

        Of CLOCK_MONOTONIC. A sorting reader has passed nothing that is younger.
        """
    def rotate(self) -> None:
        """Move on to the next prepared segment at the next chunk, if this one holds data."""
    def finish(self) -> None:
        """Close the running segment after what is queued; SegmentClosed follows.

        From then on the stream takes no segment (BrokenPipeError), a prepared one is forgotten,
        and what its rings give is counted as lost_dropped.
        """
    def load_sideband(self, records: bytes | bytearray | memoryview | mmap) -> None:
        """Apply whole records (perf layout, sample_id trailer included) to the state table."""
    def mapped_files(self, since: int = 0) -> tuple[int, bytes]:
        """Tell the files whose code is mapped: the number to ask from next time, and records.

        Each file is the first MMAP2 record that named it, whole, of the running segment and the
        one before it, oldest first; what is in neither any more is gone. May be called from any
        thread.
        """
    def space(self, retry: bool) -> None:
        """Answer SpaceWanted: try the write again, or count the chunk as `disk_full`.

        Of a page stream it is what one ring has in the chunk, as far as it was not written.
        """
    def sideband_counters(self) -> SidebandCounters:
        """Tell what the state table holds, and what it had no memory for."""

class Core:
    """Pool of chunks, shard threads and the writer thread."""

    def __init__(
        self,
        *,
        shards: int = 1,
        chunks: int = 64,
        chunk_bytes: int = 1 << 20,
        flush_ns: int = 1_000_000_000,
        floor_bytes: int = 65536,
    ) -> None: ...
    @property
    def notify_fd(self) -> int:
        """Readable (eventfd) when `events()` has something or a generation completed."""
    def start(self) -> None: ...
    def add_disk(self, device: int) -> None:
        """Have a queue and a writer for the file system of this number (`st_dev`).

        Segments on one that was not told get them as they are prepared.
        """

    def add_stream(
        self,
        *,
        sideband_bytes: int = 16 << 20,
        subbuf_bytes: int = 0,
        foreign_clock: bool = False,
        snapshots: bool = False,
    ) -> Stream:
        """Add one; `subbuf_bytes` > 0: a page stream, for rings with sub-buffers of that size.

        foreign_clock: the records carry another clock than CLOCK_MONOTONIC. How far it is behind
        is then taken from when records are read.

        `snapshots`: it takes windows of overwritable rings. Sideband records are kept for these
        and come with the replay only, and no marker orders what is written.
        """
    def add_relay_stream(self) -> Stream:
        """Add one for relay files, each of which is written to a file of its own."""
    def add_ring(
        self,
        shard: int,
        stream: Stream,
        ring_map: RingMap,
        wakeup_fd: int,
        *,
        sideband: bool,
        time_offset: int,
        time_trailer: int,
        ids: Sequence[int] = (),
        held: bool = False,
        cpu_trailer: int = 0,
    ) -> Ring:
        """Begin to drain.

        cpu_trailer: where CPU is in records other than samples, in bytes before their end; 0: they
        carry none. Switches, ITRACE_START and AUX_OUTPUT_HW_ID are replayed only where they do;
        the last 8 bytes of such a record are taken as the event's id if CPU is not there.

        Times: of a sample at `time_offset` from its start, of any other record at `time_trailer`
        before its end; 0 where the records carry no time. `ids`: of the events that write into
        the ring, if samples begin with an id; one that is none of them is replaced by the lowest.
        `held`: see `Ring.hold`.

        Raises OSError (EINVAL: no such shard, a stream of pages or relay, or one whose sideband
        has its time or CPU elsewhere in its records; EPERM: `wakeup_fd` cannot be polled).
        """
    def add_page_ring(
        self,
        shard: int,
        stream: Stream,
        fd: int,
        *,
        subbuf_bytes: int,
        subbufs: int,
        transport: str,
        page_map: PageMap | None = None,
        held: bool = False,
    ) -> Ring:
        """Begin to drain one CPU's `trace_pipe_raw` into a page stream.

        `fd`: non-blocking, and its own reader's: nobody else reads the ring. `subbuf_bytes`: with
        the header, as one read(2) must ask for. `subbufs`: of the ring, the reader's not among
        them. `transport`: "read", "mmap" (with `page_map`) or "splice", which falls back to "read"
        where the ring takes no splice. Raises OSError (EINVAL: sizes do not fit the stream, the
        map or the core's chunks).
        """
    def add_bpf_ring(
        self,
        shard: int,
        stream: Stream,
        bpf_map: BpfMap,
        wakeup_fd: int,
        *,
        id: int,  # noqa: A002
        fields_bytes: int,
        time_offset: int,
        held: bool = False,
    ) -> Ring:
        """Begin to drain a BPF ring buffer into a stream of perf records.

        Each of its records becomes a PERF_RECORD_SAMPLE: `id`, the record's first `fields_bytes`
        bytes (a multiple of 8), which are the sample's fields between its id and its raw data, and
        the rest as raw data. time_offset: where such a sample has its time, from its start, 0: it
        has none. wakeup_fd: the map's. held: passes leave it alone until `Ring.hold(False)`.

        Raises ValueError (a map that is closed) and OSError (EINVAL: no such shard, `stream` is
        none of perf records, fields_bytes is none).
        """
    def add_relay_ring(
        self,
        shard: int,
        stream: Stream,
        fd: int,
        *,
        capacity_bytes: int,
        longest_bytes: int = 0,
        blktrace: bool = False,
        held: bool = False,
    ) -> Ring:
        """Begin to read a file of a relay channel, one CPU's or the only one.

        `capacity_bytes`: of all its sub-buffers. `blktrace`: it has records of blktrace, which
        are counted and never split; `longest_bytes` > 0: none has more. RingHungUp tells that the
        channel was closed or its file has gone, after all was read. Raises OSError.
        """
    def add_aux_ring(
        self,
        ring: Ring,
        aux_map: AuxMap,
        *,
        framing: str,
        idx: int,
        cpu: int,
        tid: int,
        whole_records: bool = False,
        reference_tsc: bool = False,
        enable_fds: Sequence[int] = (),
        head_rule: str = "monotonic",
    ) -> AuxRing:
        """Begin to drain the AUX area of `ring` (a data ring, no sideband) into the ring's stream.

        framing: "auxtrace": as PERF_RECORD_AUXTRACE with the payload behind it; "hidden": inside
        of records that readers ignore, for PMUs that perf cannot decode. idx, cpu, tid: as in that
        record; cpu -1 for a ring of a thread, tid -1 for one of a CPU. reference_tsc: each piece
        has the time-stamp counter of when it was made for its reference, else 0. whole_records: no
        piece ends inside of what one PERF_RECORD_AUX tells of. enable_fds: AUX events of this
        ring, enabled again after each pass that took bytes or saw a truncated record; of a
        snapshot ring never. The fds stay the caller's, and must live until the ring is removed, or
        the core has stopped.

        Snapshot rings: head_rule "monotonic": the head counts bytes; "offset": it is a place in
        the buffer; "learned": the windows tell which of the two. They are held when `ring` is, and
        only they may be.

        Both rings are removed by `remove_ring(ring)`. Add before the events are enabled.

        Raises ValueError (a framing or head rule that is none, a ring that is not this core's, an
        area of another one or no longer mapped) and OSError (EINVAL: `ring` is held and this is no
        snapshot ring, a chunk has no room for `whole_records` of this size, or the stream's
        sideband has its time elsewhere in its records; EEXIST: the ring has one already).
        """
    def remove_ring(self, ring: Ring) -> bool:
        """Have a ring drained once more, and left; returns whether it was.

        Call it again until it was, at the latest two seconds after its shard's next pass: then its
        map may be closed, and its counters stay. A held ring is not drained. The ring's AUX ring
        goes with it. `notify_fd` becomes readable when it was left.

        If for two seconds no chunk comes free to drain into it is left all the same. What was not
        drained is counted as taken, and as lost_dropped; of a relay ring as skipped, of a page
        ring it is unread in the kernel's counters.
        """
    def request_flush(self) -> int:
        """Begin a generation: every ring is to be read up to where it is then; returns its number.

        A ring that is full again meanwhile is done all the same once it has passed that place.
        """
    def follow(self, generation: int) -> None:
        """Have the flush timer's generations tell of their ends from this one on, and not before.

        Until the first call each does, as each does that is asked for.
        """
    def issued_generation(self) -> int:
        """The last generation that was begun, by a call or by the flush timer of a shard."""
    def drained_generation(self) -> int:
        """The last generation that the rings of all streams are done with."""
    def events(self) -> list[Event]: ...
    def counters(self) -> CoreCounters: ...
    def drain_tids(self) -> tuple[int, ...]:
        """Give the kernel ids of the drain threads by shard, once the core was started."""
    def stop(self) -> None:
        """Stop the threads. Rings keep what they hold; call after `Stream.finish` completed."""
