/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband_table.h"

#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>

/* Body offsets used only here. */
#define AT_ADDR 16u /* MMAP, MMAP2 */
#define AT_LEN 24u  /* likewise */
#define AT_MMAP_NAME 40u
#define AT_PTID 20u
#define AT_FORK_TIME 24u
#define AT_KSYM_ADDR 8u /* KSYMBOL: u64 addr, u32 len, u16 type, u16 flags */
#define AT_KSYM_FLAGS 22u
#define KSYMBOL_UNREGISTER 0x1u /* PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER */
#define AT_BPF_TYPE 8u /* BPF_EVENT: u16 type, u16 flags, u32 id */
#define AT_BPF_ID 12u
#define AT_CGROUP_PATH 16u /* CGROUP: u64 id, path */

static uint32_t bucket(uint64_t key)
{
	return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> (64u - SIDEBAND_BUCKET_BITS));
}

/* Returns the link to the entry of this key, or where it would be. */
static struct entry **entries__link(struct entries *entries, uint64_t key)
{
	struct entry **link = &entries->buckets[bucket(key)];

	while (*link != NULL && (*link)->key != key)
		link = &(*link)->next;
	return link;
}

struct entry *entries__next(const struct entries *entries, const struct entry *entry)
{
	uint32_t i = entry != NULL ? bucket(entry->key) + 1 : 0;

	if (entry != NULL && entry->next != NULL)
		return entry->next;
	while (i < 1u << SIDEBAND_BUCKET_BITS && entries->buckets[i] == NULL)
		i++;
	return i < 1u << SIDEBAND_BUCKET_BITS ? entries->buckets[i] : NULL;
}

static void *table__alloc(struct sideband_table *table, size_t bytes)
{
	void *memory = NULL;

	if (table->bytes_max - counter__read(&table->bytes) >= bytes)
		memory = calloc(1, bytes);
	if (memory == NULL)
		counter__add(&table->dropped, 1);
	else
		counter__add(&table->bytes, bytes);
	return memory;
}

static void table__release(struct sideband_table *table, void *memory, size_t bytes)
{
	free(memory);
	counter__sub(&table->bytes, bytes);
}

/* Returns the entry of this key, a new zeroed one if there is none, or NULL. */
static void *table__find_or_new(struct sideband_table *table, struct entries *entries, uint64_t key,
				size_t bytes)
{
	struct entry **const link = entries__link(entries, key);

	if (*link == NULL)
		*link = table__alloc(table, bytes);
	if (*link != NULL)
		(*link)->key = key;
	return *link;
}

static void table__drop(struct sideband_table *table, struct entries *entries, struct entry *entry,
			size_t bytes)
{
	*entries__link(entries, entry->key) = entry->next;
	table__release(table, entry, bytes);
}

static struct blob *blob__new(struct sideband_table *table, const uint8_t *record)
{
	const uint16_t size = walk__size(walk__load(record));
	struct blob *blob = table__alloc(table, sizeof(*blob) + size);

	if (blob == NULL)
		return NULL;
	blob->refs = 1;
	blob->size = size;
	memcpy(blob->bytes, record, size);
	return blob;
}

static struct blob *blob__get(struct blob *blob)
{
	if (blob != NULL)
		blob->refs++;
	return blob;
}

static void blob__put(struct sideband_table *table, struct blob *blob)
{
	if (blob != NULL && --blob->refs == 0)
		table__release(table, blob, sizeof(*blob) + blob->size);
}

struct process *process__find(struct sideband_table *table, uint32_t pid)
{
	return (struct process *)*entries__link(&table->processes, pid);
}

static struct process *process__find_or_new(struct sideband_table *table, uint32_t pid)
{
	return table__find_or_new(table, &table->processes, pid, sizeof(struct process));
}

