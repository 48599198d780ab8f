/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_FAKE_RING_H
#define COLLECTORD_TEST_FAKE_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "guarded.h"
#include "perf_ring.h"

/*
 * A ring in memory of our own, between guard pages, and the kernel's side of its protocol.
 * Producer and consumer use one mapping, so that the thread sanitizer sees both.
 */
struct fake_ring {
	struct ring_map map;
	struct guarded memory;
	int wakeup_fd; /* eventfd: readable from fake_ring__wake() on, until it is read */
	uint64_t head;
	uint64_t lost; /* not yet told by a PERF_RECORD_LOST */
	uint64_t lost_all;
	struct perf_ring perf;
};

void fake_ring__init(struct fake_ring *ring, uint32_t pages);
void fake_ring__deinit(struct fake_ring *ring);

/* The ring that drains it; of `records__layout`. Goes with the fake. */
struct ring *fake_ring__open(struct fake_ring *ring);
struct ring *fake_ring__open_with(struct fake_ring *ring, const struct walk_layout *layout);

/* A pass begins. Returns the bytes that are unread. */
uint64_t ring__begin(struct ring *ring);

/* Begin at `position` instead of 0, as a ring that has been used for long. */
void fake_ring__start_at(struct fake_ring *ring, uint64_t position);

/*
 * Write a record as __perf_output_begin() does: nothing if it does not fit, and behind a
 * PERF_RECORD_LOST if earlier ones did not. Returns whether it was written.
 */
bool fake_ring__write(struct fake_ring *ring, const uint8_t *record, uint16_t size);

/* Write a record as into an overwritable ring: before the newest one, over the oldest. */
void fake_ring__write_backward(struct fake_ring *ring, const uint8_t *record, uint16_t size);

/* Bytes at a free-running position, whatever they mean. */
void fake_ring__poke(struct fake_ring *ring, uint64_t position, const void *bytes, size_t count);
void fake_ring__set_head(struct fake_ring *ring, uint64_t head);
void fake_ring__wake(struct fake_ring *ring);

#endif
