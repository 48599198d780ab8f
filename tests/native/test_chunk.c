/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "chunk.h"
#include "guarded.h"
#include "ring.h"

#define CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)

#define OFFSET 12288u

static XXH3_state_t *hash;
static struct chunk_table table;

static void set_table(uint32_t bytes)
{
	uint8_t data[CHUNK_TABLE_BYTES];

	for (uint32_t i = 0; i < bytes; i++)
		data[i] = (uint8_t)(i + 1);
	CHECK_EQ(chunk_table__set(&table, data, bytes), 0);
}

static void pad(uint8_t *data, uint32_t used, bool round)
{
	XXH3_64bits_reset(hash);
	XXH3_64bits_update(hash, data, used);
	chunk__pad(data, used, round, &table, OFFSET, hash);
}

/* One record up to the next aligned place, which begins with the table but for its first word, and
 * ends in a footer that tells the chunk. */
static void check_padding(const uint8_t *data, uint32_t used, uint32_t padded, bool round)
{
	const uint8_t *const footer = data + padded - CHUNK_FOOTER_BYTES;
	const uint8_t *at;

	CHECK_EQ(padded % CHUNK_ALIGN_BYTES, 0);
	CHECK(padded > used && padded - used < CHUNK_ALIGN_BYTES + CHUNK_MARKER_BYTES);
	if (round) {
		CHECK_EQ(walk__load(data + used), walk__header(WALK_FINISHED_ROUND, 0, 8));
		used += 8;
	}
	CHECK_EQ(walk__load(data + used),
		 walk__header(WALK_FINISHED_INIT, 0, (uint16_t)(padded - used)));
	CHECK_EQ(chunk__records(used - (round ? 8 : 0), round), used);
	at = data + used + 8;
	for (uint32_t i = 8; i < table.bytes; i++)
		CHECK_EQ(*at++, (uint8_t)(i + 1));
	CHECK(at <= footer);
	for (; at < footer; at++)
		CHECK_EQ(*at, 0);
	CHECK_EQ(walk__load(footer), CHUNK_FOOTER_MAGIC);
	CHECK_EQ(walk__load(footer + 8), OFFSET);
	CHECK_EQ(walk__load(footer + 16), XXH3_64bits(data, padded - 8));
	CHECK_EQ(XXH3_64bits_digest(hash), XXH3_64bits(data, padded));
}

static void every_gap_is_one_record_with_a_footer(uint32_t table_bytes)
{
	struct guarded memory;

	set_table(table_bytes);

	guarded__init(&memory, 3 * CHUNK_ALIGN_BYTES, -1);
	for (uint32_t used = 0; used <= 2 * CHUNK_ALIGN_BYTES; used += 8) {
		for (int round = 0; round < 2; round++) {
			if (used == 0 && round == 0)
				continue;
			memset(memory.data, 0xa5, memory.bytes);
			pad(memory.data, used, round != 0);
			check_padding(memory.data, used, chunk__padded(used, round != 0, &table),
				      round != 0);
			for (uint32_t at = 0; at < used; at++)
				CHECK_EQ(memory.data[at], 0xa5);
		}
	}
	CHECK_EQ(chunk__padded(0, false, &table), 0);
	pad(memory.data, 0, false); /* does nothing */
	guarded__deinit(&memory);
}

static void every_gap_without_a_table(void)
{
	every_gap_is_one_record_with_a_footer(0);
}

static void every_gap_with_a_table(void)
{
	every_gap_is_one_record_with_a_footer(16);
	every_gap_is_one_record_with_a_footer(CHUNK_TABLE_BYTES);
}

static void a_full_chunk_takes_a_marker_a_table_and_a_footer_within_its_bytes(void)
{
	set_table(CHUNK_TABLE_BYTES);
	CHECK_EQ(chunk__padded(CHUNK_BYTES - CHUNK_MARKER_BYTES, true, &table), CHUNK_BYTES);
	CHECK_EQ(chunk__padded(CHUNK_BYTES - CHUNK_MARKER_BYTES, false, &table), CHUNK_BYTES);
	CHECK_EQ(chunk__padded(CHUNK_BYTES - CHUNK_MARKER_BYTES + 8, true, &table),
		 CHUNK_BYTES + CHUNK_ALIGN_BYTES);
}

