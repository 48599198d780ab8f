/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_SIDEBAND_STATE_H
#define COLLECTORD_SIDEBAND_STATE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "walk.h"

/* What a sideband_table is made of: for the two files that apply records to one, and emit it. */

#define BUCKETS 4096u

/* Body offsets, include/uapi/linux/perf_event.h, enum perf_event_type. */
#define AT_PID 8u     /* COMM, MMAP, MMAP2, FORK, EXIT */
#define AT_TID 12u    /* COMM, MMAP, MMAP2 */
#define AT_ADDR 16u   /* MMAP, MMAP2 */
#define AT_LEN 24u    /* likewise */
#define AT_MMAP_NAME 40u
#define AT_MMAP2_NAME 72u
#define AT_PPID 12u   /* FORK, EXIT: pid, ppid, tid, ptid, time */
#define AT_FORK_TID 16u
#define AT_PTID 20u
#define FORK_BODY_BYTES 32u
#define AT_KSYM_ADDR 8u /* KSYMBOL: u64 addr, u32 len, u16 type, u16 flags */
#define AT_KSYM_FLAGS 22u
#define AT_BPF_TYPE 8u /* BPF_EVENT: u16 type, u16 flags, u32 id */
#define AT_BPF_ID 12u

/* Memory with a bound. What it refuses is counted. */
struct budget {
	size_t bytes, bytes_max;
	uint64_t refused;
};

/* Zeroed memory, or NULL. */
void *budget__alloc(struct budget *budget, size_t bytes);
void budget__release(struct budget *budget, void *memory, size_t bytes);

/* A record as it came, shared by all that refer to it. */
struct blob {
	uint32_t refs;
	uint16_t size;
	uint8_t bytes[];
};

/* A copy of the whole record at `record`, or NULL. */
struct blob *blob__new(struct budget *budget, const uint8_t *record);
/* Both take NULL as well. */
struct blob *blob__get(struct blob *blob);
void blob__put(struct budget *budget, struct blob *blob);

struct mapping {
	uint64_t start, end;
	struct blob *record;
};

/* The mappings of a process that readers need, oldest first. */
struct mappings {
	struct mapping *all;
	uint32_t count, room;
};

/*
 * Add the MMAP or MMAP2 record at `record`, which spans `start` and `length`. munmap writes no
 * record: a new mapping is what tells that an old one is gone. One that it covers in part is
 * kept, and comes first in a replay: readers cut it as the new one overlaps it.
 */
void mappings__add(struct mappings *mappings, struct budget *budget, const uint8_t *record,
		   uint64_t start, uint64_t length);
/* Something is mapped there that no reader needs: forget what it covers. */
void mappings__cover(struct mappings *mappings, struct budget *budget, uint64_t start,
		     uint64_t length);
/* Have the same as `from`, as a child has after fork. */
void mappings__inherit(struct mappings *mappings, struct budget *budget,
		       const struct mappings *from);
void mappings__clear(struct mappings *mappings, struct budget *budget);
void mappings__deinit(struct mappings *mappings, struct budget *budget);

/* A process: its mappings. Pid -1 holds the kernel's own. */
struct process {
	struct process *next;
	struct mappings mappings;
	uint32_t tasks;
	uint32_t pid;
	uint64_t since_ns; /* of the fork; 0: it was there before us */
};

struct task {
	struct task *next;
	struct blob *comm;
	struct blob *fork; /* NULL: how it began is not known */
	uint32_t pid, tid;
	uint64_t since_ns;
};

/* Kernel symbols by address, BPF programs by id, switches by CPU, the rest by event and CPU. */
struct keyed {
	struct keyed *next;
	struct blob *record;
	uint64_t key;
};

struct sideband_table {
	struct task *tasks[BUCKETS];
	struct process *processes[BUCKETS];
	struct keyed *symbols[BUCKETS];
	struct keyed *programs[BUCKETS];
	struct keyed *switches[BUCKETS];
	struct keyed *starts[BUCKETS];
	struct keyed *hardware_ids[BUCKETS];
	struct budget budget;
	uint64_t task_count;
};

struct process *process__find(const struct sideband_table *table, uint32_t pid);
struct task *task__find(const struct sideband_table *table, uint32_t tid);

#endif
