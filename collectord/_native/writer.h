/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "chunk.h"
#include "disk.h"
#include "stream.h"

#define STREAMS_MAX 64u /* at a time */
#define DISKS_MAX 8u

struct shard;
struct event_list;

/*
 * What was drained is written: a queue and a thread for each file system, so that one that is stuck
 * delays nobody but the streams on it.
 *
 * The generations are numbered here and issued by the shards' timers, once per flush interval: they
 * go on whatever the disks are at.
 */
struct writer {
	_Atomic uint64_t issued_ns;
	_Atomic uint64_t generation; /* last one issued */
	_Atomic uint64_t asked;	     /* and the last that somebody asked for, and waits for */
	_Atomic uint64_t followed;   /* the next of the timer's whose end somebody waits for */
	struct pool *pool;
	struct event_list *events;
	_Atomic(struct stream *) streams[STREAMS_MAX]; /* by id % STREAMS_MAX, or NULL */
	struct shard *shards[SHARDS_MAX];
	struct disk disks[DISKS_MAX]; /* the first is that of streams without a file so far */
	uint32_t shard_count;
	_Atomic uint32_t stream_count; /* places that were ever in use */
	_Atomic uint32_t disk_count;
	uint64_t flush_ns;
	uint64_t segment_wait_ns; /* how long a segment that is missing is waited for */
	uint64_t cut_wait_ns;	  /* and how long data waits for the names in the one that ends */
};

int writer__init(struct writer *writer, struct pool *pool, struct event_list *events,
		 uint64_t flush_ns);
void writer__deinit(struct writer *writer);
int writer__start(struct writer *writer);
/* Write what is queued, then end the threads. The shards have stopped. */
void writer__stop(struct writer *writer);

/*
 * The calls that add, place and forget streams are made by one thread at a time, and so are those that
 * look at all of them.
 */

/* A stream is there, which is that far on; nobody has its place. */
void writer__add(struct writer *writer, struct stream *stream);
/* Is no disk at the stream, which is left, any more? Then none will be, and it may be freed. */
bool writer__forget(struct writer *writer, struct stream *stream);
/* The queue of a file system, which may be new; NULL where there are DISKS_MAX already, or no thread for
 * it. */
struct disk *writer__disk(struct writer *writer, dev_t device);
/* The next file of the stream is `fd`, so its queue is that of the file's file system. Where there is none
 * it stays. */
void writer__place(struct writer *writer, struct stream *stream, int fd);
/* How many places of streams there are, and the stream at one of them, or NULL. */
uint32_t writer__streams(const struct writer *writer);
struct stream *writer__stream(const struct writer *writer, uint32_t place);
/* How many disks there are. */
uint32_t writer__disks(const struct writer *writer);

/* Look at the streams' requests and answers. */
void writer__poke(struct writer *writer);
/* Begin a generation: every ring is read up to where it is now. Returns its number. */
uint64_t writer__issue(struct writer *writer);
/* Does somebody wait for more than what is `done`? Those that the timer issues are waited for by nobody
 * but who follows them. */
bool writer__is_asked(const struct writer *writer, uint64_t done);
/* Does who follows the timer's generations wait for this one, or for one before? From the first on, until
 * somebody says otherwise. */
bool writer__is_followed(const struct writer *writer, uint64_t generation);
/* When the next one is to be issued. */
uint64_t writer__due_ns(const struct writer *writer);
/* From `shard`, before a pass: issue it if that time came `slack_ns` ago. */
void writer__issue_due(struct writer *writer, const struct shard *shard, uint64_t slack_ns);
/* The last generation up to which every ring of every shard is done. */
uint64_t writer__drained(const struct writer *writer);
/* Age of the oldest queued item in ns, 0 when nothing is queued. */
uint64_t writer__oldest_ns(struct writer *writer);
