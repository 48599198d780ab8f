/* SPDX-License-Identifier: Apache-2.0 */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int segment__set_places(struct segment *segment, uint32_t first_id, const uint64_t *places,
			uint32_t count)
{
	segment->places = malloc((count + 1) * sizeof(*places));
	if (segment->places == NULL)
		return -ENOMEM;
	if (count > 0)
		memcpy(segment->places, places, count * sizeof(*places));
	segment->place_count = count;
	segment->first_id = first_id;
	return 0;
}

uint64_t segment__place(const struct segment *segment, uint32_t ring_id)
{
	const uint32_t place = ring_id - segment->first_id;

	return place < segment->place_count ? segment->places[place] : NO_PLACE;
}

int segment__fd(const struct segment *segment)
{
	if (segment->capacity > 0)
		return segment->fd;
	for (uint32_t i = 0; i < segment->place_count; i++)
		if (segment->places[i] != NO_PLACE)
			return (int)segment->places[i];
	return segment->fd;
}

void segment__forget(struct segment *segment)
{
	free(segment->places);
	free(segment->aux_index);
	segment->places = NULL;
	segment->aux_index = NULL;
}

bool segment__is_short(int error)
{
	return error == ENOSPC || error == EDQUOT;
}

int segment__claim(struct segment *segment, uint64_t *claimed, uint64_t until, uint64_t limit)
{
	uint64_t step = segment->step;

	while (segment->step > 0 && *claimed < until) {
		const uint64_t bytes = least(step, limit - *claimed), needed = until - *claimed;

		if (fallocate(segment->fd, FALLOC_FL_KEEP_SIZE, (off_t)*claimed, (off_t)bytes) == 0)
			*claimed += bytes;
		else if (!segment__is_short(errno))
			/* The file system cannot reserve space, or none for a file of that size: whether there is
			 * room shows when the data are written. */
			segment->step = 0;
		else if (bytes <= needed)
			return -errno;
		else
			step = needed;
	}
	return 0;
}

uint64_t segment__tail(const struct segment *segment, uint32_t more)
{
	return segment->tail + ((uint64_t)segment->aux_count + more) * AUX_INDEX_ENTRY_BYTES;
}

int segment__reserve_aux(struct segment *segment, uint32_t count)
{
	uint32_t room = segment->aux_room;
	uint64_t *index;

	if (count <= room - segment->aux_count)
		return 0;
	room = room * 2 + count;
	index = realloc(segment->aux_index, room * sizeof(*index));
	if (index == NULL)
		return -ENOMEM;
	segment->aux_index = index;
	segment->aux_room = room;
	return 0;
}

int segment__write(int fd, struct iovec *vectors, int count, uint64_t offset, uint64_t *done)
{
	*done = 0;
	while (count > 0) {
		const ssize_t n =
			TEMP_FAILURE_RETRY(pwritev(fd, vectors, count, (off_t)(offset + *done)));
		size_t left;

		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		*done += (uint64_t)n;
		for (left = (size_t)n; count > 0 && left >= vectors->iov_len; vectors++, count--)
			left -= vectors->iov_len;
		if (count > 0) {
			vectors->iov_base = (uint8_t *)vectors->iov_base + left;
			vectors->iov_len -= left;
		}
	}
	return 0;
}

void segment__cut(struct segment *segment, uint64_t until)
{
	if (ftruncate(segment->fd, (off_t)segment->offset) < 0)
		return;
	segment->allocated = segment->offset; /* space claimed behind the end is gone too */
	(void)segment__claim(segment, &segment->allocated, until, UINT64_MAX);
}
