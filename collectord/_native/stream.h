/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "chunk.h"
#include "cut.h"
#include "lane.h"
#include "segment.h"
#include "sideband.h"
#include "sums.h"

#define SHARDS_MAX 64u

struct disk;
struct ring;
struct stream;
struct event_list;
struct event_ring;

/* How the segments of a kind of stream are written. All calls are the writer's. */
struct stream_ops {
	bool ordered; /* rounds end in it */
	bool split;   /* its rings have files, or parts of one, to themselves: nothing but data is there */
	/* Is the segment one of this kind? */
	bool (*suits)(const struct segment *segment);
	/* Of a split one, under the stream's lock: a segment begins for `ring`, and what it has of it at
	 * its end. */
	void (*begin_ring)(struct ring *ring, const struct segment *segment);
	void (*tell_ring)(struct ring *ring, struct event_ring *told);
	/*
	 * Write the next part of what an item has. 1: one went; 0: nothing is left; -errno: it was
	 * refused, and -EXFULL: the next segment is missing. `bytes`: of the part.
	 */
	int (*write)(struct stream *stream, struct item *item, uint64_t *bytes);
	/* Pass over the part that was refused. Returns how many spans are lost with it, 0 if there is
	 * another way to write it, which is tried next. */
	uint32_t (*pass_over)(struct stream *stream, struct item *item, const struct span **spans);
	/*
	 * Optional, for a chunk that needs nothing but to be written where the segment goes on: have its
	 * `flight` ready, behind what was sent before. False: it has to wait until all that landed, and is
	 * written then.
	 */
	bool (*send)(struct stream *stream, struct chunk *chunk);
	/* What was sent first landed. */
	void (*land)(struct stream *stream, const struct chunk *chunk);
	/* It was refused: of what was sent nothing stays. */
	void (*recall)(struct stream *stream);
	/* Nothing of the item is left. True: the end of a round was written. */
	bool (*end)(struct stream *stream, struct item *item);
};

/*
 * Of streams whose segments hold perf records, in whole chunks one behind the other: padded, with the
 * ends of rounds between them, and behind a replay of the sideband that is known.
 */
extern const struct stream_ops record_stream__ops;

/* How far the writer has come with the first item of a stream's queue. */
struct work {
	uint32_t span;	       /* the next one */
	uint64_t at;	       /* where it begins in the chunk's data */
	struct load load;      /* what is left of the one before; no bytes: nothing is */
	struct span lost;      /* the part that was passed over, if `load` had it */
	bool loads;	       /* what a ticket stands for is read into memory: it cannot be moved */
	int waits_for;	       /* an errno, or 0: the item is written as soon as its turn comes */
	int refused;	       /* the errno that a wait in vain ended with: the part is given up */
	uint64_t since_ns;     /* when the wait began */
	uint64_t bytes;	       /* of the part that was refused */
};

/* The first items of a stream's queue, whose writes are in flight, and what they add to the segment. */
struct sent {
	uint32_t items, pieces;
	uint64_t bytes;
};

/*
 * A sequence of segments. The writer thread owns `current`, the rounds and the lanes' progress;
 * `lock` guards `next`, the requests, the answer and the list of rings, which others set.
 */
struct stream {
	pthread_mutex_t lock;
	struct segment next;
	bool rotate_wanted, finish_wanted;
	bool finished; /* nothing is written any more, and no file of it is touched; the writer sets it */
	bool forgotten; /* nobody asks for it any more; of who adds streams */
	int space_answer; /* SPACE_* */
	struct ring **rings;
	uint32_t ring_count;

	/* Items, oldest first, under the lock of its disk. */
	_Atomic(struct disk *) disk;
	struct item *first, **last;
	struct item *unsent; /* the first one that was not sent */
	struct sent sent;
	bool settling; /* none is sent before the first item was written */
	struct work work;
	const struct stream_ops *ops;
	struct share data_share, sideband_share;

	struct segment current;
	struct cut cut;	    /* of `current`, where its end waits for other lanes */
	struct sums sums;   /* of records: of `current` */
	XXH3_state_t *hash; /* of the chunk that is being written */
	uint8_t *scratch; /* one chunk: replays and lone markers are built here */
	uint32_t scratch_bytes, scratch_used;
	uint64_t space_asked_ns; /* when the last wait for room ended, 0: there has been room since */
	uint64_t failure_told_ns;
	bool unanswered; /* nobody made the segment that the last wait was for */
	/*
	 * The next marker waits for a generation beyond this one: the last that had been issued
	 * when the last marker was written. So what a marker follows was in the file, or in a ring
	 * that has been read since, when the marker before it was written; no later sample is older.
	 */
	uint64_t round;
	bool round_due; /* records were written since the last marker */
	/* The last generation that was written, and when it and the one before it were. */
	_Atomic uint64_t ended;
	_Atomic uint64_t ended_ns[2];

