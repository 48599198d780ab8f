/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <xxhash.h>
#ifdef COLLECTORD_XXHASH_DISPATCH
#include <xxh_x86dispatch.h> /* renames XXH3_64bits_update() and its kin */
#endif

#include "thread.h"
#include "walk.h"

#define CHUNK_ALIGN_BYTES 4096u
#define CHUNK_SPANS 512u
#define CHUNK_PIECES 256u
/* The end of a chunk of records, after its padding: u64 magic, the chunk's offset in the file,
 * and XXH3-64 of everything before the checksum. A repair finds whole chunks by it. */
#define CHUNK_FOOTER_MAGIC UINT64_C(0x31444e454b4e4843)
#define CHUNK_FOOTER_BYTES 24u
#define CHUNK_TABLE_BYTES 512u
/* Space kept at the end of a chunk for a FINISHED_ROUND, and for the padding with its table and
 * its footer. */
#define CHUNK_MARKER_BYTES (WALK_HEADER_BYTES + CHUNK_TABLE_BYTES + CHUNK_FOOTER_BYTES)

struct ring;
struct lane;
struct chunk;

/* Readers of a running file look for this behind its last record, from the header of each padding
 * on, in whose place it has zeros: a table of sections, if `bytes` is not 0. */
struct chunk_table {
	uint32_t bytes;
	uint8_t data[CHUNK_TABLE_BYTES];
};

/*
 * A successor needs this of a chunk whose process was killed. It is behind the chunks in staging
 * memory that another process keeps. Python reads it (recovery/left_staging.py), and docs/ledger.md
 * argues why a kill at any instant leaves each record once.
 */
struct chunk_note {
	_Atomic uint64_t serial; /* of this use of the chunk; 0: it is free */
	uint64_t stream;
	_Atomic uint64_t used; /* whole records that it holds; a ring's note may tell of more */
	_Atomic uint64_t file; /* inode of the file that it is written to; 0: not decided */
	uint64_t at;	       /* its offset there, and 1 if a FINISHED_ROUND goes with it */
	uint64_t unused[3];
};

/* The stream whose chunks these are, and the last file that was prepared for it. */
struct stream_note {
	_Atomic uint64_t id; /* and 1; 0: the place is not used */
	uint64_t device, file, unused;
};

_Static_assert(sizeof(struct chunk_note) == 64 && sizeof(struct stream_note) == 32,
	       "other processes read them");

#define STREAMS_MAX 64u /* at the same time */
/* A place in a chunk is one number for a ring's note: the serial, and the offset in words. */
#define PLACE_BITS 22u
#define PLACE_MASK ((UINT64_C(1) << PLACE_BITS) - 1)

/* Chunks reserved for a stream's data and for its sideband, from at most half of the pool: no share
 * wants more than the first. */
#define SHARE_DATA_CHUNKS 2u
#define SHARE_SIDEBAND_CHUNKS 1u
/* In a pool of so many chunks some are kept for a stream that has yet to come: it may come while
 * another one holds all others, because its disk does not answer. */
#define POOL_MANY_CHUNKS 64u
#define NEXT_CHUNKS (SHARE_DATA_CHUNKS + SHARE_SIDEBAND_CHUNKS)

#define RANKS 3u
/* For each rank that matters more and has a share, a rank leaves 1/RANK_PARTS of the chunks that are
 * reserved for no share. */
#define RANK_PARTS 4u

/* A user of chunks and its reserve while chunks are short: the chunks by which `kept` exceeds
 * `held` are available to no one else. The pool's lock guards it, but for `rank`, which is set before
 * it joins. */
struct share {
	struct share *next;
	_Atomic uint32_t rank; /* below RANKS; 0 matters most, and is short last */
	uint64_t stream;       /* its id */
	uint32_t wanted;       /* one of the constants above; 0: it has not joined */
	uint32_t kept;	       /* its reserve, as there are chunks for those who joined before */
	uint32_t held;
};

/* An entry of the writer's queue: a chunk, the ticket of a ring whose data are elsewhere, or a mark
 * without either. `stamp`: 0, or the generation of the full pass that ended here; `begun_ns`: when
 * that pass loaded its heads. */
struct item {
	struct item *next;
	struct chunk *chunk;
	struct ring *ticket;
	struct lane *lane;
	uint64_t stamp;
	uint64_t begun_ns;
	uint64_t queued_ns;
	uint64_t cut; /* 0, or the cut that ends the lane's data with this item */
	bool names;   /* holds only sideband, so it waits for no cut */
	bool round;   /* set by the writer: a FINISHED_ROUND goes with it */
};

/* The share of one ring in a chunk, behind the previous span. For an AUX ring, samples are
 * bytes of payload. `sealed` is used for pages only. */
struct span {
	struct ring *ring;
	uint64_t samples;
	uint64_t bytes;
	uint64_t records;
	uint64_t first_ns;
	uint64_t last_ns; /* for pages: the ring's time at the end of the last one */
	bool sealed;	  /* no data can be added to that page */
	bool names;	  /* perf: sideband is among its records */
};

/* The unwritten part of a span. */
struct load {
	struct span span;
	uint8_t *data;
};

/* A write of a chunk's contents, in flight beside others. If several chunks are written as one,
 * the first also has their number and their bytes. */
struct flight {
	uint64_t offset, xxh3;
	uint64_t ns; /* when it was sent, later how long it took */
	uint32_t bytes, whole, chunks;
	int fd;
	bool landed, refused;
};

