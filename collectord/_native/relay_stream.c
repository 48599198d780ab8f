/* SPDX-License-Identifier: Apache-2.0 */
#include "relay_stream.h"

#include <errno.h>

void relay_stream__begin(struct ring *ring, const struct segment *segment)
{
	relay_file__begin(&ring->relay->file,
			  ring->id < segment->file_count ? segment->files[ring->id] : -1);
}

void relay_stream__tell(const struct ring *ring, struct event_ring *told)
{
	told->bytes = counter__read(&ring->relay->file.bytes);
	told->xxh3 = relay_file__digest(&ring->relay->file);
}

void relay_stream__advance(struct stream *stream, const struct ring *ring, uint64_t bytes)
{
	if (stream->current.open && ring->relay->file.fd < 0) {
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

	if (!segment->open || ring->relay->file.fd < 0)
		return -EXFULL;
	ret = relay_file__write(&ring->relay->file, data, span->bytes);
	if (ret < 0)
		return ret;
	segment->offset += span->bytes;
	segment->chunks++;
	segment->records += span->records;
	segment->samples += span->samples;
	counter__add(&ring->stored, span->samples);
	counter__add(&ring->segment_samples, span->samples);
	counter__add(&ring->segment_bytes, span->bytes);
	atomic_fetch_sub_explicit(&ring->in_flight, span->samples, memory_order_relaxed);
	if (span->first_ns != 0 &&
	    (segment->first_ns == 0 || span->first_ns < segment->first_ns))
		segment->first_ns = span->first_ns;
	if (span->last_ns > segment->last_ns)
		segment->last_ns = span->last_ns;
	return 0;
}
