/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_SIDEBAND_STATE_H
#define COLLECTORD_SIDEBAND_STATE_H

#include <stdint.h>
#include <string.h>

#include "blob.h"
#include "mappings.h"

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

static inline uint32_t load32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

struct process *process__find(const struct sideband_table *table, uint32_t pid);
struct task *task__find(const struct sideband_table *table, uint32_t tid);

#endif
