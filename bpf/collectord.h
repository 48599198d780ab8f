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
 * BCC rewrites methods of maps in plain text of the main file only. So this file is put into the
 * program's text where the #include stands, and no method hides in a macro.
 */

/*
 * Filters that programs have in common: a manifest lists those of its program, for example filters =
 * ["pid", "comm"], and what is not listed costs nothing.
 */

#ifdef COLLECTORD_FILTER_COMM
/*
 * Of a task's name, 16 bytes. COLLECTORD_FILTER_COMM() compares byte by byte with numbers: BCC gives
 * programs no texts in memory.
 */
static inline bool collectord_comm_wanted(const char *comm)
{
	return COLLECTORD_FILTER_COMM(comm);
}
#endif

#ifdef COLLECTORD_FILTER_PATH
/* Of a path, in more than 128 bytes. */
static inline bool collectord_path_wanted(const char *path)
{
	return COLLECTORD_FILTER_PATH(path);
}
#endif

#ifdef COLLECTORD_FILTER_REMOTE_PORT
/* Of a connection's ports as numbers of this machine. */
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

#ifdef COLLECTORD_EVENT
#include <uapi/linux/errno.h>

/*
 * Attempts to submit on one CPU, and those of them that failed, by what the kernel answered.
 * The sum of the failures never exceeds the attempts, and attempts - failures is what the ring got.
 */
struct collectord_counts {
	u64 attempts;
	u64 no_space;	/* ENOSPC: the ring was full; a perf ring's kernel counts it as lost too */
	u64 busy;	/* EBUSY: nested deeper than the kernel has room for */
	u64 no_ring;	/* ENOENT, EOPNOTSUPP: this CPU has no ring, or none that runs */
	u64 refused;	/* any other */
	u64 asleep;	/* bytes since this CPU has woken the daemon; of a ring buffer only */
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
	u64 ip;		/* nobody's: perf's would be the kernel's own */
	u32 pid;
	u32 tid;
	u64 time;	/* CLOCK_MONOTONIC, as the clock of perf's events is */
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
