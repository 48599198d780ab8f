/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <errno.h>
#include <string.h>

#include "ring.h"

static uint32_t record_stream__padded(const struct stream *stream, uint32_t used, bool round)
{
	return chunk__padded(used, round, &stream->current.table);
}

/* Reserve room for so many bytes, with so many AUX pieces, behind the data and the writes in
 * flight. The end of the claimed space is never written: so a full disk leaves room for the tail,
 * and the segment can be sealed, and then evicted. */
static int record_stream__claim(struct stream *stream, uint32_t bytes, uint32_t pieces)
{
	struct segment *segment = &stream->current;
	const struct sent *const sent = &stream->sent;
	const uint64_t tail = segment__tail(segment, sent->pieces + pieces);
	const int ret = sums__reserve(&stream->sums, sent->bytes + bytes, sent->items + 1);

	return ret < 0 ? ret
		       : segment__claim(segment, &segment->allocated,
					segment->offset + sent->bytes + bytes + tail, UINT64_MAX);
}

static void record_stream__extend(struct stream *stream, const uint8_t *data, uint32_t bytes,
				  uint64_t xxh3)
{
	sums__add(&stream->sums, data, bytes, xxh3);
	stream->current.offset += bytes;
	stream->current.chunks++;
}

static int record_stream__append(struct stream *stream, uint8_t *data, uint32_t bytes,
				 uint32_t pieces, uint64_t xxh3)
{
	struct segment *segment = &stream->current;
	struct iovec vector = {data, bytes};
	uint64_t done = 0;
	int ret = record_stream__claim(stream, bytes, pieces);

	if (ret == 0)
		ret = segment__write(segment->fd, &vector, 1, segment->offset, &done);
	if (ret == 0)
		record_stream__extend(stream, data, bytes, xxh3);
	else if (done > 0)
		segment__cut(segment, segment->offset + segment__tail(segment, pieces));
	return ret;
}

/* Write the first `used` bytes of the scratch as a chunk of their own. */
static int record_stream__append_scratch(struct stream *stream, uint32_t used, bool round)
{
	XXH3_64bits_reset(stream->hash);
	XXH3_64bits_update(stream->hash, stream->scratch, used);
	chunk__pad(stream->scratch, used, round, &stream->current.table, stream->current.offset,
		   stream->hash);
	return record_stream__append(stream, stream->scratch,
				     record_stream__padded(stream, used, round), 0,
				     XXH3_64bits_digest(stream->hash));
}

static int record_stream__flush_scratch(struct stream *stream)
{
	const uint32_t used = stream->scratch_used;

	stream->scratch_used = 0;
	return used > 0 ? record_stream__append_scratch(stream, used, false) : 0;
}

static int record_stream__emit(void *context, const uint8_t *record, uint16_t size)
{
	struct stream *stream = context;
	int ret = 0;

	if (stream->scratch_bytes - stream->scratch_used < size)
		ret = record_stream__flush_scratch(stream);
	memcpy(stream->scratch + stream->scratch_used, record, size);
	stream->scratch_used += size;
	stream->current.replayed++;
	mapped_files__note(&stream->sideband.files, record);
	return ret;
}

static int record_stream__replay(struct stream *stream)
{
	struct segment *segment = &stream->current;
	int ret;

	stream->scratch_used = 0;
	ret = sideband__replay(&stream->sideband, !stream->snapshots, record_stream__emit, stream);
	if (ret == 0)
		ret = record_stream__flush_scratch(stream);
	if (ret < 0) { /* start again with the next attempt */
		const bool written = segment->chunks > 0;

		segment->offset = segment->begin;
		if (written)
			segment__cut(segment, segment->begin + segment__tail(segment, 0));
		segment->chunks = segment->replayed = 0;
		sums__begin(&stream->sums);
	}
	return ret;
}

/* Note that `chunk` was written at `offset`, and all before it. */
static void record_stream__account(struct stream *stream, const struct chunk *chunk, bool round,
				   uint64_t offset)
{
	struct segment *const segment = &stream->current;

	for (uint32_t i = 0; i < chunk->piece_count; i++)
		segment->aux_index[segment->aux_count++] = offset + chunk->pieces[i];
	for (uint32_t i = 0; i < chunk->span_count; i++)
		stream__account(stream, &chunk->spans[i]);
	stream->round_due = true;
	segment->end = offset + chunk__records(chunk->used, round);
}

/* Pad the chunk for this place, where it is written next. It uses a copy of the hash, since it may
 * be written again elsewhere. */
