/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "chunk.h"
#include "disk.h"
#include "stream.h"

#define STREAMS_MAX 64u /* at the same time */
#define DISKS_MAX 8u

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
};

void writer__init(struct writer *writer, struct pool *pool, struct event_list *events,
		  uint64_t flush_ns);
void writer__deinit(struct writer *writer);
int writer__start(struct writer *writer);
/* Write all queued items, then end the threads. The shards have stopped. */
void writer__stop(struct writer *writer);

/*
 * The calls that add, place and forget streams, or visit all of them, are made by one thread at a
 * time.
 */

/* Add a stream, up to date with the last generation; its place is free. */
void writer__add(struct writer *writer, struct stream *stream);
/* Whether no disk uses the stream, which was left, any more: then it may be freed. */
bool writer__forget(struct writer *writer, struct stream *stream);
/* Returns the queue of a file system, a new one if needed; NULL if there are DISKS_MAX already,
 * or its thread cannot start. */
struct disk *writer__disk(struct writer *writer, dev_t device);
/* Move the stream to the queue of the file system of `fd`, its next file. If there is no queue,
 * it stays. */
void writer__place(struct writer *writer, struct stream *stream, int fd);
/* Returns the number of stream places; and the stream at one of them, or NULL. */
uint32_t writer__streams(const struct writer *writer);
struct stream *writer__stream(const struct writer *writer, uint32_t place);
/* Returns the number of disks. */
uint32_t writer__disks(const struct writer *writer);

/* Check the streams' requests and answers. */
void writer__poke(struct writer *writer);
/* Have the disks look at their queues. */
void writer__wake(struct writer *writer);
/* Begin a generation, which reads every ring to its present head. Returns its number. */
uint64_t writer__issue(struct writer *writer);
/* Whether somebody waits for a generation beyond `done`. Timer generations are waited for only
 * by their follower. */
bool writer__is_asked(const struct writer *writer, uint64_t done);
/* Whether the follower of timer generations waits for this one or an earlier one. Until set
 * otherwise it follows all of them. */
bool writer__is_followed(const struct writer *writer, uint64_t generation);
/* Returns when the next one is due. */
uint64_t writer__due_ns(const struct writer *writer);
/* Issue a generation from `shard`, before a pass, if it was due `slack_ns` ago. */
void writer__issue_due(struct writer *writer, const struct shard *shard, uint64_t slack_ns);
/* Returns the last generation that every ring of every shard has completed. */
uint64_t writer__drained(const struct writer *writer);
/* Returns the age of the oldest queued item in ns, 0 if nothing is queued. */
uint64_t writer__oldest_ns(struct writer *writer);
