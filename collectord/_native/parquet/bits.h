/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "../columns/store.h"

/* How Parquet lays numbers out as bits: packed, in runs, and as differences. All of them return
 * -errno. */

/* Returns the bits of a number, 0 of zero. */
static inline unsigned bits__width(uint64_t number)
{
	return number == 0 ? 0 : 64u - (unsigned)__builtin_clzll(number);
}

/* Seven bits a byte, the lowest first. */
int bits__varint(struct store *store, uint64_t number);
/* Runs of equal numbers, and packed ones between them: RLE of Parquet. Each fits into `width` bits, of
 * which there is at least one. */
int bits__runs(struct store *store, const uint32_t *number, size_t count, unsigned width);
/* `count` times the same number of at most 8 bits. */
int bits__run(struct store *store, uint8_t number, size_t count);
/* A bit for each row, as Arrow has them; those that are not there are set. RLE of Parquet. */
int bits__bitmap(struct store *store, const uint8_t *bitmap, size_t bytes, size_t count);
/* DELTA_BINARY_PACKED of Parquet, of numbers of 4 or 8 bytes. */
int bits__delta(struct store *store, const uint64_t *number, size_t count, unsigned bytes);
