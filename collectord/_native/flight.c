/* SPDX-License-Identifier: Apache-2.0 */
#include "writer.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A write that took longer waited for others: with more of them in flight all would wait
 * longer, and so would anyone who syncs a file there. */
#define SLOW_NS 50000000u

/* Chunks that are sent as one write. */
struct batch {
	struct chunk *first;
	struct iovec vectors[WRITE_CHUNKS];
	uint32_t count;
};

static bool flight__can_send(const struct stream *stream)
{
	const struct item *const item = stream->unsent;

	return stream->ops->send != NULL && !stream->settling && item != NULL &&
	       item->chunk != NULL && item->stamp == 0 &&
	       (stream->sent.items > 0 || (item->next != NULL && stream->work.refused == 0));
}

/* Whether two chunks that are neighbours in the queue are adjacent in a file. */
static bool chunk__adjoins(const struct chunk *chunk, const struct chunk *next, bool split)
{
	return !split || (chunk->span_count == 1 && next->span_count == 1 &&
			  chunk->spans[0].ring == next->spans[0].ring);
}

/* Whether there are unsent items, and room for another one in the same write. */
static bool flight__has_room(const struct disk *disk, const struct stream *stream)
{
	const struct chunk *before = NULL;
	uint64_t left = stream->gathers;
	uint32_t count = 0;

	for (const struct item *item = stream->unsent; item != NULL; item = item->next) {
		const struct chunk *const chunk = item->chunk;

		if (++count == load_relaxed(&disk->chunks) || chunk == NULL || item->stamp != 0 ||
		    chunk->used > left || load_relaxed(&item->lane->rings) == 0 ||
		    (before != NULL && !chunk__adjoins(before, chunk, stream->ops->split)))
			return false;
		left -= chunk->used;
		before = chunk;
	}
	return count > 0;
}

uint64_t flight__gathers(const struct disk *disk, const struct stream *stream)
{
	const uint64_t end = stream->current.offset + stream->sent.bytes;

	if (disk->aio == 0 || load_relaxed(&disk->chunks) == 1 || disk->left || disk->stopping ||
	    stream->ops->send == NULL || stream->settling || stream->snapshots ||
	    stream->work.since_ns != 0 || !stream->current.open || cut__is_needed(stream))
		return 0;
	return end < stream->current.limit ? stream->current.limit - end : 0;
}

bool flight__holds(const struct disk *disk, const struct stream *stream)
{
	return flight__has_room(disk, stream) &&
	       !pool__is_short(disk->writer->pool, &stream->data_share);
}

bool flight__may_send(const struct disk *disk, const struct stream *stream)
{
	return disk->aio != 0 &&
	       disk->in_flight < (load_relaxed(&disk->chunks) == 1 ? 1 : DISK_DEPTH) &&
	       flight__can_send(stream);
}

/* Note that a write of these chunks completed. A partial one counts as refused: the next
 * attempt returns the reason. */
static void flight__land(struct disk *disk, const struct chunk *first, int64_t result)
{
	const uint64_t ns = clock__now_ns() - first->flight.ns;
	const bool refused = result != (int64_t)first->flight.whole;
	const struct item *item = &first->item;

	for (uint32_t left = first->flight.chunks; left > 0; left--) {
		item->chunk->flight.ns = ns;
		item->chunk->flight.refused = refused;
		item->chunk->flight.landed = true;
		/* The link of the last one is not read: a shard may be setting it, to queue behind it. */
		if (left > 1)
			item = item->next;
	}
	store_relaxed(&disk->chunks, ns > SLOW_NS		  ? 1
				     : ns > disk->writer->fast_ns ? WRITE_CHUNKS / 2
								  : WRITE_CHUNKS);
	disk->in_flight--;
}

/* Submit a batch. A failed submission counts as refused. */
static void flight__submit(struct disk *disk, struct batch *batch)
{
	struct flight *const flight = &batch->first->flight;
	struct iocb control =
			    {
				    .aio_data = (uintptr_t)batch->first,
				    .aio_lio_opcode = IOCB_CMD_PWRITEV,
				    .aio_fildes = (uint32_t)flight->fd,
				    .aio_buf = (uintptr_t)batch->vectors,
				    .aio_nbytes = batch->count,
				    .aio_offset = (int64_t)flight->offset,
			    },
		    *controls = &control;
	long ret;

	disk->in_flight++;
	flight->chunks = batch->count;
	flight->ns = clock__now_ns();
	ret = TEMP_FAILURE_RETRY(syscall(SYS_io_submit, disk->aio, 1L, &controls));
	if (ret != 1)
		flight__land(disk, batch->first, -1);
	batch->count = 0;
}

/* Prepare the first unsent chunk for a batch. NULL: it waits, or there is none to send. */
static struct chunk *flight__prepare(struct disk *disk, struct stream *stream)
{
	struct chunk *chunk;

	pthread_mutex_lock(&disk->lock);
	chunk = flight__can_send(stream) ? stream->unsent->chunk : NULL;
	pthread_mutex_unlock(&disk->lock);
	if (chunk != NULL)
		stream->settling = !stream->ops->send(stream, chunk);
	if (chunk == NULL || stream->settling)
		return NULL;
	stream->sent.items++;
	stream->sent.bytes += chunk->flight.bytes;
	stream->sent.pieces += chunk->piece_count;
	HOLD(&disk->lock);
	stream->unsent = stream->unsent->next;
	return chunk;
}

void flight__send(struct disk *disk, struct stream *stream)
{
	struct batch batch = {0};

	for (uint32_t left = load_relaxed(&disk->chunks); left > 0; left--) {
		struct chunk *const chunk = flight__prepare(disk, stream);
		const struct flight *first;

		if (chunk == NULL)
			break;
		first = batch.count > 0 ? &batch.first->flight : NULL;
		if (first != NULL && (chunk->flight.fd != first->fd ||
				      chunk->flight.offset != first->offset + first->whole))
			flight__submit(disk, &batch);
		if (batch.count == 0)
			batch.first = chunk;
		batch.first->flight.whole += chunk->flight.bytes;
		batch.vectors[batch.count++] = (struct iovec){chunk->data, chunk->flight.bytes};
	}
	if (batch.count > 0)
		flight__submit(disk, &batch);
}

/* Land completed writes, and wait until there are so many. */
static void flight__collect(struct disk *disk, long least)
{
	struct timespec now = {0};
	struct io_event events[WRITES_MAX];
	const long count = syscall(SYS_io_getevents, disk->aio, least, (long)WRITES_MAX, events,
				   least > 0 ? NULL : &now);

	for (long i = 0; i < count; i++)
		flight__land(disk, (const struct chunk *)(uintptr_t)events[i].data, events[i].res);
}

void flight__await(struct disk *disk, struct stream *stream)
{
	(void)stream;
	flight__collect(disk, 1);
}

void flight__look(struct disk *disk)
{
	if (disk->in_flight > 0)
		flight__collect(disk, 0);
}

bool flight__have_landed(const struct stream *stream)
{
	for (const struct item *item = stream->first; item != stream->unsent; item = item->next)
		if (!item->chunk->flight.landed)
			return false;
	return true;
}
