/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Whether a ring can have so many bytes, with `copies` of them, beside `beside` others. */
static bool is_size(uint64_t data_bytes, uint64_t copies, uint64_t beside)
{
	return data_bytes >= (uint64_t)sysconf(_SC_PAGESIZE) &&
	       (data_bytes & (data_bytes - 1)) == 0 && data_bytes <= (SIZE_MAX - beside) / copies;
}

/* Map a part of a file. */
static bool map_part(struct map_part *part, int fd, uint64_t offset, uint64_t bytes, bool writable,
		     int flags)
{
	void *const at = mmap(NULL, (size_t)bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
			      MAP_SHARED | flags, fd, (off_t)offset);

	if (at == MAP_FAILED)
		return false;
	*part = (struct map_part){at, (size_t)bytes};
	return true;
}

int ring_map__init(struct ring_map *map, int fd, uint64_t data_bytes, bool overwrite)
{
	const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);

	*map = (struct ring_map){.data_bytes = data_bytes, .overwrite = overwrite};
	if (!is_size(data_bytes, 1, page_bytes))
		return -EINVAL;
	/* Populate: kernels before 6.14 fault ring pages in lazily, in the first pass. */
	if (!map_part(map->parts, fd, 0, page_bytes + data_bytes, !overwrite, MAP_POPULATE))
		return -errno;
	map->page = map->parts[0].at;
	map->data = (const uint8_t *)map->parts[0].at + page_bytes;
	map->head = &map->page->data_head;
	map->tail = &map->page->data_tail;
	return 0;
}

int ring_map__init_aux(struct ring_map *map, struct ring_map *ring, int fd, uint64_t data_bytes,
		       bool overwrite)
{
	const uint64_t offset = (uint64_t)sysconf(_SC_PAGESIZE) + ring->data_bytes;

	*map = (struct ring_map){.data_bytes = data_bytes, .overwrite = overwrite};
	/* The control page of a read-only ring cannot give its area's place. */
	if (ring->overwrite || !is_size(data_bytes, 1, offset))
		return -EINVAL;
	/* perf_mmap() takes the place and the size of the area from here, and compares. */
	ring->page->aux_offset = offset;
	ring->page->aux_size = data_bytes;
	if (!map_part(map->parts, fd, offset, data_bytes, !overwrite, MAP_POPULATE))
		return -errno;
	map->data = map->parts[0].at;
	map->head = &ring->page->aux_head;
	map->tail = &ring->page->aux_tail;
	return 0;
}

int ring_map__init_bpf(struct ring_map *map, int fd, uint64_t data_bytes)
{
	const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	struct map_part *const parts = map->parts;
	int ret;

	*map = (struct ring_map){.data_bytes = data_bytes};
	if (!is_size(data_bytes, 2, page_bytes))
		return -EINVAL;
	if (!map_part(&parts[0], fd, 0, page_bytes, true, 0) ||
	    !map_part(&parts[1], fd, page_bytes, page_bytes + 2 * data_bytes, false, 0)) {
		ret = -errno;
		ring_map__deinit(map);
		return ret;
	}
	map->tail = parts[0].at;
	map->head = parts[1].at;
	map->data = (const uint8_t *)parts[1].at + page_bytes;
	return 0;
}

void ring_map__deinit(struct ring_map *map)
{
	for (int i = 0; i < 2; i++)
		if (map->parts[i].at != NULL)
			munmap(map->parts[i].at, map->parts[i].bytes);
	memset(map, 0, sizeof(*map));
}

uint64_t ring_map__head(const struct ring_map *map)
{
	/*
	 * Acquire. Its partner for a perf ring is the write barrier between the record and the
	 * store of data_head in perf_output_put_handle() (kernel/events/ring_buffer.c, barrier B
	 * there); for an AUX area the order in which perf_aux_output_end() (same file) stores: the
	 * trace is in memory (ensured by the driver), the AUX record is in the data ring, then
	 * comes the head: its bytes' records are in the data ring, or were lost; for a BPF ring
	 * buffer the release of producer_pos in __bpf_ringbuf_reserve(): the length of a reserved
	 * record is visible, and that it is busy.
	 */
	return __atomic_load_n(map->head, __ATOMIC_ACQUIRE);
}

uint64_t ring_map__tail(const struct ring_map *map)
{
	return __atomic_load_n(map->tail, __ATOMIC_RELAXED);
}

void ring_map__copy(const struct ring_map *map, uint64_t position, void *to, size_t bytes)
{
	const size_t index = (size_t)(position & (map->data_bytes - 1));
	const size_t first = (size_t)least(bytes, map->data_bytes - index);

	memcpy(to, map->data + index, first);
	memcpy((uint8_t *)to + first, map->data, bytes - first);
}

void ring_map__publish_tail(const struct ring_map *map, uint64_t tail)
{
	/*
	 * Release: our reads of the data are done before the kernel, or the hardware, may overwrite
	 * them. The partner is the control dependency from the load of data_tail to the record's
	 * stores in __perf_output_begin() (barriers D and A in kernel/events/ring_buffer.c), or from
	 * that of aux_tail in perf_aux_output_begin() to the room that it gives the driver; and the
	 * acquire of consumer_pos in __bpf_ringbuf_reserve().
	 */
	__atomic_store_n(map->tail, tail, __ATOMIC_RELEASE);
}

int ring_map__feed(struct ring_map *map, const uint8_t *records, size_t bytes)
{
	/* Acquire; the partner is the release in ring_map__publish_tail(). */
	const uint64_t tail = __atomic_load_n(map->tail, __ATOMIC_ACQUIRE);
	const uint64_t head = __atomic_load_n(map->head, __ATOMIC_RELAXED);
	const size_t index = (size_t)(head & (map->data_bytes - 1));
	const size_t first = (size_t)least(bytes, map->data_bytes - index);
	uint8_t *const data = (uint8_t *)(uintptr_t)map->data;

	if (head - tail > map->data_bytes || bytes > map->data_bytes - (head - tail))
		return -ENOSPC;
	memcpy(data + index, records, first);
	memcpy(data, records + first, bytes - first);
	/* Release; the partner is the acquire in ring_map__head(). */
	__atomic_store_n(map->head, head + bytes, __ATOMIC_RELEASE);
	return 0;
}
