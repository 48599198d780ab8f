/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct disk;
struct item;
struct lane;
struct stream;
struct writer;

/*
 * The end of a segment that several lanes write to. The sideband that names a sample may come from
 * another CPU, and so from another shard, which may read it after the sample was written. So the
 * end is the boundary of a generation, after the names of all samples before it:
 *
 *   asked     a generation is issued. When a lane is done with it, and its items up to then are
 *             written, its later data wait, and its sideband comes in items of its own.
 *   boundary  every lane has come so far: no more sample comes into the segment. Each lane reads
 *             its sideband once more, up to its present head.
 *   named     that sideband is written: the segment ends, and the waiting data go into the
 *             next one.
 *
 * The wait is bounded: a segment that cannot be named in time ends early, which is reported. The
 * disk's thread owns all fields but the two numbers, which the lanes' passes read; it sends
 * nothing meanwhile.
 */
struct cut {
	_Atomic uint64_t generation; /* the generation that ends the segment; 0: no cut */
	_Atomic uint64_t names;	     /* the same number, from the boundary on */
	bool asked;
	bool at_once; /* the last write was refused: the segment ends at once */
	enum cut_step { CUT_WAITS, CUT_BEGINS, CUT_AT_BOUNDARY, CUT_NAMED, CUT_LATE } next;
	uint64_t held_ns; /* since when a lane has waited, 0: none does */
};

/* Whether the end of a segment must wait for other lanes. */
bool cut__is_needed(const struct stream *stream);
void cut__ask(struct cut *cut);
/* Reset the cut after the segment ended. */
void cut__end(struct cut *cut);
bool cut__is_under_way(const struct cut *cut);

/* Whether, during a cut and under the disk's lock, the first item may be written, which may be
 * another one afterwards, or, if `next` is set, the next step may be taken. */
bool cut__lets(struct stream *stream, struct disk *disk);
void cut__step(struct stream *stream, struct writer *writer);
/* Note that the item is completely written. */
void cut__pass(struct cut *cut, const struct item *item);