static void tables_that_fit_in_no_padding_are_refused(void)
{
	static const uint8_t data[CHUNK_TABLE_BYTES + 8];

	CHECK_EQ(-chunk_table__set(&table, data, CHUNK_TABLE_BYTES + 8), EINVAL);
	CHECK_EQ(-chunk_table__set(&table, data, 12), EINVAL);
}

/* A chunk has taken what it holds, piece by piece, when its padding comes, as often as it does. */
static void a_chunk_knows_the_checksum_of_what_came(void)
{
	struct ring ring = {0};
	struct chunk *chunk;
	struct pool pool;

	CHECK_EQ(pool__init(&pool, 1, CHUNK_BYTES), 0);
	for (uint8_t turn = 1; turn <= 2; turn++) {
		uint32_t end;

		chunk = pool__take(&pool, NULL);
		for (uint32_t i = 0; i < 500; i++) {
			memset(chunk->data + chunk->used, (int)(turn * i), 128);
			if (i % 3 == 0)
				chunk->pieces[chunk->piece_count++] = chunk->used;
			chunk__append(chunk, &(struct span){.ring = &ring, .bytes = 128}, true);
			if (chunk->piece_count == CHUNK_PIECES)
				break;
		}
		for (int round = 0; round < 2; round++) {
			XXH3_copyState(hash, chunk->hash);
			chunk__pad(chunk->data, chunk->used, round != 0, &table, OFFSET, hash);
			end = chunk__padded(chunk->used, round != 0, &table);
			check_padding(chunk->data, chunk->used, end, round != 0);
		}
		CHECK_EQ(ring.uses, 1);
		pool__give(&pool, chunk);
		CHECK_EQ(ring.uses, 0);
	}
	pool__deinit(&pool);
}

static void sizes_that_are_no_chunk_are_refused(void)
{
	struct pool pool;

	CHECK_EQ(-pool__init(&pool, 0, CHUNK_BYTES), EINVAL);
	CHECK_EQ(-pool__init(&pool, 1, 65536), EINVAL);
	CHECK_EQ(-pool__init(&pool, 1, CHUNK_BYTES + 8), EINVAL);
	pool__deinit(&pool); /* after a failure: does nothing */
}

static void the_pool_gives_each_chunk_once_and_low_ones_first(void)
{
	struct pool pool;
	struct chunk *chunks[3];

	CHECK_EQ(pool__init(&pool, 3, CHUNK_BYTES), 0);
	for (int i = 0; i < 3; i++) {
		chunks[i] = pool__take(&pool, NULL);
		CHECK(chunks[i]->data == pool.chunks[0].data + (size_t)i * CHUNK_BYTES);
		memset(chunks[i]->data, i, CHUNK_BYTES);
	}
	CHECK(pool__take(&pool, NULL) == NULL);
	CHECK_EQ(pool__free_count(&pool), 0);
	CHECK_EQ(pool.free_min, 0);
	chunks[1]->used = 8;
	chunks[1]->item.stamp = 9;
	pool__give(&pool, chunks[1]);
	CHECK_EQ(pool__free_count(&pool), 1);
	CHECK(pool__take(&pool, NULL) == chunks[1]);
	CHECK_EQ(chunks[1]->used, 0);
	CHECK_EQ(chunks[1]->item.stamp, 0);
	CHECK(chunks[1]->item.chunk == chunks[1]);
	CHECK_EQ(pool.free_min, 0);
	pool__deinit(&pool);
}

static void what_is_kept_for_one_is_for_nobody_else(void)
{
	struct pool pool;
	struct share busy = {0}, quiet = {0};
	struct chunk *chunks[8];

	CHECK_EQ(pool__init(&pool, 8, CHUNK_BYTES), 0);
	pool__join(&pool, &busy, 2);
	pool__join(&pool, &busy, 2); /* once */
	pool__join(&pool, &quiet, 2);
	CHECK(!pool__is_short(&pool, NULL));
	for (int i = 0; i < 6; i++)
		CHECK((chunks[i] = pool__take(&pool, &busy)) != NULL);
	CHECK(pool__is_short(&pool, NULL));
	CHECK(pool__is_beyond(&pool, &busy));
	CHECK(pool__take(&pool, &busy) == NULL);
	CHECK(pool__take(&pool, NULL) == NULL);
	for (int i = 6; i < 8; i++)
		CHECK((chunks[i] = pool__take(&pool, &quiet)) != NULL);
	CHECK(!pool__is_beyond(&pool, &quiet));
	CHECK(pool__take(&pool, &quiet) == NULL);
	/* What the one gives back is his again before it is anybody's. */
	pool__give(&pool, chunks[7]);
	CHECK(pool__take(&pool, &busy) == NULL);
	pool__give(&pool, chunks[5]);
	CHECK(pool__take(&pool, &busy) == chunks[5]);
	pool__leave(&pool, &quiet);
	CHECK(pool__take(&pool, &busy) == chunks[7]);
	pool__deinit(&pool);
}

