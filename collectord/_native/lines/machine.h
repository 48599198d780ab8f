/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../columns/store.h"
#include "program.h"

/*
 * A program makes the line of a record: it takes values out of it, computes with them, and appends
 * text. Programs are made outside, from formats in files: each is checked before it runs, jumps only
 * forwards, and reads nothing behind the end of a record. A value that a record does not have is
 * missing, and so is what is computed from it.
 */

struct value {
	uint8_t kind;
	bool is_signed;
	uint8_t element; /* bytes of a number of a list */
	uint32_t bytes;	 /* of `data` */
	union {
		uint64_t number; /* extended to 64 bits */
		double real;
	};
	const uint8_t *data;
};

struct record {
	const uint8_t *payload;
	const uint8_t *chain; /* of u64 */
	const uint8_t *comm;
	const uint8_t *cgroup; /* NULL: nothing tells it */
	uint64_t stamp_ns;
	uint32_t bytes; /* of the payload */
	uint32_t tail;	/* offset of what reaches to its end, 0: it has none */
	uint32_t chain_bytes, comm_bytes, cgroup_bytes;
	int32_t cpu, pid, tid;
};

#define SCRATCH_BYTES 4096u

struct machine {
	struct words words;
	struct store *out;
	size_t made; /* bytes of `scratch` */
	uint8_t scratch[SCRATCH_BYTES];
};

/* Append the line of a record. Returns 1, 0 if the record is dropped, or -errno. */
int machine__run(struct machine *machine, const struct program *program,
		 const struct record *record);
