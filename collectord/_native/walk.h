/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "headers of records and events are taken apart as little-endian words"
#endif

/* Reasons why the contents of a ring or file are invalid, and their names. */
#define FAULT_LIST(FAULT)                                                                        \
	FAULT(FAULT_NONE, "ok")                                                                  \
	/* Faults of perf records. */                                                            \
	FAULT(WALK_BAD_SIZE, "bad_size")   /* below 8, or not a multiple of 8 */                 \
	FAULT(WALK_BAD_TYPE, "bad_type")   /* 0, or not a kernel type */                         \
	FAULT(WALK_PAST_HEAD, "past_head") /* the record would end behind the head */            \
	FAULT(WALK_BAD_HEAD, "bad_head")   /* too many unread bytes, or no multiple of 8 */      \
	/* Faults of ftrace's sub-buffers. */                                                    \
	FAULT(SUBBUF_SHORT_HEADER, "short_header") /* fewer bytes than the page's header */      \
	FAULT(SUBBUF_DATA_BEYOND_PAGE, "data_beyond_page") /* more than the page has room for */ \
	FAULT(SUBBUF_SHORT_EVENT, "short_event") /* the data end within an event's header */     \
	FAULT(SUBBUF_BAD_LENGTH, "bad_length")	 /* the length does not include itself */        \
	FAULT(SUBBUF_EVENT_BEYOND_DATA, "event_beyond_data") /* an event ends behind the data */ \
	/* Faults of blktrace records. */                                                        \
	FAULT(BLK_NO_MAGIC, "no_blktrace_magic")	 /* no record begins here */             \
	FAULT(BLK_STALE, "stale_blktrace_record")	 /* an old record */                     \
	FAULT(BLK_OLD_MAGIC, "foreign_blktrace_version") /* another version or byte order */

#define FAULT_VALUE(value, name) value,
enum fault { FAULT_LIST(FAULT_VALUE) FAULTS };

#define FAULT_NAME(value, name) [value] = (name),
static const char *const fault_names[FAULTS] = {FAULT_LIST(FAULT_NAME)};

#define WALK_HEADER_BYTES 8u
#define RECORD_MAX_BYTES 65536u
/* The last kernel record type known to perf 6.1, the oldest reader, which stops at any later one
 * below the user range; a record of a later type is turned into padding. */
#define WALK_KERNEL_TYPE_MAX 21u /* PERF_RECORD_AUX_OUTPUT_HW_ID */
#define WALK_USER_TYPE_MIN 64u	 /* PERF_RECORD_USER_TYPE_START, tools/lib/perf */
#define WALK_FINISHED_ROUND 68u	 /* likewise: orders the records before it */
#define WALK_AUXTRACE 71u	 /* likewise: its payload follows, see struct aux_piece */
#define WALK_COMPRESSED 81u	 /* likewise: here, what cannot be decompressed */
#define WALK_COMPRESSED2 83u	 /* likewise, by perf since Linux 6.16 */
#define WALK_FINISHED_INIT 82u	 /* likewise: readers ignore it, whatever its size */

#define WALK_ID_AT 8u /* PERF_SAMPLE_IDENTIFIER comes first in a sample */

/* The id of an event in the kernel, and in files. A file names its ids at its beginning, and the
 * kernel never uses one again: an event that is opened anew keeps the id that files know. */
struct walk_id {
	uint64_t own, filed;
};

/*
 * The ids of a ring's events, ascending by those of the kernel. The kernel makes one sample of a
 * software event and passes it to everybody who counts that event on the CPU, with the id of the
 * first of them (kernel/events/core.c, do_perf_sw_event(), since 6.2). A reader rejects a whole
 * file for one unknown id, so a foreign id is replaced by one of the ring.
 */
struct walk_ids {
	const struct walk_id *all;
	uint32_t count;
	bool renamed; /* files know one of them by another id */
};

/* The place of time and CPU in the records of a ring, in bytes; 0: absent. */
struct walk_layout {
	uint16_t time_offset;	    /* in a sample, from its start */
	uint16_t time_trailer;	    /* in any other record, from its end back */
	uint16_t cpu_trailer;	    /* likewise, for CPU */
	const struct walk_ids *ids; /* NULL: samples carry no id, or any id is accepted. Else
				     * any other record that has a time ends in an id. */
};

/* The result of walks. The caller zeroes it; walks add to it. */
struct walk_tally {
	uint64_t records;
	uint64_t samples;
	uint64_t lost_records; /* sum over PERF_RECORD_LOST */
	uint64_t lost_samples; /* sum over PERF_RECORD_LOST_SAMPLES */
	uint64_t neutralised;
	uint64_t relabelled; /* samples with a foreign id */
	uint64_t throttles;
	uint64_t first_ns; /* time of samples; 0: none seen */
	uint64_t last_ns;
	uint64_t aux_pieces; /* in a file; also counted in `records` */
	uint64_t aux_bytes;  /* their payload */
};

