/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * When a program counts, and how it hands its events to the daemon, so that each of them is
 * accounted for.
 *
 * On each CPU there is a gate, which the daemon opens when the session begins, on the CPUs of the
 * session only, and closes when it ends. A program that only fills maps asks collectord_open()
 * where it counts:
 *
 *	#include "collectord.h"
 *
 * A program that submits events defines the struct of its event and says which one it is:
 *
 *	struct open_event { ... };
 *	#define COLLECTORD_EVENT struct open_event
 *	#include "collectord.h"
 *
 * and then calls collectord_submit(), which asks for itself. A gate is opened once its CPU has a
 * ring. The daemon drains the ring, and compares what it stored with what was counted here.
 *
 * BCC rewrites methods of maps in plain text of the main file only. So this file is put into the
 * program's text where the #include stands, and no method hides in a macro.
 */

/* 0: closed. Nothing is counted or submitted on this CPU. */
BPF_PERCPU_ARRAY(collectord_gate, u64, 1);

/* Whether what happens on this CPU is wanted. */
static inline bool collectord_open(void)
{
	u32 zero = 0;
	u64 *gate = collectord_gate.lookup(&zero);

	return gate && *gate;
}

#ifdef COLLECTORD_EVENT
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

BPF_PERCPU_ARRAY(collectord_counts, struct collectord_counts, 1);
/* Tells the daemon the layout of the event; holds nothing. */
BPF_ARRAY(collectord_event, COLLECTORD_EVENT, 1);
BPF_PERF_OUTPUT(collectord_ring);

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
#endif
