/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a program hands its events to the daemon, so that each of them is accounted for.
 *
 * The program defines the struct of its event and says which one it is:
 *
 *	struct open_event { ... };
 *	#define COLLECTORD_EVENT struct open_event
 *	#include "collectord.h"
 *
 * and then calls collectord_submit(). The daemon opens the gate of a CPU once that CPU has a ring,
 * drains the ring, and compares what it stored with what was counted here. A program that only
 * fills maps needs nothing of this file.
 *
 * BCC rewrites methods of maps in plain text of the main file only. So this file is put into the
 * program's text where the #include stands, and no method hides in a macro.
 */
#include <uapi/linux/errno.h>

/*
 * Attempts to submit on one CPU, and those of them that failed, by what the kernel answered.
 * The sum of the failures never exceeds the attempts, and attempts - failures is what the ring got.
 */
struct collectord_counts {
	u64 attempts;
	u64 no_space;	/* ENOSPC: the ring was full; the kernel counts it as lost too */
	u64 busy;	/* EBUSY: nested deeper than the kernel has room for */
	u64 no_ring;	/* ENOENT, EOPNOTSUPP: this CPU has no ring, or none that runs */
	u64 refused;	/* any other */
};

/* 0: closed. Nothing is submitted or counted on this CPU. */
BPF_PERCPU_ARRAY(collectord_gate, u64, 1);
BPF_PERCPU_ARRAY(collectord_counts, struct collectord_counts, 1);
/* Tells the daemon the layout of the event; holds nothing. */
BPF_ARRAY(collectord_event, COLLECTORD_EVENT, 1);
BPF_PERF_OUTPUT(collectord_ring);

/* Whether events are wanted on this CPU, for programs that would prepare one at some cost. */
static inline bool collectord_open(void)
{
	u32 zero = 0;
	u64 *gate = collectord_gate.lookup(&zero);

	return gate && *gate;
}

/*
 * The adds are atomic: an interrupt's program may count on the same CPU, and so may, where programs
 * can be preempted, that of another task.
 */
static inline void collectord_failed(struct collectord_counts *counts, int error)
{
	if (error == -ENOSPC)
		__sync_fetch_and_add(&counts->no_space, 1);
	else if (error == -EBUSY)
		__sync_fetch_and_add(&counts->busy, 1);
	else if (error == -ENOENT || error == -EOPNOTSUPP)
		__sync_fetch_and_add(&counts->no_ring, 1);
	else
		__sync_fetch_and_add(&counts->refused, 1);
}

/*
 * Submit an event whose every byte is set, padding included: what the ring gets is its memory.
 * Returns 0, or a negative errno that has been counted.
 */
static inline int collectord_submit(void *ctx, COLLECTORD_EVENT *event)
{
	u32 zero = 0;
	struct collectord_counts *counts;
	int error;

	if (!collectord_open())
		return 0;
	counts = collectord_counts.lookup(&zero);
	if (!counts)
		return 0;
	__sync_fetch_and_add(&counts->attempts, 1);
	error = collectord_ring.perf_submit(ctx, event, sizeof(*event));
	if (error)
		collectord_failed(counts, error);
	return error;
}
