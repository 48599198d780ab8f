/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * When a program counts, and how it hands its events to the daemon, so that each of them is
 * accounted for.
 *
 * On each CPU there is a gate, which the daemon opens when the session begins, on the CPUs of the
 * session only, and closes when it ends. A program that only fills maps asks collectord_open()
 * where it counts:
 *
 *	#include "collectord.h"
 *
 * A program that submits events defines the struct of its event and says which one it is:
 *
 *	struct open_event { ... };
 *	#define COLLECTORD_EVENT struct open_event
 *	#include "collectord.h"
 *
 * and then calls collectord_submit(), which asks for itself. A gate is opened once its CPU has a
 * ring. The daemon drains the ring, and compares what it stored with what was counted here.
 *
 * A program that is a flight recorder lists its kinds of records in its manifest instead, defines
 * their structs before it includes this file, and calls collectord_keep(): nobody drains what that
 * writes, and the oldest records are overwritten.
 *
 * BCC rewrites methods of maps in plain text of the main file only. So this file is put into the
 * program's text where the #include stands, and no method hides in a macro.
 */

/*
 * Filters that programs have in common: a manifest lists those of its program, for example filters =
 * ["pid", "comm"], and what is not listed costs nothing.
 */

#ifdef COLLECTORD_FILTER_COMM
/*
 * Whether a task's name, 16 bytes, is wanted. COLLECTORD_FILTER_COMM() compares byte by byte with
 * numbers: BCC gives programs no texts in memory.
 */
static inline bool collectord_comm_wanted(const char *comm)
{
	return COLLECTORD_FILTER_COMM(comm);
}
#endif

#ifdef COLLECTORD_FILTER_PATH
/* Whether a path is wanted, which is in more than 128 bytes. */
static inline bool collectord_path_wanted(const char *path)
{
	return COLLECTORD_FILTER_PATH(path);
}
#endif

#ifdef COLLECTORD_FILTER_REMOTE_PORT
/* Whether a connection is wanted, by its ports as numbers of this machine. */
static inline bool collectord_ports_wanted(u16 local, u16 remote)
{
	return (!PARAMETER_LOCAL_PORT || local == PARAMETER_LOCAL_PORT) &&
	       (!PARAMETER_REMOTE_PORT || remote == PARAMETER_REMOTE_PORT);
}
#endif

#ifdef COLLECTORD_FILTER_CGROUP
#define COLLECTORD_CGROUPS_DEEP 16

/* Whether the current task is in the cgroup, or below it. */
static inline bool collectord_cgroup_wanted(void)
{
	if (!PARAMETER_CGROUP)
		return true;
#pragma unroll
	for (int level = 0; level < COLLECTORD_CGROUPS_DEEP; level++) {
		u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (id == PARAMETER_CGROUP)
			return true;
		if (!id)
			return false;
	}
	return false;
}
#endif

/* Whether what the current task does is wanted. */
static inline bool collectord_wanted(void)
{
#ifdef COLLECTORD_FILTER_PID
	if (PARAMETER_PID && bpf_get_current_pid_tgid() >> 32 != PARAMETER_PID)
		return false;
#endif
#ifdef COLLECTORD_FILTER_TID
	if (PARAMETER_TID && (u32)bpf_get_current_pid_tgid() != PARAMETER_TID)
		return false;
#endif
#ifdef COLLECTORD_FILTER_UID
	if (PARAMETER_UID >= 0 && (u32)bpf_get_current_uid_gid() != PARAMETER_UID)
		return false;
#endif
#ifdef COLLECTORD_FILTER_COMM
	if (sizeof(PARAMETER_COMM) > 1) {
		char comm[16];

		bpf_get_current_comm(comm, sizeof(comm));
		if (!collectord_comm_wanted(comm))
			return false;
	}
#endif
#ifdef COLLECTORD_FILTER_CGROUP
	if (!collectord_cgroup_wanted())
		return false;
#endif
	return true;
}

/* 0: closed. Nothing is counted or submitted on this CPU. */
BPF_PERCPU_ARRAY(collectord_gate, u64, 1);

/* Whether what happens on this CPU is wanted. */
static inline bool collectord_open(void)
{
	u32 zero = 0;
	u64 *gate = collectord_gate.lookup(&zero);

	return gate && *gate;
}

