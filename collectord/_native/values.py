# SPDX-License-Identifier: Apache-2.0
"""What the calls of the native core give: figures, and events."""

from __future__ import annotations

from typing import NamedTuple


class Sum(NamedTuple):
    """XXH3-64 of a part of a file, which begins where the one before it ends.

    Parts have about 1 MiB each; what is written in small pieces shares one.
    """

    bytes: int
    xxh3: int


class SegmentClosed(NamedTuple):
    """A segment got its last byte. `end_offset` is where its data section ends (4096-aligned).

    Of page and relay streams `end_offset` is 0 and there are no `sums`, `tracks` tells instead; of
    pages records and samples are events, those that were spliced not among them.
    """

    stream: int
    token: int
    end_offset: int
    sums: tuple[Sum, ...]  # of the parts of the data section, in file order
    chunks: int
    records: int  # all records but padding, rounds and AUX pieces, replay excluded
    samples: int
    replayed: int  # sideband records of the replay at its head
    first_ns: int  # lowest and highest sample time, 0 if there was no sample
    last_ns: int
    rings: tuple[tuple[int, int, int], ...]  # (ring id, samples, bytes) stored in this segment
    final: bool = False  # closed by `Stream.finish`
    # (ring id, bytes, sums of the parts) of each extent or file; no sums where pages were spliced
    tracks: tuple[tuple[int, int, tuple[Sum, ...]], ...] = ()
    # (AUX ring id, payload bytes, bytes with headers and padding) of each in this segment; AUX
    # rings are not among `rings`
    aux: tuple[tuple[int, int, int], ...] = ()
    # file offset of each AUXTRACE record, ascending; hidden pieces are not among them
    aux_index: tuple[int, ...] = ()
    early: bool = False  # closed before all was read that names its samples


class SegmentWanted(NamedTuple):
    """The stream has no prepared next segment: call `Stream.prepare`."""

    stream: int


class SpaceWanted(NamedTuple):
    """The stream waits: call `Stream.space`.

    ENOSPC, EDQUOT: the disk is full, evict. It waits two seconds at most, less when chunks run
    short. EXFULL: the next segment is missing, because none is open, or the running one has no
    room left in a ring's extent, or no extent or file for the ring at all. It waits until one is
    prepared, which is an answer too, or until the answer is no; a yes without a segment makes it
    ask again. After ten seconds without an answer the chunk is given up, and what comes behind it
    is, without asking, until there is one. Other streams are written meanwhile.
    """

    stream: int
    errno: int


class WriteFailed(NamedTuple):
    """A chunk could not be written for another reason; its records are counted as lost."""

    stream: int
    token: int
    errno: int


class RingFault(NamedTuple):
    """A ring's contents failed validation, and it goes on behind them.

    Of faults that follow each other closely the last is told.
    """

    stream: int
    ring: int
    reason: int  # index into QUARANTINE_REASONS
    position: int  # free-running byte position where it goes on
    quarantined: bool  # after eight faults within ten seconds: it is not read any more


class RingHungUp(NamedTuple):
    """The ring's task is gone; the ring was drained once more and left its poll set."""

    stream: int
    ring: int


class RecordScan(NamedTuple):
    """What a walk over bytes of a perf.data data section found.

    A walk steps over the payload behind an AUXTRACE record: it belongs to that record.
    """

    end: int  # just behind the last whole record
    records: int
    samples: int
    lost_samples: int  # sum over PERF_RECORD_LOST_SAMPLES
    first_ns: int
    last_ns: int
    last: int  # offset of the last whole record
    fault: str  # one of QUARANTINE_REASONS: "ok" when only less than a header was left
    aux_pieces: int = 0  # AUX pieces of both framings, also counted in `records`
    aux_bytes: int = 0  # their payload, without its padding


class PageScan(NamedTuple):
    """What a walk over ftrace's sub-buffers found."""

    pages: int
    end: int  # just behind the last good page
    events: int
    lost: int  # sum over the pages that tell how many events were lost before them
    lost_unknown: int  # pages that tell only that some were
    first_ns: int  # of the first event, 0 if there was none
    last_ns: int  # where time stands at the end
    fault: str  # why the page at `end` is none, one of QUARANTINE_REASONS; "ok": it is not there


class BlktraceScan(NamedTuple):
    """What a walk over one CPU's records of blktrace found."""

    end: int  # just behind the last whole record
    last: int  # where that one begins
    sequence: int | None  # the last number, or the one that the walk came after
    events: int  # records with a number
    notes: int  # names of processes, times and messages, which have none
    numbered: int  # how far the numbers went from the first record on, that included
    missing: int  # of them, those whose record is not there
    first_ns: int
    last_ns: int
    fault: str  # one of QUARANTINE_REASONS: "ok" when only a record that is cut short was left


