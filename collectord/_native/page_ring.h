/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "ring.h"
#include "stream.h"

/* struct trace_buffer_meta of include/uapi/linux/trace_mmap.h (since 6.10), which older headers do
 * not have. Its counters are those of the last TRACE_MMAP_IOCTL_GET_READER, and they count from the
 * last reset of the ring. */
struct page_meta {
	uint32_t meta_page_bytes;
	uint32_t meta_struct_bytes;
	uint32_t subbuf_bytes;
	uint32_t subbufs; /* including the reader's */
	struct {
		uint64_t lost_events; /* always 0: the page itself says it */
		uint32_t id;
		uint32_t read; /* bytes of data read, from the page's start */
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
	/* Take the unread rest of the reader's page or, if there is none, the next page.
	 * Returns -errno. Tests move the reader themselves. */
	int (*get_reader)(int fd);
};

/* Map all of a trace_pipe_raw. -ENODEV: this kernel cannot map rings; -EBUSY: a snapshot
 * excludes it; -EPROTO: the layout of the meta page is unknown. */
int page_map__init(struct page_map *map, int fd);
void page_map__deinit(struct page_map *map);

/* The last position in a map: `read` bytes behind the header of page `id`. */
struct page_cursor {
	const struct page_map *map; /* NULL: the ring is not mapped */
	uint32_t id, read;
	bool refused; /* the rest of that page is skipped */
	uint64_t page_ns;
	uint64_t read_events;
};

/* A fetched page. */
struct page_fetched {
	size_t bytes; /* 0: no data */
	bool goes_on; /* it continues the last sub-buffer and begins at its end time */
	bool spliced;
	bool reset; /* the ring was emptied since the last fetch */
	enum fault fault;
};

/* Set the cursor to the reader's position; returns the partly read page, NULL for none. */
const uint8_t *page_cursor__look(struct page_cursor *cursor);
/* Copy data handed out since then to `page`. */
struct page_fetched page_cursor__fetch(struct page_cursor *cursor, int fd, uint8_t *page);

/* Note the map's count of read events: `events` more than before, or less after a reset. True:
 * a reset. */
bool page_cursor__follow(struct page_cursor *cursor, bool reset, uint64_t events);

/*
 * One ring's extent in the running segment: consecutive whole sub-buffers.
 *
 *   offset                                     offset + bytes          offset + capacity
 *   +---------+---------+-----   ----+---------+ . . . . . . . . . . . +
 *   | final   | final   |            | tail    |   claimed, zeros
 *   +---------+---------+-----   ----+---------+ . . . . . . . . . . . +
 *
 * The tail is the last page while it may grow: a flush reads the present contents of the
 * sub-buffer that the kernel still writes, and the rest comes later as a page of its own. That is
 * appended to the tail's data, and the tail is rewritten in place. More pages may be in flight
 * behind `bytes`, none of which goes into the tail. The writer thread owns all of it; any thread
 * may read `bytes`.
 */
struct page_track {
	uint64_t offset, capacity, allocated; /* capacity 0: no extent in this segment */
	counter_t bytes;
	uint32_t page_bytes;
	bool tail_open;
	bool unseen;	  /* some pages never were in our memory: no checksums */
	uint64_t tail_ns; /* the ring's time at the tail's end */
	uint64_t sent;	  /* bytes in flight */
	uint64_t sent_ns; /* the ring's time at their end, 0: no page can be appended */
	uint8_t *tail;
	struct sums sums; /* sums of the final pages */
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
	uint32_t subbufs;     /* those of the ring, without the reader's */
	struct page_map *map; /* for PAGE_MMAP */
};

/*
 * One CPU's trace_pipe_raw.
 *
 *            read, mmap ──► chunk ──┐
 *   kernel ──┤                      ├─► lane's queue ──► writer ──► track
 *            splice ──► pipe ──► ticket
 *
 * Facts about these rings, and consequences. A read of the sub-buffer that the kernel still writes
 * returns its present contents, and less at each following read: so a pass ends there and does not
 * chase the writer. poll(2) reports a ring above its watermark again and again, and arms the
 * wake-up only when it finds the ring below: so the ring is polled once at a time (EPOLLONESHOT)
 * and rearmed after it was drained.
 *
 * The shard's thread owns it, except for `track` and the pipe's contents, which are the writer's.
 */
struct page_ring {
	struct ring ring;
	struct page_ring_options options;
	uint32_t pass_pages, pass_pieces;
	bool pass_spliced;

	/* State of the last sub-buffer read, if more of it may come: */
	uint32_t taken;	    /* bytes of its data; 0: it is complete */
	uint64_t last_ns;   /* the ring's time */
	uint64_t behind_ns; /* lag of the time in the kernel's reader */

	struct page_cursor cursor; /* for PAGE_MMAP */

	/* For PAGE_SPLICE: the kernel loses what does not fit into a non-empty pipe, so the
	 * pipe has one load at a time. */
	int pipe[2];
	uint64_t pipe_bytes; /* owned by the shard until the ticket is queued, then by the writer */
	struct item ticket;
	_Atomic bool ticket_queued;

	struct page_track track;
	counter_t pages;  /* sub-buffers begun */
	counter_t resets; /* resets of a mapped ring by others */
	/* Written by the writer: */
	counter_t spliced_bytes; /* bytes spliced from the pipe into a file */
	counter_t torn;		 /* pages partly spliced, and given up */
};

/* Sweeping passes also read the sub-buffer that the kernel still writes. The ticket hands the
 * pipe's contents to the writer. The fd and the map stay the caller's. */
int page_ring__new(const struct page_ring_options *options, struct ring **ring);

RING_KIND(page_ring, ring)

/* A stream whose segments hold sub-buffers: each ring has an extent of its own in the file, without
 * rounds, padding or sideband. `offset` of its segments is the sum of the bytes in all extents. */
extern const struct stream_ops page_stream__ops;

/* Returns the token of the running segment, 0 if there is none, and the size of each ring's extent
 * in it, as an event that the caller frees; NULL without memory. Any thread may call it. */
struct event *page_stream__progress(struct stream *stream);