	_Atomic(struct lane *) lanes[SHARDS_MAX];
	_Atomic bool begun; /* a segment was prepared; until then lanes keep their chunks open */
	struct sideband sideband;
	struct event_list *events;
	uint32_t id;
	uint32_t page_bytes; /* of each ring, if it is one of pages */
	/* What is written is older than what sideband came meanwhile: that stays in `sideband`, and no
	 * marker says that nothing older follows. */
	bool snapshots;
	/* A ring of it is held beside an AUX area, and comes with what is older than the sideband
	 * that was written meanwhile: no marker either, and the names of its time are kept. Set before
	 * the ring's events begin. */
	_Atomic bool holds_back;
	uint64_t crowded_ns; /* sideband up to here was settled for want of memory */
};

enum { SPACE_UNANSWERED = -1, SPACE_GIVE_UP = 0, SPACE_RETRY = 1 };

struct stream_options {
	const struct stream_ops *ops;
	size_t sideband_bytes;
	uint32_t page_bytes; /* of a stream of pages */
	bool snapshots;
	bool foreign_clock; /* its records carry another clock than CLOCK_MONOTONIC */
};

/* -EINVAL: a chunk has no room for a page. */
int stream__init(struct stream *stream, uint32_t id, uint32_t chunk_bytes,
		 const struct stream_options *options, struct event_list *events);
void stream__deinit(struct stream *stream);
/* Of one that was allocated, with its rings, which are in no shard. */
void stream__free(struct stream *stream);

/* -EINVAL: offset not aligned, or the segment is none for the stream; -EBUSY: a next segment is prepared
 * already; -ESHUTDOWN: the stream is finished. Takes over what the segment has of its own if it returns
 * 0. */
int stream__prepare(struct stream *stream, const struct segment *segment);
/* -ESHUTDOWN: it is finished; -ENOMEM. */
int stream__add_ring(struct stream *stream, struct ring *ring);
/* The first of its rings of which this is so, or NULL. */
struct ring *stream__find_ring(struct stream *stream, bool (*is)(struct ring *ring));
/* Of a ring that never was in a shard. */
void stream__forget_ring(struct stream *stream, const struct ring *ring);

/*
 * The calls below are the writer's.
 */

/* Move to the prepared segment if none is open, if this one cannot take `bytes` more, or if a
 * rotation is due, as it is where the ring's place in it is `full`. A segment never closes before it
 * holds something. */
void stream__advance(struct stream *stream, uint64_t bytes, bool full);

/* Move to the prepared segment: the cut is done, or, `early`, is not waited for. */
void stream__turn(struct stream *stream, bool early);

/* What is in the span was written: count it as stored, in flight no more. */
void stream__account(struct stream *stream, const struct span *span);
/* Of a split one, whose segment has no more of it than that. */
void stream__account_part(struct stream *stream, const struct span *span);

/* After a full disk refused `bytes`: close a segment whose time has come also without a next one.
 * It may be all that an eviction can take. */
void stream__make_evictable(struct stream *stream, uint64_t bytes);

/* Carry out a rotate request, and a finish request once nothing of the stream is queued. True:
 * the finish waits for what is. */
bool stream__serve(struct stream *stream);

/* Once `lane` has come to `stamp`, has every lane come to a generation beyond the last round? */
bool stream__completes_round(const struct stream *stream, const struct lane *lane,
			     uint64_t stamp);

/* Under `lock`: is there a running segment that cannot take `bytes` more? */
bool stream__is_full(const struct stream *stream, uint64_t bytes);

/* The last generation up to which every lane was drained, `issued` without one that has rings; and
 * likewise written, or counted as lost. Any thread. */
uint64_t stream__drained(const struct stream *stream, uint64_t issued);
uint64_t stream__written(const struct stream *stream, uint64_t issued);
/* When all of the generation before the one that was `issued` last had been written; 0: it is not, or
 * nobody knows. Whatever a round ends with that follows is no older than that. */
uint64_t stream__round_ns(const struct stream *stream, uint64_t issued);

/* A lane of this stream that has rings or unwritten items, or NULL. */
struct lane *stream__lane(const struct stream *stream, uint32_t shard);

/* The writer is done with this item of `lane`: settle sideband that no unwritten sample needs. */
void stream__pass_written(struct stream *stream, struct lane *lane, const struct item *item);
