/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "walk.h"

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
	uint64_t lost;	 /* events lost before the page, 0 if the number is not given */
	uint32_t end;	 /* end of the data, from the page's start */
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

/* What walks found. The caller zeroes it; walks add to it. */
struct subbuf_tally {
	uint64_t pages;
	uint64_t events;
	uint64_t lost;	       /* sum over pages that give a number */
	uint64_t lost_unknown; /* pages that report a loss without a number */
	uint64_t first_ns;     /* time of the first event; 0: none */
	uint64_t last_ns;      /* the ring's time at the end of the last page */
};

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

/*
 * Walk pages of `page_bytes` in `bytes` bytes, up to the last whole page, one of zeros (never
 * written), or one with a fault. Returns the offset where it ended.
 */
size_t subbuf__pages(const uint8_t *data, size_t bytes, uint32_t page_bytes,
		     struct subbuf_tally *tally, enum fault *fault);

/*
 * Append the data of `piece` to those of `page`, both sound and `page_bytes` long; a stored number
 * of lost events stays behind the data. False, without a change: no room, or `piece` reports a
 * loss.
 */
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
