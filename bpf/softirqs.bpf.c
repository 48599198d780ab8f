/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How often softirqs ran, and how long each took, by their number. None runs inside another on the same
 * CPU: plain adds are exact in maps per CPU. What interrupts one counts for it too.
 */
#include <uapi/linux/ptrace.h>
#include "collectord.h"

struct softirq {
	u32 number;
};

struct slot_key {
	struct softirq of;
	u32 slot;
};

struct softirq_time {
	u64 times;
	u64 ns;
};

struct run {
	u64 start_ns; /* 0: none runs, or it began before the attachment */
	struct softirq what;
};

BPF_PERCPU_ARRAY(running, struct run, 1);
BPF_PERCPU_HASH(totals, struct softirq, struct softirq_time, 16);
/* Slots of bpf_log2l() of microseconds. */
BPF_PERCPU_HASH(latency, struct slot_key, u64, 256);

static inline void record(struct softirq *what, u64 ns)
{
	struct slot_key key = {.of = *what, .slot = bpf_log2l(ns / 1000)};
	struct softirq_time none = {}, *time;
	u64 zero = 0, *count;

	time = totals.lookup_or_try_init(what, &none);
	if (!time)
		return;
	time->times++;
	time->ns += ns;
	count = latency.lookup_or_try_init(&key, &zero);
	if (count)
		++*count;
}

/* args: the number. */
RAW_TRACEPOINT_PROBE(softirq_entry)
{
	u32 zero = 0;
	struct run *run = running.lookup(&zero);

	if (!run)
		return 0;
	run->start_ns = collectord_open() ? bpf_ktime_get_ns() : 0;
	run->what.number = ctx->args[0];
	return 0;
}

RAW_TRACEPOINT_PROBE(softirq_exit)
{
	u32 zero = 0;
	struct run *run = running.lookup(&zero);

	if (!run || !run->start_ns)
		return 0;
	if (run->what.number == (u32)ctx->args[0] && collectord_open())
		record(&run->what, bpf_ktime_get_ns() - run->start_ns);
	run->start_ns = 0;
	return 0;
}
