/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "flight.h"

#include "clock.h"
#include "disk.h"

/* A write that took longer waited for others: with more of them in flight all would wait longer, and
 * whoever syncs a file there. */
#define SLOW_NS 50000000u

/* Under the lock, which is given up for the write: make the oldest one that was sent. */
static void flight__make(struct disk *disk)
{
	struct chunk *const chunk = disk->flights;
	struct flight *const flight = &chunk->flight;
	const uint64_t begun_ns = clock__now_ns();
	struct iovec vector = {chunk->data, flight->bytes};
	uint64_t done;
	int ret;

	disk->flights = chunk->next;
	if (disk->flights == NULL)
		disk->last_flight = &disk->flights;
	pthread_mutex_unlock(&disk->lock);
	ret = segment__write(flight->segment, &vector, 1, flight->offset, &done);
	pthread_mutex_lock(&disk->lock);
	flight->ns = clock__now_ns() - begun_ns;
	flight->ret = ret;
	flight->landed = true;
	disk->slow = flight->ns > SLOW_NS;
	disk->in_flight--;
	pthread_cond_signal(&disk->wake);
}

static void *flight__help(void *context)
{
	struct disk *const disk = context;

	pthread_setname_np(pthread_self(), "writer");
	pthread_mutex_lock(&disk->lock);
	for (;;) {
		if (disk->flights != NULL)
			flight__make(disk);
		else if (disk->ending)
			break;
		else
			pthread_cond_wait(&disk->flown, &disk->lock);
	}
	pthread_mutex_unlock(&disk->lock);
	return NULL;
}

void flight__send(struct disk *disk, struct stream *stream)
{
	struct item *const item = stream->unsent;
	struct chunk *const chunk = item->chunk;
	bool sent;

	pthread_mutex_unlock(&disk->lock);
	sent = stream->ops->send(stream, chunk);
	pthread_mutex_lock(&disk->lock);
	stream->settling = !sent;
	if (!sent)
		return;
	stream->sent.items++;
	stream->sent.bytes += chunk->flight.bytes;
	stream->sent.pieces += chunk->piece_count;
	stream->unsent = item->next;
	chunk->next = NULL;
	*disk->last_flight = chunk;
	disk->last_flight = &chunk->next;
	if (disk->in_flight++ == disk->helpers &&
	    pthread_create(&disk->helper[disk->helpers], NULL, flight__help, disk) == 0)
		disk->helpers++;
	if (disk->helpers == 0)
		flight__make(disk);
	pthread_cond_signal(&disk->flown);
}

bool flight__may_send(const struct disk *disk, const struct stream *stream)
{
	const struct item *const item = stream->unsent;

	return stream->ops->send != NULL && !stream->settling && item != NULL &&
	       item->chunk != NULL && item->stamp == 0 &&
	       disk->in_flight < (disk->slow ? 1 : DISK_DEPTH) &&
	       (stream->sent.items > 0 || (item->next != NULL && stream->work.refused == 0));
}

bool flight__have_landed(const struct stream *stream)
{
	for (const struct item *item = stream->first; item != stream->unsent; item = item->next)
		if (!item->chunk->flight.landed)
			return false;
	return true;
}

void flight__end(struct disk *disk)
{
	pthread_mutex_lock(&disk->lock);
	disk->ending = true;
	pthread_cond_broadcast(&disk->flown);
	pthread_mutex_unlock(&disk->lock);
	for (uint32_t i = 0; i < disk->helpers; i++)
		pthread_join(disk->helper[i], NULL);
	disk->helpers = 0;
}
