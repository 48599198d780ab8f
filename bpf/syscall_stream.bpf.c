/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every entry into a system call, at the least possible cost: a raw tracepoint, which costs less
 * than a perf event, one read of the saved registers, and a small event.
 */
#include <uapi/linux/ptrace.h>

/* 28 bytes: with the length that perf puts before it, a multiple of 8 and so without padding. */
struct syscall_event {
	u64 arg0;
	u64 arg1;
	u32 pid;
	u32 tid;
	s32 nr;
} __attribute__((packed, aligned(4)));
#define COLLECTORD_EVENT struct syscall_event
#include "collectord.h"

/* Registers saved on entry: their layout is part of the architecture's user ABI. */
static inline void read_arguments(struct syscall_event *event, struct pt_regs *regs)
{
#ifdef __x86_64__
	u64 pair[2]; /* si and di are neighbours: one read for both */

	bpf_probe_read_kernel(pair, sizeof(pair), &regs->si);
	event->arg0 = pair[1];
	event->arg1 = pair[0];
#else
	u64 arg;

	bpf_probe_read_kernel(&arg, sizeof(arg), &PT_REGS_PARM1(regs));
	event->arg0 = arg;
	bpf_probe_read_kernel(&arg, sizeof(arg), &PT_REGS_PARM2(regs));
	event->arg1 = arg;
#endif
}

RAW_TRACEPOINT_PROBE(sys_enter)
{
	struct syscall_event event;
	s32 nr = ctx->args[1];
	u64 id;

	if (PARAMETER_NR >= 0 && nr != PARAMETER_NR)
		return 0;
	if (!collectord_open())
		return 0;
	id = bpf_get_current_pid_tgid();
	if (!collectord_wanted())
		return 0;
	event.arg0 = 0;
	event.arg1 = 0;
	if (PARAMETER_ARGUMENTS)
		read_arguments(&event, (struct pt_regs *)ctx->args[0]);
	event.pid = id >> 32;
	event.tid = id;
	event.nr = nr;
	collectord_submit(ctx, &event);
	return 0;
}
