/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_FAKE_BPF_H
#define COLLECTORD_TEST_FAKE_BPF_H

#include <stdbool.h>
#include <stdint.h>

#include "perf_ring.h"

/* A BPF ring buffer in memory of our own, its data twice, and the kernel's side of its protocol. */
struct fake_bpf {
	struct ring_map map;
	uint8_t *memory; /* consumer page, producer page, data, data; a guard page on both sides */
	size_t memory_bytes;
	uint64_t head;
};

void fake_bpf__init(struct fake_bpf *bpf, uint32_t pages);
void fake_bpf__deinit(struct fake_bpf *bpf);

/* Begin at `position`, with nothing in it. */
void fake_bpf__start_at(struct fake_bpf *bpf, uint64_t position);

/* As __bpf_ringbuf_reserve() does. Returns where the record's data go, NULL: there is no room. */
uint8_t *fake_bpf__reserve(struct fake_bpf *bpf, uint32_t bytes);
/* As bpf_ringbuf_commit() does. */
void fake_bpf__commit(uint8_t *data, bool discard);

void fake_bpf__set_head(struct fake_bpf *bpf, uint64_t head);

#endif
