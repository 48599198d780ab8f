/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_PAGES_H
#define COLLECTORD_TEST_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "walk.h"

#define PAGES_EVENT_BYTES 12u /* of an event with a serial */

/* Builds sub-buffers of ftrace's ring, and reads them back. */

/* An empty page. */
void page__start(uint8_t *page, uint32_t page_bytes, uint64_t timestamp_ns);
/* Words of data at its end. */
void page__words(uint8_t *page, const uint32_t *words, uint32_t count);
/* An event whose payload is a serial. */
void page__event(uint8_t *page, uint32_t delta, uint64_t serial);
/* The same, at a place that no header knows of. */
void page__event_at(uint8_t *at, uint32_t delta, uint64_t serial);
/* A discarded event of two words. */
void page__discarded(uint8_t *page, uint32_t delta);
/* Say that events were lost before the page; `known`: and how many. */
void page__lost(uint8_t *page, uint64_t lost, bool known);
/* Bytes of data. */
uint32_t page__data(const uint8_t *page);

/* A whole page of one event after another, 1 ns apart, the first at `timestamp_ns`; returns the
 * serial behind the last. */
uint64_t page__fill(uint8_t *page, uint32_t page_bytes, uint64_t timestamp_ns, uint64_t serial);

/*
 * Check that `bytes` bytes of pages hold events with serials one above the other from *serial on,
 * at times that never go back, and move *serial behind the last.
 */
void pages__check(const uint8_t *data, uint64_t bytes, uint32_t page_bytes, uint64_t *serial,
		  uint64_t *last_ns);

#endif
