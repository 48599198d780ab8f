/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_RIG_H
#define COLLECTORD_TEST_RIG_H

#include "aux_ring.h"
#include "core.h"
#include "event_list.h"
#include "output.h"
#include "page_ring.h"
#include "relay_ring.h"
#include "shard.h"
#include "stream.h"
#include "perf_ring.h"
#include "writer.h"

#define RIG_CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)
#define RIG_STREAMS 8u
#define RIG_FILE 77u /* the number of every segment */
#define RIG_LIMIT (UINT64_C(1) << 40)
#define RIG_NEVER_NS (UINT64_C(3600) * 1000000000) /* no generation comes by itself */

/* The parts of a core, put together without starting a thread. */
struct rig {
	struct pool pool;
	struct event_list events;
	struct writer writer;
	struct shard shards[4];
	struct stream streams[RIG_STREAMS];
	uint32_t shard_count, stream_count;
};

void rig__init(struct rig *rig, uint32_t shards, uint32_t streams, uint32_t chunks,
	       uint64_t flush_ns);
/* Stops what was started. */
void rig__deinit(struct rig *rig);

/* Give `fd` to a stream, data from `offset` on. Returns what stream__prepare() does. */
int rig__prepare(struct rig *rig, uint32_t stream, int fd, uint64_t offset, uint64_t limit);

/* The next event, which must be of this kind; waits for it. The caller's to free(). */
struct event *rig__event(struct rig *rig, enum event_kind kind);
void rig__expect(struct rig *rig, enum event_kind kind);
void rig__expect_none(struct rig *rig);
/* Wait until every lane's items up to this generation were written. */
/* The last generation that is written of every stream. */
uint64_t rig__written(const struct rig *rig);
void rig__await_written(struct rig *rig, uint64_t generation);

/* Streams of a core, and their segments. */
int rig__add_stream(struct core *core, size_t sideband_bytes, uint32_t page_bytes, bool snapshots,
		    struct stream **stream);
int rig__add_relay_stream(struct core *core, struct stream **stream);
int rig__prepare_records(struct core *core, struct stream *stream, uint64_t token, int fd,
			 uint64_t offset, uint64_t limit, uint64_t step_bytes);
int rig__prepare_pages(struct core *core, struct stream *stream, uint64_t token, int fd,
		       const uint64_t *extents, uint32_t extent_count, uint64_t capacity,
		       uint64_t limit, uint64_t step_bytes);
int rig__prepare_files(struct core *core, struct stream *stream, uint64_t token, const int *files,
		       uint32_t file_count, uint64_t limit);

/* A perf ring, or a window if the map is to be overwritten, becomes one of the core. */
int rig__add_ring(struct core *core, uint32_t shard, struct stream *stream, struct ring_map *map,
		  int wakeup_fd, const struct walk_layout *layout, const struct walk_ids *ids,
		  bool sideband, bool held, struct ring **ring);
/* Likewise an AUX area behind `front`, pages and relay files. */
int rig__add_aux_ring(struct core *core, struct ring *front, const struct aux_ring_options *options,
		      struct ring **ring);
int rig__add_page_ring(struct core *core, uint32_t shard, struct stream *stream,
		       const struct page_ring_options *options, struct ring **ring);
int rig__add_relay_ring(struct core *core, uint32_t shard, struct stream *stream,
			const struct relay_ring_options *options, struct ring **ring);

/*
 * Have the shard of a ring do so, and wait until it has; of COMMAND_REMOVE until the ring has left:
 * -EAGAIN if something of it was abandoned.
 */
int rig__tell(struct ring *ring, enum command command);

/* What preparing a segment gave is 0, or the stream was finished meanwhile. */
void check_prepared(int ret);

/* Wait until the events' fd is readable, ten seconds at most, then clear it. */
void await_notice(int fd);

/* Finish the stream's segment as a request to finish does, and read back what was written to `fd`. */
void rig__finish(struct rig *rig, uint32_t stream, int fd, struct output *output);

#endif
