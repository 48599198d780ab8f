/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../columns/column.h"
#include "dictionary.h"

/* The values of a column in a group of rows, laid out as the pages of a Parquet file: one of a
 * dictionary if the column has few values, and one of the data. Whoever writes the file compresses them. */

enum encoding { /* as Parquet numbers them */
		ENCODING_PLAIN = 0,
		ENCODING_DELTA = 5,
		ENCODING_DICTIONARY = 8,
};

#define CHUNK_TOLD_MAX \
	64u /* bytes of the smallest and the largest value; longer ones are not told */

struct chunk {
	struct store dictionary; /* empty: there is none */
	struct store data;
	size_t entries; /* of the dictionary */
	size_t values; /* with nulls; of lists their elements, and one for each that is null or empty */
	size_t nulls;
	enum encoding encoding;
	bool is_told; /* the smallest and the largest value are */
	uint32_t least_bytes, most_bytes;
	uint8_t least[CHUNK_TOLD_MAX], most[CHUNK_TOLD_MAX];
};

/* Memory that is used for one column after the other. */
struct chunk_maker {
	struct dictionary dictionary;
	struct store words;   /* the values of numbers, which are not null */
	struct store indices; /* of values in the dictionary */
	struct store levels;
};

/* Lay out what a column has. Returns -errno. */
int chunk__make(struct chunk *chunk, struct chunk_maker *maker, struct column *column);
void chunk__deinit(struct chunk *chunk);
void chunk_maker__deinit(struct chunk_maker *maker);
/* Returns the bytes of a number of a column in a file: 4 or 8. */
static inline unsigned chunk__width(const struct column_kind *kind)
{
	return kind->width <= 4 ? 4 : 8;
}