#ifdef COLLECTORD_DESCRIBE
#ifndef COLLECTORD_CPUS /* the program is only looked at */
#define COLLECTORD_CPUS 1
#define COLLECTORD_SLOTS_EACH 64
#define COLLECTORD_SLOTS 64
#endif

/* A CPU has taken this of its slots. */
struct collectord_head {
	u64 slots;
	u64 records;
	u64 missed; /* records that came while another one took its slots */
	u32 busy;   /* one does */
	u32 reserved;
	u64 unused[4];
};

/*
 * A record has a slot or several that follow each other. Who reads a slot compares its mark before
 * and after: it is 0 while the slot is written. That takes a machine that makes stores visible in
 * their order, as x86 does.
 */
struct collectord_slot {
	u64 front; /* the time of the record; of further slots, data */
	u32 mark;  /* number << 8, and the kind, or 0x80 and which slot of its record it is */
	u32 data[3];
};

BPF_F_TABLE("array", u32, struct collectord_head, collectord_heads, COLLECTORD_CPUS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct collectord_slot, collectord_slots, COLLECTORD_SLOTS,
	    BPF_F_MMAPABLE);
/* Tell the daemon the layouts of the records; hold nothing. */
COLLECTORD_DESCRIBE

#define COLLECTORD_FIRST_WORDS 3
#define COLLECTORD_MORE_WORDS 5
#define COLLECTORD_MORE 0x80
#define collectord_barrier() asm volatile("" ::: "memory")

static inline void collectord_fill(u32 index, u32 mark, u64 front, const u32 *data)
{
	struct collectord_slot *slot = collectord_slots.lookup(&index);

	if (!slot)
		return;
	*(volatile u32 *)&slot->mark = 0;
	collectord_barrier();
	slot->front = front;
	slot->data[0] = data[0];
	slot->data[1] = data[1];
	slot->data[2] = data[2];
	collectord_barrier();
	*(volatile u32 *)&slot->mark = mark;
}

/*
 * Two of a CPU's records are never in the midst of taking their slots: an interrupt that comes in
 * between finds `busy` set, and its record is missed, and counted.
 */
static inline void collectord_keep_words(u32 kind, const u32 *words, const u32 more)
{
	u32 cpu = bpf_get_smp_processor_id(), first, mark;
	struct collectord_head *head;
	u64 now, at;

	if (!collectord_open())
		return;
	now = bpf_ktime_get_ns();
	head = collectord_heads.lookup(&cpu);
	if (!head)
		return;
	if (*(volatile u32 *)&head->busy) {
		__sync_fetch_and_add(&head->missed, 1);
		return;
	}
	*(volatile u32 *)&head->busy = 1;
	at = *(volatile u64 *)&head->slots;
	*(volatile u64 *)&head->slots = at + 1 + more;
	mark = *(volatile u64 *)&head->records + 1;
	*(volatile u64 *)&head->records += 1;
	*(volatile u32 *)&head->busy = 0;
	mark <<= 8;
	first = cpu * COLLECTORD_SLOTS_EACH;
	collectord_fill(first + (at & (COLLECTORD_SLOTS_EACH - 1)), mark | kind, now, words);
	words += COLLECTORD_FIRST_WORDS;
#pragma unroll
	for (u32 i = 1; i <= 7; i++) {
		if (i > more)
			break;
		collectord_fill(first + ((at + i) & (COLLECTORD_SLOTS_EACH - 1)),
				mark | COLLECTORD_MORE | i, words[0] | (u64)words[1] << 32,
				words + 2);
		words += COLLECTORD_MORE_WORDS;
	}
}

/*
 * Keep a record, a struct of a manifest's [[record]] whose every byte is set; it takes some 12, 32,
 * 52, ... or 152 bytes, which fill one slot, two, ... or eight.
 */
#define collectord_keep(type, record)                                              \
	collectord_keep_words(COLLECTORD_KIND_##type, (const u32 *)(record),       \
			      (sizeof(struct type) / 4 - COLLECTORD_FIRST_WORDS) / \
				      COLLECTORD_MORE_WORDS)
#endif

#ifdef COLLECTORD_EVENT
#include <uapi/linux/errno.h>

/*
 * Attempts to submit on one CPU, and those of them that failed, by what the kernel answered.
 * The sum of the failures never exceeds the attempts, and attempts - failures is what the ring got.
 */
