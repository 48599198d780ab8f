/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "source.h"

enum wanted {
	WANT_EVENTS,
	WANT_LOSSES,
	WANT_DAMAGE,
	WANT_NAMES, /* of tasks and cgroups, for a stream */
	WANT_ALL,   /* records of all events, losses and damage, for lines: see `lines/lines.h` */
	WANT_CUT,   /* records for another file: see `cut.h` */
};

/* The labels of rows of losses and damage among others. */
#define ROW_LOST (-2)
#define ROW_DAMAGED (-3)

#define INCIDENT_REASON_BYTES 24u

/* The payload of a row of losses or damage; fields are read out of it as out of any record. */
struct incident {
	uint64_t offset; /* in the file */
	union {
		uint64_t lost; /* not a part of the payload if the number is not told */
		char reason[INCIDENT_REASON_BYTES];
	};
};

/* A loss that a file tells of. */
struct loss {
	uint64_t offset, stamp_ns;
	uint64_t lost;
	int32_t cpu;
	int32_t label; /* ROW_NONE: at this place; else in all, of the event that it names */
	bool is_known; /* the number */
};

/* The pieces of a span before one say this of it; it is zeroes at the start of a span. */
struct carry {
	uint32_t sequence; /* of the last numbered record of blktrace */
	bool has_sequence;
	bool is_lost; /* they end in damage */
};

/* A piece of a span, and what is found in it. */
struct piece {
	const struct source *source;
	enum wanted wanted;
	int32_t cpu;	 /* of the span; ROW_NONE: its records tell theirs */
	uint64_t offset; /* of its first byte, in the file */
	const uint8_t *data;
	size_t bytes;
	bool is_last; /* the span ends here */
	struct rows *rows;
	struct incident *incidents; /* room for one for each 8 bytes, and 2 more; NULL if unwanted */
	size_t incident_count;
	struct names *names;	 /* if they are wanted */
	struct cgroups *cgroups; /* likewise */
	struct carry *carry;
	struct counts *counts;
};

static inline bool piece__in_time(const struct piece *piece, uint64_t stamp_ns)
{
	return stamp_ns >= piece->source->since_ns && stamp_ns <= piece->source->until_ns;
}

/* Returns -errno. */
int piece__lost(struct piece *piece, const struct loss *loss);
/* Note damage `at` bytes behind the piece's start. Returns -errno. */
int piece__damaged(struct piece *piece, uint64_t at, uint64_t stamp_ns, const char *reason);