/* Forget the mappings within these bounds. */
static void process__unmap(struct sideband_table *table, struct process *process, uint64_t start,
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

static bool process__reserve(struct sideband_table *table, struct process *process, uint32_t room)
{
	struct mapping *maps;

	if (room <= process->map_room)
		return true;
	maps = table__alloc(table, room * sizeof(*maps));
	if (maps == NULL)
		return false;
	if (process->map_count > 0)
		memcpy(maps, process->maps, process->map_count * sizeof(*maps));
	table__release(table, process->maps, process->map_room * sizeof(*maps));
	process->maps = maps;
	process->map_room = room;
	return true;
}

static void process__add(struct sideband_table *table, struct process *process,
			 struct mapping mapping)
{
	process->maps[process->map_count++] = mapping;
	counter__add(&table->map_count, 1);
}

/* Copy the mappings of `from`, as a child has them after fork. */
static bool process__inherit(struct sideband_table *table, struct process *process,
			     const struct process *from)
{
	process__unmap(table, process, 0, UINT64_MAX);
	if (!process__reserve(table, process, from->map_count))
		return false;
	for (uint32_t i = 0; i < from->map_count; i++) {
		process__add(table, process, from->maps[i]);
		blob__get(from->maps[i].record);
	}
	return true;
}

static void process__free(struct sideband_table *table, struct process *process)
{
	process__unmap(table, process, 0, UINT64_MAX);
	table__release(table, process->maps, process->map_room * sizeof(*process->maps));
	table__drop(table, &table->processes, &process->entry, sizeof(*process));
}

struct task *task__find(struct sideband_table *table, uint32_t tid)
{
	return (struct task *)*entries__link(&table->tasks, tid);
}

static void task__free(struct sideband_table *table, struct task *task)
{
	struct process *const process = process__find(table, task->pid);

	blob__put(table, task->comm);
	blob__put(table, task->fork);
	table__drop(table, &table->tasks, &task->entry, sizeof(*task));
	counter__sub(&table->task_count, 1);
	if (process != NULL && --process->tasks == 0)
		process__free(table, process);
}

static struct task *task__find_or_new(struct sideband_table *table, uint32_t pid, uint32_t tid)
{
	struct task *task = task__find(table, tid);
	struct process *process;

	if (task != NULL && task->pid == pid)
		return task;
	if (task != NULL) /* the tid was reused, and its exit was lost */
		task__free(table, task);
	process = process__find_or_new(table, pid);
	if (process == NULL)
		return NULL;
	task = table__find_or_new(table, &table->tasks, tid, sizeof(*task));
	if (task != NULL) {
		task->pid = pid;
		process->tasks++;
		counter__add(&table->task_count, 1);
	} else if (process->tasks == 0 && process->map_count == 0) {
		process__free(table, process);
	}
	return task;
}

static void table__comm(struct sideband_table *table, const uint8_t *record)
{
	struct task *task =
		task__find_or_new(table, load32(record + AT_PID), load32(record + AT_TID));
	struct process *process;

	if (task == NULL)
		return;
	blob__put(table, task->comm);
	task->comm = blob__new(table, record);
	process = process__find(table, task->pid);
	/* exec replaces the address space */
	if ((walk__misc(walk__load(record)) & PERF_RECORD_MISC_COMM_EXEC) != 0 && process != NULL)
		process__unmap(table, process, 0, UINT64_MAX);
}

static void table__fork(struct sideband_table *table, const uint8_t *record)
{
	const uint32_t pid = load32(record + AT_PID), ppid = load32(record + AT_PPID);
	const uint32_t tid = load32(record + AT_FORK_TID), ptid = load32(record + AT_PTID);
	const struct task *parent = task__find(table, ptid);
	struct blob *comm = parent != NULL ? blob__get(parent->comm) : NULL;
	struct task *task = task__find(table, tid);
	struct process *process, *parent_process;

	if (task != NULL) /* its exit was lost */
		task__free(table, task);
	task = task__find_or_new(table, pid, tid);
	if (task == NULL) {
		blob__put(table, comm);
		return;
	}
	task->comm = comm;
	task->fork = blob__new(table, record);
	task->since_ns = walk__load(record + AT_FORK_TIME);
	/* That of a replay: its own mappings follow. */
	if (pid == ppid || (walk__misc(walk__load(record)) & PERF_RECORD_MISC_FORK_EXEC) != 0)
		return;
	process = process__find(table, pid);
	parent_process = process__find(table, ppid);
	process->since_ns = task->since_ns;
	if (parent_process != NULL)
		process__inherit(table, process, parent_process);
}

static void table__exit(struct sideband_table *table, const uint8_t *record)
{
	struct task *const task = task__find(table, load32(record + AT_FORK_TID));
	struct process *process;

	if (task != NULL)
		task__free(table, task);
	process = process__find(table, load32(record + AT_PID));
	if (process != NULL && process->tasks == 0) /* known only by its mappings */
		process__free(table, process);
}

/* Whether it maps data without a file: memory, which is mapped often, and useless to readers. */
static bool is_memory(const uint8_t *record, uint64_t header)
{
	const uint32_t at = walk__type(header) == PERF_RECORD_MMAP2 ? AT_MMAP2_NAME : AT_MMAP_NAME;

	return (walk__misc(header) & PERF_RECORD_MISC_MMAP_DATA) != 0 &&
	       walk__size(header) > at + 1u && (record[at] != '/' || record[at + 1] == '/');
}

/* Apply a mapping. munmap writes no record: only a new mapping shows that an old one is gone. A
 * partly covered one is kept, and comes first in a replay: readers cut it where the new one
 * overlaps. */
static void table__map(struct sideband_table *table, const uint8_t *record)
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
	     !process__reserve(table, process, process->map_room * 2 + 8)))
		return;
	blob = blob__new(table, record);
	if (blob != NULL)
		process__add(table, process, (struct mapping){start, end, blob});
}

