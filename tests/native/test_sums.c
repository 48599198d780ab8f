/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "output.h"
#include "segment.h"

#define DATA_BYTES (8 * SUM_BYTES)

static uint8_t data[DATA_BYTES];
static struct sums sums;

static void put(size_t *at, uint64_t bytes, bool known)
{
	CHECK(*at + bytes <= DATA_BYTES);
	CHECK_EQ(sums__reserve(&sums, bytes, 1), 0);
	if (known)
		sums__add(&sums, data + *at, bytes, XXH3_64bits(data + *at, (size_t)bytes));
	else
		sums__take(&sums, data + *at, bytes);
	*at += (size_t)bytes;
}

static uint32_t given(size_t bytes)
{
	uint32_t count;
	struct sum *all = sums__give(&sums, &count);

	output__check_sums(data, bytes, all, count);
	CHECK((all == NULL) == (count == 0));
	free(all);
	return count;
}

static void small_ones_share_a_part(void)
{
	size_t at = 0;

	for (int i = 0; i < 512; i++)
		put(&at, 4096, i % 2 == 0);
	CHECK_EQ(given(at), 2);
	CHECK_EQ(given(0), 0); /* begins anew */
	at = 0;
	put(&at, 8, false);
	CHECK_EQ(given(at), 1);
}

static void what_is_not_small_is_a_part_by_itself(void)
{
	size_t at = 0;

	put(&at, 4096, true);
	put(&at, SUM_BYTES, true);
	put(&at, SUM_BYTES / 2 + 8, true);
	put(&at, 4096, true);
	put(&at, 4096, true);
	CHECK_EQ(given(at), 4);
}

static void what_is_known_is_not_read(void)
{
	uint32_t count;
	struct sum *all;

	CHECK_EQ(sums__reserve(&sums, SUM_BYTES, 1), 0);
	sums__add(&sums, NULL, SUM_BYTES, 77);
	all = sums__give(&sums, &count);
	CHECK_EQ(count, 1);
	CHECK_EQ(all->xxh3, 77);
	free(all);
}

static void what_is_long_is_cut_into_parts(void)
{
	size_t at = 0;

	put(&at, 4096, false);
	put(&at, 2 * SUM_BYTES + 4096, false);
	put(&at, 8, false);
	CHECK_EQ(given(at), 4);
}

static void any_pieces_have_few_parts_with_their_checksums(void)
{
	uint64_t state = 1;

	for (int turn = 0; turn < 20; turn++) {
		size_t at = 0;

		while (at + 2 * SUM_BYTES < DATA_BYTES) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			put(&at, 1 + (state >> 33) % (turn % 2 == 0 ? 40000 : SUM_BYTES),
			    state >> 63 != 0);
		}
		CHECK(given(at) <= 4 * at / SUM_BYTES + 1);
	}
}

static void a_file_of_any_length_has_few_parts(void)
{
	uint64_t bytes = 0;
	uint32_t count;

	for (uint32_t i = 0; i < 3 * SUMS_STEP; i++, bytes += SUM_BYTES) {
		CHECK_EQ(sums__reserve(&sums, SUM_BYTES, 1), 0);
		sums__add(&sums, data, SUM_BYTES, 0);
	}
	free(sums__give(&sums, &count));
	CHECK_EQ(count, 2 * SUMS_STEP);
}

int main(void)
{
	for (size_t i = 0; i < DATA_BYTES; i++)
		data[i] = (uint8_t)(i * 31 + i / 4096);
	CHECK_EQ(sums__init(&sums), 0);
	RUN(small_ones_share_a_part);
	RUN(what_is_not_small_is_a_part_by_itself);
	RUN(what_is_known_is_not_read);
	RUN(what_is_long_is_cut_into_parts);
	RUN(any_pieces_have_few_parts_with_their_checksums);
	RUN(a_file_of_any_length_has_few_parts);
	sums__deinit(&sums);
	return 0;
}
