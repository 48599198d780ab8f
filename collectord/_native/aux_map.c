/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "aux_map.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* This many last bytes of a buffer are looked at: a page, as pages begin as zeros. */
#define TAIL_BYTES 4096u
/* So many of a window's last bytes tell whether they are there still. An area is no smaller. */
#define EDGE_BYTES 4096u

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
	return 0;
}

void aux_map__deinit(struct aux_map *map)
{
	if (map->data != NULL)
		munmap((void *)(uintptr_t)map->data, (size_t)map->bytes);
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
	copy_wrapped(to, map->data, map->bytes, position, bytes);
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

int aux_window__init(struct aux_window *window, enum aux_head_rule rule)
{
	*window = (struct aux_window){.rule = rule};
	if (rule == AUX_MONOTONIC)
		return 0;
	window->edge = malloc(EDGE_BYTES);
	return window->edge != NULL ? 0 : -ENOMEM;
}

void aux_window__deinit(struct aux_window *window)
{
	free(window->edge);
	window->edge = NULL;
}

/* Was anything ever written to the end of the buffer, behind `head`? */
static bool has_tail(const struct aux_map *map, uint64_t head)
{
	uint64_t at = map->bytes - TAIL_BYTES;

	if (at < head)
		at = head;
	while (at < map->bytes && map->data[at] == 0)
		at++;
	return at < map->bytes;
}

/* Are the `bytes` bytes before `position` those that the last window ended with? */
static bool is_edge(const struct aux_window *window, const struct aux_map *map, uint64_t position,
		    uint64_t bytes)
{
	const uint8_t *const edge = window->edge + EDGE_BYTES - bytes;

	for (uint64_t i = 0; i < bytes; i++)
		if (map->data[(position - bytes + i) & (map->bytes - 1)] != edge[i])
			return false;
	return true;
}

static void learn(struct aux_window *window, const struct aux_map *map)
{
	const uint64_t head = aux_map__head(map);

	if (head > map->bytes)
		window->rule = AUX_MONOTONIC;
	else if ((window->any && head < window->end) || has_tail(map, head))
		window->rule = AUX_OFFSET;
}

static void find_offset(struct aux_window *window, const struct aux_map *map,
			struct aux_extent *extent)
{
	/* Just behind the end is where it begins again. */
	const uint64_t at = aux_map__head(map) & (map->bytes - 1);
	const uint64_t fresh = (at - window->end) & (map->bytes - 1);
	const uint64_t old = map->bytes - fresh;

	window->wrapped |= (window->any && at < window->end) || has_tail(map, at);
	extent->held = window->wrapped ? map->bytes : at;
	if (!window->wrapped)
		extent->end = at;
	else if (!window->any)
		extent->end = map->bytes + at;
	else if (is_edge(window, map, window->end, old < EDGE_BYTES ? old : EDGE_BYTES))
		extent->end = window->end + fresh;
	else
		extent->end = window->end + map->bytes + fresh;
}

bool aux_window__find(struct aux_window *window, const struct aux_map *map, uint64_t taken,
		      struct aux_extent *extent)
{
	*extent = (struct aux_extent){0};
	if (window->rule == AUX_LEARNED)
		learn(window, map);
	if (window->rule == AUX_OFFSET) {
		find_offset(window, map, extent);
	} else {
		extent->end = aux_map__head(map);
		extent->held = extent->end < map->bytes ? extent->end : map->bytes;
	}
	window->any = true;
	if (window->rule != AUX_MONOTONIC) {
		window->end = extent->end;
		aux_map__copy(map, extent->end - EDGE_BYTES, window->edge, EDGE_BYTES);
	}
	if (extent->end < taken)
		return false;
	extent->begin = extent->end - extent->held;
	if (extent->begin < taken) {
		extent->repeated = taken - extent->begin;
		extent->begin = taken;
	} else if (window->rule == AUX_MONOTONIC) {
		extent->overwritten = extent->begin - taken;
	}
	return true;
}

uint64_t aux_window__held(const struct aux_window *window, const struct aux_map *map)
{
	const uint64_t head = aux_map__head(map);

	return window->wrapped || head > map->bytes ? map->bytes : head;
}
