/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_SIDEBAND_TABLE_H
#define COLLECTORD_SIDEBAND_TABLE_H

#include "sideband.h"

/*
 * Live tasks with their names, processes with their executable mappings, kernel symbols, BPF
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
 * fork carries the child's ids and the time of the fork. Forks themselves are not emitted: a
 * reader (tools/perf/util/machine.c, machine__process_fork_event()) begins a task anew at its
 * FORK, and threads that it made before would keep mappings that nobody fills any more.
 */
int sideband_table__emit(const struct sideband_table *table, const struct walk_layout *layout,
			 sideband_emit_fn *emit, void *context);

void sideband_table__read_counters(const struct sideband_table *table,
				   struct sideband_counters *counters);

#endif
