/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "perf_ring.h"

struct bpf_ring_options {
	struct bpf_map *map;
	int wakeup_fd;
	uint64_t id;
	uint32_t fields_bytes; /* a multiple of 8 */
	struct walk_layout layout; /* of the samples that come out */
	bool held;
};

/*
 * Each record becomes a PERF_RECORD_SAMPLE: `id`, the record's first bytes, which are what the sample
 * has between its id and its raw data, and the rest as raw data. So they are walked, counted and
 * written as those of a perf ring. Records that the program took back are passed over.
 *
 * The program says which records wake (BPF_RB_FORCE_WAKEUP, else BPF_RB_NO_WAKEUP), at its watermark:
 * left to itself the kernel wakes for a record at which the consumer stands, and not for one that came
 * before that showed. An fd with unread records is ready all the time, so that each wake-up is told
 * once (EPOLLET).
 */
struct bpf_ring {
	struct perf_ring perf;
	struct bpf_ring_options options;
};

/* The fd and the map stay the caller's. -EINVAL, -ENOMEM. */
int bpf_ring__new(const struct bpf_ring_options *options, struct ring **ring);

RING_KIND(bpf_ring, perf.ring)
