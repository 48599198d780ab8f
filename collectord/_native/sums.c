/* SPDX-License-Identifier: Apache-2.0 */
#include "segment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int sums__init(struct sums *sums)
{
	memset(sums, 0, sizeof(*sums));
	sums->hash = XXH3_createState();
	if (sums->hash == NULL)
		return -ENOMEM;
	sums__begin(sums);
	return 0;
}

void sums__deinit(struct sums *sums)
{
	free(sums->all);
	XXH3_freeState(sums->hash);
	memset(sums, 0, sizeof(*sums));
}

void sums__begin(struct sums *sums)
{
	sums->count = 0;
	sums->open_bytes = 0;
	sums->part_bytes = SUM_BYTES;
}

int sums__reserve(struct sums *sums, uint64_t bytes, uint32_t calls)
{
	/* Each call may end the previous part, and leave one. */
	const uint64_t more = bytes / sums->part_bytes + 2 * (uint64_t)calls + 1;
	const uint64_t room = (sums->count + more) * 2;
	struct sum *all;

	if (more <= sums->room - sums->count)
		return 0;
	if (room > UINT32_MAX)
		return -ENOMEM;
	all = realloc(sums->all, room * sizeof(*all));
	if (all == NULL)
		return -ENOMEM;
	sums->all = all;
	sums->room = (uint32_t)room;
	return 0;
}

static void sums__push(struct sums *sums, uint64_t bytes, uint64_t xxh3)
{
	sums->all[sums->count++] = (struct sum){bytes, xxh3};
	if (sums->count % SUMS_STEP == 0)
		sums->part_bytes *= 2;
}

static void sums__end_part(struct sums *sums)
{
	if (sums->open_bytes > 0)
		sums__push(sums, sums->open_bytes, XXH3_64bits_digest(sums->hash));
	sums->open_bytes = 0;
}

void sums__take(struct sums *sums, const uint8_t *data, uint64_t bytes)
{
	while (bytes > 0) {
		uint64_t piece;

		if (sums->open_bytes + bytes > sums->part_bytes)
			sums__end_part(sums);
		piece = least(bytes, sums->part_bytes);
		if (sums->open_bytes == 0)
			XXH3_64bits_reset(sums->hash);
		XXH3_64bits_update(sums->hash, data, (size_t)piece);
		sums->open_bytes += piece;
		data += piece;
		bytes -= piece;
	}
}

void sums__add(struct sums *sums, const uint8_t *data, uint64_t bytes, uint64_t xxh3)
{
	if (bytes <= sums->part_bytes / 2) {
		sums__take(sums, data, bytes);
		return;
	}
	sums__end_part(sums);
	sums__push(sums, bytes, xxh3);
}

struct sum *sums__give(struct sums *sums, uint32_t *count)
{
	struct sum *all = sums->all;

	sums__end_part(sums);
	*count = sums->count;
	sums->all = NULL;
	sums->room = 0;
	sums__begin(sums);
	return all;
}
