/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "parquet/bits.h"
#include "parquet/chunk.h"

#define MOST 5000u

static const uint8_t *get_varint(const uint8_t *at, uint64_t *number)
{
	unsigned shift = 0;

	*number = 0;
	do {
		*number |= (uint64_t)(*at & 0x7f) << shift;
		shift += 7;
	} while (*at++ >= 0x80);
	return at;
}

static uint64_t get_bits(const uint8_t *data, size_t at, unsigned width)
{
	uint64_t number = 0;

	for (unsigned i = 0; i < width; i++, at++)
		number |= (uint64_t)(data[at / 8] >> at % 8 & 1) << i;
	return number;
}

/* Read numbers in runs; there are at least `count` of them. */
static const uint8_t *get_runs(const uint8_t *at, uint32_t *to, size_t count, unsigned width)
{
	for (size_t done = 0; done < count;) {
		uint64_t head;

		at = get_varint(at, &head);
		if ((head & 1) != 0) {
			for (size_t i = 0; i < (head >> 1) * 8; i++, done++)
				if (done < count)
					to[done] = (uint32_t)get_bits(at, i * width, width);
			at += (head >> 1) * width;
			continue;
		}
		for (size_t i = 0; i < head >> 1; i++) {
			CHECK(done < count);
			to[done++] = (uint32_t)get_bits(at, 0, width);
		}
		at += (width + 7) / 8;
	}
	return at;
}

static int64_t unzigzag(uint64_t number)
{
	return (int64_t)(number >> 1 ^ (~(number & 1) + 1));
}

static const uint8_t *get_delta(const uint8_t *at, uint64_t *to, size_t count, unsigned bytes)
{
	const uint64_t mask = bytes == 4 ? UINT32_MAX : UINT64_MAX;
	uint64_t block, parts, told, first;

	at = get_varint(at, &block);
	at = get_varint(at, &parts);
	at = get_varint(at, &told);
	at = get_varint(at, &first);
	CHECK_EQ(told, count);
	if (count > 0)
		to[0] = (uint64_t)unzigzag(first) & mask;
	for (size_t done = 1; done < count;) {
		const uint8_t *widths;
		uint64_t least;

		at = get_varint(at, &least);
		widths = at;
		at += parts;
		for (size_t part = 0; part < parts; part++) {
			for (size_t i = 0; i < block / parts && done < count; i++, done++)
				to[done] = (to[done - 1] + (uint64_t)unzigzag(least) +
					    get_bits(at, i * widths[part], widths[part])) &
					   mask;
			at += block / parts * widths[part] / 8;
		}
	}
	return at;
}

/* A number of a sequence that is the same in each run of the tests. */
static uint64_t next(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return *seed >> 11 ^ *seed << 40;
}

/* Equal numbers follow each other in runs of any length, and others are between them. */
static void runs_are_what_was_put(void)
{
	uint32_t *const put = malloc(MOST * sizeof(*put)), *const got = malloc(MOST * sizeof(*got));
	struct store store = {0};
	uint64_t seed = 1;

	CHECK(put != NULL && got != NULL);
	for (unsigned round = 0; round < 400; round++) {
		const unsigned width = 1 + round % 20;
		const size_t count = 1 + next(&seed) % (round < 200 ? 40 : MOST);

		for (size_t i = 0; i < count;) {
			const uint32_t number = (uint32_t)(next(&seed) & ((1u << width) - 1));
			const size_t run = next(&seed) % 3 == 0 ? 1 + next(&seed) % 40 : 1;

			for (size_t end = i + run; i < end && i < count; i++)
				put[i] = number;
		}
		store.bytes = 0;
		CHECK_EQ(bits__runs(&store, put, count, width), 0);
		CHECK(get_runs(store.data, got, count, width) == store.data + store.bytes);
		CHECK_EQ(memcmp(put, got, count * sizeof(*put)), 0);
	}
	free(store.data);
	free(put);
	free(got);
}

