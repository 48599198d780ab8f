/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sideband_entries.h"

struct blob;
struct sideband_table;

#define MAP_BODY_BYTES 32u /* the least of MMAP and MMAP2 */

struct mapping {
	uint64_t start, end;
	struct blob *record;
};

/* The mappings of a process that readers need, by pid, oldest first. Pid -1 holds the kernel's
 * own. */
struct process {
	struct entry entry;
	struct mapping *maps;
	uint32_t map_count, map_room;
	uint32_t tasks;
	uint64_t since_ns; /* time of the fork; 0: older than the session */
};

struct process *process__find(struct sideband_table *table, uint32_t pid);
/* NULL: there is no memory. */
struct process *process__find_or_new(struct sideband_table *table, uint32_t pid);
void process__free(struct sideband_table *table, struct process *process);
/* Forget the mappings within these bounds. */
void process__unmap(struct sideband_table *table, struct process *process, uint64_t start,
		    uint64_t end);
/* Copy the mappings of `from`, as a child has them after fork. */
bool process__inherit(struct sideband_table *table, struct process *process,
		      const struct process *from);
/* Apply a mapping. munmap writes no record: only a new mapping shows that an old one is gone. A
 * partly covered one is kept, and comes first in a replay: readers cut it where the new one
 * overlaps. */
void process__take_map(struct sideband_table *table, const uint8_t *record);
