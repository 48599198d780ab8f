/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_WRITER_H
#define COLLECTORD_WRITER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "chunk.h"
#include "counter.h"
#include "stream.h"

#define STREAMS_MAX 64u

struct shard;
struct event_list;

/*
 * The one thread that writes. It takes items in the order in which they were queued, and issues
 * the generations that make every shard do a full pass at least once per flush interval.
 */
struct writer {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct item *first, **last;
	bool poked, stopping;
	uint64_t issued_ns;

	_Atomic uint64_t generation; /* last one issued */
	struct pool *pool;
	struct event_list *events;
	struct stream *streams[STREAMS_MAX];
	struct shard *shards[SHARDS_MAX];
	uint32_t shard_count;
	_Atomic uint32_t stream_count;
	uint64_t flush_ns;
	pthread_t thread;
	pid_t tid;
	bool running;

	counter_t written_bytes, written_chunks, write_errors, write_ns, rounds;
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
/* Ask every shard for a full pass; returns the generation. */
uint64_t writer__issue(struct writer *writer);
/* Every shard ended a full pass of this generation. */
uint64_t writer__drained(const struct writer *writer);
/* Every lane's items up to this generation were written, or counted as lost. */
uint64_t writer__written(struct writer *writer);
/* Age of the oldest queued item in ns, 0 when the queue is empty. */
uint64_t writer__oldest_ns(struct writer *writer);

#endif
