/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Victims of the OOM killer. Older kernels report only a victim's pid, so its name is taken from
 * the SIGKILL that the same task has just sent it.
 */
#include <uapi/linux/signal.h>

struct oom_event {
	u32 pid;	 /* of the victim */
	u32 trigger_pid; /* of the process whose allocation found no memory */
	u32 trigger_tid;
	u32 trigger_uid;
	char comm[16]; /* of the victim; "" if it was ending anyway */
	char trigger_comm[16];
};
#define COLLECTORD_EVENT struct oom_event
#include "collectord.h"

struct killed {
	u32 pid;
	char comm[16];
};

/* The last SIGKILL of each thread. One with another cause stays until others evict it. */
BPF_TABLE("lru_hash", u64, struct killed, last_killed, 1024);

TRACEPOINT_PROBE(signal, signal_generate)
{
	u64 id = bpf_get_current_pid_tgid();
	struct killed killed = {};

	if (args->sig != SIGKILL)
		return 1;
	killed.pid = args->pid;
	bpf_probe_read_kernel(killed.comm, sizeof(killed.comm), args->comm);
	last_killed.update(&id, &killed);
	return 1;
}

TRACEPOINT_PROBE(oom, mark_victim)
{
	u64 id = bpf_get_current_pid_tgid();
	struct killed *killed = last_killed.lookup(&id);
	struct oom_event event = {};

	event.pid = args->pid;
	event.trigger_pid = id >> 32;
	event.trigger_tid = id;
	event.trigger_uid = bpf_get_current_uid_gid();
	bpf_get_current_comm(event.trigger_comm, sizeof(event.trigger_comm));
	if (killed && killed->pid == event.pid) {
		__builtin_memcpy(event.comm, killed->comm, sizeof(event.comm));
		last_killed.delete(&id);
	} else if (event.pid == event.trigger_tid) {
		__builtin_memcpy(event.comm, event.trigger_comm, sizeof(event.comm));
	}
	collectord_submit(args, &event);
	return 1;
}
