/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct perf_event_mmap_page;

/*
 * Mappings of rings. `data_bytes` is a power of two of pages, or init returns -EINVAL; else
 * -errno. Positions are free running; position & (data_bytes - 1) is the index. All bytes before a
 * head are readable; those before the published tail belong to the kernel again.
 */

/*
 * A perf ring, and the AUX area that may be behind it:
 *
 *   +--------------+-------------------------------+--------------------------------+
 *   | control page | data, data_bytes              | AUX, bytes                     |
 *   +--------------+-------------------------------+--------------------------------+
 *                                                  ^ aux_offset
 *
 * The control page has the heads (written by the kernel) and tails (written by us) of both. A
 * record may wrap, its 8-byte header never does. Layout and protocol:
 * include/uapi/linux/perf_event.h, struct perf_event_mmap_page.
 */
struct ring_map {
	struct perf_event_mmap_page *page;
	const uint8_t *data;
	uint64_t data_bytes;
	size_t map_bytes;
	bool overwrite;
};

/* Map read-write, or read-only to `overwrite`, which tells the kernel that nobody will publish
 * a tail. */
int ring_map__init(struct ring_map *map, int fd, uint64_t data_bytes, bool overwrite);
void ring_map__deinit(struct ring_map *map);
uint64_t ring_map__head(const struct ring_map *map);
uint64_t ring_map__tail(const struct ring_map *map);
/* Copy `bytes` (<= data_bytes) from `position` on, across the wrap. */
void ring_map__copy(const struct ring_map *map, uint64_t position, void *to, size_t bytes);
void ring_map__publish_tail(const struct ring_map *map, uint64_t tail);
/* Write whole records behind the head as the kernel would, as the only writer of a ring in our
 * own memory. -ENOSPC: there is no room for all of them, and nothing was written. */
int ring_map__feed(struct ring_map *map, const uint8_t *records, size_t bytes);

/*
 * An AUX area. If it is mapped for writing, the kernel stops at the tail. If it is mapped
 * read-only, as a snapshot, the kernel overwrites the oldest bytes, there is no tail, and the
 * meaning of the head depends on the driver: see struct aux_window.
 */
struct aux_map {
	struct ring_map *ring; /* the caller keeps it mapped */
	const uint8_t *data;
	uint64_t bytes;
	bool snapshot;
};

/* Map the area behind the ring that `ring` mapped from `fd`. */
int aux_map__init(struct aux_map *map, struct ring_map *ring, int fd, uint64_t bytes,
		  bool snapshot);
void aux_map__deinit(struct aux_map *map);
/* Returns the AUX head. The PERF_RECORD_AUX of all bytes before it is in the data ring, or was
 * lost. */
uint64_t aux_map__head(const struct aux_map *map);
uint64_t aux_map__tail(const struct aux_map *map);
void aux_map__copy(const struct aux_map *map, uint64_t position, void *to, size_t bytes);
void aux_map__publish_tail(const struct aux_map *map, uint64_t tail);

/*
 * A BPF ring buffer (BPF_MAP_TYPE_RINGBUF), one for all CPUs.
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
struct bpf_map {
	_Atomic uint64_t *consumer;
	const _Atomic uint64_t *producer;
	const uint8_t *data;
	uint64_t data_bytes;
	size_t page_bytes;
};

int bpf_map__init(struct bpf_map *map, int fd, uint64_t data_bytes);
void bpf_map__deinit(struct bpf_map *map);
