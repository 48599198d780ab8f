/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <linux/aio_abi.h>
#include <sys/types.h>

#include "stream.h"

/* Writes in flight. */
#define DISK_DEPTH 4u
/* The maximal number of chunks in one write: adjacent ones in a file. A fast disk takes all of them,
 * another one half: a write that has begun is not divided, and others wait for its end. */
#define WRITE_CHUNKS 8u
/* While chunks are short, one turn of so many is for streams that matter less. */
#define TURNS_OF_RANK 8u
/* A turn that began below the limit of writes in flight continues to its end. */
#define WRITES_MAX (DISK_DEPTH - 1 + WRITE_CHUNKS)

struct writer;

/*
 * One file system: the queue of its writes, and the thread that makes them. The streams whose
 * segments are there take turns, each with its items in queue order; a stream whose item waits,
 * for room or for a segment, lets the others pass. For a stream that hurries no other begins a write
 * once its queue is no more than one, for a limited time: the syncs of its seal, each of which would
 * wait behind a whole write on a slow disk, find the disk free. While chunks are short, the streams
 * of the first rank that has items take all turns but one of TURNS_OF_RANK.
 *
 * While more than one chunk is queued, items that only need writing are sent several at a time:
 * see writes in flight below. Chunks that nobody waits for stay queued until they are enough for
 * one write. Each item is counted as stored, or as refused, in the order of the queue.
 */
struct disk {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool poked, stopping, running;
	bool left;		 /* a request waits until an item is written */
	uint32_t turn;		 /* index of the next stream */
	uint32_t others_turn;	 /* the same for those that matter less, while chunks are short */
	uint32_t favours;	 /* turns in a row for which these had to wait */
	_Atomic uint32_t chunks; /* in the next write, by the time of the last one; 1: one at a time */
	uint32_t in_flight;
	aio_context_t aio; /* 0: not available, so no writes in flight */
	struct stream *at; /* the stream whose item is being written, or NULL */
	struct writer *writer;
	dev_t device; /* 0: not known before the first segment */
	pthread_t thread;

	counter_t written_bytes, written_chunks, write_errors, write_ns;
};

void disk__init(struct disk *disk, struct writer *writer, dev_t device);
void disk__deinit(struct disk *disk);
int disk__start(struct disk *disk);
/* Write all queued items, then end the thread. */
void disk__stop(struct disk *disk);

/* Queue an item from a pass. The disk owns it until it is written. If not `wakes`, the thread
 * looks at it after the next item that does, or a writer__wake(). */
void disk__queue(struct stream *stream, struct item *item, bool wakes);
/* Check the streams' requests and answers. */
void disk__poke(struct disk *disk);
/* Move the queue of a stream whose files are on `to` there, unless a write of it is in progress. */
void disk__move(struct stream *stream, struct disk *to);
/* Whether a stream without new items is complete and no longer in use by its disk. */
bool disk__is_done(struct stream *stream);
/* Returns how long the first item of a stream has waited for the disk, in ns; 0: no item has. */
uint64_t disk__waits_ns(struct stream *stream);

/*
 * Writes in flight: the first items of a stream's queue, which the kernel writes in any order
 * while the disk's thread continues. Items adjacent in a file become one write, because most of
 * the cost of a write does not grow with its length. They use io_submit(2): it needs no thread,
 * which sessions that leave this process out would have to know, and it works where io_uring is
 * forbidden. Through the page cache, and where a file grows, the kernel writes synchronously, one
 * after the other. The disk's thread makes all calls.
 */

/*
 * Returns how many bytes of unsent items may wait for more, with which they become one write: no
 * more than the segment has room for, and none while a request or the end waits for them, while
 * the disk is slow or refuses, or where the chunk that fills a segment begins its cut. The disk's
 * thread makes the call.
 */
uint64_t flight__gathers(const struct disk *disk, const struct stream *stream);

/* Whether the unsent items do wait: they are too few for a write, chunks are not short, and no
 * flush waits for them. It needs no time limit: each generation queues a stamp in each lane with
 * rings. */
bool flight__holds(const struct disk *disk, const struct stream *stream);
/* Whether the first unsent item may be sent. A single queued item is written at once instead. */
bool flight__may_send(const struct disk *disk, const struct stream *stream);

/* Send it, with some of the following ones, or find that it has to wait until no write of the
 * stream is in flight. */
void flight__send(struct disk *disk, struct stream *stream);

/* Wait until a write has completed; or see which have, so that their streams go on while others have
 * something to write all the time. */
void flight__await(struct disk *disk, struct stream *stream);
void flight__look(struct disk *disk);
bool flight__have_landed(const struct stream *stream);

