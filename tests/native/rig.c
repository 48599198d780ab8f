/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "rig.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

void rig__init(struct rig *rig, uint32_t shards, uint32_t streams, uint32_t chunks,
	       uint64_t flush_ns)
{
	const struct stream_options options = {
		.ops = &record_stream__ops,
		.sideband_bytes = 1 << 20,
	};

	memset(rig, 0, sizeof(*rig));
	CHECK_EQ(pool__init(&rig->pool, chunks, RIG_CHUNK_BYTES), 0);
	CHECK_EQ(event_list__init(&rig->events), 0);
	writer__init(&rig->writer, &rig->pool, &rig->events, flush_ns);
	/* The tests give generations themselves, and wait for each. */
	rig->writer.asked = UINT64_MAX;
	rig->shard_count = shards;
	for (uint32_t i = 0; i < shards; i++) {
		CHECK_EQ(shard__init(&rig->shards[i], i, &rig->pool, &rig->writer, 0), 0);
		rig->writer.shards[rig->writer.shard_count++] = &rig->shards[i];
	}
	rig->stream_count = streams;
	for (uint32_t i = 0; i < streams; i++) {
		CHECK_EQ(stream__init(&rig->streams[i], i, RIG_CHUNK_BYTES, &options, &rig->events),
			 0);
		writer__add(&rig->writer, &rig->streams[i]);
	}
}

void rig__deinit(struct rig *rig)
{
	for (uint32_t i = 0; i < rig->shard_count; i++)
		shard__stop(&rig->shards[i]);
	writer__stop(&rig->writer);
	for (uint32_t i = 0; i < rig->shard_count; i++)
		shard__deinit(&rig->shards[i]);
	for (uint32_t i = 0; i < rig->stream_count; i++)
		stream__deinit(&rig->streams[i]);
	writer__deinit(&rig->writer);
	event_list__deinit(&rig->events);
	pool__deinit(&rig->pool);
}

int rig__prepare(struct rig *rig, uint32_t stream, int fd, uint64_t offset, uint64_t limit)
{
	static uint64_t token;
	const struct segment segment = {
		.token = ++token,
		.file = RIG_FILE,
		.begin = offset,
		.offset = offset,
		.allocated = offset,
		.limit = limit,
		.fd = fd,
		.open = true,
	};
	const int ret = stream__prepare(&rig->streams[stream], &segment);

	writer__poke(&rig->writer);
	return ret;
}

int rig__add_stream(struct core *core, size_t sideband_bytes, uint32_t page_bytes, bool snapshots,
		    struct stream **stream)
{
	return core__add_stream(core,
				&(struct stream_options){
					.ops = page_bytes > 0 ? &page_stream__ops
							      : &record_stream__ops,
					.sideband_bytes = sideband_bytes,
					.page_bytes = page_bytes,
					.snapshots = snapshots,
				},
				stream);
}

int rig__add_relay_stream(struct core *core, struct stream **stream)
{
	return core__add_stream(core,
				&(struct stream_options){
					.ops = &relay_stream__ops,
					.sideband_bytes = 1 << 20,
				},
				stream);
}

int rig__prepare_records(struct core *core, struct stream *stream, uint64_t token, int fd,
			 uint64_t offset, uint64_t limit, uint64_t step_bytes)
{
	struct segment segment = {
		.token = token, .fd = fd, .offset = offset, .limit = limit, .step = step_bytes};

	return core__prepare(core, stream, &segment);
}

int rig__prepare_pages(struct core *core, struct stream *stream, uint64_t token, int fd,
		       const uint64_t *extents, uint32_t extent_count, uint64_t capacity,
		       uint64_t limit, uint64_t step_bytes)
{
	struct segment segment = {
		.token = token, .fd = fd, .capacity = capacity, .limit = limit, .step = step_bytes};
	const int ret = segment__set_places(&segment, 0, extents, extent_count);

	return ret == 0 ? core__prepare(core, stream, &segment) : ret;
}

int rig__prepare_files(struct core *core, struct stream *stream, uint64_t token, const int *files,
		       uint32_t file_count, uint64_t limit)
{
	struct segment segment = {.token = token, .fd = -1, .limit = limit};
	uint64_t places[8];
	int ret;

	CHECK(file_count <= sizeof(places) / sizeof(places[0]));
	for (uint32_t i = 0; i < file_count; i++)
		places[i] = files[i] < 0 ? NO_PLACE : (uint64_t)files[i];
	ret = segment__set_places(&segment, 0, places, file_count);
	return ret == 0 ? core__prepare(core, stream, &segment) : ret;
}

