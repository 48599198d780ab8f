/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "../columns/scan.h"

/* The records of the CPUs of an ftrace file, or of a set of blktrace files, are merged by time. */

/* That of one CPU. */
struct track {
	const struct source *source;
	const struct span *span;
	uint8_t *data;
	size_t room;
	struct incident *incidents;
	struct rows rows;   /* of the piece in `data` */
	size_t row;	    /* the next one */
	uint64_t at;	    /* bytes of the span that were read */
	struct carry carry; /* from them */
};

struct tracks {
	struct track *track;
	size_t count;
	size_t *heap; /* numbers of tracks, the one with the earliest row first */
	size_t waiting;
	size_t piece_bytes; /* that are read at once of each */
	bool is_begun;
	struct counts counts;
};

/* Begin with all spans of a scan, of each of which a piece is in memory. Returns -errno. */
int tracks__init(struct tracks *tracks, const struct scan *scan, size_t piece_bytes);
void tracks__deinit(struct tracks *tracks);
/* Read the next rows of one track, in the order of its file. Returns 1, 0 at its end, or -errno. */
int tracks__fill(struct tracks *tracks, size_t number);
/* Returns 1 and the next row with its source, which are valid up to the next call; 0: there is none;
 * or -errno. */
int tracks__next(struct tracks *tracks, const struct row **row, const struct source **source);
/* Whether the row that was returned last is the last one of its piece: others stay valid up to it. */
static inline bool tracks__is_last(const struct tracks *tracks)
{
	const struct track *const track = &tracks->track[tracks->heap[0]];

	return track->row + 1 == track->rows.count;
}