class RingCounters(NamedTuple):
    """Counters of one ring since it was added; all monotonic but the three marked.

    Of a page ring samples and records are events; those in pages that were spliced are in none of
    the counts, except where such pages had to be given up. `bytes` are those of events with their
    headers, of spliced pages all. used_bytes, high_watermark_bytes and fill_buckets stay 0.
    Of a relay ring whose records nobody knows samples and records are bytes.
    """

    samples: int  # walked PERF_RECORD_SAMPLE
    records: int  # walked records of any type
    last_sample_ns: int
    bytes: int
    stored: int  # samples in chunks that the writer has written
    in_flight: int  # (gauge) samples copied from the ring and not yet written or lost
    lost_disk_full: int  # samples in chunks given up for want of space or of a segment
    lost_dropped: int  # samples in chunks given up for another write error, and those that a ring
    # was left with (see `Core.remove_ring`)
    quarantined: int  # 0, or 1 when the ring is in quarantine
    quarantine_reason: int  # index into QUARANTINE_REASONS
    quarantined_bytes: int  # bytes that were passed over, for `faults`
    faults: int  # times that its contents failed validation
    wakeups_watermark: int
    wakeups_timer: int
    starved: int  # passes that left the ring alone because no chunk was free
    used_bytes: int  # (gauge) head - tail at the last pass's start
    high_watermark_bytes: int  # (gauge) highest used_bytes ever
    fill_buckets: tuple[int, ...]  # passes by fill ratio: <=0.1 .. <=0.9, <=0.95, <=1.0
    lost_records: int  # sum over PERF_RECORD_LOST
    lost_samples: int  # sum over PERF_RECORD_LOST_SAMPLES
    neutralised: int  # records of a type that readers do not know, made into padding
    relabelled: int  # samples that carried the id of somebody else's event
    throttles: int
    overwritten: int  # samples that a held ring paired with an AUX ring gave up for newer ones
    pages: int  # sub-buffers that were begun; one that came in pieces counts once
    torn_pages: int  # given up in the middle of a splice
    resets: int  # times that somebody emptied the ring while it was mapped
    spliced_bytes: int  # of pages that went from the ring to the file without being seen
    numbered: int  # events that the kernel numbered, of blktrace; read after `samples`
    missing: int  # of them, those whose record no read gave
    skipped_bytes: int  # of completed sub-buffers of a relay file that no read gave
    torn_bytes: int  # in it that were no record, or a record's beginning without its end
    windows: int  # of an overwritable ring: windows that were taken, and
    window_taken: int  # samples that were in one for the first time
    window_repeated: int  # samples that were in the window before too, and were left out
    window_repeated_bytes: int  # the same with all other records
    window_overwritten_bytes: int  # of records that no window has, up to the last one
    window_held_ns: int  # (gauge) how far back the ring reaches, about; as of the last full pass


class AuxCounters(NamedTuple):
    """Counters of one AUX ring since it was added; bytes are payload, without headers and padding.

    taken_bytes = stored_bytes + in_flight_bytes + lost_disk_full_bytes + lost_dropped_bytes, and
    in full trace `AuxMap.head` = the tail when the ring was added + taken_bytes + what is unread.
    Of a snapshot ring with the head rule "monotonic": head at the last window = taken_bytes +
    overwritten_bytes.
    """

    taken_bytes: int  # copied out of the ring, or left in it when it was removed (lost_dropped)
    stored_bytes: int  # in chunks that the writer has written
    in_flight_bytes: int  # (gauge) copied and not yet written or lost
    lost_disk_full_bytes: int
    lost_dropped_bytes: int
    quarantined: int  # 0, or 1 when the ring is in quarantine
    quarantine_reason: int  # index into QUARANTINE_REASONS
    quarantined_bytes: int  # passed over where the head went where it cannot be
    faults: int  # times that the head went where it cannot be
    wakeups_watermark: int
    wakeups_timer: int
    starved: int  # passes that left the ring alone because no chunk was free
    used_bytes: int  # (gauge) at the last pass's start; of a snapshot ring: in a window now
    high_watermark_bytes: int  # (gauge)
    fill_buckets: tuple[int, ...]  # passes by fill ratio, as in RingCounters
    pieces: int  # pieces made
    records: int  # PERF_RECORD_AUX seen in the data ring, and of these with the flag:
    truncated: int
    partial: int
    collisions: int
    unrecorded_bytes: int  # in gaps between AUX records: lost with a full data ring, or none was
    # made by the driver (arm_spe pads that way); nothing of it is missing here
    orphan_bytes: int  # whole_records: taken without a record that says where they end
    enables: int  # passes that ended in PERF_EVENT_IOC_ENABLE
    restarts: int  # of these, those with a DISABLE before it: the kernel had stopped the event
    disabled_ns: int  # from each truncated record to that; with a foreign clock from its pass
    windows: int  # snapshots taken
    window_bytes: int  # (gauge) length of the last window, what is repeated in it included
    window_taken_bytes: int  # (gauge) bytes of it that were new and within the limit
    repeated_bytes: int  # in windows, but taken with an earlier one
    overwritten_bytes: int  # gone before a window took them, or cut off by the limit; rule
    # "monotonic" only, else 0: nobody knows
    head_rule: int  # (gauge) index into AUX_HEAD_RULES: "learned" until the windows told


class SidebandCounters(NamedTuple):
    """What a stream knows of tasks and mappings, for the beginning of its next segment."""

    tasks: int = 0  # (gauge)
    maps: int = 0  # (gauge)
    bytes: int = 0  # (gauge) of memory
    dropped: int = 0  # records for which there was no memory
    files_dropped: int = 0  # records of files with code that a segment's list had no room for


class CoreCounters(NamedTuple):
    """Counters of the whole core."""

    chunks: int
    chunks_free: int
    chunks_free_min: int  # lowest ever
    written_bytes: int
    written_chunks: int
    write_errors: int
    write_ns: int
    passes: int
    wakeups: int  # times that a drain thread woke
    pass_ns: int
    pass_ns_max: int
    oldest_unwritten_ns: int  # age of the oldest chunk waiting for the writer, 0 if none
