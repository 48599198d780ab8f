/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "chunk.h"

struct stream;

/*
 * The data flow from the rings of one shard to one stream: the open chunk, the mark that stands
 * for a full pass without data, and the progress of the writer.
 */
struct lane {
	struct lane *next; /* next lane of the shard */
	struct stream *stream;
	struct chunk *open;
	struct chunk *aside; /* the data chunk, while one of sideband alone is open */
	uint32_t shard;
	_Atomic uint32_t rings;
	_Atomic uint32_t queued; /* items of this lane that the writer has not completed */
	/*
	 * A generation of the lane is done when each of its rings has been read to its head at the
	 * generation's first pass, however many passes that takes. The shard owns all but
	 * `drained`.
	 */
	uint64_t begun;		  /* the last generation that was begun */
	uint64_t begun_ns;	  /* when its first pass loaded the heads */
	_Atomic uint64_t drained; /* the last one done */
	bool first;		  /* this pass is the first one of `begun` */
	bool owes;		  /* at the end of a pass: a ring is not read so far */
	bool due;		  /* this pass reads its data */
	uint64_t cut, names;	  /* the stream's cut as seen by this pass, see struct cut */
	uint64_t ended;		  /* the last cut whose end an item of the lane marks */
	bool naming;		  /* the lane now reads sideband, into items of its own */
	_Atomic uint64_t named;	  /* the last cut for which the sideband was read again */
	bool unnamed;		  /* part of the sideband is unread: no sample may precede it */
	uint64_t stamp, stamp_ns; /* generation, and its begin, to be put on an item, or 0 */
	bool stamping;		  /* the writer is woken later, once for all lanes */
	struct item mark;	 /* queued at most once at a time */
	_Atomic bool mark_queued;
	/* Owned by the writer: */
	_Atomic uint64_t written_stamp;
	uint64_t cut_written; /* the last cut whose items were all written */
	uint64_t settled_ns; /* all older data of this lane is written; 0: none is */
};

/*
 * The shard makes the calls below, except for the last one.
 */

/* Begin a pass: see what the stream's cut waits for. From the boundary until the cut is done,
 * sideband goes into items of its own. */
void lane__begin_pass(struct lane *lane);
/* Note that sideband is about to be read outside of a pass; and that it was read, in a pass or
 * not. */
void lane__begin_names(struct lane *lane);
void lane__end_names(struct lane *lane, struct pool *pool);
/* Whether the cut waits for the sideband; and: note that this pass read all of it. */
bool lane__owes_names(const struct lane *lane);
void lane__answer(struct lane *lane);
/* Hand an item to the writer, behind all queued ones. */
void lane__queue(struct lane *lane, struct item *item);
/* Hand the open chunk to the writer, with the generation that waits for an item. */
void lane__close(struct lane *lane);
/* Give the open chunk away: to the writer, or, if it is empty, to the pool. */
void lane__yield(struct lane *lane, struct pool *pool);

/* Report the generation that waits to the writer, with the open chunk or a mark. False: the chunk
 * may take more while chunks are short, or the last mark is still queued. `holds`: the lane
 * keeps the chunk. */
bool lane__stamp(struct lane *lane, struct pool *pool, bool holds);

/* Returns the generation in progress, 0: none. */
uint64_t lane__asked(const struct lane *lane);

/* Returns the last generation done. Any thread may call it. */
uint64_t lane__drained(const struct lane *lane);

/* Returns the last generation whose data of this lane is written or counted as lost. */
uint64_t lane__written(const struct lane *lane);
