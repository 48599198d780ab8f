/* SPDX-License-Identifier: Apache-2.0 */
#include "mapped_files.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "walk.h"

#define SLOTS (2 * MAPPED_FILES_MAX)

/* MMAP2: include/uapi/linux/perf_event.h, enum perf_event_type. */
#define AT_DEVICE 40u /* major, minor, inode, its generation */
#define DEVICE_BYTES 24u
#define AT_NAME 72u

int mapped_files__init(struct mapped_files *files)
{
	memset(files, 0, sizeof(*files));
	for (uint32_t i = 0; i < 2; i++) {
		struct file_set *const set = &files->sets[i];

		set->records = malloc(MAPPED_FILES_BYTES);
		set->slots = calloc(SLOTS, sizeof(*set->slots));
		set->places = malloc(MAPPED_FILES_MAX * sizeof(*set->places));
		if (set->records == NULL || set->slots == NULL || set->places == NULL) {
			mapped_files__deinit(files);
			return -ENOMEM;
		}
	}
	return 0;
}

void mapped_files__deinit(struct mapped_files *files)
{
	for (uint32_t i = 0; i < 2; i++) {
		free(files->sets[i].records);
		free(files->sets[i].slots);
		free(files->sets[i].places);
	}
	memset(files, 0, sizeof(*files));
}

/* The length of the name of a file whose code is mapped, 0: this is no such record. */
static size_t name_bytes(const uint8_t *record)
{
	const uint64_t header = walk__load(record);
	const uint8_t *const name = record + AT_NAME;
	const uint8_t *end;

	if (walk__type(header) != PERF_RECORD_MMAP2 || walk__size(header) <= AT_NAME ||
	    (walk__misc(header) & PERF_RECORD_MISC_MMAP_DATA) != 0)
		return 0;
	end = memchr(name, 0, walk__size(header) - AT_NAME);
	/* A path, or "[vdso]"; "//anon" is no file. */
	if (end == NULL || !((name[0] == '/' && name[1] != '/') || name[0] == '['))
		return 0;
	return (size_t)(end - name);
}

static bool is_same(const uint8_t *record, const uint8_t *other, size_t name)
{
	return memcmp(record + AT_DEVICE, other + AT_DEVICE, DEVICE_BYTES) == 0 &&
	       memcmp(record + AT_NAME, other + AT_NAME, name + 1) == 0;
}

void mapped_files__note(struct mapped_files *files, const uint8_t *record)
{
	struct file_set *const set = &files->sets[files->current];
	const size_t name = name_bytes(record);
	const uint16_t size = walk__size(walk__load(record));
	uint32_t slot;

	if (name == 0)
		return;
	slot = (uint32_t)XXH3_64bits_withSeed(record + AT_NAME, name,
					      walk__load(record + AT_DEVICE + 8)) %
	       SLOTS;
	for (; set->slots[slot] != 0; slot = (slot + 1) % SLOTS) {
		const uint8_t *const known = set->records + set->places[set->slots[slot] - 1];

		/* Its name ends within its record, as this one's does. */
		if (walk__size(walk__load(known)) > AT_NAME + name && is_same(known, record, name))
			return;
	}
	if (set->count == MAPPED_FILES_MAX || size > MAPPED_FILES_BYTES - set->used) {
		counter__add(&files->dropped, 1);
		return;
	}
	memcpy(set->records + set->used, record, size);
	set->places[set->count++] = set->used;
	set->slots[slot] = (uint16_t)set->count;
	set->used += size;
}

void mapped_files__turn(struct mapped_files *files)
{
	const struct file_set *const before = &files->sets[files->current];
	struct file_set *set;

	files->current ^= 1;
	set = &files->sets[files->current];
	set->first = before->first + before->count;
	set->count = set->used = 0;
	memset(set->slots, 0, SLOTS * sizeof(*set->slots));
}

/* Where in the set the records from file number `since` on begin. */
static uint32_t begin_of(const struct file_set *set, uint64_t since)
{
	if (since <= set->first)
		return 0;
	return since - set->first < set->count ? set->places[since - set->first] : set->used;
}

uint8_t *mapped_files__copy(const struct mapped_files *files, uint64_t *since, size_t *bytes)
{
	const struct file_set *const now = &files->sets[files->current];
	const struct file_set *const before = &files->sets[files->current ^ 1];
	const uint32_t old_at = begin_of(before, *since), new_at = begin_of(now, *since);
	const size_t old_bytes = before->used - old_at, new_bytes = now->used - new_at;
	uint8_t *copy = NULL;

	*bytes = 0;
	if (old_bytes + new_bytes > 0)
		copy = malloc(old_bytes + new_bytes);
	if (copy == NULL)
		return NULL;
	memcpy(copy, before->records + old_at, old_bytes);
	memcpy(copy + old_bytes, now->records + new_at, new_bytes);
	*bytes = old_bytes + new_bytes;
	*since = now->first + now->count;
	return copy;
}
