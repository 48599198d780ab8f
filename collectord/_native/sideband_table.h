/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_SIDEBAND_TABLE_H
#define COLLECTORD_SIDEBAND_TABLE_H

#include "sideband.h"

/*
 * Live tasks with their names, processes with their mappings of code and files, kernel symbols, BPF
 * programs, the last switch of each CPU, and the last ITRACE_START and AUX_OUTPUT_HW_ID of each event
 * on each CPU. Records are kept as the kernel wrote them and shared between a process and the
 * children it forks; memory is bounded, what does not fit is counted as dropped.
 */
struct sideband_table *sideband_table__new(size_t bytes_max);
void sideband_table__free(struct sideband_table *table);

/* Apply one whole record; types that are no sideband are ignored. */
void sideband_table__apply(struct sideband_table *table, const uint8_t *record,
			   const struct walk_layout *layout);

/*
 * Emit what makes the state, each record with its original time. A mapping that a child got by
 * fork carries the child's ids and the time of the fork. Forks are told as readers' own tools tell
 * those of tasks that were there before (PERF_RECORD_MISC_FORK_EXEC), and execs as names alone:
 * neither counts as one that happened in this segment.
 */
int sideband_table__emit(const struct sideband_table *table, const struct walk_layout *layout,
			 sideband_emit_fn *emit, void *context);

/*
 * Apply a record that an earlier segment holds to `table`, and emit what it changed as the state
 * would be emitted: of a fork the new task with its name and mappings at that time, of an exec the
 * name, of an exit nothing. So whoever counts these over all segments counts each once.
 */
int sideband_table__tell(struct sideband_table *table, const uint8_t *record,
			 const struct walk_layout *layout, sideband_emit_fn *emit, void *context);

/*
 * A table with the same tasks and processes, or NULL. It shares records with its origin, which must
 * not change until the copy is freed.
 */
struct sideband_table *sideband_table__copy_tasks(const struct sideband_table *table);

void sideband_table__read_counters(const struct sideband_table *table,
				   struct sideband_counters *counters);

#endif
