/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "ring_map.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int ring_map__init(struct ring_map *map, int fd, uint64_t data_bytes, bool overwrite)
{
	const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	void *base;

	memset(map, 0, sizeof(*map));
	if (data_bytes < page_bytes || (data_bytes & (data_bytes - 1)) != 0 ||
	    data_bytes > SIZE_MAX - page_bytes)
		return -EINVAL;
	/* Populate: kernels before 6.14 fault ring pages in lazily, during the first pass. */
	base = mmap(NULL, (size_t)(page_bytes + data_bytes),
		    overwrite ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	map->page = base;
	map->data = (const uint8_t *)base + page_bytes;
	map->data_bytes = data_bytes;
	map->overwrite = overwrite;
	map->map_bytes = (size_t)(page_bytes + data_bytes);
	return 0;
}

void ring_map__deinit(struct ring_map *map)
{
	if (map->page != NULL)
		munmap(map->page, map->map_bytes);
	memset(map, 0, sizeof(*map));
}

uint64_t ring_map__head(const struct ring_map *map)
{
	/*
	 * Acquire; its partner is the write barrier between the record and the store of data_head
	 * in perf_output_put_handle() (kernel/events/ring_buffer.c, barrier B there).
	 */
	return __atomic_load_n(&map->page->data_head, __ATOMIC_ACQUIRE);
}

uint64_t ring_map__tail(const struct ring_map *map)
{
	return __atomic_load_n(&map->page->data_tail, __ATOMIC_RELAXED);
}

void ring_map__copy(const struct ring_map *map, uint64_t position, void *to, size_t bytes)
{
	copy_wrapped(to, map->data, map->data_bytes, position, bytes);
}

void ring_map__publish_tail(const struct ring_map *map, uint64_t tail)
{
	/*
	 * Release: our reads of the data are done before the kernel may overwrite it. The partner
	 * is the control dependency from the load of data_tail to the record's stores in
	 * __perf_output_begin() (barriers D and A in kernel/events/ring_buffer.c).
	 */
	__atomic_store_n(&map->page->data_tail, tail, __ATOMIC_RELEASE);
}

int ring_map__feed(struct ring_map *map, const uint8_t *records, size_t bytes)
{
	/* Acquire; the partner is the release in ring_map__publish_tail(). */
	const uint64_t tail = __atomic_load_n(&map->page->data_tail, __ATOMIC_ACQUIRE);
	const uint64_t head = __atomic_load_n(&map->page->data_head, __ATOMIC_RELAXED);
	const size_t index = (size_t)(head & (map->data_bytes - 1));
	const size_t until_wrap = (size_t)map->data_bytes - index;
	const size_t first = bytes < until_wrap ? bytes : until_wrap;
	uint8_t *const data = (uint8_t *)(uintptr_t)map->data;

	if (head - tail > map->data_bytes || bytes > map->data_bytes - (head - tail))
		return -ENOSPC;
	memcpy(data + index, records, first);
	memcpy(data, records + first, bytes - first);
	/* Release; the partner is the acquire in ring_map__head(). */
	__atomic_store_n(&map->page->data_head, head + bytes, __ATOMIC_RELEASE);
	return 0;
}
