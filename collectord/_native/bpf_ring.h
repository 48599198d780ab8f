/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "perf_ring.h"

struct bpf_ring_options {
	struct perf_ring_options perf; /* its layout is that of the resulting samples */
	uint64_t id;
	uint32_t fields_bytes; /* a multiple of 8 */
};

/*
 * Each record becomes a PERF_RECORD_SAMPLE: `id`, the record's first bytes, which the sample has
 * between its id and its raw data, and the rest as raw data. They are then walked, counted and
 * written like those of a perf ring. Records that the program discarded are skipped.
 *
 * The program decides which records wake the reader (BPF_RB_FORCE_WAKEUP, else BPF_RB_NO_WAKEUP),
 * at its watermark. By itself, the kernel wakes for a record at the consumer's position, and
 * misses one that was written before that position became visible. An fd with unread records is
 * always ready, so each wake-up is reported once (EPOLLET).
 */
struct bpf_ring {
	struct perf_ring perf;
	struct bpf_ring_options options;
};

/* The fd and the map stay the caller's. Returns -EINVAL or -ENOMEM. */
int bpf_ring__new(const struct bpf_ring_options *options, struct ring **ring);

RING_KIND(bpf_ring, perf.ring)