/*
 * Walk the whole records at the start of `bytes` bytes copied from a ring, add them to `tally` and
 * return their length. The walk ends before a record that is cut by the end of the copy (fault
 * FAULT_NONE) or that no kernel writes (its fault); it never reads beyond `bytes`. Records unknown
 * to readers become WALK_FINISHED_INIT in place, and ids become those of files: a record is walked
 * once.
 */
size_t walk__run(uint8_t *copy, size_t bytes, const struct walk_layout *layout,
		 struct walk_tally *tally, enum fault *fault);

/* Walk like walk__run(), over bytes of a file: user types may occur, nothing is changed, and the
 * data after an AUXTRACE record belong to it. `last` is the offset of the last whole record. */
size_t walk__file(const uint8_t *data, size_t bytes, const struct walk_layout *layout,
		  struct walk_tally *tally, enum fault *fault, size_t *last);
/* Returns the time of the non-sample record at `record`, 0 if it carries none. */
uint64_t walk__trailer_time(const uint8_t *record, const struct walk_layout *layout);
/* Returns the time of any record, 0 if it carries none. */
uint64_t walk__time(const uint8_t *record, const struct walk_layout *layout);
/* Read the CPU of a record that is no sample. False: it carries none. */
bool walk__trailer_cpu(const uint8_t *record, const struct walk_layout *layout, uint32_t *cpu);

static inline uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Extend the span of events `*first_ns` to `*last_ns` (0: empty) by another span. */
static inline void note_times(uint64_t *first_ns, uint64_t *last_ns, uint64_t more_first_ns,
			      uint64_t more_last_ns)
{
	if (more_first_ns == 0)
		return;
	if (*first_ns == 0 || more_first_ns < *first_ns)
		*first_ns = more_first_ns;
	if (more_last_ns > *last_ns)
		*last_ns = more_last_ns;
}

/* Define the load and the store of an unaligned word. */
#define UNALIGNED(type, load, store)                         \
	static inline type load(const uint8_t *at)           \
	{                                                    \
		type value;                                  \
                                                             \
		__builtin_memcpy(&value, at, sizeof(value)); \
		return value;                                \
	}                                                    \
	static inline void store(uint8_t *at, type value)    \
	{                                                    \
		__builtin_memcpy(at, &value, sizeof(value)); \
	}

UNALIGNED(uint16_t, load16, store16)
UNALIGNED(uint32_t, load32, store32)
UNALIGNED(uint64_t, walk__load, walk__store)

static inline uint32_t walk__type(uint64_t header)
{
	return (uint32_t)header;
}

static inline uint16_t walk__misc(uint64_t header)
{
	return (uint16_t)(header >> 32);
}

static inline uint16_t walk__size(uint64_t header)
{
	return (uint16_t)(header >> 48);
}

static inline uint64_t walk__header(uint32_t type, uint16_t misc, uint16_t size)
{
	return (uint64_t)type | (uint64_t)misc << 32 | (uint64_t)size << 48;
}

/* Returns why no kernel's record can have this header, or FAULT_NONE. */
static inline enum fault walk__check(uint64_t header)
{
	const uint16_t size = walk__size(header);

	if (size < WALK_HEADER_BYTES || (size & 7u) != 0)
		return WALK_BAD_SIZE;
	return walk__type(header) == 0 || walk__type(header) >= WALK_USER_TYPE_MIN ? WALK_BAD_TYPE
										   : FAULT_NONE;
}

/*
 * A piece of AUX payload in a segment, in one of two framings:
 *
 *   auxtrace  header{71, 48}          body  payload pad      the payload is not in header.size
 *   hidden    header{82, all} magic   body  payload pad      all of it is
 *
 *   body: u64 size, offset, reference; u32 idx, tid, cpu, pad
 *
 * `size` is that of payload and pad, a multiple of 8. `pad`, 0 to 7, is where perf has a reserved
 * word that it does not look at. Body and type 71: tools/lib/perf/include/perf/event.h, struct
 * perf_record_auxtrace. Readers give up a whole file for a type 71 of a PMU that they have no
 * decoder for; type 82 they pass over.
 */
enum aux_framing { AUX_AUXTRACE, AUX_HIDDEN };

#define AUX_HIDDEN_MAGIC UINT64_C(0x3158554144544f43)
#define AUX_BODY_BYTES 40u
#define AUX_AUXTRACE_BYTES (WALK_HEADER_BYTES + AUX_BODY_BYTES)
#define AUX_HIDDEN_BYTES (AUX_AUXTRACE_BYTES + 8u)
/* The largest record that is a multiple of 8. */
#define AUX_HIDDEN_PAYLOAD_MAX (65528u - AUX_HIDDEN_BYTES)

