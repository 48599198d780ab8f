/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>
#include <xxhash.h>
#ifdef COLLECTORD_XXHASH_DISPATCH
#include <xxh_x86dispatch.h> /* renames XXH3_64bits_update() and its kin */
#endif

/* A part has no more bytes than this, while there are fewer than SUMS_STEP of them; each further
 * SUMS_STEP parts double it, so that a file of any length has few. */
#define SUM_BYTES ((uint64_t)1 << 20)
#define SUMS_STEP 16384u

/* XXH3-64 of a part. */
struct sum {
	uint64_t bytes, xxh3;
};

/*
 * The checksums of what is written into one place, part behind part. What is small goes into one part
 * with what comes behind it, and is read for that; what is not small, and whose checksum is known, is
 * a part by itself and is not read again.
 */
struct sums {
	struct sum *all; /* of the parts that are complete; allocated */
	uint32_t count, room;
	uint64_t part_bytes; /* a part ends before it has more */
	uint64_t open_bytes; /* of the last part, which may go on; `hash` took them */
	XXH3_state_t *hash;
};

/* -ENOMEM. */
int sums__init(struct sums *sums);
void sums__deinit(struct sums *sums);

/* Forget all parts. */
void sums__begin(struct sums *sums);

/* Have room for the parts of `bytes` more bytes, come as they may in `calls` calls. -ENOMEM. */
int sums__reserve(struct sums *sums, uint64_t bytes, uint32_t calls);

/* Go on with these bytes. */
void sums__take(struct sums *sums, const uint8_t *data, uint64_t bytes);

/* The same, of bytes that have this checksum. */
void sums__add(struct sums *sums, const uint8_t *data, uint64_t bytes, uint64_t xxh3);

/* End the last part and hand over all of them, the caller's to free(); NULL where there is none. */
struct sum *sums__give(struct sums *sums, uint32_t *count);
