/* SPDX-License-Identifier: Apache-2.0 */
#include "chunk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ring.h"
#include "thread.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

size_t pool__bytes(uint32_t count, uint32_t chunk_bytes)
{
	return (size_t)count * (chunk_bytes + sizeof(struct chunk_note)) +
	       STREAMS_MAX * sizeof(struct stream_note);
}

/* Place the chunks, and their notes behind them. */
static void pool__lay_out(struct pool *pool, uint8_t *memory)
{
	void *const behind = memory + (size_t)pool->count * pool->chunk_bytes;
	struct chunk_note *const notes = behind;
	void *const last = notes + pool->count;

	for (uint32_t i = 0; i < pool->count; i++) {
		pool->chunks[i].data = memory + (size_t)i * pool->chunk_bytes;
		pool->chunks[i].note = &notes[i];
	}
	pool->streams = last;
}

void pool__keep(struct pool *pool, uint8_t *memory)
{
	pool__lay_out(pool, memory);
	munmap(pool->mapping, pool->mapping_bytes);
	pool->mapping = MAP_FAILED;
}

void pool__note_file(struct pool *pool, uint64_t stream, uint64_t device, uint64_t file)
{
	struct stream_note *const note = &pool->streams[stream % STREAMS_MAX];

	/* Release: a kill finds no stream, or this one with its file. */
	store_release(&note->id, 0);
	note->device = device;
	note->file = file;
	store_release(&note->id, stream + 1);
}

int pool__init(struct pool *pool, uint32_t count, uint32_t chunk_bytes)
{
	const size_t bytes = pool__bytes(count, chunk_bytes);
	uint8_t *memory;

	memset(pool, 0, sizeof(*pool));
	if (count == 0 || chunk_bytes % CHUNK_ALIGN_BYTES != 0 ||
	    chunk_bytes < RECORD_MAX_BYTES + CHUNK_ALIGN_BYTES)
		return -EINVAL;
	pthread_mutex_init(&pool->lock, NULL);
	pool->chunk_bytes = chunk_bytes;
	pool->mapping_bytes = bytes + HUGE_PAGE_BYTES;
	memory = mmap(NULL, pool->mapping_bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pool->mapping = memory;
	pool->chunks = calloc(count, sizeof(*pool->chunks));
	if (memory == MAP_FAILED || pool->chunks == NULL) {
		pool__deinit(pool);
		return -ENOMEM;
	}
	memory += -(uintptr_t)memory & (HUGE_PAGE_BYTES - 1);
	/* Copying into 4 KiB pages, and pinning them for O_DIRECT, costs about 15 ns for 128 bytes
	 * more than with huge pages. A kernel without them returns EINVAL, which is harmless. */
	(void)madvise(memory, bytes, MADV_HUGEPAGE);
	pool->count = pool->free_count = pool->free_min = count;
	/* A serial that no earlier process of this boot has used: it grows by one every 16 us, and no
	 * process takes chunks that fast. */
	pool->serial = clock__now_ns() >> 14;
	pool__lay_out(pool, memory);
	/* Lowest first: an idle host touches only one or two chunks. */
	for (uint32_t i = count; i-- > 0;) {
		pool->chunks[i].next = pool->free;
		pool->chunks[i].hash = XXH3_createState();
		if (pool->chunks[i].hash == NULL) {
			pool__deinit(pool);
			return -ENOMEM;
		}
		pool->free = &pool->chunks[i];
	}
	return 0;
}

void pool__deinit(struct pool *pool)
{
	if (pool->chunk_bytes == 0)
		return;
	for (uint32_t i = 0; i < pool->count; i++)
		XXH3_freeState(pool->chunks[i].hash);
	free(pool->chunks);
	if (pool->mapping != MAP_FAILED)
		munmap(pool->mapping, pool->mapping_bytes);
	pthread_mutex_destroy(&pool->lock);
	memset(pool, 0, sizeof(*pool));
}

static uint32_t share__owed(const struct share *share)
{
	return share != NULL && share->kept > share->held ? share->kept - share->held : 0;
}

static uint32_t share__rank(const struct share *share)
{
	return share != NULL ? load_relaxed(&share->rank) : 0;
}

/* Under the lock: set how much each rank leaves to those that matter more. It depends on who has
 * joined, so shares of equal rank have all of it. */
static void pool__set_aside(struct pool *pool)
{
	uint32_t part = pool->count - pool->next, more = 0;
	bool joined[RANKS] = {false};

	for (const struct share *share = pool->shares; share != NULL; share = share->next) {
		part -= share->kept;
		joined[share__rank(share)] = true;
	}
	part /= RANK_PARTS;
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		pool->aside[rank] = more * part;
		more += joined[rank];
	}
}

