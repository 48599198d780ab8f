/* SPDX-License-Identifier: Apache-2.0 */
#include "tasks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../columns/names.h"
#include "../columns/rows.h"

#define TASKS_MAX NAMES_MAX

void tasks__deinit(struct tasks *tasks)
{
	free(tasks->task);
	*tasks = (struct tasks){0};
}

static struct task *place_of(const struct tasks *tasks, int32_t tid)
{
	size_t at = ((uint32_t)tid * UINT32_C(2654435769) >> 7) & tasks->mask;

	while (tasks->task[at].tid != tid && tasks->task[at].tid != ROW_NONE)
		at = (at + 1) & tasks->mask;
	return &tasks->task[at];
}

const struct task *tasks__find(const struct tasks *tasks, int32_t tid)
{
	const struct task *task;

	if (tasks->task == NULL || tid == ROW_NONE)
		return NULL;
	task = place_of(tasks, tid);
	return task->tid == tid ? task : NULL;
}

static int more(struct tasks *tasks)
{
	const size_t places = tasks->task == NULL ? 1024 : 2 * (tasks->mask + 1);
	struct tasks old = *tasks;

	tasks->task = malloc(places * sizeof(*tasks->task));
	if (tasks->task == NULL) {
		tasks->task = old.task;
		return -ENOMEM;
	}
	tasks->mask = places - 1;
	for (size_t i = 0; i < places; i++)
		tasks->task[i].tid = ROW_NONE;
	for (size_t i = 0; old.task != NULL && i <= old.mask; i++)
		if (old.task[i].tid != ROW_NONE)
			*place_of(tasks, old.task[i].tid) = old.task[i];
	free(old.task);
	return 0;
}

int tasks__name(struct tasks *tasks, int32_t tid, const uint8_t *text, size_t bytes)
{
	struct task *task;

	if (tid == ROW_NONE)
		return 0;
	if (tasks->task == NULL || 2 * tasks->count > tasks->mask) {
		const int ret = more(tasks);

		if (ret < 0)
			return ret;
	}
	task = place_of(tasks, tid);
	if (task->tid == ROW_NONE && tasks->count == TASKS_MAX)
		return 0;
	tasks->count += task->tid == ROW_NONE;
	task->tid = tid;
	task->bytes = (uint8_t)(bytes < sizeof(task->name) ? bytes : sizeof(task->name));
	if (bytes > 0)
		memcpy(task->name, text, task->bytes);
	return 0;
}
