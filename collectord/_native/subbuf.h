/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "walk.h"

/*
 * A sub-buffer of ftrace's ring, as trace_pipe_raw gives it or as it is mapped:
 *
 *   0   u64 timestamp
 *   8   u64 commit: bytes of data in bits 0-26, bit 31: events were lost before this page,
 *       bit 30: their number, a u64, stands right behind the data
 *   16  data: events, each of u32 {type_len: 5, time_delta: 27} and what type_len says
 *
 * as kernel/trace/ring_buffer.c of a 64-bit little-endian kernel has it. With bit 31 a mapped
 * commit word comes sign-extended: only its low half is looked at.
 */
#define SUBBUF_HEADER_BYTES 16u
#define SUBBUF_BYTES_MIN 4096u
#define SUBBUF_BYTES_MAX (1u << 20)
#define SUBBUF_LENGTH_MASK ((1u << 27) - 1)
#define SUBBUF_LOST (1u << 31)
#define SUBBUF_LOST_STORED (1u << 30)
/* The kernel makes no event shorter than this; a sub-buffer with less room left is complete. */
#define SUBBUF_EVENT_BYTES_MIN 8u

/* What a page's header says. */
struct subbuf_head {
	uint64_t timestamp_ns;
	uint64_t lost;	 /* events lost before the page, 0 where it does not say how many */
	uint32_t end;	 /* of the data, from the page's start */
	bool lost_any;
	bool lost_known;
};

/* Where a walk stands. */
struct subbuf_walk {
	uint32_t at;	     /* behind the last whole event, from the page's start */
	bool rest_unused;    /* what is left up to the end holds nothing, and never will */
	uint64_t now_ns;     /* time of all that stands before */
	uint64_t skipped_ns; /* of it, what the kernel leaves out when it reads: see subbuf__run() */
};

/* What walks have seen. The caller zeroes it; walks add to it. */
struct subbuf_tally {
	uint64_t pages;
	uint64_t events;
	uint64_t lost;	       /* sum over the pages that tell */
	uint64_t lost_unknown; /* pages that tell only that there was a loss */
	uint64_t first_ns;     /* of the first event; 0: there was none */
	uint64_t last_ns;      /* where time stood at the end of the last page */
};

/* FAULT_NONE, SUBBUF_SHORT_HEADER or _DATA_BEYOND_PAGE; `head` is whole unless the header is short. */
enum fault subbuf__open(const uint8_t *page, size_t bytes, struct subbuf_head *head);

static inline struct subbuf_walk subbuf__start(const struct subbuf_head *head)
{
	return (struct subbuf_walk){.at = SUBBUF_HEADER_BYTES, .now_ns = head->timestamp_ns};
}

/*
 * Walk the events from `walk` up to `end`, which is within the page. After a fault `walk` stands
 * behind the last sound event.
 *
 * A discarded event advances time for those that come after it, and for every reader of a file.
 * The kernel's own reader passes over it: the page that it makes of the remainder of a sub-buffer
 * begins that much too early, at now_ns - skipped_ns.
 */
enum fault subbuf__run(const uint8_t *page, uint32_t end, struct subbuf_walk *walk,
		       struct subbuf_tally *tally);

/* Walk one whole page of `bytes` bytes. A faulty page counts with the events before the fault. */
enum fault subbuf__page(const uint8_t *page, size_t bytes, struct subbuf_walk *walk,
			struct subbuf_tally *tally);

/*
 * Walk pages of `page_bytes` from the start of `bytes` bytes, up to the last whole page, one of
 * zeros (nothing was ever written there), or one with a fault. Returns the offset of its end.
 */
size_t subbuf__pages(const uint8_t *data, size_t bytes, uint32_t page_bytes,
		     struct subbuf_tally *tally, enum fault *fault);

/*
 * Put the data of `piece` behind those of `page`, both sound and `page_bytes` long; a stored
 * number of lost events stays behind the data. False, with nothing changed: no room, or `piece`
 * tells of a loss.
 */
bool subbuf__append(uint8_t *page, const uint8_t *piece, uint32_t page_bytes);

/* Its data end at `end`, behind what `head` says was lost before it. */
void subbuf__end(uint8_t *page, uint32_t end, const struct subbuf_head *head, uint32_t page_bytes);

/* Cut a page behind its sound events: `end` is where they end. */
void subbuf__cut(uint8_t *page, uint32_t end, uint32_t page_bytes);

static inline uint64_t subbuf__timestamp(const uint8_t *page)
{
	return walk__load(page);
}

static inline uint32_t subbuf__commit(const uint8_t *page)
{
	return load32(page + 8);
}
