/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Questions to servers of DNS, and their answers, by UDP without extensions of IPv6 headers. A
 * question is seen when it is queued for sending, an answer when it comes in. The former is mostly
 * in the task that asks, the latter in any: it has that of its question.
 */
#include <uapi/linux/in.h>
#include <uapi/linux/ptrace.h>

#define NAME_BYTES 128
#define DNS_PORT 53
#define IPV6_BYTES 40
#define UDP_BYTES 8
#define DNS_BYTES 12
#define DNS_IS_ANSWER 0x80 /* of the first byte of the flags */
#define DNS_CODE 0x0f	   /* of the second */

struct dns_event {
	u64 latency_ns; /* of an answer; 0: its question was not seen */
	u8 server[16];	/* IPv4 is mapped into IPv6 */
	u32 pid;	/* who asked; 0: not known */
	u16 local_port; /* of who asked */
	u16 id;
	u16 code; /* of an answer: 0 is success, 3 that there is no such name */
	u16 reserved;
	u32 reserved_too;
	char kind[8]; /* "query", "answer" */
	char comm[16];
	char name[NAME_BYTES]; /* dots are between its parts; its first 127 bytes */
};
#define COLLECTORD_EVENT struct dns_event
#include "collectord.h"

struct question_key {
	u8 server[16];
	u16 local_port;
	u16 id;
};

struct question {
	u64 since_ns;
	u32 pid;
	u32 wanted;
	char comm[16];
};

/* Questions without an answer. One that has none stays until others evict it. */
BPF_TABLE("lru_hash", struct question_key, struct question, questions, 10240);
/* Too large for the stack. Softirqs are off where packets are queued, and do not nest. */
BPF_PERCPU_ARRAY(scratch, struct dns_event, 1);

struct datagram {
	u64 dns; /* address of the message */
	u8 from[16];
	u8 to[16];
	u16 source;
	u16 dest;
};

/* Find the UDP datagram behind an IP header; false if it is none. */
static inline bool parse(struct datagram *found, u64 ip)
{
	u8 first = 0, protocol = 0;
	u16 ports[2] = {};
	u64 udp;

	bpf_probe_read_kernel(&first, 1, (void *)ip);
	if (first >> 4 == 4) {
		bpf_probe_read_kernel(&protocol, 1, (void *)(ip + 9));
		found->from[10] = found->from[11] = found->to[10] = found->to[11] = 0xff;
		bpf_probe_read_kernel(&found->from[12], 4, (void *)(ip + 12));
		bpf_probe_read_kernel(&found->to[12], 4, (void *)(ip + 16));
		udp = ip + (first & 0xf) * 4;
	} else if (first >> 4 == 6) {
		bpf_probe_read_kernel(&protocol, 1, (void *)(ip + 6));
		bpf_probe_read_kernel(found->from, 16, (void *)(ip + 8));
		bpf_probe_read_kernel(found->to, 16, (void *)(ip + 24));
		udp = ip + IPV6_BYTES;
	} else {
		return false;
	}
	if (protocol != IPPROTO_UDP)
		return false;
	bpf_probe_read_kernel(ports, sizeof(ports), (void *)udp);
	found->source = bpf_ntohs(ports[0]);
	found->dest = bpf_ntohs(ports[1]);
	found->dns = udp + UDP_BYTES;
	return true;
}

/* Read the name of the first question: the length of each part is where its dot will be. */
static inline void read_name(struct dns_event *event, u64 dns)
{
	bool ended = false;
	u32 part = 0; /* bytes left of this part */

	bpf_probe_read_kernel(event->name, sizeof(event->name) - 1, (void *)(dns + DNS_BYTES + 1));
	bpf_probe_read_kernel(&part, 1, (void *)(dns + DNS_BYTES));
	for (u32 at = 0; at < NAME_BYTES - 1; at++) {
		if (ended) {
			event->name[at] = 0;
		} else if (part) {
			part--;
		} else {
			/* A part without a length ends the name: what is behind it is not told. */
			part = (u8)event->name[at];
			ended = !part;
			event->name[at] = part ? '.' : 0;
		}
	}
}

static inline void report(void *ctx, struct datagram *datagram, bool answer)
{
	struct question_key key = {};
	struct question fresh = {}, *question = &fresh;
	struct dns_event *event;
	u8 head[4] = {};
	u32 zero = 0;

	bpf_probe_read_kernel(head, sizeof(head), (void *)datagram->dns);
	if (!(head[2] & DNS_IS_ANSWER) == answer)
		return;
	key.id = head[0] << 8 | head[1];
	key.local_port = answer ? datagram->dest : datagram->source;
	__builtin_memcpy(key.server, answer ? datagram->from : datagram->to, sizeof(key.server));
	if (answer) {
		question = questions.lookup(&key);
	} else {
		fresh.since_ns = bpf_ktime_get_ns();
		fresh.pid = bpf_get_current_pid_tgid() >> 32;
		fresh.wanted = collectord_wanted();
		bpf_get_current_comm(fresh.comm, sizeof(fresh.comm));
		questions.update(&key, &fresh);
	}
	event = scratch.lookup(&zero);
	if (event && collectord_open() &&
	    (question ? question->wanted
		      : !(PARAMETER_PID || sizeof(PARAMETER_COMM) > 1 || PARAMETER_CGROUP ||
			  PARAMETER_UID >= 0))) {
		__builtin_memset(event, 0, sizeof(*event));
		if (question) {
			event->pid = question->pid;
			__builtin_memcpy(event->comm, question->comm, sizeof(event->comm));
			if (answer)
				event->latency_ns = bpf_ktime_get_ns() - question->since_ns;
		}
		__builtin_memcpy(event->server, key.server, sizeof(event->server));
		event->local_port = key.local_port;
		event->id = key.id;
		if (answer) {
			event->code = head[3] & DNS_CODE;
			__builtin_memcpy(event->kind, "answer", sizeof("answer"));
		} else {
			__builtin_memcpy(event->kind, "query", sizeof("query"));
		}
		read_name(event, datagram->dns);
		if (!PARAMETER_FAILED || event->code)
			collectord_submit(ctx, event);
	}
	if (answer && question)
		questions.delete(&key);
}

#define READ_MEMBER(to, from, member) \
	bpf_probe_read_kernel(&(to), sizeof(to), (void *)((from) + COLLECTORD_AT_##member))

/* args: the packet. Its IP header is where the kernel has noted it. */
RAW_TRACEPOINT_PROBE(net_dev_queue)
{
	struct datagram datagram = {};
	u64 head = 0;
	u16 at = 0;

	READ_MEMBER(head, ctx->args[0], SK_BUFF_HEAD);
	READ_MEMBER(at, ctx->args[0], SK_BUFF_NETWORK_HEADER);
	if (parse(&datagram, head + at) && datagram.dest == DNS_PORT)
		report(ctx, &datagram, false);
	return 0;
}

/* args: the packet, which begins with its IP header. */
RAW_TRACEPOINT_PROBE(netif_receive_skb)
{
	struct datagram datagram = {};
	u64 data = 0;

	READ_MEMBER(data, ctx->args[0], SK_BUFF_DATA);
	if (parse(&datagram, data) && datagram.source == DNS_PORT)
		report(ctx, &datagram, true);
	return 0;
}
