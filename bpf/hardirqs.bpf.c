/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How often handlers of interrupts ran, and how long each took, by number and name. None runs inside
 * another on the same CPU: plain adds are exact in maps per CPU.
 */
#include <uapi/linux/ptrace.h>
#include "collectord.h"

struct hardirq {
	char name[32]; /* as in /proc/interrupts */
	u32 number;
};

struct slot_key {
	struct hardirq of;
	u32 slot;
};

struct hardirq_time {
	u64 times;
	u64 ns;
};

struct run {
	u64 start_ns; /* 0: none runs, or it began before the attachment */
	struct hardirq what;
};

BPF_PERCPU_ARRAY(running, struct run, 1);
BPF_PERCPU_HASH(totals, struct hardirq, struct hardirq_time, 1024);
/* Slots of bpf_log2l() of microseconds. */
BPF_PERCPU_HASH(latency, struct slot_key, u64, 16384);

static inline void record(struct hardirq *what, u64 ns)
{
	struct slot_key key = {.of = *what, .slot = bpf_log2l(ns / 1000)};
	struct hardirq_time none = {}, *time;
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

/* args: the number, and its struct irqaction. */
RAW_TRACEPOINT_PROBE(irq_handler_entry)
{
	u32 zero = 0;
	struct run *run = running.lookup(&zero);
	u64 name = 0;

	if (!run)
		return 0;
	run->start_ns = 0;
	if (!collectord_open() || (PARAMETER_IRQ >= 0 && (u32)ctx->args[0] != PARAMETER_IRQ))
		return 0;
	__builtin_memset(&run->what, 0, sizeof(run->what));
	run->what.number = ctx->args[0];
	bpf_probe_read_kernel(&name, sizeof(name),
			      (void *)(ctx->args[1] + COLLECTORD_AT_IRQACTION_NAME));
	bpf_probe_read_kernel_str(run->what.name, sizeof(run->what.name), (void *)name);
	run->start_ns = bpf_ktime_get_ns();
	return 0;
}

RAW_TRACEPOINT_PROBE(irq_handler_exit)
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
