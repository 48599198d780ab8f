/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "event_list.h"
#include "relay_ring.h"

#define STEP_BYTES (1u << 20)

/* Most pages of the step before the last are on the disk by now; others stay for the seal. */
static void relay_file__free_cache(struct relay_file *file, uint64_t end)
{
	if (end - file->sent < STEP_BYTES)
		return;
	(void)posix_fadvise(file->fd, (off_t)file->freed, (off_t)(file->sent - file->freed),
			    POSIX_FADV_DONTNEED);
	file->freed = file->sent;
	(void)sync_file_range(file->fd, (off_t)file->sent, (off_t)(end - file->sent),
			      SYNC_FILE_RANGE_WRITE);
	file->sent = end;
}

/* Append all or, with -errno, nothing: a partial write is cut off. */
static int relay_file__write(struct relay_file *file, const uint8_t *data, uint64_t bytes)
{
	const uint64_t begin = counter__read(&file->bytes);
	struct iovec vector = {(void *)(uintptr_t)data, bytes};
	uint64_t done = 0;
	int error = sums__reserve(&file->sums, bytes, 1);

	if (error == 0)
		error = segment__write(file->fd, &vector, 1, begin, &done);
	if (error < 0) {
		/* Remove uncounted bytes; if that fails the seal cuts. */
		if (done > 0)
			(void)ftruncate(file->fd, (off_t)begin);
		return error;
	}
	sums__take(&file->sums, data, bytes);
	counter__set(&file->bytes, begin + bytes);
	relay_file__free_cache(file, begin + bytes);
	return 0;
}

static void relay_stream__begin_ring(struct ring *ring, const struct segment *segment)
{
	struct relay_file *const file = &relay_ring__of(ring)->file;
	const uint64_t place = segment__place(segment, ring->id);

	file->fd = place != NO_PLACE ? (int)place : -1;
	counter__set(&file->bytes, 0);
	file->sent = file->freed = 0;
	sums__begin(&file->sums);
}

static void relay_stream__tell_ring(struct ring *ring, struct event_ring *told)
{
	told->sums = sums__give(&relay_ring__of(ring)->file.sums, &told->sum_count);
}

/* Write one ring's share of a chunk to its file, all or nothing. */
static int relay_stream__write(struct stream *stream, struct item *item, uint64_t *bytes)
{
	struct load *const load = &stream->work.load;
	struct relay_file *file;
	int ret;

	if (!stream__load(stream, item))
		return 0;
	file = &relay_ring__of(load->span.ring)->file;
	*bytes = load->span.bytes;
	stream__advance(stream, *bytes, file->fd < 0);
	if (!stream->current.open || file->fd < 0)
		return -EXFULL;
	ret = relay_file__write(file, load->data, *bytes);
	if (ret < 0)
		return ret;
	stream__account_part(stream, &load->span);
	load->span.bytes = 0;
	return 1;
}

const struct stream_ops relay_stream__ops = {
	.split = true,
	.begin_ring = relay_stream__begin_ring,
	.tell_ring = relay_stream__tell_ring,
	.write = relay_stream__write,
	.pass_over = stream__drop_load,
};
