/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A flight recorder of what runs, waits and is read or written: each record stands for a tracepoint,
 * with its fields, but has no names of tasks: the daemon records these as they change. What happens
 * most often has raw tracepoints.
 */
#include <uapi/linux/ptrace.h>

struct switch_record {
	s32 prev_pid;
	s32 next_pid;
	u32 prev_state;
};

struct wakeup_record {
	s32 pid;
	s32 target_cpu;
	s32 tid; /* who woke it, or was interrupted by what did */
};

struct issue_record {
	u64 sector;
	u32 dev;
	u32 nr_sector;
	u32 bytes;
	s32 tid;
	char rwbs[8];
};

struct complete_record {
	u64 sector;
	u32 dev;
	u32 nr_sector;
	s32 error;
	s32 tid;
	char rwbs[8];
};

struct exec_record {
	s32 pid;
	s32 old_pid;
	char filename[104];
};

struct exit_record {
	s32 pid;
	s32 prio;
	s32 process;
};

struct victim_record {
	s32 pid;
	s32 tid; /* whose allocation found no memory */
	s32 process;
};
#include "collectord.h"

/* The kernel's states (include/linux/sched.h), of which tracepoints show the highest. */
#define SHOWN 0x7f
#define DEAD 0x80     /* shown is what exit_state says */
#define NO_LOAD 0x402 /* idle: shown as 0x80 */
#define WAITS_FOR_LOCK 0x1000
#define PREEMPTED 0x100

static inline u32 shown_state(bool preempted, u64 task, u32 state)
{
	u32 exit_state = 0;

	if (preempted)
		return PREEMPTED;
	if ((state & NO_LOAD) == NO_LOAD)
		return 0x80;
	if (state & WAITS_FOR_LOCK)
		return 2;
	if (state & DEAD)
		bpf_probe_read_kernel(&exit_state, sizeof(exit_state),
				      (void *)(task + COLLECTORD_AT_TASK_STRUCT_EXIT_STATE));
	return (state | exit_state) & SHOWN;
}

/* args: whether it was preempted, the task that leaves, the one that comes, state of the former. */
RAW_TRACEPOINT_PROBE(sched_switch)
{
	struct switch_record record = {};

	record.prev_pid = (u32)bpf_get_current_pid_tgid();
	record.prev_state = shown_state((u8)ctx->args[0], ctx->args[1], (u32)ctx->args[3]);
	bpf_probe_read_kernel(&record.next_pid, sizeof(record.next_pid),
			      (void *)(ctx->args[2] + COLLECTORD_AT_TASK_STRUCT_PID));
	collectord_keep(switch_record, &record);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_wakeup)
{
	struct wakeup_record record = {};

	bpf_probe_read_kernel(&record.pid, sizeof(record.pid),
			      (void *)(ctx->args[0] + COLLECTORD_AT_TASK_STRUCT_PID));
	bpf_probe_read_kernel(&record.target_cpu, sizeof(record.target_cpu),
			      (void *)(ctx->args[0] + COLLECTORD_AT_TASK_STRUCT_THREAD_INFO +
				       COLLECTORD_AT_THREAD_INFO_CPU));
	record.tid = (u32)bpf_get_current_pid_tgid();
	collectord_keep(wakeup_record, &record);
	return 0;
}

TRACEPOINT_PROBE(block, block_rq_issue)
{
	struct issue_record record = {};

	record.sector = args->sector;
	record.dev = args->dev;
	record.nr_sector = args->nr_sector;
	record.bytes = args->bytes;
	record.tid = (u32)bpf_get_current_pid_tgid();
	bpf_probe_read_kernel(record.rwbs, sizeof(record.rwbs), args->rwbs);
	collectord_keep(issue_record, &record);
	return 1;
}

TRACEPOINT_PROBE(block, block_rq_complete)
{
	struct complete_record record = {};

	record.sector = args->sector;
	record.dev = args->dev;
	record.nr_sector = args->nr_sector;
	record.error = args->error;
	record.tid = (u32)bpf_get_current_pid_tgid();
	bpf_probe_read_kernel(record.rwbs, sizeof(record.rwbs), args->rwbs);
	collectord_keep(complete_record, &record);
	return 1;
}

TRACEPOINT_PROBE(sched, sched_process_exec)
{
	struct exec_record record = {};

	record.pid = args->pid;
	record.old_pid = args->old_pid;
	bpf_probe_read_kernel_str(record.filename, sizeof(record.filename),
				  (char *)args + (args->data_loc_filename & 0xffff));
	collectord_keep(exec_record, &record);
	return 1;
}

TRACEPOINT_PROBE(sched, sched_process_exit)
{
	struct exit_record record = {};

	record.pid = args->pid;
	record.prio = args->prio;
	record.process = bpf_get_current_pid_tgid() >> 32;
	collectord_keep(exit_record, &record);
	return 1;
}

TRACEPOINT_PROBE(oom, mark_victim)
{
	struct victim_record record = {};
	u64 id = bpf_get_current_pid_tgid();

	record.pid = args->pid;
	record.tid = (u32)id;
	record.process = id >> 32;
	collectord_keep(victim_record, &record);
	return 1;
}
