/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct perf_event_mmap_page;

/*
 * A mapped ring. `data_bytes` is a power of two of pages, or init returns -EINVAL; else -errno.
 * Positions are free running; position & (data_bytes - 1) is the index. All bytes before the head
 * are readable; those before the published tail belong to the kernel again.
 */
struct ring_map {
	const uint8_t *data;
	uint64_t data_bytes;
	__u64 *head, *tail; /* in shared memory; the kernel writes the head, and we the tail */
	struct perf_event_mmap_page *page; /* of a perf ring */
	bool overwrite; /* mapped read-only: the oldest bytes are overwritten, there is no tail */
	struct map_part {
		void *at;
		size_t bytes;
	} parts[2]; /* the mappings to undo */
};

/*
 * Map a perf ring, and the AUX area that may be behind it:
 *
 *   +--------------+-------------------------------+--------------------------------+
 *   | control page | data, data_bytes              | AUX, data_bytes                |
 *   +--------------+-------------------------------+--------------------------------+
 *                                                  ^ aux_offset
 *
 * The control page has the heads and tails of both. A record may wrap, its 8-byte header never
 * does. Layout and protocol: include/uapi/linux/perf_event.h, struct perf_event_mmap_page.
 *
 * If the area is mapped for writing, the kernel stops at the tail. If it is mapped to `overwrite`,
 * as a snapshot, the meaning of the head depends on the driver: see struct aux_window. The caller
 * keeps `ring`, mapped from `fd`, as long as the area behind it.
 */
int ring_map__init(struct ring_map *map, int fd, uint64_t data_bytes, bool overwrite);
int ring_map__init_aux(struct ring_map *map, struct ring_map *ring, int fd, uint64_t data_bytes,
		       bool overwrite);

/*
 * Map a BPF ring buffer (BPF_MAP_TYPE_RINGBUF), one for all CPUs.
 *
 *   +---------------+---------------+--------------------+--------------------+
 *   | consumer page | producer page | data, data_bytes   | the same once more |
 *   | ours to write | read only     | read only, so that no record wraps      |
 *   +---------------+---------------+--------------------+--------------------+
 *
 * A record is a u32 length with BUSY and DISCARD in its highest bits, a u32 of the kernel's, and
 * its data; the next one is at a multiple of 8. A BUSY record is reserved and not committed:
 * reading stops before it. (kernel/bpf/ringbuf.c, include/uapi/linux/bpf.h: BPF_RINGBUF_*)
 */
int ring_map__init_bpf(struct ring_map *map, int fd, uint64_t data_bytes);

void ring_map__deinit(struct ring_map *map);
uint64_t ring_map__head(const struct ring_map *map);
uint64_t ring_map__tail(const struct ring_map *map);
/* Copy `bytes` (<= data_bytes) from `position` on, across the wrap. */
void ring_map__copy(const struct ring_map *map, uint64_t position, void *to, size_t bytes);
void ring_map__publish_tail(const struct ring_map *map, uint64_t tail);
/* Write whole records behind the head as the kernel would, as the only writer of a ring in our
 * own memory. -ENOSPC: there is no room for all of them, and nothing was written. */
int ring_map__feed(struct ring_map *map, const uint8_t *records, size_t bytes);
