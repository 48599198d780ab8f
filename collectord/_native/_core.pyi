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
    """Remove `size` bytes of unused space from a file; the data behind it moves to `at`.

    Both numbers are multiples of the filesystem's block size.

    Raises:
        OSError: EOPNOTSUPP or EINVAL if the filesystem cannot do that.
    """

def scan_blktrace(
    data: bytes | bytearray | memoryview | mmap, after: int | None = None
) -> BlktraceScan:
    """Walk whole blktrace records from the start of `data`; see `walk.h`.

    Args:
        data: records of one CPU.
        after: the number of the record before them, None if it is not known.
    """

class RingMap:
    """Shared mapping of a perf ring: its control page and `data_bytes` of data.

    It accepts a perf event fd and, for tests, any fd whose file has the same layout.
    """

    def __init__(self, fd: int, data_bytes: int, *, overwrite: bool = False) -> None:
        """Map the ring read-write, or read-only if `overwrite` is set.

        Raises OSError (EPERM: mlock budget, EINVAL: size or redirected).
        """
    def feed(self, records: bytes) -> bool:
        """Write whole records as the kernel would, as the only writer of a ring in our memory.

        Returns False, and writes nothing, if there is no room for all of them.
        """
    @property
    def data_bytes(self) -> int: ...
    @property
    def head(self) -> int: ...
    def close(self) -> None:
        """Unmap the ring. Raises ValueError while a core still drains it."""

class RingNote:
    """The note of how far a ring was read, in memory that outlives this process.

    The note has 64 bytes: u64 turn; two pairs of u64 position and u64 samples; two u64 places
    behind the samples in staging, where those of number `turn & 1` are valid; and u64 counted. An
    AUX area's has the end of the last AUX record that was read in place of the samples.
    """

    def __init__(self, memory: mmap, offset: int) -> None:
        """Use the note at an offset, a multiple of 64. Raises ValueError."""
    @property
    def taken(self) -> int:
        """The samples that were ever taken out of the ring."""
    @property
    def position(self) -> int:
        """The position up to which it was read: of an AUX area, the bytes that were taken."""
    @property
    def counted(self) -> int:
        """What was counted last.

        Of an overwritable ring, the samples that no window had; of an AUX area, the bytes that
        were truncated.
        """
    @counted.setter
    def counted(self, count: int) -> None: ...
    def close(self) -> None:
        """Release the memory. Raises ValueError while a core still drains the ring."""

class BpfMap:
    """Shared mapping of a BPF ring buffer."""

    def __init__(self, fd: int, data_bytes: int) -> None:
        """Map the whole ring of the map `fd`, whose max_entries is `data_bytes`.

        Raises OSError (EINVAL: the size is not a power of two of pages, or the map is another
        kind).
        """
    def close(self) -> None:
        """Unmap the ring. Raises ValueError while a core still drains it."""

class SlotMap:
    """Shared mapping of the two arrays of a BPF program that is a flight recorder."""

    def __init__(self, heads_fd: int, slots_fd: int, *, cpus: int, slots_each: int) -> None:
        """Map both arrays: a head for each of the CPUs, and so many slots.

        Raises OSError (EINVAL: slots_each is no power of two, or too large).
        """
    def counted(self, cpu: int) -> tuple[int, int]:
        """Return the records of a CPU, and those that it missed beside them, as of now.

        Raises ValueError (it is closed, or there is no such CPU).
        """
    def close(self) -> None:
        """Unmap them. Raises ValueError while a core still reads them."""

class AuxMap:
    """Shared mapping of the AUX area that belongs to a perf ring.

    It accepts a perf event fd and, for tests, any fd whose file has the same layout: control
    page, data, AUX area.
    """

    def __init__(self, fd: int, ring_map: RingMap, data_bytes: int, *, snapshot: bool) -> None:
        """Map `data_bytes` (a power of two of pages) behind the ring's data.

        fd: the event that owns the ring, the one that `ring_map` mapped. snapshot: map the area
        read-only, so that the kernel overwrites the oldest bytes; otherwise unread bytes stay, and
        the kernel stops the event when no space is free. Raises OSError (EOPNOTSUPP: the PMU has
        no AUX area; EINVAL: wrong size, or mapped before with another size; EPERM: mlock budget).
        """
    @property
    def data_bytes(self) -> int: ...
    @property
    def head(self) -> int:
        """The value of `aux_head`: the bytes handed over so far, subject to the head rules."""
    def close(self) -> None:
        """Unmap the area, before the ring's map. Raises ValueError while a core drains it."""

