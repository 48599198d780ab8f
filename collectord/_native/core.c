/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <errno.h>
#include <stdlib.h>

int core__new(const struct core_options *options, struct core **out)
{
	struct core *core;
	int ret = -EINVAL;

	if (options->shards == 0 || options->shards > SHARDS_MAX || options->flush_ns == 0)
		return -EINVAL;
	core = calloc(1, sizeof(*core));
	if (core == NULL)
		return -ENOMEM;
	ret = pool__init(&core->pool, options->chunks, options->chunk_bytes);
	if (ret == 0)
		ret = event_list__init(&core->events);
	if (ret == 0)
		writer__init(&core->writer, &core->pool, &core->events, options->flush_ns);
	for (uint32_t i = 0; ret == 0 && i < options->shards; i++) {
		ret = shard__init(&core->shards[i], i, &core->pool, &core->writer,
				  options->floor_bytes);
		if (ret == 0)
			core->writer.shards[core->writer.shard_count++] = &core->shards[i];
	}
	if (ret < 0) {
		core__free(core);
		return ret;
	}
	*out = core;
	return 0;
}

void core__free(struct core *core)
{
	core__stop(core);
	for (uint32_t i = 0; i < core->writer.shard_count; i++)
		shard__deinit(&core->shards[i]);
	for (uint32_t i = 0; i < core->writer.stream_count; i++)
		if (writer__stream(&core->writer, i) != NULL)
			stream__free(writer__stream(&core->writer, i));
	if (core->writer.pool != NULL)
		writer__deinit(&core->writer);
	event_list__deinit(&core->events);
	pool__deinit(&core->pool);
	free(core);
}

int core__start(struct core *core)
{
	int ret = writer__start(&core->writer);

	for (uint32_t i = 0; ret == 0 && i < core->writer.shard_count; i++)
		ret = shard__start(&core->shards[i]);
	if (ret < 0)
		core__stop(core);
	return ret;
}

void core__stop(struct core *core)
{
	for (uint32_t i = 0; i < core->writer.shard_count; i++)
		shard__stop(&core->shards[i]);
	writer__stop(&core->writer);
}

/* Free forgotten rings of a stream that have nothing in flight, and whose share of its segment is
 * kept without them. One with another behind it follows that. Returns whether no shard uses any of
 * its rings. */
static bool core__free_rings(struct stream *stream)
{
	uint32_t kept = 0;
	bool all_left = true;

	HOLD(&stream->lock);
	for (uint32_t i = 0; i < stream->ring_count; i++) {
		struct ring *const ring = stream->rings[i];
		const bool left = shard__has_left(ring);

		all_left &= left;
		if (!left || !ring__is_over(ring) || !stream__keep_share(stream, ring)) {
			stream->rings[kept++] = ring;
			continue;
		}
		if (ring->front != NULL)
			ring->front->partner = NULL;
		ring->ops->free(ring);
	}
	stream->ring_count = kept;
	return all_left;
}

static void core__reap(struct core *core)
{
	for (uint32_t i = 0; i < writer__streams(&core->writer); i++) {
		struct stream *const stream = writer__stream(&core->writer, i);

		if (stream != NULL && core__free_rings(stream) && stream->forgotten &&
		    writer__forget(&core->writer, stream))
			stream__free(stream);
	}
}

int core__add_stream(struct core *core, const struct stream_options *options, struct stream **out)
{
	struct stream *stream;
	uint32_t place = 0;
	int ret;

	core__reap(core);
	while (place < STREAMS_MAX && writer__stream(&core->writer, place) != NULL)
		place++;
	if (place == STREAMS_MAX)
		return -ENOSPC;
	stream = malloc(sizeof(*stream));
	if (stream == NULL)
		return -ENOMEM;
	ret = stream__init(stream, place + core->stream_ids[place], core->pool.chunk_bytes, options,
			   &core->events);
	if (ret < 0) {
		free(stream);
		return ret;
	}
	core->stream_ids[place] += STREAMS_MAX;
	writer__add(&core->writer, stream);
	*out = stream;
	return 0;
}

void core__forget_stream(struct core *core, struct stream *stream)
{
	stream->forgotten = true;
	core__request(core, stream, FINISH);
	core__reap(core);
}

