/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define NO_PLACE UINT64_MAX
#define AUX_INDEX_ENTRY_BYTES 16u /* struct auxtrace_index_entry of tools/perf/util/auxtrace.h */

/* One output file. The fd is the caller's. */
struct segment {
	uint64_t token;
	uint64_t begin, offset, limit; /* file positions of the data section */
	uint64_t allocated, step;
	uint64_t tail; /* room for what the seal puts behind the data, without the AUX index */
	uint64_t chunks, records, samples, replayed;
	uint64_t first_ns, last_ns;
	/* Where each ring has a place to itself: by its id, from `first_id` on, that or NO_PLACE; allocated. The offset of
	 * an extent, or a file's descriptor. */
	uint64_t *places;
	uint32_t place_count, first_id;
	uint64_t capacity; /* of each extent; 0: they are files */
	uint64_t *aux_index; /* file offsets of the AUXTRACE records; allocated */
	uint32_t aux_count, aux_room;
	int fd;
	bool open;
};

/* Copies them. -ENOMEM. */
int segment__set_places(struct segment *segment, uint32_t first_id, const uint64_t *places,
			uint32_t count);
uint64_t segment__place(const struct segment *segment, uint32_t ring_id);
/* Its file, or one of them; -1: it has none. */
int segment__fd(const struct segment *segment);
/* Free what it has of its own. */
void segment__forget(struct segment *segment);

/* What is written was made between these, 0: nobody knows when. */
void segment__note_times(struct segment *segment, uint64_t first_ns, uint64_t last_ns);

/* Is that because the disk is full? */
bool segment__is_short(int error);

/*
 * Space is claimed ahead in steps: extending a file for each write costs more than the write.
 * Claim from `*claimed` on, at least up to `until` and at most up to `limit`. -ENOSPC, -EDQUOT.
 */
int segment__claim(struct segment *segment, uint64_t *claimed, uint64_t until, uint64_t limit);

/* What is kept free behind the data where space is claimed ahead, with `more` entries of the AUX index:
 * it follows from what the seal will write. */
uint64_t segment__tail(const struct segment *segment, uint32_t more);

/* Have room for `count` more entries of the AUX index. -ENOMEM. */
int segment__reserve_aux(struct segment *segment, uint32_t count);

/* Write all that the vectors name at `offset`, and move them on. `*done`: the bytes that went,
 * fewer on an error. */
int segment__write(int fd, struct iovec *vectors, int count, uint64_t offset, uint64_t *done);

/*
 * After a write at `offset` that went in part: end the file there again, so that nobody takes what
 * was not counted for data, and claim up to `until` what was claimed behind it. Where that does not
 * go the next write takes the place, or the seal cuts.
 */
void segment__cut(struct segment *segment, uint64_t until);

/* Take `bytes` bytes, in which nothing is, out of a file: what is behind them moves to `at`. Whole
 * blocks of the filesystem. -EOPNOTSUPP: it cannot do that. */
int segment__close_gap(int fd, uint64_t at, uint64_t bytes);
