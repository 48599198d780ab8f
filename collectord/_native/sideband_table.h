/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "counter.h"
#include "sideband.h"

#define SIDEBAND_BUCKET_BITS 12u

/* Body offsets, include/uapi/linux/perf_event.h, enum perf_event_type. */
#define AT_PID 8u     /* COMM, MMAP, MMAP2, FORK, EXIT */
#define AT_TID 12u    /* COMM, MMAP, MMAP2 */
#define AT_PPID 12u   /* FORK, EXIT: pid, ppid, tid, ptid, time */
#define AT_FORK_TID 16u
#define FORK_BODY_BYTES 32u

/* A record as it came, shared by all that refer to it. */
struct blob {
	uint32_t refs;
	uint16_t size;
	uint8_t bytes[];
};

/* What each of these begins with, in a hash table of them. */
struct entry {
	struct entry *next;
	uint64_t key;
};

struct entries {
	struct entry *buckets[1u << SIDEBAND_BUCKET_BITS];
};

struct mapping {
	uint64_t start, end;
	struct blob *record;
};

/* By pid: the mappings that readers need, oldest first. Pid -1 holds the kernel's own. */
struct process {
	struct entry entry;
	struct mapping *maps;
	uint32_t map_count, map_room;
	uint32_t tasks;
	uint64_t since_ns; /* of the fork; 0: it was there before us */
};

/* By tid. */
struct task {
	struct entry entry;
	struct blob *comm;
	struct blob *fork; /* NULL: how it began is not known */
	uint32_t pid;
	uint64_t since_ns;
};

/* Of what the last record is all that counts. */
struct kept {
	struct entry entry;
	struct blob *record;
};

/* By address, by id, twice by event and CPU, and by CPU. */
enum { KEPT_SYMBOLS, KEPT_PROGRAMS, KEPT_HARDWARE_IDS, KEPT_STARTS, KEPT_SWITCHES, KEPT_KINDS };

/*
 * Live tasks with their names, processes with their mappings of code and files, kernel symbols, BPF
 * programs, the last switch of each CPU, and the last ITRACE_START and AUX_OUTPUT_HW_ID of each event
 * on each CPU. Records are kept as the kernel wrote them and shared between a process and the
 * children it forks; memory is bounded, what does not fit is counted as dropped.
 */
struct sideband_table {
	struct walk_layout layout; /* of the records */
	struct entries tasks, processes, kept[KEPT_KINDS];
	size_t bytes_max;
	counter_t task_count, map_count, bytes, dropped;
};

struct sideband_table *sideband_table__new(size_t bytes_max);
void sideband_table__free(struct sideband_table *table);

/* Does the table take what has this header, and records of this layout? */
bool sideband_table__takes(uint64_t header, const struct walk_layout *layout);
/* Apply one whole record; those that it does not take are ignored. */
void sideband_table__apply(struct sideband_table *table, const uint8_t *record);

/* The entry behind this one, the first one for NULL, or NULL. */
struct entry *entries__next(const struct entries *entries, const struct entry *entry);
struct process *process__find(struct sideband_table *table, uint32_t pid);
struct task *task__find(struct sideband_table *table, uint32_t tid);

/* What the state is of that is told, and to whom. */
struct sideband_replay {
	struct sideband_table *table;
	sideband_emit_fn *emit;
	void *context;
};

/*
 * Emit what makes the state, each record with its original time. A mapping that a child got by
 * fork carries the child's ids and the time of the fork. Forks are told as readers' own tools tell
 * those of tasks that were there before (PERF_RECORD_MISC_FORK_EXEC), and execs as names alone:
 * neither counts as one that happened in this segment.
 */
int sideband_replay__all(const struct sideband_replay *to);

/*
 * Apply a record that an earlier segment holds to the table, and emit what it changed as the state
 * would be emitted: of a fork the new task with its name and mappings at that time, of an exec the
 * name, of an exit nothing. So whoever counts these over all segments counts each once.
 */
int sideband_replay__change(const struct sideband_replay *to, const uint8_t *record);

/*
 * A table with the same tasks and processes, or NULL. It shares records with its origin, which must
 * not change until the copy is freed.
 */
struct sideband_table *sideband_table__copy_tasks(const struct sideband_table *table);
