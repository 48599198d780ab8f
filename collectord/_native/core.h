/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "event_list.h"
#include "ring.h"
#include "shard.h"
#include "stream.h"
#include "writer.h"

/*
 *   rings ──► shards (threads) ──► chunks ──► writer (thread) ──► segments
 *                   ▲                              │
 *                   └───────── free chunks ◄───────┘
 *
 * The whole core behind one handle. Calls return 0 or -errno. A ring lives as long as its stream, and
 * that until it is forgotten, or as long as the core; the fds and ring maps given to it stay the
 * caller's. The ids of streams and rings come once. Calls are made by one thread at a time, but those
 * that say so.
 */
struct core {
	struct pool pool;
	struct event_list events; /* its fd becomes readable when a generation completed, too */
	struct writer writer;
	struct shard shards[SHARDS_MAX];
	uint32_t stream_ids[STREAMS_MAX]; /* how far the next one of each place is behind its first */
	uint32_t ring_ids;
	bool forgetful; /* a stream waits to be freed */
};

struct core_options {
	uint32_t shards;
	uint32_t chunks;
	uint32_t chunk_bytes;
	uint64_t flush_ns;
	uint64_t floor_bytes;
};

struct core_counters {
	uint64_t chunks, chunks_free, chunks_free_min;
	uint64_t written_bytes, written_chunks, write_errors, write_ns;
	uint64_t passes, wakeups, pass_ns, pass_ns_max;
	uint64_t oldest_unwritten_ns;
};

int core__new(const struct core_options *options, struct core **core);
void core__free(struct core *core);
int core__start(struct core *core);
void core__stop(struct core *core);
/* For errors see stream__init(). -ENOSPC: there are STREAMS_MAX. */
int core__add_stream(struct core *core, const struct stream_options *options,
		     struct stream **stream);
/* Nobody asks for the stream, or for a ring of it, any more. Its rings have left: it is finished if it
 * is not, and once nothing of it is on its way it is freed, with them. */
void core__forget_stream(struct core *core, struct stream *stream);
/* The ring is the core's, whatever comes. One that has a front goes to the shard and the stream of that.
 * -EINVAL: no such shard, or the ring is none for the stream; -EEXIST: its front has one already. */
int core__add_ring(struct core *core, uint32_t shard, struct stream *stream, struct ring *ring);
/* Have memory ready for what COMMAND_LET_GO copies. */
void core__warm(struct ring *ring);
/* Tell the shard of the ring, see shard__post(). -EINVAL: that is nothing to it, or what is behind it is
 * none that can be held. */
int core__post(struct core *core, struct ring *ring, enum command command);
/* Did the shard do all that was posted to the ring? The notices' fd becomes readable when it did. */
bool core__has_answered(struct core *core, const struct ring *ring);
/* Has it left, and was all done that was posted to it? */
bool core__has_left(struct core *core, const struct ring *ring);

/* A shard of the stream's rings that has made no pass since this generation was issued; -1: all have. */
int core__silent_shard(const struct core *core, const struct stream *stream, uint64_t generation);
/* Token, fd, offset, limit and what its kind has more are set; the latter is the core's, whatever comes. */
int core__prepare(struct core *core, struct stream *stream, struct segment *segment);
void core__rotate(struct core *core, struct stream *stream);
void core__finish(struct core *core, struct stream *stream);
void core__answer_space(struct core *core, struct stream *stream, bool retry);

struct event *core__event(struct core *core);
/* A ring whose last fault, or hang-up, was not told yet; NULL when there is none. */
struct ring *core__faulty(struct core *core);
struct ring *core__hung_up(struct core *core);

void core__read_counters(struct core *core, struct core_counters *counters);
/* Kernel thread id of shard `index` of a core that was started; 0: there is no such shard. */
int core__drain_tid(const struct core *core, uint32_t index);
