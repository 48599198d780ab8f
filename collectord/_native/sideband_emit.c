/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/perf_event.h>
#include <string.h>

#include "sideband_memory.h"
#include "sideband_process.h"
#include "sideband_table.h"
#include "sideband_task.h"

/* Returns a header that is no exec, which is stored in the segment of its time. */
static uint64_t without_exec(uint64_t header)
{
	const uint16_t misc = walk__misc(header) & (uint16_t)~PERF_RECORD_MISC_COMM_EXEC;

	if (walk__type(header) != PERF_RECORD_COMM)
		return header;
	return walk__header(walk__type(header), misc, walk__size(header));
}

/* Emit `blob` under the ids of its owner, not before the owner began. */
static int emit_as(const struct sideband_replay *to, const struct blob *blob, uint32_t pid,
		   uint32_t tid, uint64_t since_ns)
{
	const uint16_t trailer = to->table->layout.time_trailer;
	uint8_t record[UINT16_MAX + 1];

	memcpy(record, blob->bytes, blob->size);
	walk__store(record, without_exec(walk__load(record)));
	store32(record + AT_PID, pid);
	store32(record + AT_TID, tid);
	if (walk__trailer_time(record, &to->table->layout) < since_ns &&
	    blob->size >= AT_TID + 4u + trailer && trailer >= 8)
		walk__store(record + blob->size - trailer, since_ns);
	return to->emit(to->context, record, blob->size);
}

/* Emit the start of `task`, before all else about it: a reader that knew the task forgets it.
 * FORK_EXEC keeps the reader from giving it the parent's mappings: its own are emitted. */
static int emit_fork(const struct sideband_replay *to, const struct task *task)
{
	const struct blob *const fork = task->fork;
	const uint16_t trailer = to->table->layout.time_trailer;
	uint8_t record[UINT16_MAX + 1];

	memcpy(record, fork->bytes, fork->size);
	walk__store(record, walk__load(record) | (uint64_t)PERF_RECORD_MISC_FORK_EXEC << 32);
	if (trailer >= 8 && fork->size >= FORK_BODY_BYTES + trailer)
		walk__store(record + fork->size - trailer, task->since_ns);
	return to->emit(to->context, record, fork->size);
}

static int emit_task(const struct sideband_replay *to, const struct task *task)
{
	int ret = task->fork != NULL ? emit_fork(to, task) : 0;

	if (ret == 0 && task->comm != NULL)
		ret = emit_as(to, task->comm, task->pid, (uint32_t)task->entry.key, task->since_ns);
	return ret;
}

/* Emit tasks. Threads share their leader's state when they begin, so leaders come first. */
static int emit_tasks(const struct sideband_replay *to, bool leaders)
{
	const struct entry *at = NULL;
	int ret = 0;

	while (ret == 0 && (at = entries__next(&to->table->tasks, at)) != NULL) {
		const struct task *const task = (const struct task *)at;

		if ((at->key == task->pid) == leaders)
			ret = emit_task(to, task);
	}
	return ret;
}

/* Emit mappings. One inherited by fork names its first owner: the child's leader replaces it. */
static int emit_maps(const struct sideband_replay *to, const struct process *process)
{
	const uint32_t pid = (uint32_t)process->entry.key;
	int ret = 0;

	for (uint32_t i = 0; i < process->map_count && ret == 0; i++) {
		const struct blob *const record = process->maps[i].record;
		const bool own = load32(record->bytes + AT_PID) == pid;

		ret = emit_as(to, record, pid, own ? load32(record->bytes + AT_TID) : pid,
			      process->since_ns);
	}
	return ret;
}

static int emit_kept(const struct sideband_replay *to, uint32_t first, uint32_t last)
{
	int ret = 0;

	for (uint32_t kind = first; kind <= last; kind++) {
		const struct entry *at = NULL;

		while (ret == 0 && (at = entries__next(&to->table->kept[kind], at)) != NULL) {
			const struct blob *const record = ((const struct kept *)at)->record;

			if (record != NULL)
				ret = to->emit(to->context, record->bytes, record->size);
		}
	}
	return ret;
}

int sideband_replay__all(const struct sideband_replay *to)
{
	int ret = emit_kept(to, KEPT_SYMBOLS, KEPT_CGROUPS);
	const struct entry *at = NULL;

	if (ret == 0)
		ret = emit_tasks(to, true);
	if (ret == 0)
		ret = emit_tasks(to, false);
	while (ret == 0 && (at = entries__next(&to->table->processes, at)) != NULL)
		ret = emit_maps(to, (const struct process *)at);
	if (ret == 0)
		ret = emit_kept(to, KEPT_HARDWARE_IDS, KEPT_SWITCHES);
	return ret;
}

/* Emit a forked task, as the table would emit it from then on. */
static int emit_forked(const struct sideband_replay *to, const uint8_t *fork)
{
	const uint32_t pid = load32(fork + AT_PID);
	const struct task *task = task__find(to->table, load32(fork + AT_FORK_TID));
	const struct process *process = process__find(to->table, pid);
	int ret = task != NULL ? emit_task(to, task) : 0;

	if (ret == 0 && process != NULL && pid != load32(fork + AT_PPID))
		ret = emit_maps(to, process);
	return ret;
}

int sideband_replay__change(const struct sideband_replay *to, const uint8_t *record)
{
	uint8_t renamed[UINT16_MAX + 1];
	const uint64_t header = walk__load(record);

	sideband_table__apply(to->table, record);
	if (walk__type(header) == PERF_RECORD_EXIT)
		return 0;
	if (walk__type(header) == PERF_RECORD_FORK)
		return walk__size(header) < FORK_BODY_BYTES ? 0 : emit_forked(to, record);
	memcpy(renamed, record, walk__size(header));
	walk__store(renamed, without_exec(header));
	return to->emit(to->context, renamed, walk__size(header));
}
