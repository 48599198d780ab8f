/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "event_list.h"
#include "shard.h"

/*
 *   rings ──► shards (threads) ──► chunks ──► writer (thread) ──► segments
 *                  ▲                              │
 *                  └───────── free chunks ◄───────┘
 *
 * The whole core behind one handle. Calls return 0 or -errno. Streams and rings live until they are
 * forgotten, or as long as the core, and a ring no longer than its stream; the fds and ring maps
 * passed in stay the caller's. Their ids are never reused. Calls are made by one thread at a time,
 * except where noted.
 */
struct core {
	struct pool pool;
	struct event_list events; /* its fd also becomes readable when a generation completed */
	struct writer writer;
	struct shard shards[SHARDS_MAX];
	uint32_t stream_ids[STREAMS_MAX]; /* per place, how far the next id is beyond the first */
	uint32_t ring_ids;
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
/* For errors see stream__init(). -ENOSPC: there are STREAMS_MAX already. */
int core__add_stream(struct core *core, const struct stream_options *options,
		     struct stream **stream);
/* The caller no longer uses the stream or its rings, which have left. The stream is finished if
 * it is not yet, and freed with its rings once none of its data is in flight. */
void core__forget_stream(struct core *core, struct stream *stream);
/* The core owns the ring, even on an error. A ring with a front goes to the front's shard and
 * stream. -EINVAL: no such shard, or the stream does not take this ring; -EEXIST: its front has
 * one already. */
int core__add_ring(struct core *core, uint32_t shard, struct stream *stream, struct ring *ring);
/* The caller no longer uses the ring, which later calls free once it has left, none of its data is
 * in flight, and the segments that have some of them are closed. Any thread may call it. */
void core__forget_ring(struct ring *ring);
/* Prepare a segment whose token, fd, offset, limit and places are set; the core owns the
 * places, even on an error. */
int core__prepare(struct core *core, struct stream *stream, struct segment *segment);
/* Note the file that the stream's first segment will be, so that a successor finds the chunks that wait
 * for it. Call it before anything is drained. */
void core__reserve(struct core *core, struct stream *stream, uint64_t device, uint64_t file);
void core__request(struct core *core, struct stream *stream, enum request request);
/* Request a rotation, unless the stream has moved on from the segment with this token. */
void core__rotate_from(struct core *core, struct stream *stream, uint64_t token);

struct event *core__event(struct core *core);
/* Returns the first ring of all streams for which `is` is true, or NULL. */
struct ring *core__find_ring(struct core *core, bool (*is)(struct ring *ring));

void core__read_counters(struct core *core, struct core_counters *counters);