class PageMap:
    """Shared mapping of one CPU's `trace_pipe_raw`: the meta page and all sub-buffers.

    The counters were current when a reader last asked for a page; a reset of the ring sets them
    to 0.
    """

    def __init__(self, fd: int) -> None:
        """Map the ring read-only. Raises OSError.

        ENODEV: this kernel or this ring has no mapping; EBUSY: a snapshot excludes it; EPROTO: the
        layout of the meta page is unknown.
        """
    @property
    def subbuf_bytes(self) -> int: ...
    @property
    def subbufs(self) -> int:
        """The number of mapped sub-buffers: those of the ring and the reader's own."""
    @property
    def read(self) -> int:
        """The number of events read so far by any reader."""
    def close(self) -> None:
        """Unmap the ring. Raises ValueError while a core still drains it."""

class Ring:
    """A ring that a core drains.

    The core keeps its own part of it until nobody has this object, the ring was removed, and its
    data are written; if a file or extent is the ring's own, until a `SegmentClosed` told of it.
    """

    @property
    def id(self) -> int: ...
    @property
    def shard(self) -> int:
        """The shard whose thread drains it."""
    @property
    def answered(self) -> bool:
        """Whether the shard has carried out all commands to this ring, which its next pass does.

        The core's `notify_fd` becomes readable when it has. If the core does not run, each command
        is carried out before the call returns.
        """
    def counters(self) -> RingCounters: ...
    def hold(self, held: bool) -> None:
        """Have passes leave the ring alone, or drain it again; in force once it is `answered`.

        The data it holds when it is released come with the next generation. An overwritable ring
        is always left alone: releasing it copies its contents once, and they come with the next
        generation. The kernel must not write to it meanwhile (PERF_EVENT_IOC_PAUSE_OUTPUT).

        A data ring is held together with its AUX ring, which must be a snapshot ring. Its oldest
        records are then dropped whenever it is more than half full. Releasing it fixes the AUX
        window: the caller disables the events before, and enables them after the next full pass.

        Raises OSError (EINVAL: its AUX ring is no snapshot ring; EBUSY: an earlier call of the
        same kind is not answered yet).
        """
    def set_ids(self, ids: Mapping[int, int]) -> None:
        """Replace the ids that it was added with, see `Core.add_ring`, at once.

        Call it before a record with a new id can be in the ring. An old id is needed for as long
        as a record with it may be unread.

        Raises OSError (EINVAL: not a streamed perf ring, or one that was added without ids).
        """
    def warm(self) -> None:
        """Prepare the memory that the next window of an overwritable ring is copied to."""
    def read_all(self) -> None:
        """Have passes of a relay ring also read a sub-buffer that is only partly written.

        Call it after the last write: earlier, a read could meet a record whose space is reserved
        but not filled. It takes effect before any generation begun later. Raises OSError (EINVAL:
        not a relay ring; EBUSY: see `hold`).
        """

class AuxRing:
    """The AUX area of a data ring that a core drains."""

    @property
    def id(self) -> int:
        """The ring's id, in the same numbering as `Ring.id`."""
    @property
    def shard(self) -> int:
        """The shard whose thread drains it."""
    @property
    def answered(self) -> bool:
        """Whether the shard has carried out all commands, as for `Ring.answered`."""
    def counters(self) -> AuxCounters: ...
    def read_all(self) -> None:
        """Stop enabling events and waiting for records: the events are about to be disabled.

        No pass is in the middle of an ENABLE once it is `answered`. From then on, a pass also
        takes bytes that no AUX record confirms as whole.
        """

