/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_PAGE_MAP_H
#define COLLECTORD_PAGE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "subbuf.h"

/*
 * struct trace_buffer_meta of include/uapi/linux/trace_mmap.h (since 6.10), which older headers
 * do not have. Its counters are those of the last TRACE_MMAP_IOCTL_GET_READER, and they count
 * from the last reset of the ring.
 */
struct page_meta {
	uint32_t meta_page_bytes;
	uint32_t meta_struct_bytes;
	uint32_t subbuf_bytes;
	uint32_t subbufs; /* the reader's among them */
	struct {
		uint64_t lost_events; /* always 0: it is told in the page */
		uint32_t id;
		uint32_t read; /* bytes of data that are the reader's, from the page's start */
	} reader;
	uint64_t flags;
	uint64_t entries; /* events written */
	uint64_t overrun;
	uint64_t read; /* events handed out since the ring's last reset */
};

/*
 * A mapped ring of one CPU:
 *
 *   +-----------------+----------+----------+-----
 *   | page_meta       | id 0     | id 1     | ...
 *   | meta_page_bytes | subbuf_bytes each
 *   +-----------------+----------+----------+-----
 */
struct page_map {
	const struct page_meta *meta;
	const uint8_t *pages;
	uint32_t subbuf_bytes, subbufs;
	size_t map_bytes;
	/* Take what is unread of the reader's page or, when all of it was read, the next page. -errno.
	 * Tests move the reader themselves. */
	int (*get_reader)(int fd);
};

/* Where the reader stands: of page `id`, `read` bytes behind its header are handed out. */
struct page_place {
	uint32_t id, read;
};

/* Map all of a trace_pipe_raw. -ENODEV: no ring of this kernel can be mapped; -EBUSY: a snapshot
 * is; -EPROTO: the meta page is laid out in another way. */
int page_map__init(struct page_map *map, int fd);
void page_map__deinit(struct page_map *map);

/* A page as it was fetched. */
struct page_fetched {
	size_t bytes;	  /* 0: there is nothing to read */
	uint64_t base_ns; /* time at its start */
	bool goes_on;	  /* it is more of the sub-buffer that was taken last */
	bool spliced;
	bool reset;	  /* the ring was emptied since the last fetch */
	enum fault fault;
};

/* What was handed out last; `refused`: the rest of that page is passed over. */
struct page_cursor {
	bool refused;
	struct page_place place;
	uint64_t page_ns;
	uint64_t read_events;
};

/* Where the reader stands now; returns the page of which part was read already, NULL for none. */
const uint8_t *page_cursor__begin(struct page_cursor *cursor, const struct page_map *map);

/* Copy what was handed out since to `page`. Of a page that goes on the time is not known here. */
struct page_fetched page_cursor__fetch(struct page_cursor *cursor, const struct page_map *map, int fd,
				       uint8_t *page);

/* The map counts what was read: `events` more than before, or less if it began anew. True: it did. */
bool page_cursor__follow(struct page_cursor *cursor, const struct page_map *map, bool reset,
			 uint64_t events);

#endif
