/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"

/*
 * A record of blktrace (include/uapi/linux/blktrace_api.h, struct blk_io_trace), in the byte order
 * of the machine that wrote it:
 *
 *    0  u32 magic 0x65617400 | version 7      28  u32 action: low half what, high half classes
 *    4  u32 sequence                          32  u32 pid
 *    8  u64 time, CLOCK_MONOTONIC in ns       36  u32 device
 *   16  u64 sector                            40  u32 cpu
 *   24  u32 bytes                             44  u16 error
 *                                             46  u16 pdu_len: that many bytes follow
 *
 * Records have no alignment. Facts of kernel/trace/blktrace.c, and what follows: each CPU numbers
 * its records from 1 on, but only those for which there was room, so that a gap is a record that
 * was written and is not here; what there was no room for is in the file `dropped`. Notes (class
 * NOTIFY: names of processes, times, messages) have no number, whatever stands in its place. A
 * record's room is taken before it is filled: who reads then gets what was there before, zeros or
 * an old record.
 */
#define BLK_HEADER_BYTES 48u
#define BLK_MAGIC 0x65617407u
#define BLK_CLASS_NOTIFY (1u << (10 + 16))
#define BLK_RECORD_BYTES_MAX (BLK_HEADER_BYTES + 65535u)

/* What walks over one CPU's records found. The caller zeroes it; walks add to it. */
struct blk_tally {
	uint64_t events;   /* records with a number */
	uint64_t notes;
	uint64_t numbered; /* span of the numbers, including the first record */
	uint64_t missing;  /* numbers in that span without a record */
	uint64_t first_ns; /* time of the first event; 0: none */
	uint64_t last_ns;
};

/* The last number seen; `begun` is false before the first record, unless it must be number 1. */
struct blk_state {
	uint32_t sequence;
	bool begun;
	uint32_t last_bytes; /* size of the last record, 0 before the first */
};

/* Returns where a record may begin behind `data`, which is not one; `bytes` if nowhere. */
size_t blk__next(const uint8_t *data, size_t bytes);

/*
 * Walk the whole records from `data` on. Returns where the walk ended: behind the last whole
 * record, at a truncated one, or, with a fault, at bytes that are no record. If `longest` > 0, a
 * record that claims more bytes than that is a fault too.
 */
size_t blk__run(const uint8_t *data, size_t bytes, uint32_t longest, struct blk_state *state,
		struct blk_tally *tally, enum fault *fault);
