/* SPDX-License-Identifier: Apache-2.0 */
#include "relay_stream.h"

#include <errno.h>

#include "event_list.h"

static void relay_stream__begin(struct ring *ring, const struct segment *segment)
{
	relay_file__begin(&relay_ring__of(ring)->file,
			  ring->id < segment->file_count ? segment->files[ring->id] : -1);
}

static void relay_stream__tell(struct ring *ring, struct event_ring *told)
{
	struct relay_file *const file = &relay_ring__of(ring)->file;

	told->bytes = counter__read(&file->bytes);
	told->sums = sums__give(&file->sums, &told->sum_count);
}

void relay_stream__advance(struct stream *stream, const struct ring *ring, uint64_t bytes)
{
	if (stream->current.open && relay_ring__of(ring)->file.fd < 0) {
		pthread_mutex_lock(&stream->lock);
		stream->rotate_wanted = true;
		pthread_mutex_unlock(&stream->lock);
	}
	stream__advance(stream, bytes);
}

int relay_stream__write(struct stream *stream, const struct span *span, const uint8_t *data)
{
	struct segment *segment = &stream->current;
	struct ring *ring = span->ring;
	int ret;

	if (!segment->open || relay_ring__of(ring)->file.fd < 0)
		return -EXFULL;
	ret = relay_file__write(&relay_ring__of(ring)->file, data, span->bytes);
	if (ret < 0)
		return ret;
	segment->offset += span->bytes;
	segment->chunks++;
	segment->records += span->records;
	stream__account(stream, span);
	segment__note_times(segment, span->first_ns, span->last_ns);
	return 0;
}

static int relay_stream__write_part(struct stream *stream, struct item *item, uint64_t *bytes)
{
	struct work *const work = &stream->work;
	const struct span *span;
	int ret;

	if (item->chunk == NULL || work->span == item->chunk->span_count)
		return 0;
	span = &item->chunk->spans[work->span];
	*bytes = span->bytes;
	relay_stream__advance(stream, span->ring, span->bytes);
	ret = relay_stream__write(stream, span, item->chunk->data + work->at);
	if (ret < 0)
		return ret;
	work->at += span->bytes;
	work->span++;
	return 1;
}

static uint32_t relay_stream__pass_over(struct stream *stream, struct item *item,
					const struct span **spans)
{
	struct work *const work = &stream->work;

	*spans = &item->chunk->spans[work->span++];
	work->at += (*spans)->bytes;
	return 1;
}

static bool relay_stream__end(struct stream *stream, struct item *item)
{
	(void)stream;
	(void)item;
	return false;
}

static bool relay_stream__suits(const struct segment *segment)
{
	return segment->files != NULL;
}

const struct stream_ops relay_stream__ops = {
	.suits = relay_stream__suits,
	.split = true,
	.begin_ring = relay_stream__begin,
	.tell_ring = relay_stream__tell,
	.write = relay_stream__write_part,
	.pass_over = relay_stream__pass_over,
	.end = relay_stream__end,
};
