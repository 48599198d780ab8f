/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband_table.h"

#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdlib.h>

#include "sideband_state.h"

#define KSYMBOL_UNREGISTER 0x1u /* PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER */

static uint32_t bucket(uint64_t key)
{
	return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 52) % BUCKETS;
}

struct process *process__find(const struct sideband_table *table, uint32_t pid)
{
	struct process *process = table->processes[bucket(pid)];

	while (process != NULL && process->pid != pid)
		process = process->next;
	return process;
}

static struct process *process__find_or_new(struct sideband_table *table, uint32_t pid)
{
	struct process *process = process__find(table, pid);

	if (process != NULL)
		return process;
	process = budget__alloc(&table->budget, sizeof(*process));
	if (process == NULL)
		return NULL;
	process->pid = pid;
	process->next = table->processes[bucket(pid)];
	table->processes[bucket(pid)] = process;
	return process;
}

static void process__free(struct sideband_table *table, struct process *process)
{
	struct process **link = &table->processes[bucket(process->pid)];

	while (*link != process)
		link = &(*link)->next;
	*link = process->next;
	mappings__deinit(&process->mappings, &table->budget);
	budget__release(&table->budget, process, sizeof(*process));
}

struct task *task__find(const struct sideband_table *table, uint32_t tid)
{
	struct task *task = table->tasks[bucket(tid)];

	while (task != NULL && task->tid != tid)
		task = task->next;
	return task;
}

static void task__free(struct sideband_table *table, struct task *task)
{
	struct task **link = &table->tasks[bucket(task->tid)];
	struct process *process = process__find(table, task->pid);

	while (*link != task)
		link = &(*link)->next;
	*link = task->next;
	blob__put(&table->budget, task->comm);
	blob__put(&table->budget, task->fork);
	budget__release(&table->budget, task, sizeof(*task));
	table->task_count--;
	if (process != NULL && --process->tasks == 0)
		process__free(table, process);
}

static struct task *task__find_or_new(struct sideband_table *table, uint32_t pid, uint32_t tid)
{
	struct task *task = task__find(table, tid);
	struct process *process;

	if (task != NULL && task->pid == pid)
		return task;
	if (task != NULL) /* the tid was used again, and its exit was lost */
		task__free(table, task);
	process = process__find_or_new(table, pid);
	task = process != NULL ? budget__alloc(&table->budget, sizeof(*task)) : NULL;
	if (task == NULL) {
		if (process != NULL && process->tasks == 0 && process->mappings.count == 0)
			process__free(table, process);
		return NULL;
	}
	task->pid = pid;
	task->tid = tid;
	task->next = table->tasks[bucket(tid)];
	table->tasks[bucket(tid)] = task;
	table->task_count++;
	process->tasks++;
	return task;
}

static void table__comm(struct sideband_table *table, const uint8_t *record, uint16_t misc)
{
	struct task *task =
		task__find_or_new(table, load32(record + AT_PID), load32(record + AT_TID));
	struct process *process;

	if (task == NULL)
		return;
	blob__put(&table->budget, task->comm);
	task->comm = blob__new(&table->budget, record);
	if ((misc & PERF_RECORD_MISC_COMM_EXEC) == 0)
		return;
	process = process__find(table, task->pid);
	if (process != NULL) /* exec replaces the address space */
		mappings__clear(&process->mappings, &table->budget);
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
		blob__put(&table->budget, comm);
		return;
	}
	task->comm = comm;
	task->fork = blob__new(&table->budget, record);
	task->since_ns = walk__load(record + AT_PTID + 4);
	if (pid == ppid)
		return;
	process = process__find(table, pid);
	parent_process = process__find(table, ppid);
	process->since_ns = task->since_ns;
	if (parent_process != NULL)
		mappings__inherit(&process->mappings, &table->budget,
				  &parent_process->mappings);
}

