/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../columns/scan.h"
#include "../lines/order.h"
#include "../lines/tracks.h"
#include "chunk.h"

/*
 * The records of one file as tables of events, in one reading of it and in the order of time:
 *
 *   scan ──► tracks (ftrace) or order (perf) ──► rows of each table ──► columns ──► chunks
 *
 * The scan is one for WANT_ALL, as lines have it, and knows the names of tasks. A table is a scan of its
 * own, whose columns and fields are used; of its sources an event is known by its number. As soon as a table has the rows of a group, its
 * columns are laid out as chunks, and it begins anew.
 */

/* The records of an event. */
struct branch {
	const struct source *source; /* of its table's scan; NULL: no table has them */
	size_t table;
	struct clocks clocks;
};

struct event_table {
	struct scan *scan;
	struct column *columns;
	struct branch *branch; /* whose rows wait for the columns */
	struct rows rows;
	uint64_t last_ns;  /* stamp of the last row */
	size_t count;	   /* rows in the columns */
	size_t room_bytes; /* that the columns have taken */
	bool is_unordered; /* a row is older than the one before it */
};

struct tables {
	struct scan *scan;
	struct event_table *table;
	size_t count;
	struct branch *branch; /* by the key of the event: common_type, or the place of its attr */
	size_t branches;
	struct tracks tracks;
	struct order order;
	struct names names; /* of perf, as its records tell them */
	struct cgroups cgroups;
	struct store records; /* of perf: those that wait for the columns */
	uint64_t end;	      /* of perf's records */
	size_t held_bytes;    /* room of all columns */
	bool is_read, is_odd; /* all of it; it has losses or damage */
	struct chunk *chunk;  /* of the last group, one for each column */
	size_t chunks;
	struct chunk_maker maker;
};

/* Returns the tables of a scan, which is held, NULL without memory. */
struct tables *tables__new(struct scan *scan);
void tables__free(struct tables *tables);
/* Add a table, whose scan is held. Returns -errno. */
int tables__add(struct tables *tables, struct scan *scan);
/* Make the next group of a table. Returns 1, 0 at the end, or -errno. `rows`: in the group, whose chunks are
 * valid up to the next call. */
int tables__next(struct tables *tables, size_t *number, size_t *rows);