/* Under the lock: let no more chunks be owed than are free. Who came last goes without: those who
 * came before live on their reserves while another one's disk does not answer. */
static void pool__back(struct pool *pool)
{
	const uint32_t next = pool->count < POOL_MANY_CHUNKS ? 0 : NEXT_CHUNKS;
	uint32_t left = pool->free_count;

	pool->owed = 0;
	pool->lacks = false;
	for (struct share *share = pool->shares; share != NULL; share = share->next) {
		const uint32_t owed = share__owed(share);
		const uint32_t backed = owed < left ? owed : left;

		share->kept -= owed - backed;
		pool->owed += backed;
		pool->lacks |= backed < owed;
		left -= backed;
	}
	pool->next = next < left ? next : left;
	pool->lacks |= pool->next < next;
}

/*
 * Under the lock: divide half of the pool one chunk at a time, first to those who want more, of
 * these first to the oldest: a share without a reserve waits as long as another one's disk is slow.
 */
static void pool__divide(struct pool *pool)
{
	uint32_t left = pool->count / 2;
	struct share *share;

	for (share = pool->shares; share != NULL; share = share->next)
		share->kept = 0;
	for (uint32_t each = 1; each <= SHARE_DATA_CHUNKS; each++)
		for (uint32_t wanted = SHARE_DATA_CHUNKS; wanted >= each; wanted--)
			for (share = pool->shares; share != NULL && left > 0; share = share->next)
				if (share->wanted == wanted) {
					share->kept++;
					left--;
				}
	pool__back(pool);
	pool__set_aside(pool);
}

void pool__join(struct pool *pool, struct share *share, uint32_t wanted)
{
	struct share **last = &pool->shares;

	HOLD(&pool->lock);
	if (share->wanted != 0)
		return;
	while (*last != NULL)
		last = &(*last)->next;
	share->wanted = wanted;
	share->next = NULL;
	*last = share;
	pool__divide(pool);
}

void pool__leave(struct pool *pool, struct share *share)
{
	struct share **at = &pool->shares;

	HOLD(&pool->lock);
	while (*at != NULL && *at != share)
		at = &(*at)->next;
	if (*at == NULL)
		return;
	*at = share->next;
	share->wanted = share->kept = 0;
	pool__divide(pool);
}

/* Under the lock: note that `share` holds one more, or one less. */
static void pool__hold(struct pool *pool, struct share *share, bool more)
{
	if (share == NULL)
		return;
	pool->owed -= share__owed(share);
	share->held += more ? 1 : UINT32_MAX;
	pool->owed += share__owed(share);
}

void chunk__begin(struct chunk *chunk)
{
	chunk->used = 0;
	chunk->span_count = 0;
	chunk->piece_count = 0;
	XXH3_64bits_reset(chunk->hash);
}

/* Under the lock: returns how many chunks are free for a share beyond its reserve. */
static uint32_t pool__left(const struct pool *pool, const struct share *share)
{
	const uint32_t others = pool->owed + pool->next + pool->aside[share__rank(share)];

	return pool->free_count > others ? pool->free_count - others : 0;
}

struct chunk *pool__take(struct pool *pool, struct share *share)
{
	struct chunk *chunk;
	uint32_t own;
	bool may;

	HOLD(&pool->lock);
	own = share__owed(share);
	may = own > 0 ? pool->free_count > pool->owed - own + pool->next
		      : pool__left(pool, share) > 0;
	chunk = may ? pool->free : NULL;
	if (chunk == NULL)
		return NULL;
	pool__hold(pool, share, true);
	pool->free = chunk->next;
	pool->free_count--;
	if (pool->free_count < pool->free_min)
		pool->free_min = pool->free_count;
	chunk__begin(chunk);
	chunk->next = NULL;
	chunk->share = share;
	chunk->item = (struct item){.chunk = chunk};
	chunk->note->stream = share != NULL ? share->stream : UINT64_MAX;
	store_relaxed(&chunk->note->used, 0);
	store_relaxed(&chunk->note->file, 0);
	/* Release: with the serial, the note is this use's. The partner is the kill. */
	store_release(&chunk->note->serial, ++pool->serial & UINT64_MAX >> PLACE_BITS);
	return chunk;
}