/* Data of no file: memory, which a process maps often, and where no reader finds anything. */
static bool is_memory(const uint8_t *record, uint64_t header)
{
	const uint32_t at = walk__type(header) == PERF_RECORD_MMAP2 ? AT_MMAP2_NAME : AT_MMAP_NAME;

	return (walk__misc(header) & PERF_RECORD_MISC_MMAP_DATA) != 0 &&
	       walk__size(header) > at + 1u && (record[at] != '/' || record[at + 1] == '/');
}

static void table__map(struct sideband_table *table, const uint8_t *record, uint64_t header)
{
	struct process *const process = process__find_or_new(table, load32(record + AT_PID));
	const uint64_t start = walk__load(record + AT_ADDR), length = walk__load(record + AT_LEN);

	if (process == NULL)
		return;
	if (is_memory(record, header))
		mappings__cover(&process->mappings, &table->budget, start, length);
	else
		mappings__add(&process->mappings, &table->budget, record, start, length);
}

static void table__keyed(struct sideband_table *table, struct keyed **buckets, uint64_t key,
			 const uint8_t *record, bool gone)
{
	struct keyed **link = &buckets[bucket(key)], *entry;

	while (*link != NULL && (*link)->key != key)
		link = &(*link)->next;
	entry = *link;
	if (entry != NULL) {
		*link = entry->next;
		blob__put(&table->budget, entry->record);
		budget__release(&table->budget, entry, sizeof(*entry));
	}
	if (gone)
		return;
	entry = budget__alloc(&table->budget, sizeof(*entry));
	if (entry == NULL)
		return;
	entry->key = key;
	entry->record = blob__new(&table->budget, record);
	entry->next = buckets[bucket(key)];
	buckets[bucket(key)] = entry;
}

/* The state of one event on one CPU, or of the CPU alone: the last record is all that counts. */
static void table__last(struct sideband_table *table, struct keyed **buckets, bool of_event,
			const uint8_t *record, const struct walk_layout *layout)
{
	const uint16_t size = walk__size(walk__load(record));
	uint64_t key;
	uint32_t cpu;

	if (!walk__trailer_cpu(record, layout, &cpu))
		return;
	key = cpu;
	/* PERF_SAMPLE_IDENTIFIER, the last word, counts up from 1 while the host runs. */
	if (of_event && layout->cpu_trailer > sizeof(uint64_t))
		key = walk__load(record + size - sizeof(uint64_t)) << 16 | (cpu & UINT16_MAX);
	table__keyed(table, buckets, key, record, false);
}

/* The shortest body of each type that is applied; a shorter record is none. */
static uint32_t least_size(uint32_t type)
{
	switch (type) {
	case PERF_RECORD_MMAP:
	case PERF_RECORD_MMAP2:
		return AT_LEN + 8;
	case PERF_RECORD_FORK:
	case PERF_RECORD_EXIT:
		return FORK_BODY_BYTES;
	case PERF_RECORD_KSYMBOL:
		return AT_KSYM_FLAGS + 2;
	case PERF_RECORD_SWITCH:
		return WALK_HEADER_BYTES;
	default:
		return AT_TID + 4;
	}
}

void sideband_table__apply(struct sideband_table *table, const uint8_t *record,
			   const struct walk_layout *layout)
{
	const uint64_t header = walk__load(record);
	struct process *process;
	struct task *task;

	if (walk__size(header) < least_size(walk__type(header)))
		return;
	switch (walk__type(header)) {
	case PERF_RECORD_COMM:
		table__comm(table, record, walk__misc(header));
		break;
	case PERF_RECORD_MMAP:
	case PERF_RECORD_MMAP2:
		table__map(table, record, header);
		break;
	case PERF_RECORD_FORK:
		table__fork(table, record);
		break;
	case PERF_RECORD_EXIT:
		task = task__find(table, load32(record + AT_FORK_TID));
		if (task != NULL)
			task__free(table, task);
		process = process__find(table, load32(record + AT_PID));
		if (process != NULL && process->tasks == 0) /* known by its mappings alone */
			process__free(table, process);
		break;
	case PERF_RECORD_KSYMBOL:
		table__keyed(table, table->symbols, walk__load(record + AT_KSYM_ADDR), record,
			     (load16(record + AT_KSYM_FLAGS) & KSYMBOL_UNREGISTER) != 0);
		break;
	case PERF_RECORD_BPF_EVENT:
		table__keyed(table, table->programs, load32(record + AT_BPF_ID), record,
			     load16(record + AT_BPF_TYPE) == PERF_BPF_EVENT_PROG_UNLOAD);
		break;
	case PERF_RECORD_SWITCH:
	case PERF_RECORD_SWITCH_CPU_WIDE:
		table__last(table, table->switches, false, record, layout);
		break;
	case PERF_RECORD_ITRACE_START:
		table__last(table, table->starts, true, record, layout);
		break;
	case PERF_RECORD_AUX_OUTPUT_HW_ID:
		table__last(table, table->hardware_ids, true, record, layout);
		break;
	default:
		break;
	}
}

