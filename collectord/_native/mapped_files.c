/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* MMAP2: include/uapi/linux/perf_event.h, enum perf_event_type. */
#define AT_DEVICE 40u /* major, minor, inode, its generation */
#define DEVICE_BYTES 24u

int mapped_files__init(struct mapped_files *files)
{
	memset(files, 0, sizeof(*files));
	pthread_mutex_init(&files->lock, NULL);
	files->now = calloc(1, sizeof(*files->now));
	files->before = calloc(1, sizeof(*files->before));
	if (files->now != NULL && files->before != NULL)
		return 0;
	mapped_files__deinit(files);
	return -ENOMEM;
}

void mapped_files__deinit(struct mapped_files *files)
{
	free(files->now);
	free(files->before);
	pthread_mutex_destroy(&files->lock);
	memset(files, 0, sizeof(*files));
}

/* Returns the length of the name in a record of mapped code; 0: it is another record. */
static size_t name_bytes(const uint8_t *record)
{
	const uint64_t header = walk__load(record);
	const uint8_t *const name = record + AT_MMAP2_NAME;
	const uint8_t *end;

	if (walk__type(header) != PERF_RECORD_MMAP2 || walk__size(header) <= AT_MMAP2_NAME ||
	    (walk__misc(header) & PERF_RECORD_MISC_MMAP_DATA) != 0)
		return 0;
	end = memchr(name, 0, walk__size(header) - AT_MMAP2_NAME);
	/* A path, or "[vdso]"; "//anon" is not a file. */
	if (end == NULL || !((name[0] == '/' && name[1] != '/') || name[0] == '['))
		return 0;
	return (size_t)(end - name);
}

/* Note a file's record in the set. False: there is no room. */
static bool file_set__note(struct file_set *set, const uint8_t *record, size_t name)
{
	const uint16_t size = walk__size(walk__load(record));
	uint32_t slot = (uint32_t)XXH3_64bits_withSeed(record + AT_MMAP2_NAME, name,
						       walk__load(record + AT_DEVICE + 8)) %
			MAPPED_FILES_SLOTS;

	for (; set->slots[slot] != 0; slot = (slot + 1) % MAPPED_FILES_SLOTS) {
		const uint8_t *const known = set->records + set->places[set->slots[slot] - 1];

		/* The known name ends within its record, as this one's does. */
		if (walk__size(walk__load(known)) > AT_MMAP2_NAME + name &&
		    memcmp(record + AT_DEVICE, known + AT_DEVICE, DEVICE_BYTES) == 0 &&
		    memcmp(record + AT_MMAP2_NAME, known + AT_MMAP2_NAME, name + 1) == 0)
			return true;
	}
	if (set->count == MAPPED_FILES_MAX || size > MAPPED_FILES_BYTES - set->used)
		return false;
	memcpy(set->records + set->used, record, size);
	set->places[set->count++] = set->used;
	set->slots[slot] = (uint16_t)set->count;
	set->used += size;
	return true;
}

void mapped_files__note(struct mapped_files *files, const uint8_t *record)
{
	const size_t name = name_bytes(record);

	if (name == 0)
		return;
	HOLD(&files->lock);
	if (!file_set__note(files->now, record, name))
		counter__add(&files->dropped, 1);
}

void mapped_files__turn(struct mapped_files *files)
{
	struct file_set *const set = files->before;

	HOLD(&files->lock);
	files->before = files->now;
	files->now = set;
	set->first = files->before->first + files->before->count;
	set->count = set->used = 0;
	memset(set->slots, 0, sizeof(set->slots));
}

/* Returns where in the set the records from file number `since` on begin. */
static uint32_t begin_of(const struct file_set *set, uint64_t since)
{
	if (since <= set->first)
		return 0;
	return since - set->first < set->count ? set->places[since - set->first] : set->used;
}

uint8_t *mapped_files__copy(struct mapped_files *files, uint64_t *since, size_t *bytes)
{
	const struct file_set *now, *before;
	uint32_t old_at, new_at;
	uint8_t *copy;

	HOLD(&files->lock);
	now = files->now;
	before = files->before;
	old_at = begin_of(before, *since);
	new_at = begin_of(now, *since);
	*bytes = before->used - old_at + now->used - new_at;
	copy = *bytes > 0 ? malloc(*bytes) : NULL;
	if (copy != NULL) {
		memcpy(copy, before->records + old_at, before->used - old_at);
		memcpy(copy + (before->used - old_at), now->records + new_at, now->used - new_at);
		*since = now->first + now->count;
	}
	return copy;
}