/* The work on the first item of a stream's queue: it is written part by part, or given up, and
 * ended. On a full disk it waits until there is room, or, if the segment is missing (EXFULL), until
 * one is prepared; other streams are written meanwhile. The disk's thread makes all calls. */

#define WORK_LOOK_NS 20000000u /* how often it checks whether the wait is over */

/* Whether the item may be written, or given up. */
bool work__is_ready(struct disk *disk, struct stream *stream);
/* Write the rest of the item. False: a part of it waits. */
bool work__write(struct disk *disk, struct stream *stream, struct item *item);
/* Count written bytes, and the time that the write took. */
void work__count(struct disk *disk, struct stream *stream, uint64_t bytes, uint64_t ns);
/* End a complete item. Its lane may reuse it at once. */
void work__end(struct disk *disk, struct stream *stream, struct item *ended);

/* One more than streams, each of which uses one: a queue that none uses is always left. */
#define DISKS_MAX (STREAMS_MAX + 1)

struct shard;
struct event_list;

/*
 * The writer of drained data: a queue and a thread for each file system, so that one that hangs
 * delays only the streams on it.
 *
 * The generations are numbered here and issued by the shards' timers, once per flush interval,
 * whatever the disks do.
 */
struct writer {
	_Atomic uint64_t issued_ns;
	_Atomic uint64_t generation; /* the last one issued */
	_Atomic uint64_t asked;	     /* the last one requested, whose end somebody waits for */
	_Atomic uint64_t followed;   /* the next timer generation whose end somebody waits for */
	struct pool *pool;
	struct event_list *events;
	_Atomic(struct stream *) streams[STREAMS_MAX]; /* by id % STREAMS_MAX, or NULL */
	struct shard *shards[SHARDS_MAX];
	struct disk disks[DISKS_MAX]; /* the first is for streams without a file so far */
	uint32_t shard_count;
	_Atomic uint32_t stream_count; /* places that were ever used */
	_Atomic uint32_t disk_count;
	uint64_t flush_ns;
	uint64_t segment_wait_ns; /* how long to wait for a missing segment */
	uint64_t cut_wait_ns;	  /* how long data wait for the names in the ending segment */
	uint64_t hurry_ns;	  /* how long streams let one pass that hurries */
	uint64_t fast_ns;	  /* what a write on a fast disk takes at most */
};

void writer__init(struct writer *writer, struct pool *pool, struct event_list *events,
		  uint64_t flush_ns);
void writer__deinit(struct writer *writer);
int writer__start(struct writer *writer);
/* Write all queued items, then end the threads. The shards have stopped. */
void writer__stop(struct writer *writer);

/* The calls that add, place and forget streams, or visit all of them, are made by one thread at a
 * time. */

/* Add a stream, up to date with the last generation; its place is free. */
void writer__add(struct writer *writer, struct stream *stream);
/* Whether no disk uses the stream, which was left, any more: then it may be freed. */
bool writer__forget(struct writer *writer, struct stream *stream);
/* Returns the queue of a file system. If it has none it gets a new one or, once there are DISKS_MAX,
 * one that no stream uses any more. NULL: its thread cannot start. */
struct disk *writer__disk(struct writer *writer, dev_t device);
/* Move the stream to the queue of the file system of `segment`, its next one. If there is no
 * queue, it stays. */
void writer__place(struct writer *writer, struct stream *stream, struct segment *segment);
/* Returns the number of stream places; and the stream at one of them, or NULL. */
uint32_t writer__streams(const struct writer *writer);
struct stream *writer__stream(const struct writer *writer, uint32_t place);
uint32_t writer__disks(const struct writer *writer);

void writer__poke(struct writer *writer);
void writer__wake(struct writer *writer);
/* Begin a generation, which reads every ring to its present head. Returns its number. */
uint64_t writer__issue(struct writer *writer);
/* Whether somebody waits for a generation beyond `done`. Timer generations are waited for only
 * by their follower. */
bool writer__is_asked(const struct writer *writer, uint64_t done);
/* Whether the follower of timer generations waits for this one or an earlier one. Until set
 * otherwise it follows all of them. */
bool writer__is_followed(const struct writer *writer, uint64_t generation);
/* Issue a generation from `shard`, before a pass, if it was due `slack_ns` ago. */
void writer__issue_due(struct writer *writer, const struct shard *shard, uint64_t slack_ns);
/* Returns the last generation that every ring of every shard has completed. */
uint64_t writer__drained(const struct writer *writer);
/* Returns the age of the oldest queued item in ns, 0 if nothing is queued. */
uint64_t writer__oldest_ns(struct writer *writer);