static uint64_t record_stream__pad(struct stream *stream, const struct chunk *chunk, bool round,
				   uint64_t offset)
{
	chunk__aim(chunk, stream->current.file, offset | round);
	XXH3_copyState(stream->hash, chunk->hash);
	chunk__pad(chunk->data, chunk->used, round, &stream->current.table, offset, stream->hash);
	return XXH3_64bits_digest(stream->hash);
}

/* Append the chunk, padded and with a marker if it ends a round, to the running segment, behind the
 * replay if the segment is new. On any error the segment stays as it was. */
static int record_stream__write(struct stream *stream, struct item *item, uint64_t *bytes)
{
	struct segment *const segment = &stream->current;
	struct chunk *const chunk = item->chunk;
	uint64_t offset, xxh3;
	int ret;

	if (chunk == NULL || stream->work.span > 0)
		return 0;
	*bytes = record_stream__padded(stream, chunk->used, item->round);
	stream__tell_end(stream, *bytes);
	stream__advance(stream, *bytes, false);
	if (!segment->open)
		return -EXFULL;
	/* The segment may be another one, with another table. */
	*bytes = record_stream__padded(stream, chunk->used, item->round);
	ret = segment__reserve_aux(segment, chunk->piece_count);
	if (ret == 0 && segment->chunks == 0)
		ret = record_stream__replay(stream);
	if (ret < 0)
		return ret;
	offset = segment->offset;
	xxh3 = record_stream__pad(stream, chunk, item->round, offset);
	ret = record_stream__append(stream, chunk->data, (uint32_t)*bytes, chunk->piece_count, xxh3);
	if (ret < 0)
		return ret;
	record_stream__account(stream, chunk, item->round, offset);
	stream->work.span = 1;
	return 1;
}

static bool record_stream__send(struct stream *stream, struct chunk *chunk)
{
	struct segment *const segment = &stream->current;
	const uint64_t offset = segment->offset + stream->sent.bytes;
	const uint32_t bytes = record_stream__padded(stream, chunk->used, false);

	/* The replay comes with the first chunk. */
	if (segment->chunks == 0 || !stream__has_room(stream, stream->sent.bytes + bytes) ||
	    segment__reserve_aux(segment, stream->sent.pieces + chunk->piece_count) < 0 ||
	    record_stream__claim(stream, bytes, chunk->piece_count) < 0)
		return false;
	chunk->flight = (struct flight){
		.fd = segment->fd,
		.offset = offset,
		.xxh3 = record_stream__pad(stream, chunk, false, offset),
		.bytes = bytes,
	};
	return true;
}

static void record_stream__land(struct stream *stream, const struct chunk *chunk)
{
	const struct flight *const flight = &chunk->flight;

	record_stream__extend(stream, chunk->data, flight->bytes, flight->xxh3);
	record_stream__account(stream, chunk, false, flight->offset);
}

static void record_stream__recall(struct stream *stream)
{
	struct segment *const segment = &stream->current;

	segment__cut(segment, segment->offset + segment__tail(segment, 0));
}

static uint32_t record_stream__pass_over(struct stream *stream, struct item *item,
					 const struct span **spans)
{
	item->round = false;
	stream->work.span = 1;
	*spans = item->chunk->spans;
	return item->chunk->span_count;
}

/* Write a marker alone. It only orders earlier records: without room the next round does it. */
static bool record_stream__end_round(struct stream *stream)
{
	const uint64_t offset = stream->current.offset;

	if (record_stream__append_scratch(stream, 0, true) < 0)
		return false;
	stream->current.end = offset + chunk__records(0, true);
	return true;
}

static bool record_stream__end(struct stream *stream, struct item *item)
{
	const struct chunk *const chunk = item->chunk;
	const uint8_t *records;

	if (chunk == NULL)
		return item->round && stream->round_due && record_stream__end_round(stream);
	/* Also of a chunk that was given up, as later segments replay its sideband. */
	records = chunk->data;
	for (uint32_t i = 0; i < chunk->span_count; i++) {
		const struct span *const span = &chunk->spans[i];

		if (span->names)
			sideband__append(&stream->sideband, records, span->bytes);
		records += span->bytes;
	}
	return item->round;
}

const struct stream_ops record_stream__ops = {
	.ordered = true,
	.write = record_stream__write,
	.pass_over = record_stream__pass_over,
	.send = record_stream__send,
	.land = record_stream__land,
	.recall = record_stream__recall,
	.end = record_stream__end,
};
