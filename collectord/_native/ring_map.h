/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_RING_MAP_H
#define COLLECTORD_RING_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct perf_event_mmap_page;

/*
 * A mapped perf ring.
 *
 *   +--------------+------------------------------------------+
 *   | control page | data, data_bytes = page size << n         |
 *   +--------------+------------------------------------------+
 *
 * Head (kernel) and tail (we) are free-running byte positions; position & (data_bytes - 1) is
 * the index. head - tail bytes are unread. A record may wrap, its 8-byte header never does.
 * Layout and protocol: include/uapi/linux/perf_event.h, struct perf_event_mmap_page.
 */
struct ring_map {
	struct perf_event_mmap_page *page;
	const uint8_t *data;
	uint64_t data_bytes;
	size_t map_bytes;
	bool overwrite;
};

/*
 * Map `fd`: read-write, or to `overwrite` read-only, which is how the kernel knows that nobody will
 * publish a tail. -EINVAL: data_bytes is not a power of two of pages; else -errno.
 */
int ring_map__init(struct ring_map *map, int fd, uint64_t data_bytes, bool overwrite);
void ring_map__deinit(struct ring_map *map);

/* Copy from free-running `position` on, across the wrap, of `size` bytes at `data`, a power of two. */
static inline void copy_wrapped(void *to, const uint8_t *data, uint64_t size, uint64_t position,
				size_t bytes)
{
	const size_t index = (size_t)(position & (size - 1));
	const size_t until_wrap = (size_t)size - index;
	const size_t first = bytes < until_wrap ? bytes : until_wrap;

	memcpy(to, data + index, first);
	if (first < bytes)
		memcpy((uint8_t *)to + first, data, bytes - first);
}

/* Everything before the returned head is readable. */
uint64_t ring_map__head(const struct ring_map *map);
uint64_t ring_map__tail(const struct ring_map *map);

/* As the kernel would: write whole records behind the head. -ENOSPC: there is no room for all of
 * them, and nothing was written. Of a ring in our own memory, by one writer. */
int ring_map__feed(struct ring_map *map, const uint8_t *records, size_t bytes);

/* Copy `bytes` (<= data_bytes) from free-running `position` on, across the wrap. */
void ring_map__copy(const struct ring_map *map, uint64_t position, void *to, size_t bytes);

/* Give everything before `tail` back to the kernel. */
void ring_map__publish_tail(const struct ring_map *map, uint64_t tail);

#endif
