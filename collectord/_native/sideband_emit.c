/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/perf_event.h>
#include <stdbool.h>

#include "sideband_state.h"
#include "sideband_table.h"

/* A name that is told again is no exec: that stands in the segment of its time. */
static uint64_t without_exec(uint64_t header)
{
	const uint16_t misc = walk__misc(header) & (uint16_t)~PERF_RECORD_MISC_COMM_EXEC;

	if (walk__type(header) != PERF_RECORD_COMM)
		return header;
	return walk__header(walk__type(header), misc, walk__size(header));
}

/* Emit `blob` under the ids of its owner, not before the owner began. */
static int emit_as(const struct blob *blob, uint32_t pid, uint32_t tid, uint64_t since_ns,
		   const struct walk_layout *layout, sideband_emit_fn *emit, void *context)
{
	uint8_t record[UINT16_MAX + 1];

	memcpy(record, blob->bytes, blob->size);
	walk__store(record, without_exec(walk__load(record)));
	store32(record + AT_PID, pid);
	store32(record + AT_TID, tid);
	if (walk__trailer_time(record, layout) < since_ns &&
	    blob->size >= AT_TID + 4u + layout->time_trailer && layout->time_trailer >= 8)
		walk__store(record + blob->size - layout->time_trailer, since_ns);
	return emit(context, record, blob->size);
}

/*
 * Say who began `task`, ahead of all else that is said of it: a reader that knew the task before
 * forgets it. FORK_EXEC keeps the reader from giving it the parent's mappings: its own are told.
 */
static int emit_fork(const struct task *task, const struct walk_layout *layout,
		     sideband_emit_fn *emit, void *context)
{
	const struct blob *const fork = task->fork;
	uint8_t record[UINT16_MAX + 1];
	uint64_t header;

	if (fork == NULL)
		return 0;
	memcpy(record, fork->bytes, fork->size);
	header = walk__load(record);
	walk__store(record, walk__header(walk__type(header),
					 walk__misc(header) | PERF_RECORD_MISC_FORK_EXEC,
					 fork->size));
	if (layout->time_trailer >= 8 && fork->size >= FORK_BODY_BYTES + layout->time_trailer)
		walk__store(record + fork->size - layout->time_trailer, task->since_ns);
	return emit(context, record, fork->size);
}

static int emit_task(const struct task *task, const struct walk_layout *layout,
		     sideband_emit_fn *emit, void *context)
{
	int ret = emit_fork(task, layout, emit, context);

	if (ret == 0 && task->comm != NULL)
		ret = emit_as(task->comm, task->pid, task->tid, task->since_ns, layout, emit,
			      context);
	return ret;
}

/* Threads share what their leader has when they begin, so that leaders come first. */
static int emit_tasks(const struct sideband_table *table, bool leaders,
		      const struct walk_layout *layout, sideband_emit_fn *emit, void *context)
{
	int ret = 0;

	for (uint32_t i = 0; i < BUCKETS && ret == 0; i++)
		for (const struct task *task = table->tasks[i]; task != NULL && ret == 0;
		     task = task->next)
			if ((task->tid == task->pid) == leaders)
				ret = emit_task(task, layout, emit, context);
	return ret;
}

/* A mapping got by fork names its first owner: the child's leader stands in for it. */
static int emit_map(const struct process *process, const struct blob *record,
		    const struct walk_layout *layout, sideband_emit_fn *emit, void *context)
{
	const bool own = load32(record->bytes + AT_PID) == process->pid;

	return emit_as(record, process->pid, own ? load32(record->bytes + AT_TID) : process->pid,
		       process->since_ns, layout, emit, context);
}

static int emit_maps(const struct process *process, const struct walk_layout *layout,
		     sideband_emit_fn *emit, void *context)
{
	int ret = 0;

	for (uint32_t m = 0; m < process->mappings.count && ret == 0; m++)
		ret = emit_map(process, process->mappings.all[m].record, layout, emit, context);
	return ret;
}

static int emit_keyed(struct keyed *const *buckets, sideband_emit_fn *emit, void *context)
{
	int ret = 0;

	for (uint32_t i = 0; i < BUCKETS && ret == 0; i++)
		for (const struct keyed *at = buckets[i]; at != NULL && ret == 0; at = at->next)
			if (at->record != NULL)
				ret = emit(context, at->record->bytes, at->record->size);
	return ret;
}

int sideband_table__emit(const struct sideband_table *table, const struct walk_layout *layout,
			 sideband_emit_fn *emit, void *context)
{
	int ret = emit_keyed(table->symbols, emit, context);

	if (ret == 0)
		ret = emit_keyed(table->programs, emit, context);
	if (ret == 0)
		ret = emit_tasks(table, true, layout, emit, context);
	if (ret == 0)
		ret = emit_tasks(table, false, layout, emit, context);
	for (uint32_t i = 0; i < BUCKETS && ret == 0; i++) {
		for (const struct process *process = table->processes[i];
		     process != NULL && ret == 0; process = process->next)
			ret = emit_maps(process, layout, emit, context);
	}
	if (ret == 0)
		ret = emit_keyed(table->hardware_ids, emit, context);
	if (ret == 0)
		ret = emit_keyed(table->starts, emit, context);
	if (ret == 0)
		ret = emit_keyed(table->switches, emit, context);
	return ret;
}

/* A task that was forked, as the table would tell it from then on. */
static int emit_forked(const struct sideband_table *table, const uint8_t *fork,
		       const struct walk_layout *layout, sideband_emit_fn *emit, void *context)
{
	const uint32_t pid = load32(fork + AT_PID);
	const struct task *task = task__find(table, load32(fork + AT_FORK_TID));
	const struct process *process = process__find(table, pid);
	int ret = task != NULL ? emit_task(task, layout, emit, context) : 0;

	if (ret == 0 && process != NULL && pid != load32(fork + AT_PPID))
		ret = emit_maps(process, layout, emit, context);
	return ret;
}

int sideband_table__tell(struct sideband_table *table, const uint8_t *record,
			 const struct walk_layout *layout, sideband_emit_fn *emit, void *context)
{
	uint8_t renamed[UINT16_MAX + 1];
	const uint64_t header = walk__load(record);

	sideband_table__apply(table, record, layout);
	switch (walk__type(header)) {
	case PERF_RECORD_EXIT:
		return 0;
	case PERF_RECORD_FORK:
		return walk__size(header) < FORK_BODY_BYTES
			       ? 0
			       : emit_forked(table, record, layout, emit, context);
	case PERF_RECORD_COMM:
		memcpy(renamed, record, walk__size(header));
		walk__store(renamed, without_exec(header));
		return emit(context, renamed, walk__size(header));
	default:
		return emit(context, record, walk__size(header));
	}
}
