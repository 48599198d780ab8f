# SPDX-License-Identifier: Apache-2.0
"""Values that the calls of the native core return: counters and events."""

from __future__ import annotations

from typing import NamedTuple


class Sum(NamedTuple):
    """XXH3-64 of a part of a file, which begins where the previous part ends.

    Parts have about 1 MiB each; small writes share one.
    """

    bytes: int
    xxh3: int


class SegmentClosed(NamedTuple):
    """A segment is complete. `end_offset` is where its data section ends (4096-aligned).

    For page and relay streams `end_offset` is 0 and `sums` is empty; `tracks` is used instead. For
    pages, records and samples are events, without those of spliced pages.
    """

    stream: int
    token: int
    end_offset: int
    sums: tuple[Sum, ...]  # parts of the data section, in file order
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
    early: bool = False  # closed before all sideband that names its samples was read


class SegmentWanted(NamedTuple):
    """A stream has no prepared next segment: call `Stream.prepare`."""

    stream: int


class SpaceWanted(NamedTuple):
    """A stream waits for space or for a segment: call `Stream.space`.

    ENOSPC, EDQUOT: the disk is full, so evict. The stream waits at most two seconds, less when
    chunks run short. EXFULL: the next segment is missing, because none is open, or the running one
    has no room left in a ring's extent, or has no extent or file for the ring. The stream waits
    until a segment is prepared, which counts as an answer, or until the answer is no; a yes
    without a segment makes it ask again. After ten seconds without an answer the chunk is given
    up, and so are the following ones, without asking, until an answer comes. Other streams are
    written meanwhile.
    """

    stream: int
    errno: int


class WriteFailed(NamedTuple):
    """A chunk could not be written for another reason; its records are counted as lost."""

    stream: int
    token: int
    errno: int


class RingFault(NamedTuple):
    """A ring's contents failed validation; reading continues behind them.

    If several faults follow each other closely, only the last one is reported.
    """

    stream: int
    ring: int
    reason: int  # index into QUARANTINE_REASONS
    position: int  # free-running byte position where reading continues
    quarantined: bool  # true after eight faults within ten seconds: it is no longer read


class RingHungUp(NamedTuple):
    """A ring's task is gone; the ring was drained once more and left its poll set."""

    stream: int
    ring: int


class RecordScan(NamedTuple):
    """Result of a walk over bytes of a perf.data data section.

    The payload behind an AUXTRACE record belongs to that record and is skipped.
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
    """Result of a walk over ftrace's sub-buffers."""

    pages: int
    end: int  # just behind the last good page
    events: int
    lost: int  # sum over pages that say how many events were lost before them
    lost_unknown: int  # pages that say only that some were lost
    first_ns: int  # time of the first event, 0 if there was none
    last_ns: int  # the ring's time at the end
    fault: str  # why the page at `end` is invalid, one of QUARANTINE_REASONS; "ok": no page there


class BlktraceScan(NamedTuple):
    """Result of a walk over one CPU's records of blktrace."""

    end: int  # just behind the last whole record
    last: int  # offset of that record
    sequence: int | None  # the last number, or `after` if there was none
    events: int  # records with a number
    notes: int  # records without: names of processes, times and messages
    numbered: int  # span of the numbers, first and last record included
    missing: int  # numbers in that span without a record
    first_ns: int
    last_ns: int
    fault: str  # one of QUARANTINE_REASONS: "ok" when only a truncated record was left


