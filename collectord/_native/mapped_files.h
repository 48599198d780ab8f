/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "counter.h"

#define MAPPED_FILES_MAX 4096u		  /* files of one segment */
#define MAPPED_FILES_SLOTS (2u * MAPPED_FILES_MAX)
#define MAPPED_FILES_BYTES (768u << 10) /* bytes of their records */

/*
 * The files whose code was mapped, each with the first MMAP2 record that named it: the files whose
 * build-ids are needed. A file is identified by name, device, inode and inode generation.
 *
 * There are two sets: of the running segment, and of the one before it. A new segment replays the
 * live mappings, so a file in neither set is no longer mapped. Both sets have a fixed size, whose
 * pages are touched as they fill; files that do not fit are counted. Any thread may call.
 */
struct file_set {
	uint32_t count, used;
	uint64_t first; /* number of its first file, among all of the stream */
	uint16_t slots[MAPPED_FILES_SLOTS]; /* by hash: a file's number in this set plus 1 */
	uint32_t places[MAPPED_FILES_MAX]; /* by number: offset of its record */
	uint8_t records[MAPPED_FILES_BYTES];
};

struct mapped_files {
	pthread_mutex_t lock;
	struct file_set *now, *before;
	counter_t dropped;
};

/* Returns -ENOMEM on failure. */
int mapped_files__init(struct mapped_files *files);
void mapped_files__deinit(struct mapped_files *files);

/* Note a whole record of any type; anything but a mapping of a file's code is ignored. */
void mapped_files__note(struct mapped_files *files, const uint8_t *record);

/* Begin the set of the next segment. */
void mapped_files__turn(struct mapped_files *files);

/* Returns the records noted since file number `*since` that are still there, oldest first: a
 * copy that the caller frees, or NULL if there are none or memory is short. `*since` moves on. */
uint8_t *mapped_files__copy(struct mapped_files *files, uint64_t *since, size_t *bytes);
