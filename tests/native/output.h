/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_OUTPUT_H
#define COLLECTORD_TEST_OUTPUT_H

#include <stddef.h>
#include <stdint.h>

#include "walk.h"
#include "segment.h"

/*
 * Reads back what the writer put into a segment, and checks what holds for every segment: whole
 * records from the first byte to the last, padding that ends at an aligned offset, with a footer
 * that tells the chunk, and the order
 * rule of rounds: behind a marker no sample is older than the newest one before the last marker.
 */
struct output {
	uint8_t *data;
	size_t bytes;
	uint64_t samples, others, rounds, paddings;
	uint64_t pieces, payload_bytes; /* of AUX areas */
};

/*
 * When the sample with this serial was in its ring at the latest. A thread of a test may be put
 * to sleep between taking a record's time and publishing it; the kernel's producer may not.
 */
typedef uint64_t output_visible_fn(uint64_t serial);

/* Bytes begin .. end of the file. `visible` NULL: a sample is visible at its own time. */
void output__read(struct output *output, int fd, uint64_t begin, uint64_t end,
		  output_visible_fn *visible);
void output__free(struct output *output);

/* Check that `sums` are those of these bytes, part by part. */
void output__check_sums(const uint8_t *data, size_t bytes, const struct sum *sums, uint32_t count);

/* The next sample or other record (padding, rounds and AUX pieces are passed over) from `*at` on;
 * moves `*at` behind it. NULL: there is none. */
const uint8_t *output__next(const struct output *output, size_t *at);

/* Likewise the next AUX piece's payload. `at_piece`: where in the section the piece begins. */
const uint8_t *output__next_piece(const struct output *output, size_t *at, struct aux_piece *piece,
				  size_t *at_piece);

/* How many records there are of this type with `pid` at their AT_PID place. */
uint64_t output__count(const struct output *output, uint32_t type, uint32_t pid);

/* An unlinked file in the temporary directory. */
int output__file(void);

/* A disk without room: /dev/full, which must be the device and no file that took its place. */
int output__full(void);

/* Let no file grow beyond `bytes`: a write across that goes in part, the next one is an EFBIG.
 * UINT64_MAX: no such limit. SIGXFSZ is ignored from here on. */
void output__limit(uint64_t bytes);

#endif
