/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband_table.h"

#include <linux/perf_event.h>
#include <stdlib.h>

#include "sideband_kept.h"
#include "sideband_memory.h"
#include "sideband_process.h"
#include "sideband_task.h"

static const struct {
	void (*apply)(struct sideband_table *table, const uint8_t *record);
	uint16_t least; /* bytes: a shorter record is invalid */
	bool of_cpu;	/* it counts for the CPU that it names */
} types[] = {
	[PERF_RECORD_COMM] = {task__take_comm, AT_TID + 4, false},
	[PERF_RECORD_MMAP] = {process__take_map, MAP_BODY_BYTES, false},
	[PERF_RECORD_MMAP2] = {process__take_map, MAP_BODY_BYTES, false},
	[PERF_RECORD_FORK] = {task__take_fork, FORK_BODY_BYTES, false},
	[PERF_RECORD_EXIT] = {task__take_exit, FORK_BODY_BYTES, false},
	[PERF_RECORD_KSYMBOL] = {kept__take_symbol, SYMBOL_BODY_BYTES, false},
	[PERF_RECORD_BPF_EVENT] = {kept__take_program, PROGRAM_BODY_BYTES, false},
	[PERF_RECORD_CGROUP] = {kept__take_cgroup, CGROUP_BODY_BYTES, false},
	[PERF_RECORD_SWITCH] = {kept__take_switch, WALK_HEADER_BYTES, true},
	[PERF_RECORD_SWITCH_CPU_WIDE] = {kept__take_switch, AT_TID + 4, true},
	[PERF_RECORD_ITRACE_START] = {kept__take_event, AT_TID + 4, true},
	[PERF_RECORD_AUX_OUTPUT_HW_ID] = {kept__take_event, AT_TID + 4, true},
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
			table, load32(record + (type == PERF_RECORD_COMM ? AT_TID : AT_FORK_TID)));
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
	for (uint32_t i = 0; i < 1u << ENTRIES_BUCKET_BITS; i++) {
		while (table->tasks.buckets[i] != NULL)
			task__free(table, (struct task *)table->tasks.buckets[i]);
		while (table->processes.buckets[i] != NULL)
			process__free(table, (struct process *)table->processes.buckets[i]);
		for (uint32_t kind = 0; kind < KEPT_KINDS; kind++)
			while (table->kept[kind].buckets[i] != NULL)
				kept__forget(table, kind, table->kept[kind].buckets[i]->key);
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
