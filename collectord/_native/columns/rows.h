/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The rows that a decoder finds in one piece of a file: where each record's own data are, and what
 * its header says. Columns are filled from them one after the other, which keeps each loop short
 * and the piece in the cache. */

#define ROW_NONE (-1)

struct row {
	const uint8_t *payload; /* in the piece, or an incident */
	uint32_t bytes;		/* of the payload: nothing behind them may be read */
	int32_t cpu;		/* this and the next two: ROW_NONE if it is not known */
	int32_t pid;
	int32_t tid;
	uint64_t stamp_ns; /* in the clock of the file */
	uint32_t loose; /* offset in the payload of what has no fixed place, 0: there is nothing: a call
			    * chain, or data up to the end; or, of raw data of perf, of the id of the
			    * cgroup, which lies behind them */
	int32_t label; /* number of its text, or ROW_NONE */
};

struct rows {
	struct row *row;
	size_t count, room;
};

/* Make room for more rows. Returns -errno. */
int rows__grow(struct rows *rows);

/* Returns a new row, NULL without memory. */
static inline struct row *rows__add(struct rows *rows)
{
	if (rows->count == rows->room && rows__grow(rows) < 0)
		return NULL;
	return &rows->row[rows->count++];
}

void rows__deinit(struct rows *rows);
