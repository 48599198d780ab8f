/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "perf_ring.h"

/*
 * The rings of a BPF program that is a flight recorder: two array maps (BPF_F_MMAPABLE), which the
 * program writes and nobody empties. For each CPU that is possible, `heads` has a head and `slots`
 * a region of slots, a power of two of them, of which the oldest are overwritten.
 *
 *   heads   | CPU 0: slots, records, missed | CPU 1: ...
 *   slots   | CPU 0: slot slot slot ...     | CPU 1: ...
 *
 * A record has one slot or several that follow each other. Each slot has a mark: the record's
 * number on its CPU, from 1 on, and what the slot is of it. The program sets the mark to 0, then
 * writes the slot, and then the mark: who finds the same mark before and after a copy has a whole
 * slot. That takes a machine that makes stores visible in their order, as x86 does (collectord.h,
 * collectord_keep()).
 */
struct slot {
	uint64_t time_ns; /* CLOCK_MONOTONIC; of a record's further slots its data */
	uint32_t mark;	  /* the number's lower bits << 8, and its kind, or SLOT_MORE | n-th slot */
	uint32_t data[3];
};

struct slot_head {
	uint64_t slots;	  /* that were ever used, the one that is written included */
	uint64_t records; /* the last number */
	uint64_t missed; /* records for which no slot was taken: an interrupt came in the midst of that */
	uint32_t busy; /* the program's: a slot is being taken */
	uint32_t reserved;
	uint64_t unused[4];
};

_Static_assert(sizeof(struct slot) == 24, "BPF programs write it");
_Static_assert(sizeof(struct slot_head) == 64, "BPF programs write it");

#define SLOT_MORE 0x80u
#define SLOT_KINDS SLOT_MORE /* kinds are 1 and more, below it */
#define SLOT_NUMBER_BITS 24u
#define SLOTS_EACH_MAX (1u << 20) /* of a CPU: far fewer than numbers that a mark tells apart */
#define SLOT_PARTS_MAX 8u	  /* slots of a record */
#define SLOT_FIRST_BYTES 12u	  /* data of a record in its first slot */
#define SLOT_MORE_BYTES 20u	  /* and in each further one */
#define SLOT_DATA_MAX (SLOT_FIRST_BYTES + (SLOT_PARTS_MAX - 1) * SLOT_MORE_BYTES)
#define SLOT_NO_TASK UINT16_MAX

struct slot_map {
	const struct slot_head *heads;
	const struct slot *slots;
	uint32_t cpus, slots_each;
	struct map_part parts[2]; /* the mappings to undo */
};

/* Map both. `slots_each` is a power of two. Returns -errno. */
int slot_map__init(struct slot_map *map, int heads_fd, int slots_fd, uint32_t cpus,
		   uint32_t slots_each);
void slot_map__deinit(struct slot_map *map);
/* Read what the program has counted on a CPU: its records, and those that it missed beside them. */
void slot_map__read(const struct slot_map *map, uint32_t cpu, uint64_t *records, uint64_t *missed);

/* A kind of record. */
struct slot_kind {
	uint64_t id;	  /* of its samples */
	uint16_t bytes;	  /* of its data; 0: there is no such kind */
	uint16_t task_at; /* where these have the thread that it is about, or SLOT_NO_TASK */
};

struct slot_ring_options {
	const struct slot_map *map;
	uint32_t cpu;
	struct walk_layout layout;     /* of the samples */
	const struct slot_kind *kinds; /* the first one is kind 1 */
	uint32_t kind_count;
};

/*
 * The region of one CPU, and the window that a snapshot took out of it. The program goes on while
 * that is copied, and overwrites less meanwhile than it leaves. Each record becomes a
 * PERF_RECORD_SAMPLE {id; u64 ip, 0; u32 pid, -1; u32 tid; u64 time; u32 cpu, 0; u32 size; data}.
 *
 * Numbers tell of every record what became of it: those below the first one in a window are
 * overwritten, and those that are missing between the first and the last were torn: in the midst
 * of being written. What is being written behind the last one is left to the next window.
 *
 * `position` and `head` of the ring count slots of the copy: those between them are not delivered.
 */
struct slot_ring {
	struct window window; /* its copy, and its counters */
	struct ring_map none; /* an empty one */
	__u64 nowhere;
	const struct slot_head *head;
	const struct slot *slots;
	uint32_t count, cpu;
	uint64_t next;	  /* slot behind the last record that is known */
	uint64_t known;	  /* the number of that record */
	uint64_t at, end; /* slots of the copy that are not delivered */
	struct slot_kind kinds[SLOT_KINDS];
};

/* It begins with what comes from now on. -EINVAL: no such CPU, or a kind that cannot be; -ENOMEM. */
int slot_ring__new(const struct slot_ring_options *options, struct ring **ring);

RING_KIND(slot_ring, window.perf.ring)
