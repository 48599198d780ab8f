/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* MMAP2: include/uapi/linux/perf_event.h, enum perf_event_type. */
#define AT_PID 8u
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

/* Returns the length of the name in a record of mapped code; 0: it has none, or is another record. */
static size_t name_bytes(const uint8_t *record)
{
	const uint64_t header = walk__load(record);
	const uint8_t *const name = record + AT_MMAP2_NAME;
	const uint8_t *end;

	if (walk__type(header) != PERF_RECORD_MMAP2 || walk__size(header) <= AT_MMAP2_NAME ||
	    (walk__misc(header) & PERF_RECORD_MISC_MMAP_DATA) != 0)
		return 0;
	end = memchr(name, 0, walk__size(header) - AT_MMAP2_NAME);
	return end != NULL ? (size_t)(end - name) : 0;
}

/* Whether a name is that of memory without a file, as perf knows it. */
static bool is_memory(const char *name)
{
	static const char *const begins[] = {
		"//anon", "/memfd:", "/dev/zero", "/anon_hugepage", "/SYSV", "[heap]", "[stack",
	};

	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (strncmp(name, begins[i], strlen(begins[i])) == 0)
			return true;
	return false;
}

/* Whether it is a path, or "[vdso]". */
static bool is_file(const uint8_t *name)
{
	return (name[0] == '/' && name[1] != '/') || name[0] == '[';
}

static void file_set__note_maker(struct file_set *set, uint32_t pid)
{
	uint32_t slot = pid * 2654435761u % CODE_MAKERS_SLOTS; /* Knuth's multiplier */

	for (; set->makers[slot] != 0; slot = (slot + 1) % CODE_MAKERS_SLOTS)
		if (set->makers[slot] == pid)
			return;
	if (pid == 0 || set->maker_count == CODE_MAKERS_MAX)
		return;
	set->makers[slot] = pid;
	set->maker_count++;
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
	if (is_memory((const char *)record + AT_MMAP2_NAME))
		file_set__note_maker(files->now, (uint32_t)walk__load(record + AT_PID));
	if (is_file(record + AT_MMAP2_NAME) && !file_set__note(files->now, record, name))
		counter__add(&files->dropped, 1);
}

void mapped_files__turn(struct mapped_files *files)
{
	struct file_set *const set = files->before;

	HOLD(&files->lock);
	files->before = files->now;
	files->now = set;
	set->first = files->before->first + files->before->count;
	set->count = set->used = set->maker_count = 0;
	memset(set->slots, 0, sizeof(set->slots));
	memset(set->makers, 0, sizeof(set->makers));
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

static size_t file_set__makers(const struct file_set *set, uint32_t *pids)
{
	size_t count = 0;

	for (uint32_t i = 0; i < CODE_MAKERS_SLOTS && count < CODE_MAKERS_MAX; i++)
		if (set->makers[i] != 0)
			pids[count++] = set->makers[i];
	return count;
}

size_t mapped_files__makers(struct mapped_files *files, uint32_t *pids)
{
	size_t count;

	HOLD(&files->lock);
	count = file_set__makers(files->before, pids);
	return count + file_set__makers(files->now, pids + count);
}
