/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_RING_H
#define COLLECTORD_RING_H

#include <stdbool.h>

#include "chunk.h"
#include "counter.h"
#include "ring_map.h"
#include "walk.h"

/*
 * A ring whose contents are refused goes on behind them: what came in between is passed over, and
 * counted. So often within such a time, and it is left alone: nobody believes what it holds.
 */
#define RING_FAULTS_MAX 8u
#define RING_FAULTS_NS 10000000000u

#define RING_FILL_BUCKETS 11u /* <= 0.1 .. <= 0.9, <= 0.95, <= 1.0 */

struct aux_ring;
struct page_ring;
struct relay_ring;
struct sideband;
struct window;

/* One ring as its shard drains it. Counters: `stored`, `lost_*` and `segment_*` are written by
 * the writer thread, `in_flight` by both, all others by the shard's thread. */
struct ring {
	struct ring_map *map;
	struct lane *lane;
	struct sideband *sideband; /* NULL: a ring of counted events */
	struct page_ring *pages;   /* of ftrace, `relay` of relay, `aux` of an AUX area; with one of */
	struct relay_ring *relay;  /* them `map` and `layout` are unused; all NULL: a perf ring */
	struct aux_ring *aux;
	struct ring *aux_pair;	   /* the AUX area of this data ring, or NULL */
	struct window *window;	   /* NULL: what is written waits for us; else it is overwritten */
	struct walk_layout layout;
	struct walk_ids ids;
	uint64_t *id_list; /* the ring's own memory behind `ids` */
	uint64_t position; /* of the first unread record; the tail lags behind it in a pass */
	uint64_t head;	   /* as loaded at the start of the pass */
	uint64_t goal;	   /* and at the start of the generation's first one */
	bool owes;	   /* it has not come to that goal, and the generation waits for it */
	uint32_t id;
	int wakeup_fd;
	bool woken;
	bool held;	   /* passes leave it alone; under the shard's lock */
	bool absorbed;	   /* its records go no further than to `sideband` */
	_Atomic bool left; /* removed from its shard; what it gave may be in flight still */
	_Atomic bool hung_up;
	_Atomic bool hung_up_told;
	/* Reasons: enum walk_fault, page_ring__fault() or relay_ring__fault(). */
	_Atomic uint32_t fault;	     /* of its quarantine, 0: it is read */
	_Atomic uint32_t last_fault; /* of what was passed over last */
	_Atomic bool fault_untold;
	uint64_t faults_since_ns; /* faults are counted together from then on, */
	uint32_t faults_recent;	  /* that many until now */

	counter_t samples, records, bytes;
	counter_t lost_records, lost_samples;
	counter_t neutralised, relabelled;
	counter_t throttles, unthrottles;
	counter_t wakeups_watermark, wakeups_timer;
	counter_t starved;
	counter_t used_bytes, high_watermark_bytes;
	counter_t last_sample_ns;
	counter_t faults, quarantined_bytes; /* passed over since something in them was refused */
	counter_t fill[RING_FILL_BUCKETS];
	counter_t stored, lost_disk_full, lost_dropped;
	counter_t segment_samples, segment_bytes;
	counter_t overwritten_samples, overwritten_records;
	counter_t abandoned; /* samples that no chunk came free for when it was removed; lost */
	_Atomic uint64_t in_flight;
};

void ring__init(struct ring *ring, struct ring_map *map, int wakeup_fd,
		const struct walk_layout *layout);
void ring__deinit(struct ring *ring);

/* Know the ids of the ring's events; without any, samples keep what they carry. */
int ring__set_ids(struct ring *ring, const uint64_t *ids, uint32_t count);

/* A pass found `used` bytes of `capacity`. */
void ring__count_fill(struct ring *ring, uint64_t used, uint64_t capacity);

/* Load the head for this pass; returns the unread bytes, 0 for a ring in quarantine. A bad head is
 * where it goes on. */
uint64_t ring__begin(struct ring *ring);

enum ring_take {
	RING_EMPTY,	/* read up to the head of this pass */
	RING_CHUNK_FULL, /* the next record needs another chunk */
	RING_FAULTY,	/* what followed was refused, and is passed over */
	RING_SPLICED,	/* the ring's pipe has something for the writer */
	RING_MORE,	/* there is more, and the chunk may take it */
};

/*
 * Copy unread records into `chunk` and walk them there, up to the head of this pass; publish the
 * tail behind the last whole record taken.
 */
enum ring_take ring__take(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes);

/*
 * Give up the oldest whole records, until no more than `keep` bytes up to the head of this pass are
 * left: they are counted as overwritten, what they tell is noted. `scratch` takes the longest
 * record.
 */
void ring__give_up(struct ring *ring, uint8_t *scratch, size_t scratch_bytes, uint64_t keep);
/* Nobody comes any more for what is unread up to the head of the last pass: it is counted as taken,
 * and as abandoned. It stays in the kernel's ring. */
void ring__abandon(struct ring *ring);
/* `bytes` of whole records lie behind the end of `chunk`: walk them, count them, add them. */
void ring__put(struct ring *ring, struct chunk *chunk, size_t bytes);

/* Its contents were refused, and `bytes` of them are passed over. */
void ring__refuse(struct ring *ring, uint32_t reason, uint64_t bytes);

#endif
