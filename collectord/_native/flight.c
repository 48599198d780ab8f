/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "disk.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"

/* A write that took longer waited for others: with more of them in flight all would wait longer, and
 * whoever syncs a file there. */
#define SLOW_NS 50000000u

bool flight__may_send(const struct disk *disk, const struct stream *stream)
{
	const struct item *const item = stream->unsent;

	return stream->ops->send != NULL && !stream->settling && item != NULL &&
	       item->chunk != NULL && item->stamp == 0 && disk->aio != 0 &&
	       disk->in_flight < (disk->slow ? 1 : DISK_DEPTH) &&
	       (stream->sent.items > 0 || (item->next != NULL && stream->work.refused == 0));
}

static bool flight__submit(struct disk *disk, struct chunk *chunk)
{
	struct flight *const flight = &chunk->flight;
	struct iocb *control = &flight->control;
	long ret;

	*control = (struct iocb){
		.aio_data = (uintptr_t)chunk,
		.aio_lio_opcode = IOCB_CMD_PWRITE,
		.aio_fildes = (uint32_t)flight->fd,
		.aio_buf = (uintptr_t)chunk->data,
		.aio_nbytes = flight->bytes,
		.aio_offset = (int64_t)flight->offset,
	};
	flight->ns = clock__now_ns();
	do
		ret = syscall(SYS_io_submit, disk->aio, 1L, &control);
	while (ret < 0 && errno == EINTR);
	return ret == 1;
}

void flight__send(struct disk *disk, struct stream *stream)
{
	struct item *const item = stream->unsent;
	struct chunk *const chunk = item->chunk;
	bool sent;

	pthread_mutex_unlock(&disk->lock);
	sent = stream->ops->send(stream, chunk) && flight__submit(disk, chunk);
	pthread_mutex_lock(&disk->lock);
	stream->settling = !sent;
	if (!sent)
		return;
	disk->in_flight++;
	stream->sent.items++;
	stream->sent.bytes += chunk->flight.bytes;
	stream->sent.pieces += chunk->piece_count;
	stream->unsent = item->next;
}

/* What went in part is as good as refused: written again it tells why. */
static void flight__land(struct disk *disk, const struct io_event *event)
{
	struct chunk *const chunk = (struct chunk *)(uintptr_t)event->data;
	struct flight *const flight = &chunk->flight;

	flight->ns = clock__now_ns() - flight->ns;
	flight->refused = event->res != (int64_t)flight->bytes;
	flight->landed = true;
	disk->slow = flight->ns > SLOW_NS;
	disk->in_flight--;
}

void flight__await(struct disk *disk)
{
	struct io_event events[DISK_DEPTH];
	long count;

	pthread_mutex_unlock(&disk->lock);
	count = syscall(SYS_io_getevents, disk->aio, 1L, (long)DISK_DEPTH, events, NULL);
	pthread_mutex_lock(&disk->lock);
	for (long i = 0; i < count; i++)
		flight__land(disk, &events[i]);
}

bool flight__have_landed(const struct stream *stream)
{
	for (const struct item *item = stream->first; item != stream->unsent; item = item->next)
		if (!item->chunk->flight.landed)
			return false;
	return true;
}
