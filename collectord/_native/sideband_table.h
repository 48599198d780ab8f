/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "sideband.h"
#include "sideband_entries.h"
#include "sideband_kept.h"

/* Body offsets, include/uapi/linux/perf_event.h, enum perf_event_type. */
#define AT_PID 8u   /* COMM, MMAP, MMAP2, FORK, EXIT */
#define AT_TID 12u  /* COMM, MMAP, MMAP2 */
#define AT_PPID 12u /* FORK, EXIT: pid, ppid, tid, ptid, time */
#define AT_FORK_TID 16u
#define FORK_BODY_BYTES 32u

/*
 * Live tasks with their names, processes with their mappings of code and files, kernel symbols,
 * BPF programs, cgroups, the last switch of each CPU, and the last ITRACE_START and AUX_OUTPUT_HW_ID of
 * each event on each CPU. Records are kept as the kernel wrote them and shared between a process
 * and its forked children; memory is bounded, and records that do not fit are counted as dropped.
 */
struct sideband_table {
	struct walk_layout layout; /* layout of the records */
	struct entries tasks, processes, kept[KEPT_KINDS];
	uint32_t cgroup_count;
	size_t bytes_max;
	counter_t task_count, map_count, bytes, dropped;
};

struct sideband_table *sideband_table__new(size_t bytes_max);
void sideband_table__free(struct sideband_table *table);
/* Whether the table takes records with this header and layout. */
bool sideband_table__takes(uint64_t header, const struct walk_layout *layout);
/* Apply one whole record; types that the table does not take are ignored. */
void sideband_table__apply(struct sideband_table *table, const uint8_t *record);
/* Whether a record that it takes is about a task, or the mappings of a process, that it has. */
bool sideband_table__has_task_of(struct sideband_table *table, const uint8_t *record);

/* The state to emit, and its destination. */
struct sideband_replay {
	struct sideband_table *table;
	sideband_emit_fn *emit;
	void *context;
};

/*
 * Emit the records that make up the state, each with its original time. A mapping inherited by
 * fork has the child's ids and the time of the fork. Forks are emitted as perf's own tools emit
 * those of older tasks (PERF_RECORD_MISC_FORK_EXEC), and execs as names alone: so neither counts
 * as one of this segment.
 */
int sideband_replay__all(const struct sideband_replay *to);

/* Apply a record of an earlier segment to the table, and emit the resulting change as state: for a
 * fork the new task with its name and mappings at that time, for an exec the name, for an exit
 * nothing. So a count over all segments counts each once. */
int sideband_replay__change(const struct sideband_replay *to, const uint8_t *record);

/* Returns a table with the same tasks and processes, or NULL. It shares records with its origin,
 * which must not change until the copy is freed. */
struct sideband_table *sideband_table__copy_tasks(const struct sideband_table *table);
