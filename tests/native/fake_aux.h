/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_FAKE_AUX_H
#define COLLECTORD_TEST_FAKE_AUX_H

#include <stdbool.h>
#include <stdint.h>

#include "fake_ring.h"
#include "ring.h"

/*
 * An AUX area in memory of our own, with its data ring, and the kernel's side of its protocol. The
 * payload is 64-bit words that count up: a driver that has no room goes on counting.
 */
struct fake_aux {
	struct fake_ring ring;
	struct ring_map map;
	struct guarded memory;
	uint64_t head; /* bytes handed over */
	uint64_t word; /* the next one that the hardware makes */
	uint64_t truncated_words, truncated_records, records, lost_records;
	uint64_t time_ns; /* of the next AUX record */
};

void fake_aux__init(struct fake_aux *aux, uint32_t data_pages, uint32_t aux_pages, bool snapshot);
void fake_aux__deinit(struct fake_aux *aux);

/*
 * The hardware makes `words` words; those for which there is room behind the tail are handed over
 * as perf_aux_output_begin() and _end() do it, with one AUX record, TRUNCATED if some did not fit.
 * Returns how many fitted.
 */
uint64_t fake_aux__run(struct fake_aux *aux, uint64_t words);

/* Likewise over what is oldest, of a free-running area; the head counts on, or is a place in it. */
void fake_aux__overwrite(struct fake_aux *aux, uint64_t words, bool offset);

/* Bytes at a free-running position, and the head as the kernel publishes it. */
void fake_aux__poke(struct fake_aux *aux, uint64_t position, const void *bytes, size_t count);
void fake_aux__set_head(struct fake_aux *aux, uint64_t head);

/* A PERF_RECORD_AUX; returns its size. */
uint16_t record__aux(uint8_t *to, uint64_t offset, uint64_t size, uint64_t flags, uint64_t time_ns);

#endif
