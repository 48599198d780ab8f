/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct perf_event_mmap_page;

/*
 * What is mapped of rings. The data have data_bytes, a power of two of pages, or init gives -EINVAL;
 * else -errno. Positions are free running, and position & (data_bytes - 1) is the index. All before a
 * head is readable; what is before the tail that is published is the kernel's again.
 */

/*
 * A perf ring, and the AUX area that may be behind it:
 *
 *   +--------------+-------------------------------+--------------------------------+
 *   | control page | data, data_bytes              | AUX, bytes                     |
 *   +--------------+-------------------------------+--------------------------------+
 *                                                  ^ aux_offset
 *
 * The heads (kernel) and tails (we) of both are in the control page. A record may wrap, its 8-byte
 * header never does. Layout and protocol: include/uapi/linux/perf_event.h, struct perf_event_mmap_page.
 */
struct ring_map {
	struct perf_event_mmap_page *page;
	const uint8_t *data;
	uint64_t data_bytes;
	size_t map_bytes;
	bool overwrite;
};

/* Map read-write, or to `overwrite` read-only, which is how the kernel knows that nobody will publish
 * a tail. */
int ring_map__init(struct ring_map *map, int fd, uint64_t data_bytes, bool overwrite);
void ring_map__deinit(struct ring_map *map);
uint64_t ring_map__head(const struct ring_map *map);
uint64_t ring_map__tail(const struct ring_map *map);
/* Copy `bytes` (<= data_bytes) from `position` on, across the wrap. */
void ring_map__copy(const struct ring_map *map, uint64_t position, void *to, size_t bytes);
void ring_map__publish_tail(const struct ring_map *map, uint64_t tail);
/* As the kernel would: write whole records behind the head. -ENOSPC: there is no room for all of
 * them, and nothing was written. Of a ring in our own memory, by one writer. */
int ring_map__feed(struct ring_map *map, const uint8_t *records, size_t bytes);

/*
 * An AUX area. Mapped for writing, the kernel stops at the tail. Mapped read-only, as a snapshot, the
 * kernel overwrites what is oldest, there is no tail, and what the head is depends on the driver: see
 * struct aux_window.
 */
struct aux_map {
	struct ring_map *ring; /* the caller keeps it mapped */
	const uint8_t *data;
	uint64_t bytes;
	bool snapshot;
};

/* Map behind the ring that `ring` mapped from `fd`. */
int aux_map__init(struct aux_map *map, struct ring_map *ring, int fd, uint64_t bytes,
		  bool snapshot);
void aux_map__deinit(struct aux_map *map);
/* What it covers has its PERF_RECORD_AUX in the data ring already, or that was lost. */
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
 * A record is u32 length with BUSY and DISCARD in its highest bits, a u32 that is the kernel's, and its
 * data; the next one is at a multiple of 8. One that is BUSY is reserved and not committed yet: what is
 * behind it is not read before. (kernel/bpf/ringbuf.c, include/uapi/linux/bpf.h: BPF_RINGBUF_*)
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