/* Returns how many a share gets. */
static int take_all(struct pool *pool, struct share *share, struct chunk **chunks)
{
	int count = 0;

	while ((chunks[count] = pool__take(pool, share)) != NULL)
		count++;
	return count;
}

static void what_matters_less_leaves_chunks_to_what_matters_more(void)
{
	struct pool pool;
	struct share first = {0}, third = {.rank = 2};
	struct chunk *chunks[2][33];

	CHECK_EQ(pool__init(&pool, 32, CHUNK_BYTES), 0);
	pool__join(&pool, &third, 2);
	CHECK_EQ(pool.aside[2], 0); /* nobody matters more */
	pool__join(&pool, &first, 2);
	/* Of 28 chunks beyond the reserves it leaves a quarter. */
	CHECK_EQ(take_all(&pool, &third, chunks[0]), 2 + 21);
	CHECK(pool__is_short(&pool, &third));
	CHECK_EQ(take_all(&pool, &first, chunks[1]), 2 + 7);
	/* What it gives back is the other one's, until it has no more than its reserve. */
	for (int i = 22; i >= 2; i--) {
		pool__give(&pool, chunks[0][i]);
		CHECK(pool__take(&pool, &third) == NULL);
		CHECK(pool__take(&pool, &first) == chunks[0][i]);
	}
	CHECK(!pool__is_beyond(&pool, &third));
	pool__give(&pool, chunks[0][1]);
	CHECK(pool__take(&pool, &first) == NULL);
	CHECK(pool__take(&pool, &third) == chunks[0][1]);
	pool__give(&pool, chunks[1][0]);
	pool__leave(&pool, &first);
	CHECK(pool__take(&pool, &third) == chunks[1][0]);
	pool__deinit(&pool);
}

/* Of three ranks the second leaves one part, and the third two. */
static void each_rank_leaves_more_than_the_one_before(void)
{
	struct pool pool;
	struct share shares[3] = {{.rank = 2}, {.rank = 0}, {.rank = 1}};
	struct chunk *chunks[33];

	CHECK_EQ(pool__init(&pool, 32, CHUNK_BYTES), 0);
	for (int i = 0; i < 3; i++)
		pool__join(&pool, &shares[i], 2);
	CHECK(!pool__is_short(&pool, &shares[0]));
	CHECK_EQ(take_all(&pool, &shares[0], chunks), 2 + 26 - 12);
	CHECK(!pool__is_short(&pool, &shares[1]));
	CHECK_EQ(take_all(&pool, &shares[2], chunks), 2 + 6);
	CHECK_EQ(take_all(&pool, &shares[1], chunks), 2 + 6);
	pool__deinit(&pool);
}

static void no_more_than_half_is_kept(void)
{
	struct pool pool;
	struct share shares[5] = {0};
	struct share one = {0};

	CHECK_EQ(pool__init(&pool, 8, CHUNK_BYTES), 0);
	for (int i = 0; i < 4; i++)
		pool__join(&pool, &shares[i], 2);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(shares[i].kept, 1);
	/* Where it is not enough for all, those that came first have theirs. */
	pool__join(&pool, &shares[4], 2);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(shares[i].kept, i < 4);
	pool__leave(&pool, &shares[0]);
	for (int i = 1; i < 5; i++)
		CHECK_EQ(shares[i].kept, 1);
	pool__deinit(&pool);
	/* Of one chunk none is: whoever comes has it. */
	CHECK_EQ(pool__init(&pool, 1, CHUNK_BYTES), 0);
	pool__join(&pool, &one, 2);
	CHECK_EQ(one.kept, 0);
	CHECK(pool__take(&pool, NULL) != NULL);
	pool__deinit(&pool);
}