struct sideband_table *sideband_table__new(size_t bytes_max)
{
	struct sideband_table *table = calloc(1, sizeof(*table));

	if (table != NULL)
		table->budget.bytes_max = bytes_max;
	return table;
}

static void free_keyed(struct sideband_table *table, struct keyed **buckets)
{
	for (uint32_t i = 0; i < BUCKETS; i++) {
		while (buckets[i] != NULL) {
			struct keyed *next = buckets[i]->next;

			blob__put(&table->budget, buckets[i]->record);
			free(buckets[i]);
			buckets[i] = next;
		}
	}
}

void sideband_table__free(struct sideband_table *table)
{
	if (table == NULL)
		return;
	for (uint32_t i = 0; i < BUCKETS; i++)
		while (table->tasks[i] != NULL)
			task__free(table, table->tasks[i]);
	for (uint32_t i = 0; i < BUCKETS; i++)
		while (table->processes[i] != NULL)
			process__free(table, table->processes[i]);
	free_keyed(table, table->symbols);
	free_keyed(table, table->programs);
	free_keyed(table, table->switches);
	free_keyed(table, table->starts);
	free_keyed(table, table->hardware_ids);
	free(table);
}

/* A copy may drop what it shares with its origin, which holds it as well: only what is its own
 * goes, and is in its books. */
static bool copy__processes(struct sideband_table *copy, const struct sideband_table *table)
{
	for (uint32_t i = 0; i < BUCKETS; i++) {
		for (const struct process *at = table->processes[i]; at != NULL; at = at->next) {
			struct process *process = process__find_or_new(copy, at->pid);

			if (process == NULL)
				return false;
			process->since_ns = at->since_ns;
			mappings__inherit(&process->mappings, &copy->budget, &at->mappings);
			if (process->mappings.count != at->mappings.count)
				return false;
		}
	}
	return true;
}

static bool copy__tasks(struct sideband_table *copy, const struct sideband_table *table)
{
	for (uint32_t i = 0; i < BUCKETS; i++) {
		for (const struct task *at = table->tasks[i]; at != NULL; at = at->next) {
			struct task *task = task__find_or_new(copy, at->pid, at->tid);

			if (task == NULL)
				return false;
			task->since_ns = at->since_ns;
			task->comm = blob__get(at->comm);
			task->fork = blob__get(at->fork);
		}
	}
	return true;
}

struct sideband_table *sideband_table__copy_tasks(const struct sideband_table *table)
{
	struct sideband_table *copy = sideband_table__new(table->budget.bytes_max);

	if (copy == NULL || (copy__processes(copy, table) && copy__tasks(copy, table)))
		return copy;
	sideband_table__free(copy);
	return NULL;
}

void sideband_table__read_counters(const struct sideband_table *table,
				   struct sideband_counters *counters)
{
	*counters = (struct sideband_counters){
		.tasks = table->task_count,
		.bytes = table->budget.bytes,
		.dropped = table->budget.refused,
	};
	for (uint32_t i = 0; i < BUCKETS; i++)
		for (const struct process *at = table->processes[i]; at != NULL; at = at->next)
			counters->maps += at->mappings.count;
}
