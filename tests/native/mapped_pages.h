/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_MAPPED_PAGES_H
#define COLLECTORD_TEST_MAPPED_PAGES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "guarded.h"
#include "page_ring.h"

#define MAPPED_PAGES 6u /* of the ring, the reader's not among them */

/*
 * A mapped ring of ftrace in memory of our own, and the kernel's side of it: a writer that is
 * refused when the ring is full, and GET_READER, which gives what is unread of the reader's page,
 * and swaps that for the oldest page when there is nothing. Headers tell no length, since the
 * writer and the reader would both be at them. At most one ring at a time.
 */
struct mapped_pages {
	struct page_map map;
	struct guarded memory;
	pthread_mutex_t lock;
	struct page_meta *meta;
	uint32_t slots[MAPPED_PAGES]; /* ids in the order of the ring */
	uint32_t commit[MAPPED_PAGES + 1];
	uint64_t head, tail; /* count slots; the writer is on `tail`, or on the reader's page */
	bool writer_on_reader;
	uint64_t now_ns;
	int fd; /* eventfd, readable after a page was begun, until the reader moves */
};

void mapped_pages__init(struct mapped_pages *pages);
void mapped_pages__deinit(struct mapped_pages *pages);

/* One event with a serial; false: the ring is full. */
bool mapped_pages__write(struct mapped_pages *pages, uint64_t serial);

#endif
