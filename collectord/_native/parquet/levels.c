/* SPDX-License-Identifier: Apache-2.0 */
#include "levels.h"

#include <string.h>

#include "bits.h"

/* Levels of lists: what each element is. */
enum { LEVEL_NULL, LEVEL_EMPTY, LEVEL_ELEMENT = 3, LEVEL_BITS = 2 };

/* Begin the levels, whose bytes precede them. */
static int begin(struct store *page, size_t *at)
{
	const int ret = store__reserve(page, sizeof(uint32_t));

	*at = page->bytes;
	page->bytes += ret == 0 ? sizeof(uint32_t) : 0;
	return ret;
}

static void end(struct store *page, size_t at)
{
	const uint32_t bytes = (uint32_t)(page->bytes - at - sizeof(uint32_t));

	memcpy(page->data + at, &bytes, sizeof(bytes));
}

static int put_runs(struct store *page, const uint32_t *level, size_t count, unsigned width)
{
	size_t at;
	int ret = begin(page, &at);

	if (ret == 0)
		ret = bits__runs(page, level, count, width);
	if (ret == 0)
		end(page, at);
	return ret;
}

/* Say where each list begins, and what each element is. */
static int put_lists(struct store *page, const struct column *column, struct store *words,
		     size_t *count)
{
	const size_t elements = column->values.bytes / column->kind->width;
	const size_t most = elements + column->rows;
	uint32_t *begins, *levels;
	size_t found = 0;
	int ret;

	words->bytes = 0;
	ret = store__reserve(words, 2 * most * sizeof(*begins));
	if (ret < 0)
		return ret;
	begins = (uint32_t *)(void *)words->data;
	levels = begins + most;
	for (size_t row = 0; row < column->rows; row++) {
		const int32_t size = column__offset(column, row + 1) - column__offset(column, row);

		begins[found] = 0;
		levels[found] = LEVEL_ELEMENT;
		if (size == 0) {
			levels[found++] = column__is_valid(column, row) ? LEVEL_EMPTY : LEVEL_NULL;
			continue;
		}
		found++;
		for (int32_t i = 1; i < size; i++) {
			begins[found] = 1;
			levels[found++] = LEVEL_ELEMENT;
		}
	}
	*count = found;
	ret = put_runs(page, begins, found, 1);
	return ret == 0 ? put_runs(page, levels, found, LEVEL_BITS) : ret;
}

/* Say which rows are null. */
static int put_rows(struct store *page, const struct column *column)
{
	size_t at;
	int ret = begin(page, &at);

	if (ret == 0 && column->nulls == 0)
		ret = bits__run(page, 1, column->rows);
	else if (ret == 0)
		ret = bits__bitmap(page, column->valid.data, column->valid.bytes, column->rows);
	if (ret == 0)
		end(page, at);
	return ret;
}

int levels__put(struct store *page, const struct column *column, struct store *words, size_t *count)
{
	if (column->kind->is_list)
		return put_lists(page, column, words, count);
	*count = column->rows;
	return put_rows(page, column);
}
