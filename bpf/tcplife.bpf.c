/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP sessions, each reported when it ends. A state often changes in a softirq, in a task
 * unrelated to the socket. Three changes are made by system calls: connect() makes the step to
 * SYN_SENT, close() or shutdown() those to FIN_WAIT1 and LAST_ACK. They identify the socket's
 * owner; a process that accepts a connection is known by the latter only.
 */
#include <uapi/linux/in.h>
#include <uapi/linux/ptrace.h>

/* The tracepoint's states: part of the kernel's ABI through TCP_INFO. */
enum {
	STATE_ESTABLISHED = 1,
	STATE_SYN_SENT = 2,
	STATE_SYN_RECV = 3,
	STATE_FIN_WAIT1 = 4,
	STATE_CLOSE = 7,
	STATE_LAST_ACK = 9,
	STATE_LISTEN = 10,
};

struct tcp_event {
	u64 duration_ns;      /* since the connection was established; 0 if that was missed */
	u64 connect_ns;	      /* from connect() until then, or until it failed; 0 if not seen */
	u8 local_address[16]; /* IPv4 is mapped into IPv6 */
	u8 remote_address[16];
	u16 local_port;
	u16 remote_port;
	u16 family;
	u16 last_state; /* before it closed */
	u32 pid;	/* 0: not known */
	u32 uid;
	char comm[16];
	char direction[8]; /* "out", "in", "" if not known */
	char pid_from[8];  /* "connect", "close", "" if not known */
};
#define COLLECTORD_EVENT struct tcp_event
#include "collectord.h"

struct session {
	u64 connect_ns;	    /* when connect() began; 0: not seen */
	u64 established_ns; /* when it was; 0: not seen */
	u32 pid;
	u32 uid;
	u32 wanted; /* whether its owner passes the filters */
	char comm[16];
	char direction[8];
	char pid_from[8];
};

#define OF_SOME \
	(PARAMETER_PID || PARAMETER_UID >= 0 || sizeof(PARAMETER_COMM) > 1 || PARAMETER_CGROUP)

/*
 * Sessions by the socket's address, which is reused once it has closed. One whose end was missed
 * stays until then, or until others evict it. If there are more sessions than entries, the least
 * recently used are forgotten, and end as if they were older than the program.
 */
BPF_TABLE("lru_hash", u64, struct session, sessions, PARAMETER_SESSIONS);
/* Sessions whose beginning was missed: they have no duration. */
BPF_PERCPU_ARRAY(unmatched, u64, 1);

static inline void set_owner(struct session *session)
{
	session->pid = bpf_get_current_pid_tgid() >> 32;
	session->uid = bpf_get_current_uid_gid();
	bpf_get_current_comm(session->comm, sizeof(session->comm));
	session->wanted = collectord_wanted();
}

static inline void begin_out(u64 socket)
{
	struct session session = {
		.connect_ns = bpf_ktime_get_ns(),
		.direction = "out",
		.pid_from = "connect",
	};

	set_owner(&session);
	sessions.update(&socket, &session);
}

static inline void establish(u64 socket, int old_state)
{
	struct session session = {.direction = "in"};
	struct session *known = sessions.lookup(&socket);
	u64 now = bpf_ktime_get_ns();

	if (known) {
		known->established_ns = now;
		return;
	}
	if (old_state == STATE_SYN_SENT)
		__builtin_memcpy(session.direction, "out", sizeof("out"));
	session.established_ns = now;
	sessions.update(&socket, &session);
}

static inline void close_by_owner(u64 socket)
{
	struct session session = {.pid_from = "close"};
	struct session *known = sessions.lookup(&socket);

	if (!known) {
		set_owner(&session);
		sessions.update(&socket, &session);
	} else if (!known->pid) {
		__builtin_memcpy(known->pid_from, "close", sizeof("close"));
		set_owner(known);
	}
}

/* The filters of tasks are of the owner; where one is given, a session of nobody known has none. */
static inline bool is_wanted(struct tcp_event *event, struct session *session)
{
	if (OF_SOME && !(session && session->wanted))
		return false;
	if (!collectord_ports_wanted(event->local_port, event->remote_port))
		return false;
	return event->duration_ns >= PARAMETER_MIN_DURATION;
}

static inline void take(struct tcp_event *event, struct session *session)
{
	u64 now = bpf_ktime_get_ns();

	if (session->established_ns)
		event->duration_ns = now - session->established_ns;
	if (session->connect_ns) {
		u64 until = session->established_ns ? session->established_ns : now;

		event->connect_ns = until - session->connect_ns;
	}
	event->pid = session->pid;
	event->uid = session->uid;
	__builtin_memcpy(event->comm, session->comm, sizeof(event->comm));
	__builtin_memcpy(event->direction, session->direction, sizeof(event->direction));
	__builtin_memcpy(event->pid_from, session->pid_from, sizeof(event->pid_from));
}

TRACEPOINT_PROBE(sock, inet_sock_set_state)
{
	u64 socket = (u64)args->skaddr;
	struct tcp_event event = {};
	struct session *session;
	int old_state = args->oldstate;
	bool failed;

	if (args->protocol != IPPROTO_TCP)
		return 1;
	switch (args->newstate) {
	case STATE_SYN_SENT:
		begin_out(socket);
		return 1;
	case STATE_SYN_RECV:
		/* A new socket, or SYN_SENT before it, where both sides connect at once. */
		if (old_state == STATE_LISTEN)
			sessions.delete(&socket);
		return 1;
	case STATE_ESTABLISHED:
		establish(socket, old_state);
		return 1;
	case STATE_FIN_WAIT1:
	case STATE_LAST_ACK:
		close_by_owner(socket);
		return 1;
	case STATE_CLOSE:
		break;
	default:
		return 1;
	}

	failed = old_state == STATE_SYN_SENT || old_state == STATE_SYN_RECV;
	session = sessions.lookup(&socket);
	/* A listening socket, or one without a connection, has no session to end. */
	if (old_state != STATE_LISTEN && old_state != STATE_CLOSE &&
	    (!failed || PARAMETER_FAILED) && collectord_open()) {
		if (session)
			take(&event, session);
		event.family = args->family;
		event.last_state = old_state;
		event.local_port = args->sport;
		event.remote_port = args->dport;
		bpf_probe_read_kernel(event.local_address, sizeof(event.local_address),
				      args->saddr_v6);
		bpf_probe_read_kernel(event.remote_address, sizeof(event.remote_address),
				      args->daddr_v6);
		if (is_wanted(&event, session)) {
			if (!failed && !event.duration_ns)
				unmatched.increment(0);
			collectord_submit(args, &event);
		}
	}
	if (session)
		sessions.delete(&socket);
	return 1;
}