static void table__forget(struct sideband_table *table, uint32_t kind, uint64_t key)
{
	struct entries *const entries = &table->kept[kind];
	struct kept *const kept = (struct kept *)*entries__link(entries, key);

	if (kept == NULL)
		return;
	blob__put(table, kept->record);
	table__drop(table, entries, &kept->entry, sizeof(*kept));
}

/* Keep the record, or forget what it says is `gone`. Returns whether something is kept: not without
 * memory. */
static bool table__keep(struct sideband_table *table, uint32_t kind, uint64_t key,
			const uint8_t *record, bool gone)
{
	struct kept *kept;

	if (gone) {
		table__forget(table, kind, key);
		return false;
	}
	kept = table__find_or_new(table, &table->kept[kind], key, sizeof(*kept));
	if (kept == NULL)
		return false;
	blob__put(table, kept->record);
	kept->record = blob__new(table, record);
	return true;
}

static void table__symbol(struct sideband_table *table, const uint8_t *record)
{
	table__keep(table, KEPT_SYMBOLS, walk__load(record + AT_KSYM_ADDR), record,
		    (load16(record + AT_KSYM_FLAGS) & KSYMBOL_UNREGISTER) != 0);
}

static void table__program(struct sideband_table *table, const uint8_t *record)
{
	table__keep(table, KEPT_PROGRAMS, load32(record + AT_BPF_ID), record,
		    load16(record + AT_BPF_TYPE) == PERF_BPF_EVENT_PROG_UNLOAD);
}

/* Returns a hash of the path of a cgroup, which ends at its NUL or with the record's body (FNV-1a). */
static uint64_t path_hash(const struct sideband_table *table, const uint8_t *record)
{
	const uint16_t size = walk__size(walk__load(record));
	const uint32_t trailer = table->layout.time_trailer;
	const uint32_t end = size - AT_CGROUP_PATH > trailer ? size - trailer : size;
	uint64_t hash = 0xcbf29ce484222325u;

	for (uint32_t at = AT_CGROUP_PATH; at < end && record[at] != '\0'; at++)
		hash = (hash ^ record[at]) * 0x100000001b3u;
	return hash;
}

