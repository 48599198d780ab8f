/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Segments that TCP sends again. A timer or the peer's answer makes it do so, in a task unrelated to
 * the socket: nobody's pid is known.
 */
#include <uapi/linux/ptrace.h>

struct retransmit_event {
	u8 local_address[16]; /* IPv4 is mapped into IPv6 */
	u8 remote_address[16];
	u16 local_port;
	u16 remote_port;
	u16 family;
	u16 state;
};
#define COLLECTORD_EVENT struct retransmit_event
#include "collectord.h"

TRACEPOINT_PROBE(tcp, tcp_retransmit_skb)
{
	struct retransmit_event event = {};

	if (!collectord_ports_wanted(args->sport, args->dport))
		return 1;
	event.family = args->family;
	event.state = args->state;
	event.local_port = args->sport;
	event.remote_port = args->dport;
	bpf_probe_read_kernel(event.local_address, sizeof(event.local_address), args->saddr_v6);
	bpf_probe_read_kernel(event.remote_address, sizeof(event.remote_address), args->daddr_v6);
	collectord_submit(args, &event);
	return 1;
}