struct collectord_counts {
	u64 attempts;
	u64 no_space; /* ENOSPC: the ring was full; a perf ring's kernel counts it as lost too */
	u64 busy;     /* EBUSY: nested deeper than the kernel has room for */
	u64 no_ring;  /* ENOENT, EOPNOTSUPP: this CPU has no ring, or none that runs */
	u64 refused;  /* any other */
	u64 asleep;   /* bytes since this CPU has woken the daemon; of a ring buffer only */
};

BPF_PERCPU_ARRAY(collectord_counts, struct collectord_counts, 1);
/* Tells the daemon the layout of the event; holds nothing. */
BPF_ARRAY(collectord_event, COLLECTORD_EVENT, 1);

/*
 * The adds are atomic: an interrupt's program may count on the same CPU, and so may, where programs
 * can be preempted, that of another task.
 */
static inline void collectord_failed(struct collectord_counts *counts, int error)
{
	if (error == -ENOSPC)
		__sync_fetch_and_add(&counts->no_space, 1);
	else if (error == -EBUSY)
		__sync_fetch_and_add(&counts->busy, 1);
	else if (error == -ENOENT || error == -EOPNOTSUPP)
		__sync_fetch_and_add(&counts->no_ring, 1);
	else
		__sync_fetch_and_add(&counts->refused, 1);
}

#ifdef COLLECTORD_RING_PAGES
/*
 * One ring buffer for all CPUs: the daemon says of how many pages, and after how many bytes of a CPU
 * it is woken. A record is what a sample of perf has between its id and its raw data, and then the
 * event, so that the daemon makes the same sample of it that a perf ring would have.
 */
BPF_RINGBUF_OUTPUT(collectord_ring, COLLECTORD_RING_PAGES);

struct collectord_record {
	u64 ip; /* nobody's: perf's would be the kernel's own */
	u32 pid;
	u32 tid;
	u64 time; /* CLOCK_MONOTONIC, as the clock of perf's events is */
	u32 cpu;
	u32 reserved;
	u8 raw[];
};

/* Above that clang makes no moves of a copy. */
#define COLLECTORD_COPY_MAX 512

/* The kernel counts no loss of a ring buffer: what could not be reserved is known here only. */
static inline int collectord_put(void *ctx, COLLECTORD_EVENT *event,
				 struct collectord_counts *counts)
{
	struct collectord_record *record;
	u64 task, wake = BPF_RB_NO_WAKEUP;

	record = collectord_ring.ringbuf_reserve(sizeof(*record) + sizeof(*event));
	if (!record)
		return -ENOSPC;
	task = bpf_get_current_pid_tgid();
	record->ip = 0;
	record->pid = task >> 32;
	record->tid = task;
	record->time = bpf_ktime_get_ns();
	record->cpu = bpf_get_smp_processor_id();
	record->reserved = 0;
	if (sizeof(*event) <= COLLECTORD_COPY_MAX)
		__builtin_memcpy(record->raw, event, sizeof(*event));
	else
		bpf_probe_read_kernel(record->raw, sizeof(*event), event);
	/* A wake-up twice, or a record late, harms nobody: the daemon looks by itself too. */
	counts->asleep += BPF_RINGBUF_HDR_SZ + sizeof(*record) + sizeof(*event);
	if (counts->asleep >= COLLECTORD_WAKE_BYTES) {
		counts->asleep = 0;
		wake = BPF_RB_FORCE_WAKEUP;
	}
	collectord_ring.ringbuf_submit(record, wake);
	return 0;
}
#else
BPF_PERF_OUTPUT(collectord_ring);

static inline int collectord_put(void *ctx, COLLECTORD_EVENT *event,
				 struct collectord_counts *counts)
{
	return collectord_ring.perf_submit(ctx, event, sizeof(*event));
}
#endif

/*
 * Submit an event whose every byte is set, padding included: what the ring gets is its memory.
 * Returns 0, or a negative errno that has been counted.
 */
static inline int collectord_submit(void *ctx, COLLECTORD_EVENT *event)
{
	u32 zero = 0;
	struct collectord_counts *counts;
	int error;

	if (!collectord_open())
		return 0;
	counts = collectord_counts.lookup(&zero);
	if (!counts)
		return 0;
	__sync_fetch_and_add(&counts->attempts, 1);
	error = collectord_put(ctx, event, counts);
	if (error)
		collectord_failed(counts, error);
	return error;
}
#endif
