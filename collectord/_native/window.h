/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "perf_ring.h"

/* What a ring took is dated in steps, half as many to a full ring. */
#define WINDOW_STEPS 128u

/* All behind a step's beginning was written after `since_ns`, and what is there about `begun_ns`. */
struct window_step {
	uint64_t since_ns, begun_ns;
};

/* Records that lie one behind the other in the copy, newest first; given out in one piece. */
struct window_piece {
	size_t at;
	size_t bytes;
};

/*
 * An overwritable ring, and the window that a snapshot took out of it.
 *
 * The kernel writes such a ring backwards and never waits: data_head is where the newest record
 * begins, and behind it lie ever older ones until data_bytes are full. The very last is cut by
 * what was written since (include/uapi/linux/perf_event.h, attr.write_backward).
 *
 *   head             last                                head + data_bytes
 *     | new records   | were in the last window already    | cut |
 *     newest ──────────────────────────────────────────► oldest
 *
 * A window is copied out in one go into memory that was reserved with the ring: the ring stands
 * still meanwhile, and must not wait for chunks, that is for a disk. From the copy it goes into
 * chunks as these come free, oldest record first, so that a segment is in the order of time.
 *
 * The unread bytes of the ring, head - position, are those of the window that are still in the copy.
 */
struct window {
	struct perf_ring perf;
	uint8_t *copy;	      /* has pages only while it is in use */
	size_t copy_bytes;    /* data_bytes of the map */
	uint64_t last;	      /* head of the last window */
	bool wanted;	      /* one is to be taken as soon as the last one is given out */
	struct window_piece *pieces;
	uint32_t piece_count; /* not given out yet, the oldest is the last one */
	uint64_t seen, seen_ns; /* bytes that the ring had taken in all at the last look, and when */
	struct window_step steps[WINDOW_STEPS];

	counter_t windows;
	counter_t taken;	     /* samples that were in a window for the first time */
	counter_t repeated, repeated_bytes; /* samples that were in the last window already */
	counter_t overwritten_bytes; /* of records that no window has */
	counter_t held_ns;	     /* how far back the ring reaches, about */
};

/* The map's ring is still empty: the memory for its windows is reserved. -ENOMEM. */
int window__new(const struct perf_ring_options *options, struct ring **ring);

RING_KIND(window, perf.ring)
