/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_WRITER_H
#define COLLECTORD_WRITER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "chunk.h"
#include "counter.h"
#include "stream.h"

#define STREAMS_MAX 64u

struct shard;
struct event_list;

/*
 * The one thread that writes. Streams take turns, each with its items in the order in which they
 * were queued; one whose item waits, for room or for a segment, lets the others pass.
 *
 * The generations are numbered here and issued by the shards' timers, once per flush interval: they
 * go on whatever the writer is at.
 */
struct writer {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool poked, stopping;
	uint32_t turn; /* the stream that comes next */

	_Atomic uint64_t issued_ns;
	_Atomic uint64_t generation; /* last one issued */
	struct pool *pool;
	struct event_list *events;
	struct stream *streams[STREAMS_MAX];
	struct shard *shards[SHARDS_MAX];
	uint32_t shard_count;
	_Atomic uint32_t stream_count;
	uint64_t flush_ns;
	uint64_t segment_wait_ns; /* how long a segment that is missing is waited for */
	pthread_t thread;
	bool running;

	counter_t written_bytes, written_chunks, write_errors, write_ns;
};

int writer__init(struct writer *writer, struct pool *pool, struct event_list *events,
		 uint64_t flush_ns);
void writer__deinit(struct writer *writer);
int writer__start(struct writer *writer);
/* Write what is queued, then end the thread. The shards have stopped. */
void writer__stop(struct writer *writer);

/* From a pass. The item is the writer's until it was written. */
void writer__queue(struct writer *writer, struct item *item);
/* Look at the streams' requests and answers. */
void writer__poke(struct writer *writer);
/* Begin a generation: every ring is read up to where it is now. Returns its number. */
uint64_t writer__issue(struct writer *writer);
/* When the next one is to be issued. */
uint64_t writer__due_ns(const struct writer *writer);
/* From `shard`, before a pass: issue it if that time came `slack_ns` ago. */
void writer__issue_due(struct writer *writer, const struct shard *shard, uint64_t slack_ns);
/* The last generation up to which every ring of every shard is done. */
uint64_t writer__drained(const struct writer *writer);
/* Every lane's items up to this generation were written, or counted as lost. */
uint64_t writer__written(struct writer *writer);
/* Age of the oldest queued item in ns, 0 when nothing is queued. */
uint64_t writer__oldest_ns(struct writer *writer);

#endif
