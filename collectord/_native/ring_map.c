/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "ring_map.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Whether a ring can have so many bytes, with `copies` of them, beside `beside` others. */
static bool is_size(uint64_t data_bytes, uint64_t copies, uint64_t beside)
{
	return data_bytes >= (uint64_t)sysconf(_SC_PAGESIZE) &&
	       (data_bytes & (data_bytes - 1)) == 0 &&
	       data_bytes <= (SIZE_MAX - beside) / copies;
}

/* Map a part of a file into `at`. */
static int map_part(int fd, uint64_t offset, uint64_t bytes, bool writable, int flags, void **at)
{
	*at = mmap(NULL, (size_t)bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
		   MAP_SHARED | flags, fd, (off_t)offset);
	return *at == MAP_FAILED ? -errno : 0;
}

static void unmap(const void *at, uint64_t bytes)
{
	if (at != NULL)
		munmap((void *)(uintptr_t)at, (size_t)bytes);
}

/* Copy from free-running `position` on, across the wrap, out of `size` bytes at `data`. */
static void copy_wrapped(void *to, const uint8_t *data, uint64_t size, uint64_t position,
			 size_t bytes)
{
	const size_t index = (size_t)(position & (size - 1));
	const size_t until_wrap = (size_t)size - index;
	const size_t first = bytes < until_wrap ? bytes : until_wrap;

	memcpy(to, data + index, first);
	if (first < bytes)
		memcpy((uint8_t *)to + first, data, bytes - first);
}

int ring_map__init(struct ring_map *map, int fd, uint64_t data_bytes, bool overwrite)
{
	const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	void *base;
	int ret;

	memset(map, 0, sizeof(*map));
	if (!is_size(data_bytes, 1, page_bytes))
		return -EINVAL;
	/* Populate: kernels before 6.14 fault ring pages in lazily, in the first pass. */
	ret = map_part(fd, 0, page_bytes + data_bytes, !overwrite, MAP_POPULATE, &base);
	if (ret == 0)
		*map = (struct ring_map){
			.page = base,
			.data = (const uint8_t *)base + page_bytes,
			.data_bytes = data_bytes,
			.map_bytes = (size_t)(page_bytes + data_bytes),
			.overwrite = overwrite,
		};
	return ret;
}

void ring_map__deinit(struct ring_map *map)
{
	unmap(map->page, map->map_bytes);
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

int aux_map__init(struct aux_map *map, struct ring_map *ring, int fd, uint64_t bytes, bool snapshot)
{
	const uint64_t offset = (uint64_t)sysconf(_SC_PAGESIZE) + ring->data_bytes;
	void *base;
	int ret;

	memset(map, 0, sizeof(*map));
	/* The control page of a read-only ring cannot give its area's place. */
	if (ring->overwrite || !is_size(bytes, 1, offset))
		return -EINVAL;
	/* perf_mmap() takes the place and the size of the area from here, and compares. */
	ring->page->aux_offset = offset;
	ring->page->aux_size = bytes;
	ret = map_part(fd, offset, bytes, !snapshot, MAP_POPULATE, &base);
	if (ret == 0)
		*map = (struct aux_map){
			.ring = ring, .data = base, .bytes = bytes, .snapshot = snapshot};
	return ret;
}

void aux_map__deinit(struct aux_map *map)
{
	unmap(map->data, map->bytes);
	memset(map, 0, sizeof(*map));
}

uint64_t aux_map__head(const struct aux_map *map)
{
	/*
	 * Acquire; its partner is the order in which perf_aux_output_end() stores
	 * (kernel/events/ring_buffer.c): the trace is in memory (ensured by the driver), the AUX
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
	copy_wrapped(to, map->data, map->bytes, position, bytes);
}

void aux_map__publish_tail(const struct aux_map *map, uint64_t tail)
{
	/*
	 * Release: our reads are done before the hardware may overwrite these bytes. The partner
	 * is the control dependency from the load of aux_tail in perf_aux_output_begin() to the
	 * room that it gives the driver.
	 */
	__atomic_store_n(&map->ring->page->aux_tail, tail, __ATOMIC_RELEASE);
}

int bpf_map__init(struct bpf_map *map, int fd, uint64_t data_bytes)
{
	const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	void *consumer, *producer;
	int ret;

	memset(map, 0, sizeof(*map));
	if (!is_size(data_bytes, 2, page_bytes))
		return -EINVAL;
	ret = map_part(fd, 0, page_bytes, true, 0, &consumer);
	if (ret < 0)
		return ret;
	ret = map_part(fd, page_bytes, page_bytes + 2 * data_bytes, false, 0, &producer);
	if (ret < 0) {
		unmap(consumer, page_bytes);
		return ret;
	}
	*map = (struct bpf_map){
		.consumer = consumer,
		.producer = producer,
		.data = (const uint8_t *)producer + page_bytes,
		.data_bytes = data_bytes,
		.page_bytes = page_bytes,
	};
	return 0;
}

void bpf_map__deinit(struct bpf_map *map)
{
	unmap(map->consumer, map->page_bytes);
	unmap(map->producer, map->page_bytes + 2 * map->data_bytes);
	memset(map, 0, sizeof(*map));
}
