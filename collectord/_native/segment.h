/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <sys/uio.h>

#include "chunk.h"

/* The largest part while there are fewer than SUMS_STEP of them; each further SUMS_STEP parts
 * double the size, so that a file of any length has few. */
#define SUM_BYTES ((uint64_t)1 << 20)
#define SUMS_STEP 16384u

/* XXH3-64 of a part. */
struct sum {
	uint64_t bytes, xxh3;
};

/* The checksums of consecutive parts of the data written to one place. Small pieces share a part
 * with the following ones, and are read again for it; a larger piece with a known checksum is a
 * part by itself and is not read again. */
struct sums {
	struct sum *all; /* complete parts; allocated */
	uint32_t count, room;
	uint64_t part_bytes; /* largest size of a part */
	uint64_t open_bytes; /* bytes of the last, open part; `hash` took them */
	XXH3_state_t *hash;
};

int sums__init(struct sums *sums);
void sums__deinit(struct sums *sums);
void sums__begin(struct sums *sums);
/* Reserve room for the parts of `bytes` more bytes in up to `calls` calls. -ENOMEM. */
int sums__reserve(struct sums *sums, uint64_t bytes, uint32_t calls);
void sums__take(struct sums *sums, const uint8_t *data, uint64_t bytes);
/* Add bytes whose checksum is known. */
void sums__add(struct sums *sums, const uint8_t *data, uint64_t bytes, uint64_t xxh3);
/* End the last part and return all of them, which the caller frees. */
struct sum *sums__give(struct sums *sums, uint32_t *count);

#define NO_PLACE UINT64_MAX
#define AUX_INDEX_ENTRY_BYTES 16u /* struct auxtrace_index_entry of tools/perf/util/auxtrace.h */

/* One output file. The fd is the caller's. */
struct segment {
	uint64_t token;
	uint64_t file;		       /* its inode's number; 0: unknown */
	uint64_t begin, offset, limit; /* file positions of the data section */
	uint64_t allocated, step;
	/* Records: where the last written padding begins; 0: nothing is written. What is before
	 * it stays as it is. */
	uint64_t end;
	/* Readers of the running file are told `end`, without `size_base`, by the word at `size_at`
	 * of the file, through a buffered fd, the caller's. 0: it has no such word. */
	uint64_t size_at, size_base, told;
	int size_fd;
	uint64_t tail; /* room for the seal's additions behind the data, without the AUX index */
	uint64_t chunks, records, samples, replayed;
	uint64_t first_ns, last_ns; /* the written data were made between these; 0: unknown */
	/* The place of each ring, by id from `first_id` on, or NO_PLACE; allocated. A place is
	 * the offset of an extent, or a file's descriptor. */
	uint64_t *places;
	uint32_t place_count, first_id;
	uint64_t capacity;   /* size of each extent; 0: places are files */
	uint64_t *aux_index; /* file offsets of the AUXTRACE records; allocated */
	uint32_t aux_count, aux_room;
	int fd;
	bool open;
	struct chunk_table table; /* records: the paddings begin with it */
};
/* Copy the places. -ENOMEM. */
int segment__set_places(struct segment *segment, uint32_t first_id, const uint64_t *places,
			uint32_t count);
uint64_t segment__place(const struct segment *segment, uint32_t ring_id);
/* Returns its file, or one of them; -1: it has none. */
int segment__fd(const struct segment *segment);
void segment__forget(struct segment *segment);
/* Whether the error means that the disk is full. */
bool segment__is_short(int error);

/* Claim space ahead in steps, since extending a file for each write costs more than the write: from
 * `*claimed` on, at least to `until` and at most to `limit`. -ENOSPC, -EDQUOT. */
int segment__claim(struct segment *segment, uint64_t *claimed, uint64_t until, uint64_t limit);

/* Returns the space kept behind the data where space is claimed ahead, with `more` entries of
 * the AUX index: the size of what the seal will write. */
uint64_t segment__tail(const struct segment *segment, uint32_t more);
/* Reserve room for `count` more entries of the AUX index. -ENOMEM. */
int segment__reserve_aux(struct segment *segment, uint32_t count);

/* Write the vectors at `offset`, and advance them. `*done`: the bytes written, fewer on an
 * error. */
int segment__write(int fd, struct iovec *vectors, int count, uint64_t offset, uint64_t *done);

/* Truncate the file after a partial write at `offset`, so that uncounted bytes are not taken for
 * data, and claim the space behind it again up to `until`. If that fails, the next write takes the
 * place, or the seal cuts. */
void segment__cut(struct segment *segment, uint64_t until);
