/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Attempts to connect by TCP, each reported when it is decided. connect() makes the step to
 * SYN_SENT, in the task that calls it; the answer is often handled in a softirq, in a task unrelated
 * to the socket.
 */
#include <uapi/linux/in.h>
#include <uapi/linux/ptrace.h>

/* The tracepoint's states: part of the kernel's ABI through TCP_INFO. */
enum {
	STATE_ESTABLISHED = 1,
	STATE_SYN_SENT = 2,
};

struct connect_event {
	u64 latency_ns;	      /* from connect() to the answer, or until it was given up */
	u8 local_address[16]; /* IPv4 is mapped into IPv6 */
	u8 remote_address[16];
	u16 local_port;
	u16 remote_port;
	u16 family;
	u16 established; /* 0: it was not */
	u32 pid;
	u32 tid;
	u32 uid;
	s32 result; /* 0, or the negative errno of the socket */
	char comm[16];
};
#define COLLECTORD_EVENT struct connect_event
#include "collectord.h"

struct attempt {
	u64 begin_ns;
	u32 pid;
	u32 tid;
	u32 uid;
	u32 wanted;
	char comm[16];
};

/* Attempts by the socket's address. One whose end was missed stays until others evict it. */
BPF_TABLE("lru_hash", u64, struct attempt, attempts, PARAMETER_ATTEMPTS);
/* Answers to attempts whose beginning was missed, and so are not reported. */
BPF_PERCPU_ARRAY(unmatched, u64, 1);

static inline void begin(u64 socket)
{
	u64 id = bpf_get_current_pid_tgid();
	struct attempt attempt = {
		.begin_ns = bpf_ktime_get_ns(),
		.pid = id >> 32,
		.tid = id,
		.uid = bpf_get_current_uid_gid(),
		.wanted = collectord_wanted(),
	};

	bpf_get_current_comm(attempt.comm, sizeof(attempt.comm));
	attempts.update(&socket, &attempt);
}

TRACEPOINT_PROBE(sock, inet_sock_set_state)
{
	u64 socket = (u64)args->skaddr;
	struct connect_event event = {};
	struct attempt *attempt;
	s32 error = 0;

	if (args->protocol != IPPROTO_TCP)
		return 1;
	if (args->newstate == STATE_SYN_SENT) {
		begin(socket);
		return 1;
	}
	if (args->oldstate != STATE_SYN_SENT)
		return 1;
	attempt = attempts.lookup(&socket);
	if (!attempt) {
		if (collectord_open())
			unmatched.increment(0);
		return 1;
	}
	event.established = args->newstate == STATE_ESTABLISHED;
	if (attempt->wanted && collectord_ports_wanted(args->sport, args->dport) &&
	    (!PARAMETER_FAILED || !event.established) && collectord_open()) {
		event.latency_ns = bpf_ktime_get_ns() - attempt->begin_ns;
		event.family = args->family;
		event.local_port = args->sport;
		event.remote_port = args->dport;
		bpf_probe_read_kernel(event.local_address, sizeof(event.local_address),
				      args->saddr_v6);
		bpf_probe_read_kernel(event.remote_address, sizeof(event.remote_address),
				      args->daddr_v6);
		if (!event.established)
			bpf_probe_read_kernel(&error, sizeof(error),
					      (void *)(socket + COLLECTORD_AT_SOCK_SK_ERR));
		event.result = -error;
		event.pid = attempt->pid;
		event.tid = attempt->tid;
		event.uid = attempt->uid;
		__builtin_memcpy(event.comm, attempt->comm, sizeof(event.comm));
		collectord_submit(args, &event);
	}
	attempts.delete(&socket);
	return 1;
}
