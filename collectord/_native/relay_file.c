/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "relay_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define STEP_BYTES (1u << 20)

int relay_file__init(struct relay_file *file)
{
	file->fd = -1;
	return sums__init(&file->sums);
}

void relay_file__deinit(struct relay_file *file)
{
	sums__deinit(&file->sums);
}

void relay_file__begin(struct relay_file *file, int fd)
{
	file->fd = fd;
	counter__set(&file->bytes, 0);
	file->sent = file->freed = 0;
	sums__begin(&file->sums);
}

/* The step before the last is on the disk by now, mostly: pages that are not stay for the seal. */
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

int relay_file__write(struct relay_file *file, const uint8_t *data, uint64_t bytes)
{
	const uint64_t begin = counter__read(&file->bytes);
	uint64_t done = 0;
	int error;

	if (file->fd < 0)
		return -EBADF;
	error = sums__reserve(&file->sums, bytes, 1);
	while (error == 0 && done < bytes) {
		const ssize_t n = pwrite(file->fd, data + done, (size_t)(bytes - done),
					 (off_t)(begin + done));

		if (n > 0)
			done += (uint64_t)n;
		else if (n == 0 || errno != EINTR)
			error = n < 0 ? -errno : -EIO;
	}
	if (error < 0) {
		/* Nothing of what is not counted stays; where that fails the seal cuts. */
		if (done > 0)
			(void)ftruncate(file->fd, (off_t)begin);
		return error;
	}
	sums__take(&file->sums, data, bytes);
	counter__set(&file->bytes, begin + bytes);
	relay_file__free_cache(file, begin + bytes);
	return 0;
}