/* Forget the oldest cgroup that is not of the state at the start, which has the time 0. */
static void table__forget_cgroup(struct sideband_table *table)
{
	const struct entry *at = NULL, *oldest = NULL;
	uint64_t oldest_ns = UINT64_MAX;

	while ((at = entries__next(&table->kept[KEPT_CGROUPS], at)) != NULL) {
		const struct blob *const record = ((const struct kept *)at)->record;
		const uint64_t time_ns =
			record != NULL ? walk__trailer_time(record->bytes, &table->layout) : 1;

		if (time_ns != 0 && time_ns < oldest_ns) {
			oldest = at;
			oldest_ns = time_ns;
		}
	}
	if (oldest == NULL)
		return;
	table__forget(table, KEPT_CGROUPS, oldest->key);
	table->cgroup_count--;
}

/* Keep a cgroup. Of two of the same path the first one is gone, and so are its tasks: records are
 * applied in the order of time, when all older samples have been written. */
static void table__cgroup(struct sideband_table *table, const uint8_t *record)
{
	const uint64_t key = path_hash(table, record);
	const bool is_new = *entries__link(&table->kept[KEPT_CGROUPS], key) == NULL;

	if (is_new && table->cgroup_count >= SIDEBAND_CGROUPS_MAX) {
		table__forget_cgroup(table);
		if (table->cgroup_count >= SIDEBAND_CGROUPS_MAX) {
			counter__add(&table->dropped, 1);
			return;
		}
	}
	table->cgroup_count += table__keep(table, KEPT_CGROUPS, key, record, false) && is_new;
}

static void table__switch(struct sideband_table *table, const uint8_t *record)
{
	uint32_t cpu;

	if (walk__trailer_cpu(record, &table->layout, &cpu))
		table__keep(table, KEPT_SWITCHES, cpu, record, false);
}

/* Apply the state of one event on one CPU, or of the CPU alone if records do not name the event. */
static void table__event(struct sideband_table *table, const uint8_t *record)
{
	const uint64_t header = walk__load(record);
	uint64_t key;
	uint32_t cpu;

	if (!walk__trailer_cpu(record, &table->layout, &cpu))
		return;
	key = cpu;
	/* PERF_SAMPLE_IDENTIFIER, the last word, is numbered from 1 while the host runs. */
	if (table->layout.cpu_trailer > sizeof(uint64_t))
		key = walk__load(record + walk__size(header) - sizeof(uint64_t)) << 16 |
		      (cpu & UINT16_MAX);
	table__keep(table,
		    walk__type(header) == PERF_RECORD_ITRACE_START ? KEPT_STARTS : KEPT_HARDWARE_IDS,
		    key, record, false);
}

static const struct {
	void (*apply)(struct sideband_table *table, const uint8_t *record);
	uint16_t least; /* bytes: a shorter record is invalid */
	bool of_cpu;	/* it counts for the CPU that it names */
} types[] = {
	[PERF_RECORD_COMM] = {table__comm, AT_TID + 4, false},
	[PERF_RECORD_MMAP] = {table__map, AT_LEN + 8, false},
	[PERF_RECORD_MMAP2] = {table__map, AT_LEN + 8, false},
	[PERF_RECORD_FORK] = {table__fork, FORK_BODY_BYTES, false},
	[PERF_RECORD_EXIT] = {table__exit, FORK_BODY_BYTES, false},
	[PERF_RECORD_KSYMBOL] = {table__symbol, AT_KSYM_FLAGS + 2, false},
	[PERF_RECORD_BPF_EVENT] = {table__program, AT_BPF_ID + 4, false},
	[PERF_RECORD_CGROUP] = {table__cgroup, AT_CGROUP_PATH + 1, false},
	[PERF_RECORD_SWITCH] = {table__switch, WALK_HEADER_BYTES, true},
	[PERF_RECORD_SWITCH_CPU_WIDE] = {table__switch, AT_TID + 4, true},
	[PERF_RECORD_ITRACE_START] = {table__event, AT_TID + 4, true},
	[PERF_RECORD_AUX_OUTPUT_HW_ID] = {table__event, AT_TID + 4, true},
};

