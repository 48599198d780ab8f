/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "chunk.h"

struct stream;

/*
 * What the rings of one shard give to one stream: the open chunk, the mark that stands for a full
 * pass which found nothing, and how far the writer has come.
 */
struct lane {
	struct lane *next; /* of the shard's */
	struct stream *stream;
	struct chunk *open;
	struct chunk *aside; /* that of data, while one of sideband alone is open */
	uint32_t shard;
	_Atomic uint32_t rings;
	_Atomic uint32_t queued; /* items of this lane that the writer has not done with */
	/*
	 * A generation of the lane is done when each of its rings has come to where its head was at
	 * the generation's first pass, however many passes that takes. The shard's, but `drained`.
	 */
	uint64_t begun;		  /* the last generation that was begun */
	uint64_t begun_ns;	  /* when its first pass loaded the heads */
	_Atomic uint64_t drained; /* the last one that is done */
	bool first;		  /* this pass is the first one of `begun` */
	bool owes;		  /* in the middle of ending a pass: a ring has not come so far */
	bool due;		  /* this pass takes data of it */
	uint64_t cut, names;	  /* the stream's cut as this pass found it, see struct cut */
	uint64_t ended;		  /* the last one for which an item ended what the lane gives */
	bool naming;		  /* what is read now is sideband, in items of its own */
	_Atomic uint64_t named;	  /* the last one for which the sideband was read once more */
	bool unnamed;		  /* part of the sideband is unread: no sample goes before it */
	uint64_t stamp, stamp_ns; /* generation, and its begin, that waits to go into an item, or 0 */
	struct item mark;	 /* queued at most once at a time */
	_Atomic bool mark_queued;
	/* Writer: */
	_Atomic uint64_t written_stamp;
	uint64_t cut_written; /* the last cut of which the items until its end were written */
	uint64_t settled_ns; /* everything of this lane that is older has been written; 0: none is */
};

/*
 * The calls below, but the last one, are the shard's.
 */

/* A pass begins: look what the stream's cut waits for. From its end on until the cut is done sideband
 * goes into items of its own. */
void lane__begin_pass(struct lane *lane);
/* Sideband is to be read, outside of a pass; and it was, in one or not. */
void lane__begin_names(struct lane *lane);
void lane__end_names(struct lane *lane, struct pool *pool);
/* Does the cut wait for the sideband? And: it was read in this pass, whole. */
bool lane__owes_names(const struct lane *lane);
void lane__answer(struct lane *lane);
/* Hand an item to the writer: behind all that was queued before. */
void lane__queue(struct lane *lane, struct item *item);
/* Hand the open chunk to the writer, with the generation that waits for an item. */
void lane__close(struct lane *lane);
/* Tell the writer that a full pass found nothing to add. False: the last mark is on its way. */
bool lane__mark(struct lane *lane, uint64_t stamp, uint64_t begun_ns);
/* Part with the open chunk: to the writer, or, if it is empty, to the pool. */
void lane__yield(struct lane *lane, struct pool *pool);

/* Tell the writer, with the open chunk or a mark, of the generation that waits for that. False: the
 * chunk may take more while chunks are short, or the last mark is on its way. `holds`: the chunk
 * stays with the lane. */
bool lane__stamp(struct lane *lane, struct pool *pool, bool holds);

/* The generation that the lane is in, 0: none. */
uint64_t lane__asked(const struct lane *lane);

/* The last generation that is done. Any thread. */
uint64_t lane__drained(const struct lane *lane);

/* The last generation up to which all of this lane was written, or counted as lost. */
uint64_t lane__written(const struct lane *lane);
