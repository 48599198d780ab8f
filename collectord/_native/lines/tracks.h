/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "../columns/scan.h"

/* What the CPUs of an ftrace file or of a set of blktrace files recorded, merged in the order of time. */

/* That of one CPU. */
struct track {
	const struct source *source;
	const struct span *span;
	uint8_t *data;
	size_t room;
	struct incident *incidents;
	struct rows rows; /* of the piece in `data` */
	size_t row;	  /* the next one */
	uint64_t at;	  /* bytes of the span that were read */
	struct carry carry; /* from them */
};

struct tracks {
	struct track *track;
	size_t count;
	size_t *heap; /* numbers of tracks, the one with the earliest row first */
	size_t waiting;
	bool is_begun;
	struct counts counts;
};

/* Begin with all spans of a scan. Returns -errno. */
int tracks__init(struct tracks *tracks, const struct scan *scan);
void tracks__deinit(struct tracks *tracks);
/* Read the next rows of one track, in the order of its file. Returns 1, 0 at its end, or -errno. */
int tracks__fill(struct tracks *tracks, size_t number);
/* Returns 1 and the next row with its source, which are valid up to the next call; 0: there is none;
 * or -errno. */
int tracks__next(struct tracks *tracks, const struct row **row, const struct source **source);
