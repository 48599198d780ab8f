/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "perf_ring.h"

/* The history of a ring's writes has so many steps; half as many cover a full ring. */
#define WINDOW_STEPS 128u

/* Bytes behind the beginning of a step were written after `since_ns`; it began about `begun_ns`. */
struct window_step {
	uint64_t since_ns, begun_ns;
};

/* Adjacent records in the copy, newest first; they are delivered as one piece. */
struct window_piece {
	size_t at;
	size_t bytes;
};

/*
 * An overwritable ring, and the window that a snapshot took out of it.
 *
 * The kernel writes such a ring backwards and never waits: the newest record begins at data_head,
 * and ever older ones follow until data_bytes are full. The very last one is cut by later writes
 * (include/uapi/linux/perf_event.h, attr.write_backward).
 *
 *   head             last                                head + data_bytes
 *     | new records   | were in the last window already    | cut |
 *     newest ──────────────────────────────────────────► oldest
 *
 * A window is copied out in one go into memory reserved with the ring: the ring is stopped
 * meanwhile, and must not wait for chunks, and so for a disk. From the copy it goes into chunks as
 * these come free, oldest record first, so that a segment is in time order.
 *
 * The unread bytes of the ring, head - position, are the window's bytes that are still in the
 * copy.
 */
struct window {
	struct perf_ring perf;
	uint8_t *copy;	      /* has pages only while in use */
	size_t copy_bytes;    /* data_bytes of the map */
	uint64_t last;	      /* head of the last window */
	bool wanted;	      /* another one is to be taken when the last one is delivered */
	struct window_piece *pieces;
	uint32_t piece_count; /* not delivered yet; the last one is the oldest */
	uint64_t seen, seen_ns; /* total bytes written to the ring at the last check, and its
				 * time */
	struct window_step steps[WINDOW_STEPS];

	counter_t windows;
	counter_t taken;	     /* samples that were in a window for the first time */
	counter_t repeated, repeated_bytes; /* samples that the last window had too */
	counter_t overwritten_bytes; /* bytes of records in no window */
	counter_t held_ns;	     /* approximate time span in the ring */
};

/* Make a ring whose map is still empty, and reserve the memory for its windows. -ENOMEM. */
int window__new(const struct perf_ring_options *options, struct ring **ring);

RING_KIND(window, perf.ring)