/* Differences of any width, also those that wrap around. */
static void differences_are_what_was_put(void)
{
	uint64_t *const put = malloc(MOST * sizeof(*put)), *const got = malloc(MOST * sizeof(*got));
	struct store store = {0};
	uint64_t seed = 2;

	CHECK(put != NULL && got != NULL);
	for (unsigned round = 0; round < 400; round++) {
		const unsigned bytes = round % 2 == 0 ? 4 : 8, width = round % 65;
		const uint64_t mask = bytes == 4 ? UINT32_MAX : UINT64_MAX;
		const size_t count = next(&seed) % (round < 200 ? 300 : MOST);

		for (size_t i = 0; i < count; i++) {
			const uint64_t past = width == 0 ? 7 : next(&seed) >> (64 - width);

			put[i] = ((i > 0 ? put[i - 1] : next(&seed)) + past) & mask;
		}
		store.bytes = 0;
		CHECK_EQ(bits__delta(&store, put, count, bytes), 0);
		CHECK(get_delta(store.data, got, count, bytes) == store.data + store.bytes);
		CHECK_EQ(memcmp(put, got, count * sizeof(*put)), 0);
	}
	free(store.data);
	free(put);
	free(got);
}

/* A bit for each row; those that nobody has set down are of values. */
static void a_bitmap_is_followed_by_values(void)
{
	static const uint8_t bitmap[] = {0x0f, 0x81};
	struct store store = {0};
	uint32_t got[21];

	CHECK_EQ(bits__bitmap(&store, bitmap, sizeof(bitmap), 21), 0);
	CHECK(get_runs(store.data, got, 21, 1) == store.data + store.bytes);
	for (size_t i = 0; i < 21; i++)
		CHECK_EQ(got[i], i >= 16 || (bitmap[i / 8] >> i % 8 & 1) != 0);
	free(store.data);
}

/* What fills a dictionary is laid out without one, and nulls are no values. */
static void values_have_a_dictionary_if_they_are_few(void)
{
	struct column column = {.kind = column_kind__find("i32")};
	struct chunk_maker maker = {0};
	struct chunk chunk = {0};

	for (uint32_t distinct = 1; distinct <= 2 * DICTIONARY_MAX; distinct *= 8) {
		const size_t rows = 4 * DICTIONARY_MAX;
		int32_t least, most;

		column.valid.bytes = column.values.bytes = column.nulls = 0;
		CHECK_EQ(store__reserve(&column.values, rows * sizeof(uint32_t)), 0);
		for (uint32_t i = 0; i < rows; i++) {
			const int32_t value = (int32_t)(i % distinct) - 3;

			memcpy(column.values.data + i * sizeof(value), &value, sizeof(value));
		}
		column.values.bytes = rows * sizeof(uint32_t);
		column.rows = rows;
		CHECK_EQ(column__set_null(&column, 5), 0);
		CHECK_EQ(chunk__make(&chunk, &maker, &column), 0);
		CHECK_EQ(chunk.values, rows);
		CHECK_EQ(chunk.nulls, 1);
		CHECK_EQ(chunk.encoding,
			 distinct <= DICTIONARY_MAX ? ENCODING_DICTIONARY : ENCODING_DELTA);
		CHECK_EQ(chunk.entries, distinct <= DICTIONARY_MAX ? distinct : 0);
		CHECK(chunk.is_told && chunk.least_bytes == 4);
		memcpy(&least, chunk.least, sizeof(least));
		memcpy(&most, chunk.most, sizeof(most));
		CHECK_EQ(least, -3);
		CHECK_EQ(most, (int32_t)distinct - 4);
	}
	chunk__deinit(&chunk);
	chunk_maker__deinit(&maker);
	column__deinit(&column);
}

int main(void)
{
	RUN(runs_are_what_was_put);
	RUN(differences_are_what_was_put);
	RUN(a_bitmap_is_followed_by_values);
	RUN(values_have_a_dictionary_if_they_are_few);
	return 0;
}