/* The origin of a piece. `tid` or `cpu` may be UINT32_MAX: it belongs to no single thread or
 * CPU. */
struct aux_origin {
	uint32_t idx, tid, cpu;
};

struct aux_piece {
	uint64_t bytes; /* payload bytes, without the pad */
	uint64_t offset, reference;
	struct aux_origin origin;
};

/* Returns the number of bytes in front of the payload. */
static inline uint32_t aux_piece__head_bytes(enum aux_framing framing)
{
	return framing == AUX_HIDDEN ? AUX_HIDDEN_BYTES : AUX_AUXTRACE_BYTES;
}

/* Write head and pad around the payload, which is already at `to` + aux_piece__head_bytes().
 * Returns the total length. */
uint32_t aux_piece__write(uint8_t *to, enum aux_framing framing, const struct aux_piece *piece);

/* Whether the record at `record`, of which `bytes` are available, is a piece. Its payload may
 * extend beyond `bytes`. `whole`: bytes from this record to the next. False for any other record,
 * and for one that has the type of a piece but is malformed. */
bool aux_piece__read(const uint8_t *record, size_t bytes, struct aux_piece *piece, uint64_t *whole);

/*
 * A sub-buffer of ftrace's ring, as read from trace_pipe_raw or mapped:
 *
 *   0   u64 timestamp
 *   8   u64 commit: bytes of data in bits 0-26, bit 31: events were lost before this page,
 *       bit 30: their number, a u64, stands right behind the data
 *   16  data: events, each of u32 {type_len: 5, time_delta: 27} and what type_len says
 *
 * This is the layout of kernel/trace/ring_buffer.c in a 64-bit little-endian kernel. With bit 31 a
 * mapped commit word is sign-extended: only its low half is used.
 */
#define SUBBUF_HEADER_BYTES 16u
#define SUBBUF_BYTES_MIN 4096u
#define SUBBUF_BYTES_MAX (1u << 20)
#define SUBBUF_LENGTH_MASK ((1u << 27) - 1)
#define SUBBUF_LOST (1u << 31)
#define SUBBUF_LOST_STORED (1u << 30)
/* The kernel's smallest event; a sub-buffer with less room left is complete. */
#define SUBBUF_EVENT_BYTES_MIN 8u

/* The contents of a page's header. */
struct subbuf_head {
	uint64_t timestamp_ns;
	uint64_t lost; /* events lost before the page, 0 if the number is not given */
	uint32_t end;  /* end of the data, from the page's start */
	bool lost_any;
	bool lost_known;
};

/* The position of a walk. */
struct subbuf_walk {
	uint32_t at;	     /* end of the last whole event, from the page's start */
	bool rest_unused;    /* the rest up to the end is empty, and stays so */
	uint64_t now_ns;     /* time after all earlier events */
	uint64_t skipped_ns; /* part of it that the kernel's reader leaves out: see subbuf__run() */
};

/* Walks add what they found. The caller zeroes it. */
struct subbuf_tally {
	uint64_t pages;
	uint64_t events;
	uint64_t lost;	       /* sum over pages that give a number */
	uint64_t lost_unknown; /* pages that report a loss without a number */
	uint64_t first_ns;     /* time of the first event; 0: none */
	uint64_t last_ns;      /* the ring's time at the end of the last page */
};

/* Events in a sub-buffer: a word of a type and a delta of time, and what the type says. Types up to
 * DATA_MAX are words of payload; 0: the length precedes the payload. */
#define SUBBUF_TYPE_BITS 5u
#define SUBBUF_TYPE_MASK ((1u << SUBBUF_TYPE_BITS) - 1)
#define SUBBUF_TYPE_DATA_MAX 28u
#define SUBBUF_TYPE_PADDING 29u
#define SUBBUF_TYPE_TIME_EXTEND 30u
#define SUBBUF_TYPE_TIME_STAMP 31u
#define SUBBUF_DELTA_BITS 27u
#define SUBBUF_STAMP_BITS 59u
#define SUBBUF_WORD_BYTES 4u

/* Returns an absolute time stamp. It has 59 bits; the others are those of the stamp before, unless
 * it wrapped: it is then more than half its range earlier. A slightly earlier one is an interrupted
 * event. */
static inline uint64_t subbuf__full_stamp(uint64_t bits, uint64_t before_ns)
{
	const uint64_t low = bits & ((UINT64_C(1) << SUBBUF_STAMP_BITS) - 1);
	const uint64_t full = before_ns >> SUBBUF_STAMP_BITS << SUBBUF_STAMP_BITS | low;

	if (before_ns > full && before_ns - full > UINT64_C(1) << (SUBBUF_STAMP_BITS - 1))
		return full + (UINT64_C(1) << SUBBUF_STAMP_BITS);
	return full;
}