class Stream:
    """One sequence of segments, which store what the rings of the stream held.

    A stream is finished and freed, with the rings that have left the core, once nothing refers to
    it or to one of its rings.
    """

    @property
    def id(self) -> int:
        """A number that no other stream of the core has or ever had."""
    @property
    def rank(self) -> int:
        """How much the stream matters while staging is short: 0 most, 2 least.

        Set it before the stream has rings. Raises ValueError for others.
        """
    @rank.setter
    def rank(self, rank: int) -> None: ...
    def prepare(
        self,
        token: int,
        fd: int,
        offset: int,
        limit_bytes: int,
        step_bytes: int = 0,
        tail_bytes: int = 0,
        table: bytes | bytearray | memoryview = b"",
        size: tuple[int, int, int] = (-1, 0, 0),
    ) -> None:
        """Hand over the next segment's file.

        The fd stays the caller's and must live until SegmentClosed(token). Data are written from
        `offset` (a multiple of 4096) on; after the chunk that reaches `limit_bytes` the stream
        moves on to the next prepared segment. If `step_bytes` > 0, space is allocated that far
        ahead, and a full disk leaves room behind the data: `tail_bytes`, and an entry of the AUX
        index for each place in `SegmentClosed.aux_index`. The padding of each chunk begins with
        `table`, whose first 8 bytes its header replaces.

        `size`: a buffered fd of the file, which lives as long, and the offset of a word in it;
        offset 0: it has none. At each flush that wrote records, the word becomes the offset of the
        last written padding, minus the third number: what is before that offset, and the padding
        itself, stay as they are. Raises OSError (EBUSY: a segment is prepared already; EINVAL: the
        table has over 512 bytes).
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
        an extent ends the segment when it has data to write. Whole sub-buffers are written from
        there on, up to `capacity_bytes`. The stream moves on to the next prepared segment before
        all extents together hold more than `limit_bytes`. If `step_bytes` > 0, space is allocated
        that far ahead in each extent. Raises OSError (EBUSY: a segment is prepared already).
        """
    def prepare_files(self, token: int, *, files: Mapping[int, int], limit_bytes: int) -> None:
        """Hand over the next segment's files to a relay stream: a descriptor by ring id.

        The data of each ring go to its own file from offset 0 on. The stream moves on to the next
        prepared segment before the files together hold more than `limit_bytes`, at a point where a
        ring's share of a chunk begins. Raises OSError (EBUSY: a segment is prepared already).
        """
    def track_bytes(self) -> tuple[int, dict[int, int]]:
        """Return token and bytes per ring id of the running segment, including the last page.

        Token 0 and no rings mean that no segment is open. Any thread may call it.
        """
    def tell_error(self) -> int:
        """Return the errno if a running file's `size` could not be updated at the last flush."""
    def issued_generation(self) -> int:
        """Return the core's last generation."""
    def drained_generation(self) -> int:
        """Return the last generation that the rings of this stream have completed."""
    def written_generation(self) -> int:
        """Return the last generation whose chunks are all written or counted as lost."""
    def silent_shard(self, generation: int) -> int:
        """Return a drain thread of its rings without a pass since this was issued; -1: none."""
    def waits_ns(self) -> int:
        """Return for how many ns the first queued item has waited for its disk; 0: none."""
    def round_ns(self) -> int:
        """Return when the generation before the last issued one was written; 0: it is not yet.

        The time is of CLOCK_MONOTONIC. A sorting reader has not passed any younger record.
        """
    def rotate(self) -> None:
        """Move on to the next prepared segment at the next chunk, unless this one is empty."""
    def rotate_from(self, token: int) -> None:
        """Do the same if the running segment is this one, so that none ends unasked behind it."""
    def turn(self) -> None:
        """Move on to the next prepared segment, though this one be empty."""
    def hurry(self, on: bool) -> None:
        """Have other streams begin no write on its disk, or end that.

        It begins once no more than one write of this stream is left, so that a long window shares
        the disk, and lasts a second at most.
        """
    def finish(self) -> None:
        """Close the running segment after the queued data; SegmentClosed follows.

        From then on the stream takes no segment (BrokenPipeError), drops a prepared one, and
        counts what its rings deliver as lost_dropped.
        """
    def reserve(self, device: int, file: int) -> None:
        """Let what is drained wait in chunks until the first segment is prepared, however long.

        Its file is noted, for a successor that finds chunks which wait for it.
        """
    def left_ns(self) -> int:
        """Return the time from which on `load_sideband` keeps records for unread data.

        It is that of the oldest record which an earlier process left unread in a ring that is held
        since, less what a record may be late; 0 if it cannot be told, the highest number if
        nothing is unread.
        """
    def load_sideband(
        self, records: bytes | bytearray | memoryview | mmap, until_ns: int = ...
    ) -> None:
        """Apply whole records (perf layout, sample_id trailer included) to the state table.

        Those from `until_ns` on, in the time of the records, take effect once what is unread now
        is written, as if they came from a ring: a task that ends there has its name until then.
        """
    def mapped_files(self, since: int = 0) -> tuple[int, bytes]:
        """Return the files whose code is mapped, as records, and the number to continue from.

        Each file is represented by the first MMAP2 record that named it, whole, in the running
        segment and the one before it, oldest first; older files are forgotten. Any thread may call
        it.
        """
    def code_makers(self) -> frozenset[int]:
        """Return the processes that have mapped executable memory without a file.

        They are those of the running segment and of the one before it, at most 1024 of each.
        """
    def space(self, retry: bool) -> None:
        """Answer SpaceWanted: retry the write, or count the chunk as `disk_full`.

        On a page stream it concerns the unwritten part of what one ring has in the chunk.
        """
    def sideband_counters(self) -> SidebandCounters:
        """Return the size of the state table and the records that it had no memory for."""

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
        """An eventfd, readable when `events()` has an event or a generation completed."""
    def keep_staging(self, memory: mmap) -> None:
        """Use this zeroed memory for chunks and their notes, before a stream is added.

        Its size is that of `kept_staging.staging_bytes`. Raises ValueError if it is smaller.
        """
    def start(self) -> None: ...
    def add_disk(self, device: int) -> None:
        """Create a queue and a writer for the file system with this number (`st_dev`).

        Other file systems get theirs when a segment on them is prepared.
        """

    def add_stream(
        self,
        *,
        sideband_bytes: int = 16 << 20,
        subbuf_bytes: int = 0,
        foreign_clock: bool = False,
        snapshots: bool = False,
    ) -> Stream:
        """Add a stream of perf records, or of pages of `subbuf_bytes` if that is not 0.

        foreign_clock: the records use another clock than CLOCK_MONOTONIC. Its lag is then
        estimated from the time when records are read.

        `snapshots`: the stream takes windows of overwritable rings. Sideband records are kept for
        these and stored only in the replay, and no marker orders the records.
        """
    def add_relay_stream(self) -> Stream:
        """Add a stream for relay files, each of which is written to its own file."""
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
        ids: Mapping[int, int] | None = None,
        held: bool = False,
        cpu_trailer: int = 0,
        note: RingNote | None = None,
    ) -> Ring:
        """Begin to drain a perf ring.

        note: how far it is read, for whoever drains it next; it begins where an earlier process
        noted. What is unread when the ring is removed is left to the next one.

        cpu_trailer: where CPU is in records other than samples, in bytes before their end; 0: it
        is absent. Switches, ITRACE_START and AUX_OUTPUT_HW_ID are replayed only with it; without
        it, the last 8 bytes of such a record are taken as the event's id.

        Times: a sample has its time at `time_offset` from its start, any other record at
        `time_trailer` before its end; 0: no time. `ids`: those of the events that write into the
        ring, if samples begin with an id and other records end in one, each with the id that files
        know it by; any other id in a sample is replaced by the lowest. `held`: see `Ring.hold`.

        Raises OSError (EINVAL: no such shard, a stream of pages or relay, or its sideband has time
        or CPU at another place; EPERM: `wakeup_fd` cannot be polled).
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

        `fd`: non-blocking and owned by the core's reader: no one else reads the ring.
        `subbuf_bytes`: with the header, the size that read(2) must ask for. `subbufs`: those of
        the ring, without the reader's. `transport`: "read", "mmap" (with `page_map`) or "splice",
        which falls back to "read" where the ring does not support splice. Raises OSError (EINVAL:
        sizes do not fit the stream, the map or the core's chunks).
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
        note: RingNote | None = None,
    ) -> Ring:
        """Begin to drain a BPF ring buffer into a stream of perf records.

        Each of its records becomes a PERF_RECORD_SAMPLE: `id`, the record's first `fields_bytes`
        bytes (a multiple of 8), which are the sample's fields between its id and its raw data, and
        the rest as raw data. time_offset: where such a sample has its time, from its start; 0: no
        time. wakeup_fd: the map's. held: passes leave the ring alone until `Ring.hold(False)`.
        note: of a ring that another process keeps, see `RingNote`.

        Raises ValueError (a map or note that is closed) and OSError (EINVAL: no such shard,
        `stream` does not take perf records, or fields_bytes is invalid).
        """
    def add_slot_ring(
        self,
        shard: int,
        stream: Stream,
        slot_map: SlotMap,
        *,
        cpu: int,
        kinds: Sequence[tuple[int, int, int | None]],
        time_offset: int,
        held: bool = True,
    ) -> Ring:
        """Have windows of a CPU's slots taken into a stream of perf records.

        Each record becomes a PERF_RECORD_SAMPLE. kinds: of each kind of record, from kind 1 on,
        the id of its samples, the bytes of its data, and where these have the thread that it is
        about; None: they do not tell. time_offset: where such a sample has its time, from its
        start. held: a window is taken with each `Ring.hold(False)`.

        `overwritten` of its counters are records that were in no window, `lost_samples` those that
        were torn, and `window_taken` all others.

        Raises ValueError (a map that is closed, too many kinds) and OSError (EINVAL: no such shard
        or CPU, `stream` does not take perf records, or a kind is invalid).
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
        note: RingNote | None = None,
        slots_at: int = 0,
    ) -> Ring:
        """Begin to read a file of a relay channel, one CPU's or the only one.

        `capacity_bytes`: the size of all its sub-buffers. `blktrace`: it contains blktrace
        records, which are counted and never split; `longest_bytes` > 0: the longest possible one.
        RingHungUp reports, after all was read, that the channel was closed or its file removed.
        `note`: of a blktrace that outlives this process, with the last number as the position; it
        begins where an earlier process noted, and what is unread when it is removed is left to the
        next one. `slots_at`: the offset, in the note's memory, of two slots of 69632 bytes for the
        start of a record whose end is not read. Raises ValueError and OSError.
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
        note: RingNote | None = None,
    ) -> AuxRing:
        """Begin to drain the AUX area of `ring` (a data ring, no sideband) into the ring's stream.

        framing: "auxtrace": as PERF_RECORD_AUXTRACE followed by the payload; "hidden": inside
        records that readers ignore, for PMUs that perf cannot decode. idx, cpu, tid: as in that
        record; cpu -1 for a ring of a thread, tid -1 for one of a CPU. reference_tsc: the
        reference of each piece is the time-stamp counter when it was made, else 0. whole_records:
        no piece ends inside the range of one PERF_RECORD_AUX. enable_fds: AUX events of this ring,
        enabled again after each pass that took bytes or saw a truncated record; not for a snapshot
        ring. The fds stay the caller's, and must live until the ring is removed or the core has
        stopped.

        For snapshot rings, head_rule says what the head means: "monotonic": a count of bytes;
        "offset": a place in the buffer; "learned": the windows show which. They are held when
        `ring` is; other AUX rings can be held only with a `note`.

        note: another process keeps the area: it is read from where the note says, and what is
        unread when it is removed stays there.

        `remove_ring(ring)` removes both rings. Add the area before the events are enabled.

        Raises ValueError (unknown framing or head rule, a ring of another core, an area of another
        ring or no longer mapped) and OSError (EINVAL: `ring` is held and this is no snapshot ring,
        a chunk has no room for `whole_records` of this size, or the stream's sideband has its time
        elsewhere in its records; EEXIST: the ring has an AUX area already).
        """
    def remove_ring(self, ring: Ring) -> bool:
        """Drain a ring once more and remove it; returns whether it was removed.

        Repeat the call until it returns True, at the latest two seconds after the shard's next
        pass: then the map may be closed, and the counters stay. A held ring is not drained. The
        ring's AUX ring is removed with it. `notify_fd` becomes readable when it was removed.

        If no chunk comes free for two seconds, the ring is removed undrained. The rest is counted
        as taken and as lost_dropped; for a relay ring as skipped, and for a page ring it stays
        unread in the kernel's counters.
        """
    def request_flush(self) -> int:
        """Begin a generation, which reads every ring to its present head; returns its number.

        A ring that fills up again meanwhile is done once it has passed that place.
        """
    def follow(self, generation: int) -> None:
        """Have generations of the flush timer report their ends from this one on.

        Before the first call all of them do. Requested generations always do.
        """
    def issued_generation(self) -> int:
        """Return the last generation begun, by a call or by the flush timer of a shard."""
    def drained_generation(self) -> int:
        """Return the last generation that the rings of all streams have completed."""
    def silent_shards(self, generation: int) -> tuple[int, ...]:
        """Return the drain threads without a pass since this generation was issued.

        A thread without rings, or with empty ones, makes passes like the others.
        """
    def events(self) -> list[Event]: ...
    def counters(self) -> CoreCounters: ...
    def drain_tids(self) -> tuple[int, ...]:
        """Return the kernel ids of the drain threads by shard, once the core was started."""
    def stop(self) -> None:
        """Stop the threads. Rings keep their contents; call it after `Stream.finish` completed."""
