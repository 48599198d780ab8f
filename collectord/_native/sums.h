/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>
#include <xxhash.h>
#ifdef COLLECTORD_XXHASH_DISPATCH
#include <xxh_x86dispatch.h> /* renames XXH3_64bits_update() and its kin */
#endif

/* The largest part while there are fewer than SUMS_STEP of them; each further SUMS_STEP parts
 * double the size, so that a file of any length has few. */
#define SUM_BYTES ((uint64_t)1 << 20)
#define SUMS_STEP 16384u

/* XXH3-64 of a part. */
struct sum {
	uint64_t bytes, xxh3;
};

/*
 * The checksums of consecutive parts of the data written to one place. Small pieces share a part
 * with the following ones, and are read again for it; a larger piece with a known checksum is a
 * part by itself and is not read again.
 */
struct sums {
	struct sum *all; /* complete parts; allocated */
	uint32_t count, room;
	uint64_t part_bytes; /* largest size of a part */
	uint64_t open_bytes; /* bytes of the last, open part; `hash` took them */
	XXH3_state_t *hash;
};

/* Returns -ENOMEM on failure. */
int sums__init(struct sums *sums);
void sums__deinit(struct sums *sums);

/* Forget all parts. */
void sums__begin(struct sums *sums);

/* Reserve room for the parts of `bytes` more bytes in up to `calls` calls. -ENOMEM. */
int sums__reserve(struct sums *sums, uint64_t bytes, uint32_t calls);

/* Add these bytes. */
void sums__take(struct sums *sums, const uint8_t *data, uint64_t bytes);

/* Add bytes whose checksum is known. */
void sums__add(struct sums *sums, const uint8_t *data, uint64_t bytes, uint64_t xxh3);

/* End the last part and return all of them, which the caller frees; NULL if there is none. */
struct sum *sums__give(struct sums *sums, uint32_t *count);
