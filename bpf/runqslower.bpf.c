/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tasks that waited long for a CPU, each reported when it gets one. A task is identified by the
 * address of its task_struct, which raw tracepoints pass; its ids and its name are read from there,
 * as the helpers return those of the task that leaves.
 */
#include <uapi/linux/errno.h>

struct slow_event {
	u64 waited_ns;
	u32 pid;
	u32 tid;
	u32 previous_pid; /* what ran on that CPU before */
	u32 previous_tid;
	char comm[16];
	char previous_comm[16];
};
#define COLLECTORD_EVENT struct slow_event
#include "collectord.h"

/* The time when a task became runnable, by the address of its task_struct. */
BPF_HASH(waiting, u64, u64, PARAMETER_MAX_TASKS);
/* Waits that could not be followed, because max_tasks others were. */
BPF_PERCPU_ARRAY(untracked, u64, 1);

static inline void begin(u64 task, u64 now_ns, bool anew)
{
	int error = anew ? waiting.update(&task, &now_ns) : waiting.insert(&task, &now_ns);

	if (error && error != -EEXIST && collectord_open())
		untracked.increment(0);
}

static inline bool is_wanted(struct slow_event *event)
{
	return (!PARAMETER_PID || event->pid == PARAMETER_PID) &&
	       (!PARAMETER_TID || event->tid == PARAMETER_TID) &&
	       collectord_comm_wanted(event->comm);
}

/* A task that already waits continues to wait: it can be woken after it was taken off its CPU. */
RAW_TRACEPOINT_PROBE(sched_wakeup)
{
	begin(ctx->args[0], bpf_ktime_get_ns(), false);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_wakeup_new)
{
	begin(ctx->args[0], bpf_ktime_get_ns(), true);
	return 0;
}

/* args: whether it was preempted, the task that leaves, the one that comes, state of the former. */
RAW_TRACEPOINT_PROBE(sched_switch)
{
	u64 task = ctx->args[1], next = ctx->args[2];
	u64 now_ns = bpf_ktime_get_ns();
	u64 id = bpf_get_current_pid_tgid();
	struct slow_event event = {};
	u64 *start_ns;

	if ((u32)id) { /* the idle task of each CPU never waits */
		if ((u8)ctx->args[0] || !(u32)ctx->args[3])
			begin(task, now_ns, true);
		else
			waiting.delete(&task);
	}
	start_ns = waiting.lookup(&next);
	if (!start_ns)
		return 0;
	event.waited_ns = now_ns - *start_ns;
	waiting.delete(&next);
	if (event.waited_ns < PARAMETER_MIN_WAIT || !collectord_open())
		return 0;
	bpf_probe_read_kernel(&event.pid, sizeof(event.pid),
			      (void *)(next + COLLECTORD_AT_TASK_STRUCT_TGID));
	bpf_probe_read_kernel(&event.tid, sizeof(event.tid),
			      (void *)(next + COLLECTORD_AT_TASK_STRUCT_PID));
	bpf_probe_read_kernel(event.comm, sizeof(event.comm),
			      (void *)(next + COLLECTORD_AT_TASK_STRUCT_COMM));
	event.previous_pid = id >> 32;
	event.previous_tid = id;
	bpf_get_current_comm(event.previous_comm, sizeof(event.previous_comm));
	if (is_wanted(&event))
		collectord_submit(ctx, &event);
	return 0;
}