int core__add_ring(struct core *core, uint32_t shard, struct stream *stream, struct ring *ring)
{
	int ret = -EINVAL;

	if (ring->front != NULL && ring->front->partner != NULL)
		ret = -EEXIST;
	else if (shard < core->writer.shard_count && stream->ops == ring->ops->stream)
		ret = ring->ops->join != NULL ? ring->ops->join(ring, stream) : 0;
	ring->id = core->ring_ids++;
	/* The stream knows it before a pass can take from it. */
	if (ret == 0)
		ret = stream__add_ring(stream, ring);
	if (ret == 0) {
		ret = shard__add(&core->shards[shard], stream, ring);
		if (ret < 0) {
			HOLD(&stream->lock);
			stream->ring_count--; /* it was never in a shard */
		}
	}
	if (ret < 0)
		ring->ops->free(ring);
	return ret;
}

void core__forget_ring(struct ring *ring)
{
	/* Release; the partner is the acquire in ring__is_over(). */
	store_release(&ring->forgotten, true);
}

int core__prepare(struct core *core, struct stream *stream, struct segment *segment)
{
	int ret;

	segment->begin = segment->allocated = segment->offset;
	segment->open = true;
	writer__place(&core->writer, stream, segment);
	ret = stream__prepare(stream, segment);
	if (ret == 0)
		writer__poke(&core->writer);
	else
		segment__forget(segment);
	return ret;
}

void core__reserve(struct core *core, struct stream *stream, uint64_t device, uint64_t file)
{
	pool__note_file(&core->pool, stream->id, device, file);
	store_relaxed(&stream->reserved, true);
}

void core__request(struct core *core, struct stream *stream, enum request request)
{
	pthread_mutex_lock(&stream->lock);
	stream->rotate_wanted |= request == ROTATE || request == TURN;
	stream->turn_wanted |= request == TURN;
	stream->finish_wanted |= request == FINISH;
	if (request == HURRY || request == REST)
		store_relaxed(&stream->hurries, request == HURRY);
	if (request >= SPACE_UNANSWERED)
		stream->space_answer = request;
	pthread_mutex_unlock(&stream->lock);
	writer__poke(&core->writer);
}

void core__rotate_from(struct core *core, struct stream *stream, uint64_t token)
{
	pthread_mutex_lock(&stream->lock);
	stream->rotate_wanted |= stream->current.open && stream->current.token == token;
	pthread_mutex_unlock(&stream->lock);
	writer__poke(&core->writer);
}

struct event *core__event(struct core *core)
{
	core__reap(core);
	return event_list__pop(&core->events);
}

struct ring *core__find_ring(struct core *core, bool (*is)(struct ring *ring))
{
	for (uint32_t i = 0; i < writer__streams(&core->writer); i++) {
		struct stream *const stream = writer__stream(&core->writer, i);

		if (stream == NULL)
			continue;
		HOLD(&stream->lock);
		for (uint32_t j = 0; j < stream->ring_count; j++)
			if (is(stream->rings[j]))
				return stream->rings[j];
	}
	return NULL;
}

void core__read_counters(struct core *core, struct core_counters *counters)
{
	struct writer *const writer = &core->writer;

	*counters = (struct core_counters){.chunks = core->pool.count,
					   .oldest_unwritten_ns = writer__oldest_ns(writer)};
	pthread_mutex_lock(&core->pool.lock);
	counters->chunks_free = core->pool.free_count;
	counters->chunks_free_min = core->pool.free_min;
	pthread_mutex_unlock(&core->pool.lock);
	for (uint32_t i = 0; i < writer__disks(writer); i++) {
		const struct disk *const disk = &writer->disks[i];

		counters->written_bytes += counter__read(&disk->written_bytes);
		counters->written_chunks += counter__read(&disk->written_chunks);
		counters->write_errors += counter__read(&disk->write_errors);
		counters->write_ns += counter__read(&disk->write_ns);
	}
	for (uint32_t i = 0; i < writer->shard_count; i++) {
		const struct shard *shard = &core->shards[i];

		counters->passes += counter__read(&shard->passes);
		counters->wakeups += counter__read(&shard->wakeups);
		counters->pass_ns += counter__read(&shard->pass_ns);
		if (counter__read(&shard->pass_ns_max) > counters->pass_ns_max)
			counters->pass_ns_max = counter__read(&shard->pass_ns_max);
	}
}
