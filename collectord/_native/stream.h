/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "segment.h"
#include "sideband.h"

struct disk;
struct shard;
struct stream;

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
	bool asked;		     /* one is wanted: no generation is issued for it yet */
	bool at_once;		     /* the last write was refused: the segment ends at once */
	enum cut_step { CUT_WAITS, CUT_BEGINS, CUT_AT_BOUNDARY, CUT_NAMED, CUT_LATE } next;
	uint64_t held_ns; /* since when a lane has waited, 0: none does */
};

/* Whether the end of a segment must wait for other lanes. */
bool cut__is_needed(const struct stream *stream);
void cut__end(struct cut *cut);

/* Whether, during a cut and under the disk's lock, the first item may be written, which may be
 * another one afterwards, or, if `next` is set, the next step may be taken. */
bool cut__lets(struct stream *stream, struct disk *disk);
/* Take the next step, without the lock. */
void cut__step(struct disk *disk, struct stream *stream);
/* Note that the item is completely written. */
void cut__pass(struct cut *cut, const struct item *item);

/* The data flow from the rings of one shard to one stream: the open chunk, the mark that stands for
 * a full pass without data, and the progress of the writer. */
struct lane {
	struct lane *next; /* next lane of the shard */
	struct stream *stream;
	struct chunk *open;
	struct chunk *aside; /* the data chunk, while one of sideband alone is open */
	struct shard *shard;
	_Atomic uint32_t rings;
	_Atomic uint32_t queued; /* items of this lane that the writer has not completed */
	/* A generation of the lane is done when each of its rings has been read to its head at the
	 * generation's first pass, however many passes that takes. The shard owns all but
	 * `drained`. */
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
	struct item mark;	  /* queued at most once at a time */
	_Atomic bool mark_queued;
	/* Owned by the writer: */
	_Atomic uint64_t written_stamp;
	uint64_t cut_written; /* the last cut whose items were all written */
	uint64_t settled_ns;  /* all older data of this lane is written; 0: none is */
};

/* The shard makes the calls below, except for the last one. */

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
/* Returns the last generation whose data of this lane is written or counted as lost. */
uint64_t lane__written(const struct lane *lane);

#define SHARDS_MAX 64u

struct event_list;
struct event_ring;

/* How a kind of stream writes its segments. The writer makes all calls. */
struct stream_ops {
	bool ordered; /* it contains ends of rounds */
	bool split;   /* each ring has its own file, or part of one, with data only */
	/* For split ones, under the stream's lock: begin a segment for `ring`, and report its
	 * share at the end. */
	void (*begin_ring)(struct ring *ring, const struct segment *segment);
	void (*tell_ring)(struct ring *ring, struct event_ring *told);
	/* Write the next part of an item. Returns 1: one was written; 0: nothing is left; -errno:
	 * it was refused, -EXFULL: the next segment is missing. `bytes`: size of the part. */
	int (*write)(struct stream *stream, struct item *item, uint64_t *bytes);
	/* Skip the refused part. Returns the number of spans lost with it, 0 if there is
	 * another way to write it, which is tried next. */
	uint32_t (*pass_over)(struct stream *stream, struct item *item, const struct span **spans);
	/* Optional, for a chunk that only needs writing where the segment continues: prepare its
	 * `flight`, behind earlier ones. False: it has to wait until all of those completed, and is
	 * written then. */
	bool (*send)(struct stream *stream, struct chunk *chunk);
	/* Account for the first write in flight, which completed. */
	void (*land)(struct stream *stream, const struct chunk *chunk);
	/* Undo all writes in flight after one was refused. */
	void (*recall)(struct stream *stream);
	/* Optional: the item is complete. True: the end of a round was written. */
	bool (*end)(struct stream *stream, struct item *item);
};

/* Streams whose segments hold perf records, in consecutive whole chunks: padded, with the ends of
 * rounds between them, and after a replay of the known sideband. */
extern const struct stream_ops record_stream__ops;

/* The writer's progress with the first item of a stream's queue. */
struct work {
	uint32_t span;	   /* the next span */
	uint64_t at;	   /* where it begins in the chunk's data */
	struct load load;  /* the rest of the previous one; no bytes: complete */
	bool loads;	   /* a ticket's data are read into memory: splicing failed */
	int waits_for;	   /* an errno, or 0: the item is written when its turn comes */
	int refused;	   /* errno after a wait in vain: the part is given up */
	uint64_t since_ns; /* when the wait began */
	uint64_t bytes;	   /* of the refused part */
};

