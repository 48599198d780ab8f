/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "output.h"

#include <fcntl.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <xxhash.h>

#include "check.h"
#include "chunk.h"
#include "records.h"

int output__file(void)
{
	const char *directory = getenv("TMPDIR");
	const int fd =
		open(directory != NULL ? directory : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	return fd;
}

int output__full(void)
{
	const int fd = open("/dev/full", O_RDWR | O_CLOEXEC);
	struct stat status;

	CHECK(fd >= 0 && fstat(fd, &status) == 0);
	CHECK(S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 7));
	return fd;
}

void output__limit(uint64_t bytes)
{
	const struct rlimit limit = {
		.rlim_cur = bytes == UINT64_MAX ? RLIM_INFINITY : bytes,
		.rlim_max = RLIM_INFINITY,
	};

	CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* The chunk from `chunk` to `end`, in data that begin at `begin` of the file. */
static void check_footer(const uint8_t *data, size_t chunk, size_t end, uint64_t begin)
{
	const uint8_t *const footer = data + end - CHUNK_FOOTER_BYTES;

	CHECK_EQ(end % CHUNK_ALIGN_BYTES, 0);
	CHECK_EQ(walk__load(footer), CHUNK_FOOTER_MAGIC);
	CHECK_EQ(walk__load(footer + 8), begin + chunk);
	CHECK_EQ(walk__load(footer + 16), XXH3_64bits(data + chunk, end - 8 - chunk));
}

void output__read(struct output *output, int fd, uint64_t begin, uint64_t end,
		  output_visible_fn *visible)
{
	uint64_t newest = 0, newest_at_marker = 0, allowed = 0;
	uint64_t whole;
	size_t chunk = 0;
	uint16_t size;

	memset(output, 0, sizeof(*output));
	CHECK(begin % CHUNK_ALIGN_BYTES == 0 && end % CHUNK_ALIGN_BYTES == 0 && begin <= end);
	output->bytes = end - begin;
	output->data = malloc(output->bytes + 1);
	CHECK(output->data != NULL);
	CHECK(pread(fd, output->data, output->bytes, (off_t)begin) == (ssize_t)output->bytes);
	for (size_t at = 0; at < output->bytes; at += whole) {
		const uint8_t *const record = output->data + at;
		const uint64_t header = walk__load(record);
		struct aux_piece piece;

		size = walk__size(header);
		CHECK(size >= 8 && size % 8 == 0 && size <= output->bytes - at);
		if (aux_piece__read(record, output->bytes - at, &piece, &whole)) {
			CHECK(whole % 8 == 0 && whole <= output->bytes - at);
			output->pieces++;
			output->payload_bytes += piece.bytes;
			continue;
		}
		whole = size;
		switch (walk__type(header)) {
		case PERF_RECORD_SAMPLE:
			CHECK((visible != NULL ? visible(walk__load(record + 8))
					       : record__sample_time(record)) >= allowed);
			if (record__sample_time(record) > newest)
				newest = record__sample_time(record);
			output->samples++;
			break;
		case WALK_FINISHED_ROUND:
			allowed = newest_at_marker;
			newest_at_marker = newest;
			output->rounds++;
			break;
		case WALK_FINISHED_INIT:
			CHECK(size < CHUNK_ALIGN_BYTES + CHUNK_MARKER_BYTES);
			check_footer(output->data, chunk, at + size, begin);
			chunk = at + size;
			output->paddings++;
			break;
		default:
			CHECK(walk__type(header) <= WALK_KERNEL_TYPE_MAX);
			output->others++;
		}
	}
}

void output__check_sums(const uint8_t *data, size_t bytes, const struct sum *sums, uint32_t count)
{
	size_t at = 0;

	for (uint32_t i = 0; i < count; i++) {
		CHECK(sums[i].bytes > 0 && sums[i].bytes <= bytes - at);
		CHECK_EQ(sums[i].xxh3, XXH3_64bits(data + at, (size_t)sums[i].bytes));
		at += (size_t)sums[i].bytes;
	}
	CHECK_EQ(at, bytes);
}

void output__free(struct output *output)
{
	free(output->data);
	output->data = NULL;
}

/* Move `*at` behind the record there; returns the piece's payload if it is one. */
static const uint8_t *step(const struct output *output, size_t *at, struct aux_piece *piece)
{
	const uint8_t *const record = output->data + *at;
	const uint32_t type = walk__type(walk__load(record));
	uint64_t whole;

	if (!aux_piece__read(record, output->bytes - *at, piece, &whole)) {
		*at += walk__size(walk__load(record));
		return NULL;
	}
	*at += whole;
	return record + aux_piece__head_bytes(type == WALK_AUXTRACE ? AUX_AUXTRACE : AUX_HIDDEN);
}

const uint8_t *output__next(const struct output *output, size_t *at)
{
	struct aux_piece piece;

	while (*at < output->bytes) {
		const uint8_t *const record = output->data + *at;

		if (step(output, at, &piece) == NULL &&
		    walk__type(walk__load(record)) < WALK_USER_TYPE_MIN)
			return record;
	}
	return NULL;
}

const uint8_t *output__next_piece(const struct output *output, size_t *at, struct aux_piece *piece,
				  size_t *at_piece)
{
	while (*at < output->bytes) {
		const uint8_t *payload;

		*at_piece = *at;
		payload = step(output, at, piece);
		if (payload != NULL)
			return payload;
	}
	return NULL;
}

uint64_t output__count(const struct output *output, uint32_t type, uint32_t pid)
{
	const uint8_t *record;
	uint64_t count = 0;
	size_t at = 0;

	while ((record = output__next(output, &at)) != NULL)
		if (walk__type(walk__load(record)) == type && memcmp(record + 8, &pid, 4) == 0)
			count++;
	return count;
}
