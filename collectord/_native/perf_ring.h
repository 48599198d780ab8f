/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "ring.h"
#include "ring_map.h"
#include "walk.h"

/* A mapped perf ring. Its counters are the shard's. */
struct perf_ring {
	struct ring ring;
	struct ring_map *map;
	struct walk_layout layout;
	struct walk_ids ids;
	uint64_t *id_list; /* the ring's own memory behind `ids` */
	bool names;	   /* it carries the sideband of its stream */
	bool absorbed;	   /* its records go no further than to that */

	counter_t lost_records, lost_samples;
	counter_t neutralised, relabelled;
	counter_t throttles;
	counter_t overwritten_samples;
};

struct perf_ring_options {
	struct ring_map *map;
	int wakeup_fd;
	struct walk_layout layout;
	struct walk_ids ids; /* of the ring's events; without any, samples keep what they carry */
	bool sideband;
	bool held;
};

/* The fd and the map stay the caller's. -ENOMEM. */
int perf_ring__new(const struct perf_ring_options *options, struct ring **ring);

/* The same in the caller's memory, of zeros. */
int perf_ring__init(struct perf_ring *perf, const struct perf_ring_options *options);
void perf_ring__deinit(struct perf_ring *perf);

extern const struct ring_ops perf_ring__ops;

/* `ring`, if it is of this kind, or of one that begins with it. */
static inline struct perf_ring *perf_ring__of(const struct ring *ring)
{
	return ring->ops->records ? container_of(ring, struct perf_ring, ring) : NULL;
}

/* Give up the oldest whole records, until no more than `keep` bytes up to the head of this pass are
 * left: they are counted as overwritten, what they tell is noted. */
void perf_ring__give_up(struct perf_ring *perf, uint64_t keep);
/* `bytes` of whole records lie behind the end of `chunk`: walk them, count them, add them. */
void perf_ring__put(struct perf_ring *perf, struct chunk *chunk, size_t bytes);

/* What those that begin with it have in common. */
int perf_ring__join(struct ring *ring, struct stream *stream);