/* The first items of a stream's queue, whose writes are in flight, and their additions to the
 * segment. */
struct sent {
	uint32_t items, pieces;
	uint64_t bytes;
};

/* Requests to a stream. ROTATE: begin the next segment, unless this one is empty; TURN: also if it is;
 * FINISH: no other follows; HURRY, REST: begin or cease to go before the streams that share its disk (see
 * struct disk). The others answer its request for space, or for a segment. */
enum request { ROTATE, TURN, FINISH, HURRY, REST, SPACE_UNANSWERED, SPACE_GIVE_UP, SPACE_RETRY };

/* A sequence of segments. The writer thread owns `current`, the rounds and the lanes' progress;
 * `lock` guards `next`, the requests, the answer, the list of rings and the shares of those that are
 * gone, which others set. */
struct stream {
	pthread_mutex_t lock;
	struct segment next;
	bool rotate_wanted, turn_wanted, finish_wanted;
	bool finished;	/* no more is written, and its files are not used; set by the writer */
	bool forgotten; /* nobody refers to it; for the thread that adds streams */
	enum request space_answer; /* one of the last three */
	struct ring **rings;
	uint32_t ring_count;
	struct event_ring *gone; /* shares of `current` that freed rings have */
	uint32_t gone_count;

	/* Items, oldest first, guarded by the lock of its disk. */
	_Atomic(struct disk *) disk;
	struct item *first, **last;
	struct item *unsent; /* the first one that was not sent */
	struct sent sent;
	bool settling;	  /* no item is sent before the first one is written */
	uint64_t gathers; /* unsent items up to so many bytes may wait for more, and wake nobody */
	struct work work;
	const struct stream_ops *ops;
	struct share data_share, sideband_share;

	struct segment current;
	struct cut cut;	    /* end of `current`, where it waits for other lanes */
	struct sums sums;   /* records: sums of `current` */
	XXH3_state_t *hash; /* hash of the chunk being written */
	uint8_t *scratch;   /* one chunk, for replays and lone markers */
	uint32_t scratch_bytes, scratch_used;
	uint64_t space_asked_ns; /* when the last wait for room ended, 0: there has been room
				  * since */
	uint64_t failure_told_ns;
	bool tells; /* readers are told before the next item is written */
	_Atomic int tell_error;
	/* Somebody waits for the end of its segment; and since when others have let it pass for
	 * that, 0: they do not. */
	_Atomic bool hurries;
	uint64_t hurried_ns;
	bool unanswered; /* the last missing segment was never prepared */
	/* The next marker waits for a generation beyond this one: the last one issued when the last
	 * marker was written. So all data before a marker was in the file, or in a ring read since,
	 * when the previous marker was written; no later sample is older. */
	uint64_t round;
	bool round_due; /* records were written since the last marker */
	/* The last generation written, and when it and the one before it were. */
	_Atomic uint64_t ended;
	_Atomic uint64_t ended_ns[2];

	_Atomic(struct lane *) lanes[SHARDS_MAX];
	_Atomic bool begun; /* a segment was prepared; until then lanes keep their chunks open */
	/* The first segment exists, and is prepared once it is known what it begins with: until
	 * then what its rings hold is drained into chunks. */
	_Atomic bool reserved;
	struct sideband sideband;
	struct event_list *events;
	uint32_t id;
	uint32_t page_bytes; /* page size of each ring, for pages */
	/* Written data are older than sideband that came meanwhile: it stays in `sideband`, and
	 * no marker claims that nothing older follows. */
	bool snapshots;
	/* One of its rings is held beside an AUX area, and delivers records older than sideband
	 * written meanwhile: so there are no markers either, and old names are kept. Set before
	 * the ring's events begin. */
	_Atomic bool holds_back;
	uint64_t crowded_ns; /* sideband up to here was settled for lack of memory */
};

struct stream_options {
	const struct stream_ops *ops;
	size_t sideband_bytes;
	uint32_t page_bytes; /* for a stream of pages */
	bool snapshots;
	bool foreign_clock; /* records use another clock than CLOCK_MONOTONIC */
};