void pool__give(struct pool *pool, struct chunk *chunk)
{
	for (uint32_t i = 0; i < chunk->span_count; i++)
		ring__drop(chunk->spans[i].ring);
	HOLD(&pool->lock);
	pool__hold(pool, chunk->share, false);
	/* Release: it is in its file, or counted. The partner is the kill. */
	store_release(&chunk->note->serial, 0);
	chunk->next = pool->free;
	pool->free = chunk;
	pool->free_count++;
	if (pool->lacks)
		pool__divide(pool);
}

uint32_t pool__free_count(struct pool *pool)
{
	HOLD(&pool->lock);
	return pool->free_count;
}

bool pool__is_short(struct pool *pool, const struct share *share)
{
	uint32_t left;

	HOLD(&pool->lock);
	left = pool__left(pool, share);
	return left == 0 || left * 4 < pool->count;
}

bool pool__is_beyond(struct pool *pool, const struct share *share)
{
	HOLD(&pool->lock);
	return share->held > share->kept;
}

void chunk__append(struct chunk *chunk, const struct span *more, bool hashed)
{
	struct span *span = chunk->span_count > 0 ? &chunk->spans[chunk->span_count - 1] : NULL;

	if (span == NULL || span->ring != more->ring) {
		span = &chunk->spans[chunk->span_count++];
		*span = (struct span){.ring = more->ring};
		ring__use(more->ring);
	}
	span->samples += more->samples;
	span->bytes += more->bytes;
	span->records += more->records;
	span->sealed = more->sealed;
	span->names |= more->names;
	note_times(&span->first_ns, &span->last_ns, more->first_ns, more->last_ns);
	/* They are in the cache: they have just been copied and walked. */
	if (hashed)
		XXH3_64bits_update(chunk->hash, chunk->data + chunk->used, more->bytes);
	chunk->used += (uint32_t)more->bytes;
}

int chunk_table__set(struct chunk_table *table, const uint8_t *data, size_t bytes)
{
	if (bytes > CHUNK_TABLE_BYTES || bytes % WALK_HEADER_BYTES != 0)
		return -EINVAL;
	if (bytes > 0)
		memcpy(table->data, data, bytes);
	table->bytes = (uint32_t)bytes;
	return 0;
}

/* Returns the length of a padding up to its zeros. */
static uint32_t chunk_table__whole(const struct chunk_table *table)
{
	return table->bytes > WALK_HEADER_BYTES ? table->bytes : WALK_HEADER_BYTES;
}

uint32_t chunk__padded(uint32_t used, bool round, const struct chunk_table *table)
{
	if (used == 0 && !round)
		return 0;
	used = chunk__records(used, round) + chunk_table__whole(table) + CHUNK_FOOTER_BYTES;
	return used + (-used & (CHUNK_ALIGN_BYTES - 1));
}

void chunk__pad(uint8_t *data, uint32_t used, bool round, const struct chunk_table *table,
		uint64_t offset, XXH3_state_t *hash)
{
	const uint32_t end = chunk__padded(used, round, table), hashed = used;
	const uint32_t begin = chunk__records(used, round);
	const uint32_t zeros = begin + chunk_table__whole(table);
	const uint32_t footer = end - CHUNK_FOOTER_BYTES, sum = end - (uint32_t)sizeof(uint64_t);

	if (end == 0)
		return;
	if (round)
		walk__store(data + used, walk__header(WALK_FINISHED_ROUND, 0, WALK_HEADER_BYTES));
	memcpy(data + begin, table->data, table->bytes);
	walk__store(data + begin, walk__header(WALK_FINISHED_INIT, 0, (uint16_t)(end - begin)));
	memset(data + zeros, 0, footer - zeros);
	walk__store(data + footer, CHUNK_FOOTER_MAGIC);
	walk__store(data + footer + sizeof(uint64_t), offset);
	XXH3_64bits_update(hash, data + hashed, sum - hashed);
	walk__store(data + sum, XXH3_64bits_digest(hash));
	XXH3_64bits_update(hash, data + sum, sizeof(uint64_t));
}
