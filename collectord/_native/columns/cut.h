/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "scan.h"

/*
 * A cut copies what is of a time from one file into another: the records of a perf.data, with what
 * names them, or sub-buffers of ftrace, of which those at the edges of the time are made anew. What
 * is damaged is left out and counted.
 */

/* The id of an event in the file, and in the new one. */
struct cut_id {
	uint64_t from, to;
};

/* How the records of a perf.data get other ids. */
struct cut_ids {
	struct cut_id *id; /* those that change, ascending */
	size_t count;
	uint64_t unnamed; /* of records that have none */
	bool adds;	  /* each record gets an IDENTIFIER, which no event of the file has */
};

struct cut {
	int out;
	uint64_t at; /* where the next byte goes in the new file */
	struct cut_ids ids;
	bool keeps_rounds; /* of records in the order of time */
	/* The copy has found: */
	struct counts counts;
	uint64_t records;	    /* events */
	uint64_t first_ns, last_ns; /* of the events; 0: none has a time */
	uint64_t aux;		    /* records with data of AUX areas, which are left out */
	/* It uses: */
	uint8_t *data, *buffer;
	size_t data_bytes, buffer_bytes, used;
	struct rows rows;
};

/* Copy all spans of a scan. Returns -errno. */
int cut__run(struct cut *cut, const struct scan *scan);
void cut__deinit(struct cut *cut);

/* Used by the kinds of sources: */

/* Add the record to the rows if a cut has it; it is checked and `size` bytes long. Returns -errno. */
int perf_cut__take(struct piece *piece, size_t at, uint64_t header);
/* Copy a record that perf_cut__take() has found with its new ids, to where there is room for a word
 * more. Returns its bytes; 0: it would be too long. */
size_t perf_cut__put(const struct cut_ids *ids, const struct perf_events *events,
		     const uint8_t *record, uint8_t *to);
/* Make a page of the rows of another one. It begins when that one began, with the loss before it, or
 * with the first row. Returns how many of them found room. */
size_t page_cut__make(uint8_t *to, const uint8_t *page, uint32_t page_bytes,
		      const struct rows *rows, bool keeps_start);
