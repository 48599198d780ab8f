/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>

#include "ring.h"
#include "ring_map.h"
#include "walk.h"

/* A mapped perf ring. The shard writes its counters. */
struct perf_ring {
	struct ring ring;
	struct ring_map *map;
	struct walk_layout layout;
	struct walk_ids ids;
	struct walk_id *id_list;  /* the ring's own memory for `ids` */
	pthread_mutex_t ids_lock; /* of both, which a walk reads and perf_ring__set_ids() replaces */
	bool names;		  /* it carries the sideband of its stream */
	bool absorbed;		  /* its records are used for sideband only */

	counter_t lost_records, lost_samples;
	counter_t neutralised, relabelled;
	counter_t throttles;
	counter_t overwritten_samples;
};

struct perf_ring_options {
	struct ring_map *map;
	int wakeup_fd;
	struct walk_layout layout;
	struct walk_ids ids; /* ids of the ring's events, in any order; if empty, records keep
			      * theirs. `renamed` is found out. */
	bool sideband;
};

/* The fd and the map stay the caller's. Returns -ENOMEM on failure. */
int perf_ring__new(const struct perf_ring_options *options, struct ring **ring);

/* Like perf_ring__new(), in zeroed memory of the caller. */
int perf_ring__init(struct perf_ring *perf, const struct perf_ring_options *options);
void perf_ring__deinit(struct perf_ring *perf);

/*
 * Replace the ids of a streamed ring, from any thread. To be called before the first record with a
 * new id can be in the ring, and with an old id for as long as a record with it may be unread.
 * Returns -EINVAL for a ring of another kind or without ids, -ENOMEM.
 */
int perf_ring__set_ids(struct ring *ring, const struct walk_ids *ids);

extern const struct ring_ops perf_ring__ops;

/* Returns `ring` as a perf ring if it is one, or its kind begins with one; else NULL. */
static inline struct perf_ring *perf_ring__of(const struct ring *ring)
{
	return ring->ops->records ? container_of(ring, struct perf_ring, ring) : NULL;
}

/* Drop the oldest whole records until at most `keep` bytes up to the head of this pass are
 * left: they are counted as overwritten, and what they report is noted. */
void perf_ring__give_up(struct perf_ring *perf, uint64_t keep);
/* Walk, count and add `bytes` of whole records that lie behind the end of `chunk`. */
void perf_ring__put(struct perf_ring *perf, struct chunk *chunk, size_t bytes);

/* The common operations of kinds that begin with a perf ring. */
int perf_ring__join(struct ring *ring, struct stream *stream);
void perf_ring__begin(struct ring *ring, bool first);
