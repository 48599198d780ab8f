/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband_task.h"

#include <linux/perf_event.h>

#include "sideband_memory.h"
#include "sideband_process.h"

#define AT_PTID 20u
#define AT_FORK_TIME 24u

struct task *task__find(struct sideband_table *table, uint32_t tid)
{
	return (struct task *)*entries__link(&table->tasks, tid);
}

void task__free(struct sideband_table *table, struct task *task)
{
	struct process *const process = process__find(table, task->pid);

	blob__put(table, task->comm);
	blob__put(table, task->fork);
	memory__drop(table, &table->tasks, &task->entry, sizeof(*task));
	counter__sub(&table->task_count, 1);
	if (process != NULL && --process->tasks == 0)
		process__free(table, process);
}

struct task *task__find_or_new(struct sideband_table *table, uint32_t pid, uint32_t tid)
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
	task = memory__find_or_new(table, &table->tasks, tid, sizeof(*task));
	if (task != NULL) {
		task->pid = pid;
		process->tasks++;
		counter__add(&table->task_count, 1);
	} else if (process->tasks == 0 && process->map_count == 0) {
		process__free(table, process);
	}
	return task;
}

void task__take_comm(struct sideband_table *table, const uint8_t *record)
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

void task__take_fork(struct sideband_table *table, const uint8_t *record)
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

void task__take_exit(struct sideband_table *table, const uint8_t *record)
{
	struct task *const task = task__find(table, load32(record + AT_FORK_TID));
	struct process *process;

	if (task != NULL)
		task__free(table, task);
	process = process__find(table, load32(record + AT_PID));
	if (process != NULL && process->tasks == 0) /* known only by its mappings */
		process__free(table, process);
}
