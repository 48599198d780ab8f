/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ring.h"
#include "stream.h"
#include "subbuf.h"

/*
 * struct trace_buffer_meta of include/uapi/linux/trace_mmap.h (since 6.10), which older headers
 * do not have. Its counters are those of the last TRACE_MMAP_IOCTL_GET_READER, and they count
 * from the last reset of the ring.
 */
struct page_meta {
	uint32_t meta_page_bytes;
	uint32_t meta_struct_bytes;
	uint32_t subbuf_bytes;
	uint32_t subbufs; /* the reader's among them */
	struct {
		uint64_t lost_events; /* always 0: it is told in the page */
		uint32_t id;
		uint32_t read; /* bytes of data that are the reader's, from the page's start */
	} reader;
	uint64_t flags;
	uint64_t entries; /* events written */
	uint64_t overrun;
	uint64_t read; /* events handed out since the ring's last reset */
};

/*
 * A mapped ring of one CPU:
 *
 *   +-----------------+----------+----------+-----
 *   | page_meta       | id 0     | id 1     | ...
 *   | meta_page_bytes | subbuf_bytes each
 *   +-----------------+----------+----------+-----
 */
struct page_map {
	const struct page_meta *meta;
	const uint8_t *pages;
	uint32_t subbuf_bytes, subbufs;
	size_t map_bytes;
	/* Take what is unread of the reader's page or, when all of it was read, the next page. -errno.
	 * Tests move the reader themselves. */
	int (*get_reader)(int fd);
};

/* Map all of a trace_pipe_raw. -ENODEV: no ring of this kernel can be mapped; -EBUSY: a snapshot
 * is; -EPROTO: the meta page is laid out in another way. */
int page_map__init(struct page_map *map, int fd);
void page_map__deinit(struct page_map *map);

/* What was handed out last of a map: of page `id`, `read` bytes behind its header. */
struct page_cursor {
	const struct page_map *map; /* NULL: the ring is not mapped */
	uint32_t id, read;
	bool refused; /* the rest of that page is passed over */
	uint64_t page_ns;
	uint64_t read_events;
};

/* A page as it was fetched. */
struct page_fetched {
	size_t bytes; /* 0: there is nothing to read */
	bool goes_on; /* it is more of the sub-buffer that was taken last: its time is that one's end */
	bool spliced;
	bool reset; /* the ring was emptied since the last fetch */
	enum fault fault;
};

/* Where the reader stands now; returns the page of which part was read already, NULL for none. */
const uint8_t *page_cursor__begin(struct page_cursor *cursor);

/* Copy what was handed out since to `page`. */
struct page_fetched page_cursor__fetch(struct page_cursor *cursor, int fd, uint8_t *page);

/* The map counts what was read: `events` more than before, or less if it began anew. True: it did. */
bool page_cursor__follow(struct page_cursor *cursor, bool reset, uint64_t events);

/*
 * One ring's extent of the running segment: whole sub-buffers, one behind the other.
 *
 *   offset                                     offset + bytes          offset + capacity
 *   +---------+---------+-----   ----+---------+ . . . . . . . . . . . +
 *   | final   | final   |            | tail    |   claimed, zeros
 *   +---------+---------+-----   ----+---------+ . . . . . . . . . . . +
 *
 * The tail is the last page while it may go on: a flush takes what the kernel has of the
 * sub-buffer that it still writes, and the remainder comes later as a page of its own. That is
 * put behind the tail's data, and the tail is written anew in its place. Behind `bytes` more may be
 * in flight, none of which goes into the tail. All is the writer thread's, but `bytes` may be read
 * by any.
 */
struct page_track {
	uint64_t offset, capacity, allocated; /* capacity 0: the segment has no extent for it */
	counter_t bytes;
	uint32_t page_bytes;
	bool tail_open;
	bool unseen;	  /* pages went by that were never in our memory: there are no checksums */
	uint64_t tail_ns; /* where time stands at the tail's end */
	uint64_t sent;	  /* bytes in flight */
	uint64_t sent_ns; /* where time stands at their end, 0: nothing can be put there */
	uint8_t *tail;
	struct sums sums; /* of the final pages */
};

enum page_transport {
	PAGE_READ,   /* read(2) straight into a chunk */
	PAGE_MMAP,   /* copied from the mapped ring */
	PAGE_SPLICE, /* whole sub-buffers by a pipe into the file, the rest by read(2) */
};

struct page_ring_options {
	enum page_transport transport;
	int fd; /* non-blocking */
	uint32_t page_bytes;
	uint32_t subbufs;     /* of the ring, the reader's not among them */
	struct page_map *map; /* PAGE_MMAP */
	bool held;
};

/*
 * One CPU's trace_pipe_raw.
 *
 *            read, mmap ──► chunk ──┐
 *   kernel ──┤                      ├─► lane's queue ──► writer ──► track
 *            splice ──► pipe ──► ticket
 *
 * Facts about these rings, and what follows. A read of the sub-buffer that the kernel still
 * writes gives what is in it so far, and then less at each following read: a pass ends there,
 * it does not chase the writer. poll(2) reports a ring above its watermark again and again,
 * and arms the wake-up only when it finds the ring below: so the ring is polled once at a time
 * (EPOLLONESHOT) and armed anew when it was drained.
 *
 * Threads: the shard's, but `track` and what the pipe holds are the writer's.
 */
struct page_ring {
	struct ring ring;
	struct page_ring_options options;
	uint32_t pass_pages, pass_pieces;
	bool pass_spliced;

	/* Of the sub-buffer that was taken last, if more of it may come: */
	uint32_t taken;	    /* bytes of its data; 0: no more comes */
	uint64_t last_ns;   /* where time stands */
	uint64_t behind_ns; /* how much less the kernel's reader thinks it is */

	struct page_cursor cursor; /* PAGE_MMAP */

	/* PAGE_SPLICE: the kernel loses what does not fit into a pipe that is not empty, so that
	 * one load at a time is in it. */
	int pipe[2];
	uint64_t pipe_bytes; /* the shard's until the ticket is queued, then the writer's */
	struct item ticket;
	_Atomic bool ticket_queued;

	struct page_track track;
	counter_t pages;	      /* sub-buffers begun */
	counter_t resets;	      /* of a mapped ring, by others */
	/* The writer's: */
	counter_t spliced_bytes; /* that went from the pipe into a file */
	counter_t torn;		 /* pages that went there in part, and were given up */
};

/*
 * Passes take what the kernel still writes too when they sweep. Its ticket hands the pipe's contents
 * to the writer. The fd and the map stay the caller's.
 */
int page_ring__new(const struct page_ring_options *options, struct ring **ring);

RING_KIND(page_ring, ring)

/*
 * A stream whose segments hold sub-buffers: each ring has an extent of its own in the file. There are
 * no rounds, no padding and no sideband in it. `offset` of its segments is the sum of the bytes in all
 * extents.
 */
extern const struct stream_ops page_stream__ops;

/* Bytes of each of a stream's rings in its running segment. */
struct page_progress {
	uint64_t token;
	uint32_t count;
	struct page_progress_ring {
		uint64_t bytes;
		uint32_t id;
	} *rings; /* the caller's to free() */
};

/* Any thread. -ENOMEM. Token 0 and no rings: no segment is open. */
int page_stream__progress(struct stream *stream, struct page_progress *progress);
