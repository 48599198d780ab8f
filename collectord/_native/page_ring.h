/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_PAGE_RING_H
#define COLLECTORD_PAGE_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "page_map.h"
#include "page_track.h"
#include "ring.h"
#include "subbuf.h"

enum page_transport {
	PAGE_READ,   /* read(2) straight into a chunk */
	PAGE_MMAP,   /* copied from the mapped ring */
	PAGE_SPLICE, /* whole sub-buffers by a pipe into the file, the rest by read(2) */
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
	enum page_transport transport;
	int fd; /* non-blocking */
	uint32_t page_bytes, subbufs;
	struct page_map *map;
	uint32_t pass_pages, pass_pieces;
	uint32_t goal_pages; /* of those in the ring when the generation began, how many are unread */
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

struct page_ring_options {
	enum page_transport transport;
	int fd;
	uint32_t page_bytes;
	uint32_t subbufs;     /* of the ring, the reader's not among them */
	struct page_map *map; /* PAGE_MMAP */
	bool held;
};

/*
 * Passes take what the kernel still writes too when they sweep. Its ticket hands the pipe's contents
 * to the writer. The fd and the map stay the caller's.
 */
int page_ring__new(const struct page_ring_options *options, struct ring **ring);

extern const struct ring_ops page_ring__ops;

/* `ring`, if it is of this kind. */
static inline struct page_ring *page_ring__of(const struct ring *ring)
{
	return ring->ops == &page_ring__ops ? container_of(ring, struct page_ring, ring) : NULL;
}

#endif
