/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_BPF_RING_H
#define COLLECTORD_BPF_RING_H

#include "perf_ring.h"

/*
 * A mapped BPF ring buffer (BPF_MAP_TYPE_RINGBUF), one for all CPUs.
 *
 *   +---------------+---------------+--------------------+--------------------+
 *   | consumer page | producer page | data, power of two | the same once more |
 *   | ours to write | read only     | read only, so that no record wraps      |
 *   +---------------+---------------+--------------------+--------------------+
 *
 * Both positions are free running. A record is u32 length with BUSY and DISCARD in its highest bits, a
 * u32 that is the kernel's, and its data; the next one is at a multiple of 8. One that is BUSY is
 * reserved and not committed yet: what is behind it is not read before. The program says which records
 * wake (BPF_RB_FORCE_WAKEUP, else BPF_RB_NO_WAKEUP), at its watermark: left to itself the kernel wakes
 * for a record at which the consumer stands, and not for one that came before that showed. An fd with
 * unread records is ready all the time, so that each wake-up is told once (EPOLLET).
 * (kernel/bpf/ringbuf.c, include/uapi/linux/bpf.h: BPF_RINGBUF_*)
 */
struct bpf_map {
	_Atomic uint64_t *consumer;
	const _Atomic uint64_t *producer;
	const uint8_t *data;
	uint64_t data_bytes;
	size_t page_bytes;
};

/* Map all of `fd`. -EINVAL: data_bytes is not a power of two of pages; else -errno. */
int bpf_map__init(struct bpf_map *map, int fd, uint64_t data_bytes);
void bpf_map__deinit(struct bpf_map *map);

/*
 * Each record becomes a PERF_RECORD_SAMPLE: `id`, the record's first bytes, which are what the sample
 * has between its id and its raw data, and the rest as raw data. So they are walked, counted and
 * written as those of a perf ring. Records that the program took back are passed over.
 */
struct bpf_ring {
	struct perf_ring perf;
	struct bpf_map *map;
	uint64_t id;
	uint32_t fields_bytes;
};

struct bpf_ring_options {
	struct bpf_map *map;
	int wakeup_fd;
	uint64_t id;
	uint32_t fields_bytes; /* a multiple of 8 */
	struct walk_layout layout; /* of the samples that come out */
	bool held;
};

/* The fd and the map stay the caller's. -EINVAL, -ENOMEM. */
int bpf_ring__new(const struct bpf_ring_options *options, struct ring **ring);

extern const struct ring_ops bpf_ring__ops;

/* `ring`, if it is of this kind. */
static inline struct bpf_ring *bpf_ring__of(const struct ring *ring)
{
	return ring->ops == &bpf_ring__ops ? container_of(ring, struct bpf_ring, perf.ring) : NULL;
}

#endif