/* FAULT_NONE, SUBBUF_SHORT_HEADER or _DATA_BEYOND_PAGE; `head` is whole unless the header is short. */
enum fault subbuf__open(const uint8_t *page, size_t bytes, struct subbuf_head *head);

static inline struct subbuf_walk subbuf__start(const struct subbuf_head *head)
{
	return (struct subbuf_walk){.at = SUBBUF_HEADER_BYTES, .now_ns = head->timestamp_ns};
}

/*
 * Walk the events from `walk` to `end`, which is within the page. After a fault `walk` is behind
 * the last sound event.
 *
 * A discarded event advances time for later events, and for every reader of a file. The kernel's
 * own reader skips it: the page that it makes of the rest of a sub-buffer begins that much too
 * early, at now_ns - skipped_ns.
 */
enum fault subbuf__run(const uint8_t *page, uint32_t end, struct subbuf_walk *walk,
		       struct subbuf_tally *tally);
/* Walk one whole page of `bytes` bytes. In a faulty page, the events before the fault count. */
enum fault subbuf__page(const uint8_t *page, size_t bytes, struct subbuf_walk *walk,
			struct subbuf_tally *tally);

/* Walk pages of `page_bytes` in `bytes` bytes, up to the last whole page, one of zeros (never
 * written), or one with a fault. Returns the offset where it ended. */
size_t subbuf__pages(const uint8_t *data, size_t bytes, uint32_t page_bytes,
		     struct subbuf_tally *tally, enum fault *fault);

/* Append the data of `piece` to those of `page`, both sound and `page_bytes` long; a stored number
 * of lost events stays behind the data. False, without a change: no room, or `piece` reports a
 * loss. */
bool subbuf__append(uint8_t *page, const uint8_t *piece, uint32_t page_bytes);
/* Set the end of its data to `end`, with the loss before it that `head` has. */
void subbuf__end(uint8_t *page, uint32_t end, const struct subbuf_head *head, uint32_t page_bytes);
/* Cut a page after its sound events, which end at `end`. */
void subbuf__cut(uint8_t *page, uint32_t end, uint32_t page_bytes);

static inline uint64_t subbuf__timestamp(const uint8_t *page)
{
	return walk__load(page);
}

static inline uint32_t subbuf__commit(const uint8_t *page)
{
	return load32(page + 8);
}

/*
 * A record of blktrace (include/uapi/linux/blktrace_api.h, struct blk_io_trace), in the byte order
 * of the machine that wrote it:
 *
 *    0  u32 magic 0x65617400 | version 7      28  u32 action: low half what, high half classes
 *    4  u32 sequence                          32  u32 pid
 *    8  u64 time, CLOCK_MONOTONIC in ns       36  u32 device
 *   16  u64 sector                            40  u32 cpu
 *   24  u32 bytes                             44  u16 error
 *                                             46  u16 pdu_len: that many bytes follow
 *
 * Records have no alignment. Facts of kernel/trace/blktrace.c, and what follows: each CPU numbers
 * its records from 1 on, but only those for which there was room, so that a gap is a record that
 * was written and is not here; what there was no room for is in the file `dropped`. Notes (class
 * NOTIFY: names of processes, times, messages) have no number, whatever stands in its place. A
 * record's room is taken before it is filled: who reads then gets what was there before, zeros or
 * an old record.
 */
#define BLK_HEADER_BYTES 48u
#define BLK_MAGIC 0x65617407u
#define BLK_CLASS_NOTIFY (1u << (10 + 16))
#define BLK_RECORD_BYTES_MAX (BLK_HEADER_BYTES + 65535u)

/* Walks over one CPU's records add what they found. The caller zeroes it. */
struct blk_tally {
	uint64_t events; /* records with a number */
	uint64_t notes;
	uint64_t numbered; /* span of the numbers, including the first record */
	uint64_t missing;  /* numbers in that span without a record */
	uint64_t first_ns; /* time of the first event; 0: none */
	uint64_t last_ns;
};

/* The last number seen; `begun` is false before the first record, unless it must be number 1. */
struct blk_state {
	uint32_t sequence;
	bool begun;
	uint32_t last_bytes; /* size of the last record, 0 before the first */
};

/* Walk the whole records from `data` on. Returns where the walk ended: behind the last whole
 * record, at a truncated one, or, with a fault, at bytes that are no record. If `longest` > 0, a
 * record that claims more bytes than that is a fault too. */
size_t blk__run(const uint8_t *data, size_t bytes, uint32_t longest, struct blk_state *state,
		struct blk_tally *tally, enum fault *fault);
