/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_AUX_MAP_H
#define COLLECTORD_AUX_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring_map.h"

/*
 * The AUX area of a mapped perf ring.
 *
 *   +--------------+----------+---------------------------------+
 *   | control page | data     | AUX, aux_bytes = page size << n |
 *   +--------------+----------+---------------------------------+
 *                             ^ aux_offset
 *
 * aux_head (kernel) and aux_tail (we) are in the control page of the ring. Mapped for writing, both
 * are free-running byte positions, and the kernel stops at the tail. Mapped read-only, the kernel
 * overwrites what is oldest, there is no tail, and what the head is depends on the driver: see
 * aux_window.h. Layout and protocol: include/uapi/linux/perf_event.h, struct perf_event_mmap_page.
 */
struct aux_map {
	struct ring_map *ring; /* the caller keeps it mapped */
	const uint8_t *data;
	uint64_t bytes;
	bool snapshot;
	unsigned users;
};

/* Map behind the ring that `ring` mapped from `fd`. -EINVAL: `bytes` is not a power of two of
 * pages; else -errno. */
int aux_map__init(struct aux_map *map, struct ring_map *ring, int fd, uint64_t bytes,
		  bool snapshot);
void aux_map__deinit(struct aux_map *map);

/* What it covers is readable, and its PERF_RECORD_AUX is in the data ring already, or was lost. */
uint64_t aux_map__head(const struct aux_map *map);
uint64_t aux_map__tail(const struct aux_map *map);

/* Copy `bytes` (<= map->bytes) from free-running `position` on, across the wrap. */
void aux_map__copy(const struct aux_map *map, uint64_t position, void *to, size_t bytes);

/* Give everything before `tail` back to the kernel. */
void aux_map__publish_tail(const struct aux_map *map, uint64_t tail);

#endif
