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
 * How a segment ends that several lanes write to. What names a sample may be in the sideband of
 * another CPU, and so of another shard, which reads it when the sample is written already. The end
 * is the boundary of a generation, and the names of all that is before it:
 *
 *   asked     a generation is issued. A lane that is done with it, and whose items until then are
 *             written, has its data wait from then on, and its sideband come in items of its own.
 *   boundary  every lane has come so far: no sample comes into the segment any more. Each lane
 *             reads its sideband once more, up to where it is now.
 *   named     that is written: the segment ends, and what waited goes into the next one.
 *
 * Nobody waits for ever: a segment that cannot be named in time ends early, which is told. All is
 * the disk's thread's, but the two numbers, which the lanes' passes read; it sends nothing meanwhile.
 */
struct cut {
	_Atomic uint64_t generation; /* whose boundary it is; 0: none is under way */
	_Atomic uint64_t names;	     /* the same, from the boundary on */
	bool asked;
	bool at_once; /* the last write was refused: the segment waits for nothing */
	enum cut_step { CUT_WAITS, CUT_BEGINS, CUT_AT_BOUNDARY, CUT_NAMED, CUT_LATE } next;
	uint64_t held_ns; /* since when a lane has waited, 0: none does */
};

/* Does the end of a segment wait for other lanes? */
bool cut__is_needed(const struct stream *stream);
void cut__ask(struct cut *cut);
/* The segment ended. */
void cut__end(struct cut *cut);
bool cut__is_under_way(const struct cut *cut);

/* Of one that is under way, under the disk's lock: may the first item be written, which may be another
 * one then, or, if `next` says so, the next step be taken? */
bool cut__lets(struct stream *stream, struct disk *disk);
void cut__step(struct stream *stream, struct writer *writer);
/* Nothing is left to write of this item. */
void cut__pass(struct cut *cut, const struct item *item);
