/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The times that runnable tasks waited for a CPU: from the wake-up, or from the preemption of a
 * running task, until it got a CPU.
 *
 * A task is identified by the address of its task_struct, which raw tracepoints pass; no member of
 * it is read. Ids come from the helpers, which return those of the leaving task. So with a filter
 * a wait is counted when the task leaves the CPU that it had waited for, and without one when it
 * gets it. Both happen on that CPU, whose gate must be open from when the task gets it until the
 * wait is counted. Waits are followed on all CPUs: they often begin on another one.
 *
 * All of this runs under a lock of the scheduler with interrupts off, and no program runs inside
 * another on the same CPU: plain adds are exact in maps per CPU.
 */
#include <uapi/linux/errno.h>
#include "collectord.h"

#define FILTERED (PARAMETER_PID || PARAMETER_TID || sizeof(PARAMETER_COMM) > 1 || PARAMETER_CGROUP)

/* The task that got a CPU last, as far as switches are seen. */
struct run {
	u64 task; /* 0 if the gate was closed then, and before the first switch */
	u64 waited_ns;
	u64 known; /* whether the start of its wait is known */
};

struct runqlat_counts {
	u64 waits;     /* waits in the histogram */
	u64 unmatched; /* waits whose start or end was missed, for example untracked ones */
	u64 untracked; /* starts of waits, of any task, without room in `waiting` */
};

/* The time when a task became runnable, by the address of its task_struct. */
BPF_HASH(waiting, u64, u64, PARAMETER_MAX_TASKS);
BPF_PERCPU_ARRAY(running, struct run, 1);
/* Slots of bpf_log2l() of microseconds. */
BPF_PERCPU_ARRAY(latency, u64, 64);
/* 0: sum of all waits in whole us; 1: the same in ns, from which it is made. */
BPF_PERCPU_ARRAY(latency_sum, u64, 2);
BPF_PERCPU_ARRAY(counts, struct runqlat_counts, 1);

static inline void count_untracked(void)
{
	u32 zero = 0;
	struct runqlat_counts *found = counts.lookup(&zero);

	if (found && collectord_open())
		found->untracked++;
}

static inline void count_unmatched(void)
{
	u32 zero = 0;
	struct runqlat_counts *found = counts.lookup(&zero);

	if (found)
		found->unmatched++;
}

static inline void record(u64 waited_ns)
{
	u32 zero = 0, one = 1;
	struct runqlat_counts *found = counts.lookup(&zero);
	u64 *sum_us = latency_sum.lookup(&zero);
	u64 *sum_ns = latency_sum.lookup(&one);
	u32 slot = bpf_log2l(waited_ns / 1000);
	u64 *number = latency.lookup(&slot);

	if (!found || !sum_us || !sum_ns || !number)
		return; /* impossible: they are arrays, and slots end at 55 */
	found->waits++;
	*number += 1;
	*sum_ns += waited_ns;
	*sum_us = *sum_ns / 1000;
}

/* A task that already waits continues to wait: it can be woken after it was taken off its CPU. */
RAW_TRACEPOINT_PROBE(sched_wakeup)
{
	u64 task = ctx->args[0];
	u64 now_ns = bpf_ktime_get_ns();
	int error = waiting.insert(&task, &now_ns);

	if (error && error != -EEXIST)
		count_untracked();
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_wakeup_new)
{
	u64 task = ctx->args[0];
	u64 now_ns = bpf_ktime_get_ns();

	if (waiting.update(&task, &now_ns))
		count_untracked();
	return 0;
}

/* Note that the current task leaves. The idle task of each CPU has the id 0, and never waits. */
static inline void leave(u64 task, bool runnable, struct run *run, bool open, u64 now_ns)
{
	u64 id = bpf_get_current_pid_tgid();

	if ((u32)id == 0)
		return;
	if (open && run->task && collectord_wanted()) {
		if (run->task != task || !run->known)
			count_unmatched();
		else if (FILTERED)
			record(run->waited_ns);
	}
	if (!runnable)
		waiting.delete(&task); /* from a wake-up that came while it ran */
	else if (waiting.update(&task, &now_ns))
		count_untracked();
}

/* args: whether it was preempted, the task that leaves, the one that comes, state of the former. */
RAW_TRACEPOINT_PROBE(sched_switch)
{
	u64 next = ctx->args[2];
	u64 now_ns = bpf_ktime_get_ns();
	u32 zero = 0;
	struct run *run = running.lookup(&zero);
	bool open = collectord_open();
	bool runnable = (u8)ctx->args[0] || !(u32)ctx->args[3];
	u64 *start_ns;

	if (!run)
		return 0;
	leave(ctx->args[1], runnable, run, open, now_ns);
	run->task = open ? next : 0;
	run->known = 0;
	start_ns = waiting.lookup(&next);
	if (!start_ns)
		return 0;
	run->known = 1;
	run->waited_ns = now_ns - *start_ns;
	waiting.delete(&next);
	if (open && !FILTERED)
		record(run->waited_ns);
	return 0;
}