/* Of the maker's answer `ret`. */
static int add(struct core *core, uint32_t shard, struct stream *stream, struct ring *made, int ret,
	       struct ring **ring)
{
	if (ret == 0)
		ret = core__add_ring(core, shard, stream, made);
	if (ret == 0)
		*ring = made;
	return ret;
}

int rig__add_ring(struct core *core, uint32_t shard, struct stream *stream, struct ring_map *map,
		  int wakeup_fd, const struct walk_layout *layout, const struct walk_ids *ids,
		  bool sideband, bool held, struct ring **ring)
{
	const struct perf_ring_options options = {
		.map = map,
		.wakeup_fd = wakeup_fd,
		.layout = *layout,
		.ids = *ids,
		.sideband = sideband,
	};
	struct ring *made = NULL;
	const int ret =
		map->overwrite ? window__new(&options, &made) : perf_ring__new(&options, &made);

	if (ret == 0)
		made->held = held;
	return add(core, shard, stream, made, ret, ring);
}

int rig__add_aux_ring(struct core *core, struct ring *front, const struct aux_ring_options *options,
		      struct ring **ring)
{
	struct ring *made = NULL;
	int ret = aux_ring__new(options, front, &made);

	if (ret == 0)
		ret = core__add_ring(core, front->lane->shard->index, front->lane->stream, made);
	if (ret == 0)
		*ring = made;
	return ret;
}

int rig__add_page_ring(struct core *core, uint32_t shard, struct stream *stream,
		       const struct page_ring_options *options, struct ring **ring)
{
	struct ring *made = NULL;
	const int ret = page_ring__new(options, &made);

	return add(core, shard, stream, made, ret, ring);
}

int rig__add_relay_ring(struct core *core, uint32_t shard, struct stream *stream,
			const struct relay_ring_options *options, struct ring **ring)
{
	struct ring *made = NULL;
	const int ret = relay_ring__new(options, &made);

	return add(core, shard, stream, made, ret, ring);
}

static uint64_t abandoned(const struct ring *ring)
{
	return counter__read(&ring->abandoned) +
	       (ring->partner != NULL ? counter__read(&ring->partner->abandoned) : 0);
}

int rig__tell(struct ring *ring, enum command command)
{
	const uint64_t before = abandoned(ring);
	const int ret = shard__post(ring, command);

	if (ret < 0)
		return ret;
	while (!shard__has_answered(ring) || (command == COMMAND_REMOVE && !ring->left))
		sched_yield();
	return abandoned(ring) > before ? -EAGAIN : 0;
}

void check_prepared(int ret)
{
	CHECK(ret == 0 || ret == -ESHUTDOWN);
}

void await_notice(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
	uint64_t count;

	CHECK(poll(&poll_fd, 1, 10000) == 1);
	CHECK(read(fd, &count, sizeof(count)) == sizeof(count));
}

struct event *rig__event(struct rig *rig, enum event_kind kind)
{
	struct event *event;

	while ((event = event_list__pop(&rig->events)) == NULL)
		await_notice(rig->events.fd);
	CHECK_EQ(event->kind, kind);
	return event;
}

void rig__expect(struct rig *rig, enum event_kind kind)
{
	event__free(rig__event(rig, kind));
}

void rig__expect_none(struct rig *rig)
{
	CHECK(event_list__pop(&rig->events) == NULL);
}

uint64_t rig__written(const struct rig *rig)
{
	uint64_t least = rig->writer.generation;

	for (uint32_t i = 0; i < writer__streams(&rig->writer); i++) {
		const struct stream *const stream = writer__stream(&rig->writer, i);

		if (stream != NULL)
			least = stream__written(stream, least);
	}
	return least;
}

void rig__await_written(struct rig *rig, uint64_t generation)
{
	while (rig__written(rig) < generation)
		await_notice(rig->events.fd);
}

void rig__finish(struct rig *rig, uint32_t stream, int fd, struct output *output)
{
	struct stream *const finished = &rig->streams[stream];
	struct event *event;

	pthread_mutex_lock(&finished->lock);
	finished->finish_wanted = true;
	pthread_mutex_unlock(&finished->lock);
	writer__poke(&rig->writer);
	event = rig__event(rig, EVENT_SEGMENT_CLOSED);
	output__read(output, fd, 0, event->segment.offset, NULL);
	output__check_sums(output->data, output->bytes, event->sums, event->sum_count);
	CHECK_EQ(output->samples, event->segment.samples);
	event__free(event);
}
