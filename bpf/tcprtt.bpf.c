/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Round-trip times of TCP as the kernel smooths them, whenever a segment comes in on an established
 * connection. What comes in is handled in a task unrelated to the socket: nobody's pid is known.
 */
#include <uapi/linux/in6.h>
#include <uapi/linux/ptrace.h>
#include "collectord.h"

#define FAMILY_IPV6 10

struct peer {
	u8 address[16]; /* IPv4 is mapped into IPv6 */
};

struct slot_key {
	struct peer peer;
	u32 slot;
};

struct rtt_time {
	u64 segments;
	u64 us;
};

/* Slots of bpf_log2l() of microseconds. */
BPF_HASH(rtt, struct slot_key, u64, 65536);
BPF_HASH(peers, struct peer, struct rtt_time, 8192);

static inline void set_peer(struct peer *peer, const void *address, u16 family)
{
	if (family == FAMILY_IPV6) {
		bpf_probe_read_kernel(peer->address, 16,
				      address + offsetof(struct sockaddr_in6, sin6_addr));
		return;
	}
	peer->address[10] = 0xff;
	peer->address[11] = 0xff;
	bpf_probe_read_kernel(&peer->address[12], 4, address + 4); /* of a sockaddr_in */
}

TRACEPOINT_PROBE(tcp, tcp_probe)
{
	struct rtt_time none = {}, *time;
	struct slot_key key = {};
	u64 zero = 0, *count;
	u32 us = args->srtt;

	if (!collectord_open() || !collectord_ports_wanted(args->sport, args->dport))
		return 1;
	if (PARAMETER_BY_PEER)
		set_peer(&key.peer, args->daddr, args->family);
	key.slot = bpf_log2l(us);
	time = peers.lookup_or_try_init(&key.peer, &none);
	count = rtt.lookup_or_try_init(&key, &zero);
	if (!time || !count)
		return 1;
	/* Both a task and a softirq may receive on one CPU. */
	__sync_fetch_and_add(&time->segments, 1);
	__sync_fetch_and_add(&time->us, us);
	__sync_fetch_and_add(count, 1);
	return 1;
}
