/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tells who wakes tasks that wait, and how long they had waited, by the waker's stack. A task is
 * identified by the address of its task_struct, which raw tracepoints pass; no member of it is
 * read: what is known of it is noted when it leaves its CPU.
 */
#include <uapi/linux/errno.h>
#include "collectord.h"

/* Frames of this program and its callers, up to the one that wakes. */
#define KERNEL_SKIP 3

/* A task that blocks. */
struct sleeper {
	u64 since_ns;
	u32 tgid;
	u32 tid;
	char comm[16];
};

struct wakeup_key {
	char comm[16];	     /* of the task that waited */
	char waker_comm[16]; /* of the current task; an interrupt may have been the waker */
	u32 pid;	     /* of the task that waited */
	s32 kernel_stack_id; /* of the waker */
};

struct wakeup_time {
	u64 us;
	u64 times;
};

struct wakeuptime_counts {
	u64 times; /* waits that ended with a wake-up */
	u64 ns;
	u64 untracked;	 /* waits of any wanted task without room in `sleepers` */
	u64 unrecorded;	 /* waits without room in `wakeups` */
	u64 stacks_lost; /* stacks without a place, or that the kernel could not take */
};

BPF_HASH(sleepers, u64, struct sleeper, PARAMETER_MAX_TASKS);
BPF_HASH(wakeups, struct wakeup_key, struct wakeup_time, PARAMETER_MAX_ENTRIES);
BPF_STACK_TRACE(stacks, PARAMETER_MAX_STACKS);
BPF_PERCPU_ARRAY(counts, struct wakeuptime_counts, 1);

/* args: whether it was preempted, the task that leaves, the one that comes, state of the former. */
RAW_TRACEPOINT_PROBE(sched_switch)
{
	u64 task = ctx->args[1], id = bpf_get_current_pid_tgid();
	struct sleeper sleeper = {.tgid = id >> 32, .tid = id};
	struct wakeuptime_counts *found;
	u32 zero = 0;

	if ((u8)ctx->args[0] || !(u32)ctx->args[3]) {
		sleepers.delete(&task);
		return 0;
	}
	if (!sleeper.tid || !collectord_wanted())
		return 0;
	sleeper.since_ns = bpf_ktime_get_ns();
	bpf_get_current_comm(&sleeper.comm, sizeof(sleeper.comm));
	if (!sleepers.update(&task, &sleeper) || !collectord_open())
		return 0;
	found = counts.lookup(&zero);
	if (found)
		__sync_fetch_and_add(&found->untracked, 1);
	return 0;
}

static inline void record(struct bpf_raw_tracepoint_args *ctx, struct sleeper *sleeper)
{
	struct wakeup_key key = {.pid = sleeper->tgid};
	struct wakeup_time none = {}, *time;
	struct wakeuptime_counts *found;
	u64 ns = bpf_ktime_get_ns() - sleeper->since_ns;
	u32 zero = 0;

	found = counts.lookup(&zero);
	if (!found || ns < PARAMETER_MIN_TIME)
		return;
	/* An interrupt may wake another one while this counts on the same CPU. */
	__sync_fetch_and_add(&found->times, 1);
	__sync_fetch_and_add(&found->ns, ns);
	__builtin_memcpy(key.comm, sleeper->comm, sizeof(key.comm));
	bpf_get_current_comm(&key.waker_comm, sizeof(key.waker_comm));
	key.kernel_stack_id = stacks.get_stackid(ctx, KERNEL_SKIP);
	if (key.kernel_stack_id < 0)
		__sync_fetch_and_add(&found->stacks_lost, 1);
	time = wakeups.lookup(&key);
	if (!time) {
		wakeups.insert(&key, &none);
		time = wakeups.lookup(&key);
	}
	if (!time) {
		__sync_fetch_and_add(&found->unrecorded, 1);
		return;
	}
	__sync_fetch_and_add(&time->us, (ns + 500) / 1000);
	__sync_fetch_and_add(&time->times, 1);
}

/* args: the task that is woken. It runs in the waker, on the waker's CPU. */
RAW_TRACEPOINT_PROBE(sched_waking)
{
	u64 task = ctx->args[0];
	struct sleeper *sleeper = sleepers.lookup(&task);

	if (!sleeper)
		return 0;
	if (collectord_open())
		record(ctx, sleeper);
	sleepers.delete(&task);
	return 0;
}
