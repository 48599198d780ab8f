/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "counter.h"

#define MAPPED_FILES_MAX 4096u		  /* of one segment */
#define MAPPED_FILES_SLOTS (2u * MAPPED_FILES_MAX)
#define MAPPED_FILES_BYTES (768u << 10) /* of their records */

/*
 * The files whose code was mapped, each by the first MMAP2 record that named it: what a build-id is
 * to be read of. A file is told by name, device, inode and its generation.
 *
 * There are two sets: of the running segment, and of the one before it. A new segment replays what
 * is still mapped, so that what is in neither is gone. Both are of a fixed size, whose pages are
 * touched as they fill; what finds its set full is counted. Any thread may call.
 */
struct file_set {
	uint32_t count, used;
	uint64_t first; /* number of its first file, of all that the stream ever had */
	uint16_t slots[MAPPED_FILES_SLOTS]; /* by hash: a file's number in this set plus 1 */
	uint32_t places[MAPPED_FILES_MAX]; /* by number: where its record is */
	uint8_t records[MAPPED_FILES_BYTES];
};

struct mapped_files {
	pthread_mutex_t lock;
	struct file_set *now, *before;
	counter_t dropped;
};

/* -ENOMEM. */
int mapped_files__init(struct mapped_files *files);
void mapped_files__deinit(struct mapped_files *files);

/* Note a whole record of any type; what is no mapping of a file's code is passed over. */
void mapped_files__note(struct mapped_files *files, const uint8_t *record);

/* A segment ended. */
void mapped_files__turn(struct mapped_files *files);

/* What was noted since file number `*since`, as far as it is still there, oldest first: a copy that
 * the caller frees, NULL for nothing or for want of memory. `*since` moves on. */
uint8_t *mapped_files__copy(struct mapped_files *files, uint64_t *since, size_t *bytes);