static void the_first_chunk_of_each_comes_before_the_second_of_any(void)
{
	struct pool pool;
	struct share data[6] = {0}, sideband[6] = {0};

	CHECK_EQ(pool__init(&pool, 16, CHUNK_BYTES), 0);
	for (int i = 0; i < 6; i++) {
		pool__join(&pool, &data[i], SHARE_DATA_CHUNKS);
		pool__join(&pool, &sideband[i], SHARE_SIDEBAND_CHUNKS);
	}
	for (int i = 0; i < 6; i++) {
		CHECK_EQ(data[i].kept, 1);
		CHECK_EQ(sideband[i].kept, i < 2);
	}
	CHECK_EQ(pool.owed, 8);
	pool__deinit(&pool);
}

/* One whose disk hangs holds all that it may have. */
static void one_that_comes_late_takes_nothing_from_those_before_it(void)
{
	struct share busy = {0}, quiet = {0}, late[2] = {0}, later = {0};
	struct chunk *taken[POOL_MANY_CHUNKS], *last;
	struct pool pool;
	uint32_t count = 0;

	CHECK_EQ(pool__init(&pool, POOL_MANY_CHUNKS, CHUNK_BYTES), 0);
	pool__join(&pool, &busy, SHARE_DATA_CHUNKS);
	pool__join(&pool, &quiet, SHARE_DATA_CHUNKS);
	while ((last = pool__take(&pool, &busy)) != NULL)
		taken[count++] = last;
	CHECK_EQ(count, POOL_MANY_CHUNKS - SHARE_DATA_CHUNKS - NEXT_CHUNKS);
	pool__join(&pool, &late[0], SHARE_DATA_CHUNKS);
	pool__join(&pool, &late[1], SHARE_SIDEBAND_CHUNKS);
	pool__join(&pool, &later, SHARE_DATA_CHUNKS);
	CHECK(pool__is_short(&pool, &later));
	CHECK(pool__take(&pool, &later) == NULL);
	CHECK(pool__take(&pool, &busy) == NULL);
	CHECK((last = pool__take(&pool, &quiet)) != NULL);
	CHECK(pool__take(&pool, &quiet) != NULL);
	CHECK(pool__take(&pool, &quiet) == NULL);
	CHECK(pool__take(&pool, &late[0]) != NULL);
	CHECK(pool__take(&pool, &late[0]) != NULL);
	CHECK(pool__take(&pool, &late[1]) != NULL);
	CHECK_EQ(pool__free_count(&pool), 0);
	/* What one gives back is his again; what is left over is for those who lack some. */
	pool__give(&pool, last);
	CHECK(pool__take(&pool, &later) == NULL);
	CHECK(pool__take(&pool, &quiet) == last);
	pool__give(&pool, taken[--count]);
	CHECK(pool__take(&pool, &busy) == NULL);
	CHECK(pool__take(&pool, &later) == taken[count]);
	/* Those that are to be kept for the next one come last. */
	for (uint32_t i = 0; i < 1 + NEXT_CHUNKS; i++)
		pool__give(&pool, taken[--count]);
	CHECK(pool__take(&pool, &busy) == NULL);
	pool__give(&pool, taken[--count]);
	CHECK(pool__take(&pool, &busy) == taken[count]);
	pool__deinit(&pool);
}