class RingCounters(NamedTuple):
    """Counters of one ring since it was added; all but the gauges only grow.

    For a page ring, samples and records are events, and `bytes` are those of events with their
    headers. Spliced pages count only in `bytes`, as a whole, unless they had to be given up.
    used_bytes, high_watermark_bytes and fill_buckets stay 0. For a relay ring with records of an
    unknown format, samples and records are bytes.
    """

    samples: int  # PERF_RECORD_SAMPLE walked
    records: int  # records of any type walked
    last_sample_ns: int
    bytes: int
    stored: int  # samples in chunks that the writer has written
    in_flight: int  # (gauge) samples copied from the ring and not yet written or lost
    lost_disk_full: int  # samples in chunks given up because space or a segment was missing
    lost_dropped: int  # samples in chunks given up for another write error, and those left in a
    # removed ring (see `Core.remove_ring`)
    quarantined: int  # 0, or 1 when the ring is in quarantine
    quarantine_reason: int  # index into QUARANTINE_REASONS
    quarantined_bytes: int  # bytes skipped because of `faults`
    faults: int  # times that the contents failed validation
    wakeups_watermark: int
    wakeups_timer: int
    starved: int  # passes that left the ring alone because no chunk was free
    used_bytes: int  # (gauge) head - tail at the last pass's start
    high_watermark_bytes: int  # (gauge) highest used_bytes ever
    fill_buckets: tuple[int, ...]  # passes by fill ratio: <=0.1 .. <=0.9, <=0.95, <=1.0
    lost_records: int  # sum over PERF_RECORD_LOST
    lost_samples: int  # sum over PERF_RECORD_LOST_SAMPLES
    neutralised: int  # records of a type unknown to readers, turned into padding
    relabelled: int  # samples that carried the id of a foreign event
    throttles: int
    overwritten: int  # samples that a held ring with an AUX ring dropped for newer ones
    pages: int  # sub-buffers begun; one read in pieces counts once
    torn_pages: int  # pages given up in the middle of a splice
    resets: int  # times that another process emptied the ring while it was mapped
    spliced_bytes: int  # bytes of pages spliced from the ring to the file, unseen
    numbered: int  # blktrace events that the kernel numbered; read after `samples`
    missing: int  # numbered events whose record no read returned
    skipped_bytes: int  # bytes of completed relay sub-buffers that no read returned
    torn_bytes: int  # bytes that were no record, or the start of a record without its end
    windows: int  # windows taken of an overwritable ring
    window_taken: int  # samples that were in a window for the first time
    window_repeated: int  # samples left out because the previous window had them
    window_repeated_bytes: int  # bytes of all records left out for that reason
    window_overwritten_bytes: int  # bytes of records before the last window that no window has
    window_held_ns: int  # (gauge) approximate time span in the ring, at the last full pass


class AuxCounters(NamedTuple):
    """Counters of one AUX ring since it was added; bytes are payload, without headers and padding.

    taken_bytes = stored_bytes + in_flight_bytes + lost_disk_full_bytes + lost_dropped_bytes. In
    full trace, `AuxMap.head` = the tail when the ring was added + taken_bytes + unread bytes. For
    a snapshot ring with the head rule "monotonic", head at the last window = taken_bytes +
    overwritten_bytes.
    """

    taken_bytes: int  # copied out of the ring, or left in it when it was removed (lost_dropped)
    stored_bytes: int  # in chunks that the writer has written
    in_flight_bytes: int  # (gauge) copied and not yet written or lost
    lost_disk_full_bytes: int
    lost_dropped_bytes: int
    quarantined: int  # 0, or 1 when the ring is in quarantine
    quarantine_reason: int  # index into QUARANTINE_REASONS
    quarantined_bytes: int  # bytes skipped because of an impossible head
    faults: int  # times that the head was impossible
    wakeups_watermark: int
    wakeups_timer: int
    starved: int  # passes that left the ring alone because no chunk was free
    used_bytes: int  # (gauge) at the last pass's start; snapshot ring: size of a window now
    high_watermark_bytes: int  # (gauge)
    fill_buckets: tuple[int, ...]  # passes by fill ratio, as in RingCounters
    pieces: int  # pieces made
    records: int  # PERF_RECORD_AUX seen in the data ring; the next three by their flag
    truncated: int
    partial: int
    collisions: int
    unrecorded_bytes: int  # bytes between AUX records: their record was lost in a full data
    # ring or never made by the driver (arm_spe pads that way); the bytes themselves were taken
    orphan_bytes: int  # with whole_records: taken without a record that gives their end
    enables: int  # passes that ended in PERF_EVENT_IOC_ENABLE
    restarts: int  # enables preceded by a DISABLE: the kernel had stopped the event
    disabled_ns: int  # from each truncated record (foreign clock: its pass) to the enable
    windows: int  # snapshots taken
    window_bytes: int  # (gauge) length of the last window, including repeated bytes
    window_taken_bytes: int  # (gauge) new bytes of it within the limit
    repeated_bytes: int  # bytes in windows that an earlier window had taken
    overwritten_bytes: int  # gone before a window took them, or cut off by the limit; known with
    # rule "monotonic" only, else 0
    head_rule: int  # (gauge) index into AUX_HEAD_RULES: "learned" until a window decides


class SidebandCounters(NamedTuple):
    """Size of a stream's table of tasks and mappings, which starts its next segment."""

    tasks: int = 0  # (gauge)
    maps: int = 0  # (gauge)
    bytes: int = 0  # (gauge) memory in use
    dropped: int = 0  # records dropped for lack of memory
    files_dropped: int = 0  # records of mapped code files that a segment's list had no room for


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
