/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../columns/cgroups.h"
#include "../columns/scan.h"
#include "blocks.h"
#include "tasks.h"

/*
 * The records of a perf.data in the order of time. Rings of several CPUs share its section, each with
 * records in their own order. A FINISHED_ROUND says that no later record is older than those before
 * the round before it.
 *
 * Of a round only the runs of records that are in order already are kept, and the records are read
 * again when they are due: memory does not grow with their number.
 */

struct run {
	uint64_t time_ns, at, end; /* of its next record */
};

struct order {
	const struct source *source;
	struct run *run; /* a heap, the earliest first */
	size_t runs, run_room;
	uint64_t at; /* up to here the file was walked */
	uint64_t newest_ns, due_ns, until_ns;
	uint64_t taken; /* bytes of the first run that were returned */
	uint64_t end;	/* that was asked for last */
	bool has_due;	/* a round is over */
	struct blocks blocks;
	struct tasks tasks;
	struct cgroups cgroups; /* that were told */
};

/* A damaged place. */
struct order_fault {
	uint64_t offset;
	const char *reason; /* NULL: there is none */
};

/* Begin at the start of a span. Returns -errno. */
int order__init(struct order *order, const struct source *source, const struct span *span);
void order__deinit(struct order *order);
/* Returns 1 and the next record that is due, valid up to the next call, or else a fault; 0: there is
 * nothing up to `end`; or -errno. */
int order__next(struct order *order, uint64_t end, bool everything, const uint8_t **record,
		uint64_t *offset, struct order_fault *fault);
/* The same in the order of the file, for an order of which nothing else was asked. */
int order__walk(struct order *order, uint64_t end, const uint8_t **record, uint64_t *offset,
		struct order_fault *fault);
/* Returns the end of the whole records of a perf.data from `offset` on, or of the last round among
 * them; `offset` if there is none, or -errno: records may end in the middle of one, or be followed by
 * zeros. */
int64_t order__end(int fd, uint64_t offset, bool of_rounds);
/* Note what a COMM, a FORK or a CGROUP tells. Returns -errno. */
int order__tell(struct order *order, const uint8_t *record);
/* Whether a record tells the name of a task or a cgroup. */
bool order__tells(const uint8_t *record);
