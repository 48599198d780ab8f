/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "counter.h"
#include "sums.h"
#include "walk.h"

#define CHUNK_ALIGN_BYTES 4096u
#define CHUNK_SPANS 512u
#define CHUNK_PIECES 256u
/* What ends the padding of a chunk of records, and with it the chunk: u64 magic, the chunk's place in
 * the file, XXH3-64 of all that is before the checksum. A repair finds whole chunks by it. */
#define CHUNK_FOOTER_MAGIC UINT64_C(0x31444e454b4e4843)
#define CHUNK_FOOTER_BYTES 24u
/* Kept free at the end of a chunk for a FINISHED_ROUND, and the padding with its footer. */
#define CHUNK_MARKER_BYTES (2 * WALK_HEADER_BYTES + CHUNK_FOOTER_BYTES)

struct ring;
struct lane;
struct chunk;

/* Chunks that are kept for a stream's data, and for its sideband, as far as half of the pool goes. */
#define SHARE_DATA_CHUNKS 2u
#define SHARE_SIDEBAND_CHUNKS 1u

/*
 * One who takes chunks, and what is kept for him while they are short: so many of them that he does
 * not hold are for nobody else. The pool's lock guards it.
 */
struct share {
	struct share *next;
	uint32_t wanted; /* of the constants above; 0: he has not joined */
	uint32_t kept;	 /* that many of them, as the pool has room for all who joined */
	uint32_t held;
};

/*
 * A place in the writer's queue: a chunk, the ticket of a ring for what it holds elsewhere, or a mark
 * without either. `stamp` 0, or the generation of the full pass that ended here; `begun_ns`: when that
 * pass loaded its heads.
 */
struct item {
	struct item *next;
	struct chunk *chunk;
	struct ring *ticket;
	struct lane *lane;
	uint64_t stamp;
	uint64_t begun_ns;
	uint64_t queued_ns;
	uint64_t cut; /* 0, or the cut for which the lane ends what it gives with it */
	bool names;   /* of sideband alone, which waits for no cut */
	bool round;   /* the writer's: a FINISHED_ROUND goes with it */
};

/* What one ring put into a chunk, behind what the span before it has; samples of an AUX ring are
 * bytes of payload. `sealed` is of pages only. */
struct span {
	struct ring *ring;
	uint64_t samples;
	uint64_t bytes;
	uint64_t records;
	uint64_t first_ns;
	uint64_t last_ns; /* of pages where time stands at the end of the last one */
	bool sealed;	  /* nothing can be put behind that page's data */
	bool names;	  /* of perf: sideband is among its records */
};

/* What is left to write of a span. */
struct load {
	struct span span;
	uint8_t *data;
};

/* A write of what a chunk holds, made beside others; of the first chunk of several that are written as
 * one also how many they are, and their bytes. */
struct flight {
	uint64_t offset, xxh3;
	uint64_t ns; /* when it was sent, and then how long it took */
	uint32_t bytes, whole, chunks;
	int fd;
	bool landed, refused;
};

/*
 * One page-aligned piece of staging memory. It holds whole records of the rings of one lane
 * (shard and stream); the writer pads it to CHUNK_ALIGN_BYTES and writes it in one piece.
 * Owner: the pool while free, the lane while open, the writer from the queue on.
 */
struct chunk {
	uint8_t *data;
	uint32_t used;
	uint32_t span_count;
	uint64_t records;
	uint64_t first_ns;
	uint64_t last_ns;
	struct chunk *next;
	struct share *share; /* whose it is until it is given back, or NULL */
	struct item item;
	struct flight flight;
	XXH3_state_t *hash; /* of records: it took what the chunk holds, each piece when it came */
	struct span spans[CHUNK_SPANS];
	uint32_t piece_count;
	uint32_t pieces[CHUNK_PIECES]; /* where AUXTRACE records begin */
};

/* The staging memory, cut into equal chunks, and the list of the free ones. */
struct pool {
	pthread_mutex_t lock;
	struct chunk *chunks;
	struct chunk *free;
	uint8_t *memory;
	void *mapping;
	size_t mapping_bytes;
	uint32_t chunk_bytes;
	uint32_t count;
	uint32_t free_count;
	uint32_t free_min;
	struct share *shares;
	uint32_t owed; /* kept for shares that do not hold them */
};

/* -EINVAL: chunk_bytes is no multiple of CHUNK_ALIGN_BYTES or holds no largest record. */
int pool__init(struct pool *pool, uint32_t count, uint32_t chunk_bytes);
void pool__deinit(struct pool *pool);
/* Keep `wanted` chunks for `share` from now on, or fewer where there are many; once. */
void pool__join(struct pool *pool, struct share *share, uint32_t wanted);
/* Keep none for it any more. */
void pool__leave(struct pool *pool, struct share *share);
/* An empty chunk, or NULL: there is none, or all are kept for others. A NULL share has none. */
struct chunk *pool__take(struct pool *pool, struct share *share);
void pool__give(struct pool *pool, struct chunk *chunk);
/* Empty it. */
void chunk__begin(struct chunk *chunk);
uint32_t pool__free_count(struct pool *pool);
/* Is less than a quarter of all free, without what is kept? */
bool pool__is_short(struct pool *pool);
/* Does the share hold more than is kept for it, so that others may wait for that? */
bool pool__is_beyond(struct pool *pool, const struct share *share);

/*
 * Add at the end what `more` says is there, of one ring; the caller has seen to room and a free span.
 * Without bytes it was put into the page of the same ring that is the last one. `hashed`: the chunk's
 * checksum takes it, and it changes no more.
 */
void chunk__append(struct chunk *chunk, const struct span *more, bool hashed);

/* The length of `used` bytes of records with their padding, 0 of none without a round. */
uint32_t chunk__padded(uint32_t used, bool round);

/*
 * Pad `used` bytes at `data`, which are to stand at `offset` of a file, to chunk__padded() with one
 * record that readers ignore, behind a FINISHED_ROUND if `round`; a footer ends it. `hash` took these
 * bytes, and has taken all of it then. The buffer has room for one more CHUNK_ALIGN_BYTES where less
 * than CHUNK_MARKER_BYTES are left of it.
 */
void chunk__pad(uint8_t *data, uint32_t used, bool round, uint64_t offset, XXH3_state_t *hash);
