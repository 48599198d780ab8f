/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_AUX_RING_H
#define COLLECTORD_AUX_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "aux_ends.h"
#include "aux_map.h"
#include "aux_piece.h"
#include "aux_window.h"
#include "ring.h"

/*
 * What a ring has more when it is the AUX area of a data ring, its `pair`. Its samples are bytes of
 * payload: in `bytes`, `in_flight`, `stored` and `lost_*`.
 *
 *   hardware ──► AUX area ──copy by aux_head──► pieces in the chunk of the data ring
 *   kernel   ──► data ring ──AUX records────────► what ends where, which flags
 *
 * Facts, and what follows. An AUX record is lost when the data ring is full, while the head goes on:
 * bytes are taken by the head, the records say no more than where a piece may end. The kernel stores
 * a record before the head that covers it; loading the AUX head before the data head therefore
 * finds the record of each byte in the pass that takes the byte. The exception is a record written
 * by an interrupt in the middle of another record: data_head waits for the outer one. No room, or a
 * truncated record, stops the event until it is enabled again; when that happened beside a pass
 * that made room, no byte and no record tells, only the wake-up does. Linux before 6.16 stops the
 * event's PMU and goes on to call the event active, so that ENABLE alone changes nothing there
 * (found on 6.12.117): after a truncated record, which may be of size 0, and where nothing has come
 * from one full pass to the next since the area was found more than half full, or the data ring lost
 * records, DISABLE precedes it. Its own account of the time
 * that an event is enabled goes on meanwhile, too, so how long it stood is measured here.
 *
 * Threads: the shard's.
 */
struct aux_ring {
	struct aux_map *map;
	struct ring *self, *pair;
	enum aux_framing framing;
	struct aux_origin origin;
	uint64_t reference;
	bool reference_tsc;
	bool whole_records;
	bool stopping; /* enable nothing, wait for no record */
	bool touched;  /* bytes were taken, or a truncated record seen, since a pass was complete */
	bool halted;   /* a truncated record was seen, and the events not enabled since */
	uint64_t halted_ns;	/* time of that record, of the pass with a foreign clock */
	bool suspect;  /* the area may have been full since it was last found idle */
	uint64_t idle_generation, emptied_generation; /* the last ones that were counted */
	uint64_t idle_position; /* at the end of that one's pass */
	uint64_t idle_lost;	/* what the data ring had lost when it was last found idle */
	int *enable_fds;
	uint32_t enable_count;
	uint64_t start;		/* the head when the ring was added */
	uint64_t recorded_end;	/* of the last AUX record, 0: none seen */
	uint64_t full_head;	/* as loaded in the last full pass that found the data ring empty */
	uint64_t orphan_end;	/* likewise in the one before it: what is before has no record */
	struct aux_ends ends;
	struct aux_window window;
	uint64_t window_ns;  /* when the last window was opened */
	uint64_t emptied_ns; /* of the last one whose data ring was read to its head since */
	uint8_t *scratch; /* of a snapshot ring: for what its data ring gives up */

	counter_t pieces;
	counter_t aux_records, truncated, partial, collisions;
	counter_t unrecorded_bytes, orphan_bytes;
	counter_t enables, restarts, disabled_ns;
	counter_t windows, window_bytes, window_taken_bytes, repeated_bytes, overwritten_bytes;
	counter_t head_rule; /* of the windows, as known so far */
};

struct aux_ring_options {
	struct aux_map *map;
	enum aux_framing framing;
	struct aux_origin origin;
	uint64_t reference;
	bool reference_tsc;
	bool whole_records;
	const int *enable_fds; /* copied */
	uint32_t enable_count;
	enum aux_head_rule head_rule;
	uint64_t window_bytes;
	uint32_t chunk_bytes;
};

/* The AUX ring of `pair`, not known to it yet. -EINVAL: a chunk has no room for all of it, and
 * whole records must not be split. */
int aux_ring__new(const struct aux_ring_options *options, struct ring *pair, struct ring **ring);
/* Free what a ring has more; NULL is passed over. */
void aux_ring__free(struct aux_ring *aux);
/* -ENOMEM. */
int aux_ring__set_enable_fds(struct aux_ring *aux, const int *fds, uint32_t count);

extern const struct ring_ops aux_ring__ops;

/* A pass begins: load the head, before the data ring's. Returns the unread bytes. */
uint64_t aux_ring__begin(struct aux_ring *aux);

/* Note what walked records of the data ring tell. */
void aux_ring__learn(struct aux_ring *aux, const uint8_t *records, size_t bytes);

/* The data ring is empty up to the head of this pass, one of `generation`, or 0. A generation counts
 * once, however many passes it takes. */
void aux_ring__note_emptied(struct aux_ring *aux, uint64_t generation);

/* Take unread bytes up to the head of this pass, in pieces, and publish the tail. */
enum ring_take aux_ring__take(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes);

/* The pass is through with both rings: enable the events again where the kernel may have disabled
 * them. */
void aux_ring__enable(struct aux_ring *aux, bool woken, uint64_t generation);

/* Of a snapshot ring whose event stands still: the following passes take what it holds now. */
void aux_ring__open_window(struct aux_ring *aux);

/* Of a held one: give up the oldest records of its data ring while more than half of that is full. */
void aux_ring__recycle(struct aux_ring *aux);

#endif