/* A successor reads them in memory that is not the pool's own. */
static void notes_tell_of_a_chunk_what_a_successor_needs(void)
{
	struct share share = {.stream = 7};
	const struct chunk_note *note;
	struct ring ring = {0};
	struct chunk *chunk;
	struct pool pool;
	uint64_t serial;
	uint8_t *memory;

	CHECK_EQ(pool__init(&pool, 2, CHUNK_BYTES), 0);
	CHECK_EQ(pool__bytes(2, CHUNK_BYTES), 2 * (CHUNK_BYTES + 64) + STREAMS_MAX * 32);
	memory = mmap(NULL, pool__bytes(2, CHUNK_BYTES), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	pool__keep(&pool, memory);
	note = (const struct chunk_note *)(const void *)(memory + (size_t)2 * CHUNK_BYTES);
	chunk = pool__take(&pool, &share);
	CHECK(chunk->data == memory && chunk->note == note);
	serial = note->serial;
	CHECK(serial != 0 && serial >> (64 - PLACE_BITS) == 0);
	CHECK_EQ(note->stream, 7);
	chunk__append(chunk, &(struct span){.ring = &ring, .bytes = 128}, true);
	CHECK_EQ(note->used, 0); /* before the rings' notes */
	CHECK_EQ(chunk__place(chunk), serial << PLACE_BITS | 16);
	chunk__publish(chunk);
	CHECK_EQ(note->used, 128);
	chunk__aim(chunk, 11, 4096 | 1);
	CHECK(note->file == 11 && note->at == 4097);
	pool__give(&pool, chunk);
	CHECK_EQ(note->serial, 0);
	/* Another use of it is another chunk, and nothing of the last one is left. */
	CHECK(pool__take(&pool, NULL) == chunk);
	CHECK(note->serial == serial + 1 && note->used == 0 && note->file == 0);
	pool__note_file(&pool, 2 * STREAMS_MAX + 1, 5, 6);
	CHECK_EQ(pool.streams[1].id, 2 * STREAMS_MAX + 2);
	CHECK(pool.streams[1].device == 5 && pool.streams[1].file == 6);
	pool__deinit(&pool);
	CHECK_EQ(munmap(memory, pool__bytes(2, CHUNK_BYTES)), 0);
}

static void spans_follow_the_rings_in_turn(void)
{
	static uint8_t data[144];
	static struct chunk chunk;
	static struct ring rings[2];
	struct ring *const one = &rings[0], *const two = &rings[1];
	struct span timed = {.records = 3, .samples = 2, .first_ns = 50, .last_ns = 60};
	struct span untimed = {.ring = one, .records = 1, .samples = 1};

	chunk.data = data;
	chunk.hash = hash;
	chunk__begin(&chunk);
	timed.ring = one;
	timed.bytes = 100;
	timed.names = true;
	chunk__append(&chunk, &timed, true);
	untimed.bytes = 28;
	chunk__append(&chunk, &untimed, true);
	timed = (struct span){
		.ring = two, .bytes = 8, .records = 3, .samples = 2, .first_ns = 40, .last_ns = 55};
	chunk__append(&chunk, &timed, true);
	untimed.bytes = 8;
	chunk__append(&chunk, &untimed, true);
	CHECK_EQ(chunk.used, 144);
	CHECK_EQ(chunk.span_count, 3);
	CHECK_EQ(one->uses, 2);
	CHECK_EQ(two->uses, 1);
	CHECK(chunk.spans[0].ring == one && chunk.spans[1].ring == two && chunk.spans[2].ring == one);
	CHECK_EQ(chunk.spans[0].samples, 3);
	CHECK_EQ(chunk.spans[0].records, 4);
	CHECK_EQ(chunk.spans[0].bytes, 128);
	CHECK_EQ(chunk.spans[0].first_ns, 50);
	CHECK_EQ(chunk.spans[0].last_ns, 60);
	CHECK(chunk.spans[0].names && !chunk.spans[1].names && !chunk.spans[2].names);
	CHECK_EQ(chunk.spans[1].records, 3);
	CHECK_EQ(chunk.spans[1].first_ns, 40);
	CHECK_EQ(chunk.spans[1].last_ns, 55);
	CHECK_EQ(chunk.spans[2].records, 1);
	CHECK_EQ(chunk.spans[2].first_ns, 0);
}

int main(void)
{
	hash = XXH3_createState();
	CHECK(hash != NULL);
	RUN(every_gap_without_a_table);
	RUN(every_gap_with_a_table);
	RUN(a_full_chunk_takes_a_marker_a_table_and_a_footer_within_its_bytes);
	RUN(tables_that_fit_in_no_padding_are_refused);
	RUN(a_chunk_knows_the_checksum_of_what_came);
	RUN(sizes_that_are_no_chunk_are_refused);
	RUN(the_pool_gives_each_chunk_once_and_low_ones_first);
	RUN(what_is_kept_for_one_is_for_nobody_else);
	RUN(what_matters_less_leaves_chunks_to_what_matters_more);
	RUN(each_rank_leaves_more_than_the_one_before);
	RUN(no_more_than_half_is_kept);
	RUN(the_first_chunk_of_each_comes_before_the_second_of_any);
	RUN(one_that_comes_late_takes_nothing_from_those_before_it);
	RUN(notes_tell_of_a_chunk_what_a_successor_needs);
	RUN(spans_follow_the_rings_in_turn);
	XXH3_freeState(hash);
	return 0;
}
