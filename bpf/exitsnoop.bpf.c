/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Processes that end. The tracepoint is that of each thread; the last of a process is known by the
 * number of those that live, which the kernel has counted down before. Two that end at once may
 * both see none: the first to note the process reports it.
 */
#include <uapi/linux/ptrace.h>

#define GROUP_EXIT 4 /* SIGNAL_GROUP_EXIT: the whole process ends with one code */

struct exit_event {
	u64 lifetime_ns; /* since it was forked */
	u32 pid;
	u32 parent; /* the parent's pid */
	u32 uid;
	u32 code;   /* as given to exit(); 0 if a signal ended it */
	u32 signal; /* 0: none */
	u32 dumped; /* 1: with a core dump */
	char comm[16];
};
#define COLLECTORD_EVENT struct exit_event
#include "collectord.h"

struct life {
	u64 start_ns;
	u32 pid;
	u32 reserved;
};

/* Processes that were reported. */
BPF_TABLE("lru_hash", struct life, u32, ended, 4096);

#define READ_MEMBER(to, task, member) \
	bpf_probe_read_kernel(&(to), sizeof(to), (void *)((task) + COLLECTORD_AT_##member))

static inline bool is_first(u64 start_ns, u32 pid)
{
	struct life life = {.start_ns = start_ns, .pid = pid};
	u32 one = 1;

	return !ended.insert(&life, &one);
}

RAW_TRACEPOINT_PROBE(sched_process_exit)
{
	u64 task = bpf_get_current_task();
	u64 leader = 0, parent = 0, group = 0, start_ns = 0;
	struct exit_event event = {};
	s32 live = 0, code = 0;
	u32 flags = 0;

	READ_MEMBER(group, task, TASK_STRUCT_SIGNAL);
	READ_MEMBER(live, group, SIGNAL_STRUCT_LIVE);
	if (live || !collectord_wanted() || !collectord_open())
		return 0;
	READ_MEMBER(leader, task, TASK_STRUCT_GROUP_LEADER);
	READ_MEMBER(start_ns, leader, TASK_STRUCT_START_TIME);
	READ_MEMBER(flags, group, SIGNAL_STRUCT_FLAGS);
	if (flags & GROUP_EXIT)
		READ_MEMBER(code, group, SIGNAL_STRUCT_GROUP_EXIT_CODE);
	else
		READ_MEMBER(code, leader, TASK_STRUCT_EXIT_CODE);
	READ_MEMBER(parent, leader, TASK_STRUCT_REAL_PARENT);
	READ_MEMBER(event.parent, parent, TASK_STRUCT_TGID);
	event.pid = bpf_get_current_pid_tgid() >> 32;
	event.uid = bpf_get_current_uid_gid();
	event.lifetime_ns = bpf_ktime_get_ns() - start_ns;
	event.code = code >> 8 & 0xff;
	event.signal = code & 0x7f;
	event.dumped = code >> 7 & 1;
	bpf_get_current_comm(event.comm, sizeof(event.comm));
	if (PARAMETER_FAILED && !code)
		return 0;
	if (is_first(start_ns, event.pid))
		collectord_submit(ctx, &event);
	return 0;
}
