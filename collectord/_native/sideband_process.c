/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband_process.h"

#include <linux/perf_event.h>
#include <string.h>

#include "sideband_memory.h"

#define AT_ADDR 16u /* MMAP, MMAP2 */
#define AT_LEN 24u  /* likewise */
#define AT_MMAP_NAME 40u

struct process *process__find(struct sideband_table *table, uint32_t pid)
{
	return (struct process *)*entries__link(&table->processes, pid);
}

struct process *process__find_or_new(struct sideband_table *table, uint32_t pid)
{
	return memory__find_or_new(table, &table->processes, pid, sizeof(struct process));
}

void process__unmap(struct sideband_table *table, struct process *process, uint64_t start,
		    uint64_t end)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < process->map_count; i++) {
		const struct mapping old = process->maps[i];

		if (start <= old.start && old.end <= end)
			blob__put(table, old.record);
		else
			process->maps[kept++] = old;
	}
	counter__sub(&table->map_count, process->map_count - kept);
	process->map_count = kept;
}

static bool reserve(struct sideband_table *table, struct process *process, uint32_t room)
{
	struct mapping *maps;

	if (room <= process->map_room)
		return true;
	maps = memory__alloc(table, room * sizeof(*maps));
	if (maps == NULL)
		return false;
	if (process->map_count > 0)
		memcpy(maps, process->maps, process->map_count * sizeof(*maps));
	memory__release(table, process->maps, process->map_room * sizeof(*maps));
	process->maps = maps;
	process->map_room = room;
	return true;
}

static void add(struct sideband_table *table, struct process *process, struct mapping mapping)
{
	process->maps[process->map_count++] = mapping;
	counter__add(&table->map_count, 1);
}

bool process__inherit(struct sideband_table *table, struct process *process,
		      const struct process *from)
{
	process__unmap(table, process, 0, UINT64_MAX);
	if (!reserve(table, process, from->map_count))
		return false;
	for (uint32_t i = 0; i < from->map_count; i++) {
		add(table, process, from->maps[i]);
		blob__get(from->maps[i].record);
	}
	return true;
}

void process__free(struct sideband_table *table, struct process *process)
{
	process__unmap(table, process, 0, UINT64_MAX);
	memory__release(table, process->maps, process->map_room * sizeof(*process->maps));
	memory__drop(table, &table->processes, &process->entry, sizeof(*process));
}

/* Whether it maps data without a file: memory, which is mapped often, and useless to readers. */
static bool is_memory(const uint8_t *record, uint64_t header)
{
	const uint32_t at = walk__type(header) == PERF_RECORD_MMAP2 ? AT_MMAP2_NAME : AT_MMAP_NAME;

	return (walk__misc(header) & PERF_RECORD_MISC_MMAP_DATA) != 0 &&
	       walk__size(header) > at + 1u && (record[at] != '/' || record[at + 1] == '/');
}

void process__take_map(struct sideband_table *table, const uint8_t *record)
{
	struct process *const process = process__find_or_new(table, load32(record + AT_PID));
	const uint64_t start = walk__load(record + AT_ADDR), length = walk__load(record + AT_LEN);
	const uint64_t end = length < UINT64_MAX - start ? start + length : UINT64_MAX;
	struct blob *blob;

	if (process == NULL)
		return;
	process__unmap(table, process, start, end);
	if (is_memory(record, walk__load(record)) ||
	    (process->map_count == process->map_room &&
	     !reserve(table, process, process->map_room * 2 + 8)))
		return;
	blob = blob__new(table, record);
	if (blob != NULL)
		add(table, process, (struct mapping){start, end, blob});
}