/* One page-aligned piece of staging memory. It holds whole records of the rings of one lane (shard
 * and stream); the writer pads it to CHUNK_ALIGN_BYTES and writes it in one piece. It is owned by
 * the pool while free, by the lane while open, and by the writer once queued. */
struct chunk {
	uint8_t *data;
	struct chunk_note *note;
	uint32_t used;
	uint32_t span_count;
	struct chunk *next;
	struct share *share; /* the share that holds it, or NULL */
	struct item item;
	struct flight flight;
	XXH3_state_t *hash; /* for records: hash of the contents, updated piece by piece */
	struct span spans[CHUNK_SPANS];
	uint32_t piece_count;
	uint32_t pieces[CHUNK_PIECES]; /* offsets of AUXTRACE records */
};

/* The staging memory, cut into equal chunks, and the list of the free ones. */
struct pool {
	pthread_mutex_t lock;
	struct chunk *chunks;
	struct chunk *free;
	void *mapping;
	size_t mapping_bytes;
	struct stream_note *streams; /* by id % STREAMS_MAX */
	uint64_t serial;
	uint32_t chunk_bytes;
	uint32_t count;
	uint32_t free_count;
	uint32_t free_min;
	struct share *shares;
	uint32_t owed; /* reserved for shares, but not held by them; as many are free */
	uint32_t next; /* kept for a stream that has yet to come; as many more are free */
	bool lacks;    /* a reserve is smaller than it is to be until chunks come back */
	/* Each rank leaves so many of the chunks that are reserved for no share to others. */
	uint32_t aside[RANKS];
};

/* Returns -EINVAL if chunk_bytes is not a multiple of CHUNK_ALIGN_BYTES or too small for the
 * largest record. */
int pool__init(struct pool *pool, uint32_t count, uint32_t chunk_bytes);
void pool__deinit(struct pool *pool);
/* Returns the size of so many chunks with their notes. */
size_t pool__bytes(uint32_t count, uint32_t chunk_bytes);
/* Use this zeroed memory of the caller's from now on. No chunk is in use. */
void pool__keep(struct pool *pool, uint8_t *memory);
/* Note the last file that was prepared for a stream. */
void pool__note_file(struct pool *pool, uint64_t stream, uint64_t device, uint64_t file);
/* Reserve `wanted` chunks for `share` from now on, or fewer if there are many shares, or as long as
 * others hold the chunks; call it once. */
void pool__join(struct pool *pool, struct share *share, uint32_t wanted);
void pool__leave(struct pool *pool, struct share *share);
/* Returns an empty chunk; NULL if there is none, or all are reserved, or left to shares that matter
 * more. A NULL share has no reserve, and the first rank. */
struct chunk *pool__take(struct pool *pool, struct share *share);
void pool__give(struct pool *pool, struct chunk *chunk);
/* Make the chunk empty. */
void chunk__begin(struct chunk *chunk);
uint32_t pool__free_count(struct pool *pool);
/* Whether less than a quarter of the chunks is free for a share, without those that are reserved or
 * left to shares that matter more. */
bool pool__is_short(struct pool *pool, const struct share *share);
/* Whether the share holds more than its reserve, so that others may wait for its chunks. */
bool pool__is_beyond(struct pool *pool, const struct share *share);

/* Append what `more` describes, from one ring; the caller has checked room and a free span. If it
 * has no bytes, the data were merged into the ring's page at the end of the chunk. `hashed`: the
 * chunk's checksum includes it, and it changes no more. */
void chunk__append(struct chunk *chunk, const struct span *more, bool hashed);
/* Returns the place behind the chunk's data. */
static inline uint64_t chunk__place(const struct chunk *chunk)
{
	return load_relaxed(&chunk->note->serial) << PLACE_BITS | (chunk->used / 8 & PLACE_MASK);
}

/* Note that all its data were taken: their rings' notes say so. */
static inline void chunk__publish(struct chunk *chunk)
{
	/* Release: the data, and the rings' notes, come first. The partner is the kill. */
	store_release(&chunk->note->used, chunk->used);
}

/* Note where it is about to be written; 0: nowhere. */
static inline void chunk__aim(const struct chunk *chunk, uint64_t file, uint64_t at)
{
	/* Release: in between it is aimed nowhere. The partner is the kill. */
	store_release(&chunk->note->file, 0);
	chunk->note->at = at;
	store_release(&chunk->note->file, file);
}

/* Copy a table. -EINVAL: it is too long, or not of whole words. */
int chunk_table__set(struct chunk_table *table, const uint8_t *data, size_t bytes);

/* Returns the length of `used` bytes of records up to the padding, with a round if there is one. */
static inline uint32_t chunk__records(uint32_t used, bool round)
{
	return used + (round ? WALK_HEADER_BYTES : 0);
}

/* Returns the length of `used` bytes of records with padding; 0 for none without a round. */
uint32_t chunk__padded(uint32_t used, bool round, const struct chunk_table *table);

/*
 * Pad `used` bytes at `data`, to be written at `offset` of a file, to chunk__padded() with one
 * record that readers ignore, behind a FINISHED_ROUND if `round`; it begins with the table, and a
 * footer ends it. `hash` has taken these bytes, and takes the rest. The buffer has room for
 * CHUNK_ALIGN_BYTES more if less than CHUNK_MARKER_BYTES of it are left.
 */
void chunk__pad(uint8_t *data, uint32_t used, bool round, const struct chunk_table *table,
		uint64_t offset, XXH3_state_t *hash);
