/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "../columns/source.h"

/* The parts of a file that were read last, in memory. */

struct block {
	uint64_t number; /* + 1; 0: nothing is in it */
	size_t bytes;
	uint8_t *data;
};

struct blocks {
	const struct source *source;
	struct block *block;
	uint8_t *joined; /* a record that lies in two blocks */
};

/* Returns -errno. */
int blocks__init(struct blocks *blocks, const struct source *source);
void blocks__deinit(struct blocks *blocks);
/* Have all parts read again: the file has changed. */
void blocks__forget(struct blocks *blocks);
/* Find `bytes` bytes of the file, RECORD_MAX_BYTES at most, valid up to the next call. Returns 1, 0 if it
 * has fewer, or -ENOMEM. */
int blocks__view(struct blocks *blocks, uint64_t offset, size_t bytes, const uint8_t **data);
