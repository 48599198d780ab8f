/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_PAGE_FETCH_H
#define COLLECTORD_PAGE_FETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "page_ring.h"

/* A page as it was fetched. */
struct page_fetched {
	size_t bytes;	  /* 0: there is nothing to read */
	uint64_t base_ns; /* time at its start */
	bool goes_on;	  /* it is more of the sub-buffer that was taken last */
	bool spliced;
	bool reset;	  /* the ring was emptied since the last fetch */
	enum subbuf_fault fault;
};

/* The next page of a ring, at `page`, or into its pipe: `bytes` tells how much then. */
struct page_fetched page_ring__fetch(struct page_ring *pages, uint8_t *page);

/* A mapped ring counts what was read: `events` more than before, or less if it began anew. */
void page_ring__follow_resets(struct page_ring *pages, bool reset, uint64_t events);

/* Bytes of data that a sub-buffer can have. */
static inline uint32_t page_ring__capacity(const struct page_ring *pages)
{
	return pages->page_bytes - SUBBUF_HEADER_BYTES;
}

#endif
