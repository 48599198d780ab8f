/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "aux_map.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int aux_map__init(struct aux_map *map, struct ring_map *ring, int fd, uint64_t bytes, bool snapshot)
{
	const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	const uint64_t offset = page_bytes + ring->data_bytes;
	void *base;

	memset(map, 0, sizeof(*map));
	/* The control page of a read-only ring cannot say where its area is. */
	if (ring->overwrite || bytes < page_bytes || (bytes & (bytes - 1)) != 0 ||
	    bytes > SIZE_MAX - offset)
		return -EINVAL;
	/* perf_mmap() takes the place and the size of the area from here, and compares. */
	ring->page->aux_offset = offset;
	ring->page->aux_size = bytes;
	/* Populate: kernels before 6.14 fault the pages in lazily, during the first passes. */
	base = mmap(NULL, (size_t)bytes, snapshot ? PROT_READ : PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_POPULATE, fd, (off_t)offset);
	if (base == MAP_FAILED)
		return -errno;
	map->ring = ring;
	map->data = base;
	map->bytes = bytes;
	map->snapshot = snapshot;
	ring->users++;
	return 0;
}

void aux_map__deinit(struct aux_map *map)
{
	if (map->data != NULL) {
		munmap((void *)(uintptr_t)map->data, (size_t)map->bytes);
		map->ring->users--;
	}
	memset(map, 0, sizeof(*map));
}

uint64_t aux_map__head(const struct aux_map *map)
{
	/*
	 * Acquire; its partner is the order in which perf_aux_output_end() stores
	 * (kernel/events/ring_buffer.c): the trace is in memory (the driver sees to that), the AUX
	 * record is in the data ring, then comes the head.
	 */
	return __atomic_load_n(&map->ring->page->aux_head, __ATOMIC_ACQUIRE);
}

uint64_t aux_map__tail(const struct aux_map *map)
{
	return __atomic_load_n(&map->ring->page->aux_tail, __ATOMIC_RELAXED);
}

void aux_map__copy(const struct aux_map *map, uint64_t position, void *to, size_t bytes)
{
	const size_t index = (size_t)(position & (map->bytes - 1));
	const size_t until_wrap = (size_t)map->bytes - index;
	const size_t first = bytes < until_wrap ? bytes : until_wrap;

	memcpy(to, map->data + index, first);
	memcpy((uint8_t *)to + first, map->data, bytes - first);
}

void aux_map__publish_tail(const struct aux_map *map, uint64_t tail)
{
	/*
	 * Release: our reads are done before the hardware may overwrite what they read. The
	 * partner is the control dependency from the load of aux_tail in perf_aux_output_begin() to
	 * the room that it gives the driver.
	 */
	__atomic_store_n(&map->ring->page->aux_tail, tail, __ATOMIC_RELEASE);
}
