/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

#include "sideband_entries.h"

struct blob;
struct sideband_table;

/* A task, by tid. */
struct task {
	struct entry entry;
	struct blob *comm;
	struct blob *fork; /* NULL: the task's start is not known */
	uint32_t pid;
	uint64_t since_ns;
};

struct task *task__find(struct sideband_table *table, uint32_t tid);
/* NULL: there is no memory. */
struct task *task__find_or_new(struct sideband_table *table, uint32_t pid, uint32_t tid);
/* Free it, and its process with the last one. */
void task__free(struct sideband_table *table, struct task *task);
void task__take_comm(struct sideband_table *table, const uint8_t *record);
void task__take_fork(struct sideband_table *table, const uint8_t *record);
void task__take_exit(struct sideband_table *table, const uint8_t *record);