/* -EINVAL: a chunk has no room for a page. */
int stream__init(struct stream *stream, uint32_t id, uint32_t chunk_bytes,
		 const struct stream_options *options, struct event_list *events);
void stream__deinit(struct stream *stream);
/* Set how much it matters while chunks are short: below RANKS, 0 most. Call it before it has rings. */
void stream__set_rank(struct stream *stream, uint32_t rank);
/* Free an allocated stream with its rings, which are in no shard. */
void stream__free(struct stream *stream);

/* Prepare the next segment. -EINVAL: offset not aligned, or a segment of another kind; -EBUSY:
 * one is prepared already; -ESHUTDOWN: the stream is finished. On success it owns the segment's
 * memory. */
int stream__prepare(struct stream *stream, const struct segment *segment);
/* -ESHUTDOWN: the stream is finished; -ENOMEM. */
int stream__add_ring(struct stream *stream, struct ring *ring);
/* Keep the share of a ring that is over until the running segment ends; under `lock`. False: the
 * ring has to stay until then, as its share is a part of a split segment, or memory is short. */
bool stream__keep_share(struct stream *stream, const struct ring *ring);

/* The writer makes the calls below. */

/* Move to the prepared segment if none is open, if this one cannot take `bytes` more, or if a
 * rotation is due, as it is if the ring's place in it is `full`. An empty segment closes for TURN
 * only; one of which readers have more to be told goes on, see stream__tell_end(). */
void stream__advance(struct stream *stream, uint64_t bytes, bool full);
/* Move to the prepared segment: the cut is done, or, if `early`, is not waited for. */
void stream__turn(struct stream *stream, bool early);
/* Whether `work.load` has something to write: else it is the next span of the item's chunk. */
bool stream__load(struct stream *stream, const struct item *item);
/* The `pass_over` of streams that write from there. */
uint32_t stream__drop_load(struct stream *stream, struct item *item, const struct span **spans);
/* Count a written span as stored and no longer in flight. */
void stream__account(struct stream *stream, const struct span *span);
/* Count a written part of a span of a split stream. */
void stream__account_part(struct stream *stream, const struct span *span);

/* After a full disk refused `bytes`, close a segment that is due even without a next one. It
 * may be the only one that can be evicted. */
void stream__make_evictable(struct stream *stream, uint64_t bytes);
/* Whether readers of the running file are to be told of more records. */
bool stream__has_news(const struct stream *stream);
/* Tell them. If that fails, a later call tells them, and `tell_error` has the errno until then. */
void stream__tell(struct stream *stream);
/* Tell them, if the running file is to end before `bytes` more: a file shows nothing before all of
 * the one before it is shown. */
void stream__tell_end(struct stream *stream, uint64_t bytes);

/* Carry out a rotate request, and a finish request once the stream's queue is empty. True: the
 * finish waits for queued items, or the rotation for readers to be told. */
bool stream__serve(struct stream *stream);
/* Whether, once `lane` has reached `stamp`, every lane is at a generation beyond the last round. */
bool stream__completes_round(const struct stream *stream, const struct lane *lane, uint64_t stamp);
/* Whether a segment runs that takes `bytes` more. */
bool stream__has_room(struct stream *stream, uint64_t bytes);

/* Returns the last generation up to which every lane was drained, `issued` if no lane has
 * rings; and the same for written, or counted as lost. Any thread may call these. */
uint64_t stream__drained(const struct stream *stream, uint64_t issued);
uint64_t stream__written(const struct stream *stream, uint64_t issued);
/* Returns when all data of the generation before the last `issued` one was written; 0: not yet,
 * or unknown. Data of any later round are no older than that. */
uint64_t stream__round_ns(const struct stream *stream, uint64_t issued);
/* Returns the shard's lane of this stream if it has rings or unwritten items, else NULL. */
struct lane *stream__lane(const struct stream *stream, uint32_t shard);
/* Returns the time from which on records that name tasks may belong to what a predecessor left unread
 * in the stream's rings; UINT64_MAX: that is nothing. Any thread may call it. */
uint64_t stream__left_ns(struct stream *stream);
/* Settle sideband that no unwritten sample needs: the writer is done with this item of `lane`. */
void stream__pass_written(struct stream *stream, struct lane *lane, const struct item *item);