bool sideband_table__takes(uint64_t header, const struct walk_layout *layout)
{
	const uint32_t type = walk__type(header);

	return type < sizeof(types) / sizeof(types[0]) && types[type].apply != NULL &&
	       walk__size(header) >= types[type].least &&
	       (layout->cpu_trailer != 0 || !types[type].of_cpu);
}

void sideband_table__apply(struct sideband_table *table, const uint8_t *record)
{
	const uint64_t header = walk__load(record);

	if (sideband_table__takes(header, &table->layout))
		types[walk__type(header)].apply(table, record);
}

bool sideband_table__has_task_of(struct sideband_table *table, const uint8_t *record)
{
	const uint32_t type = walk__type(walk__load(record)), pid = load32(record + AT_PID);
	const struct task *task;

	switch (type) {
	case PERF_RECORD_MMAP:
	case PERF_RECORD_MMAP2:
		return process__find(table, pid) != NULL;
	case PERF_RECORD_COMM:
	case PERF_RECORD_FORK:
	case PERF_RECORD_EXIT:
		task = task__find(
			table,
			load32(record + (type == PERF_RECORD_COMM ? AT_TID : AT_FORK_TID)));
		return task != NULL && task->pid == pid;
	default:
		return false;
	}
}

struct sideband_table *sideband_table__new(size_t bytes_max)
{
	struct sideband_table *table = calloc(1, sizeof(*table));

	if (table != NULL)
		table->bytes_max = bytes_max;
	return table;
}

void sideband_table__free(struct sideband_table *table)
{
	if (table == NULL)
		return;
	for (uint32_t i = 0; i < 1u << SIDEBAND_BUCKET_BITS; i++) {
		while (table->tasks.buckets[i] != NULL)
			task__free(table, (struct task *)table->tasks.buckets[i]);
		while (table->processes.buckets[i] != NULL)
			process__free(table, (struct process *)table->processes.buckets[i]);
		for (uint32_t kind = 0; kind < KEPT_KINDS; kind++)
			while (table->kept[kind].buckets[i] != NULL)
				table__forget(table, kind, table->kept[kind].buckets[i]->key);
	}
	free(table);
}

/* Copy the processes. A copy may drop records shared with its origin, which holds them too:
 * only its own memory is freed and counted. */
static bool copy__processes(struct sideband_table *copy, const struct entries *processes)
{
	for (const struct entry *at = NULL; (at = entries__next(processes, at)) != NULL;) {
		const struct process *const from = (const struct process *)at;
		struct process *const process = process__find_or_new(copy, (uint32_t)at->key);

		if (process == NULL || !process__inherit(copy, process, from))
			return false;
		process->since_ns = from->since_ns;
	}
	return true;
}

static bool copy__tasks(struct sideband_table *copy, const struct entries *tasks)
{
	for (const struct entry *at = NULL; (at = entries__next(tasks, at)) != NULL;) {
		const struct task *const from = (const struct task *)at;
		struct task *const task = task__find_or_new(copy, from->pid, (uint32_t)at->key);

		if (task == NULL)
			return false;
		task->since_ns = from->since_ns;
		task->comm = blob__get(from->comm);
		task->fork = blob__get(from->fork);
	}
	return true;
}

struct sideband_table *sideband_table__copy_tasks(const struct sideband_table *table)
{
	struct sideband_table *copy = sideband_table__new(table->bytes_max);

	if (copy == NULL)
		return NULL;
	copy->layout = table->layout;
	if (copy__processes(copy, &table->processes) && copy__tasks(copy, &table->tasks))
		return copy;
	sideband_table__free(copy);
	return NULL;
}
