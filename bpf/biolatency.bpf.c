/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The times that block requests take, by device and operation.
 *
 * A request is identified by the address of its struct request, which raw tracepoints pass: it is
 * unique while the request lives, whatever is merged, split or read twice at the same sector. No
 * member of it is read. Device, operation and size come from the fields of block:block_rq_issue,
 * in two steps on the same CPU: leave_fields() leaves them in `issuing`, and the program on the
 * raw tracepoint, which the kernel calls next, takes them from there.
 *
 * The kernel calls programs in the order of their attachment. So the manifest attaches
 * leave_fields(), which precedes all programs attached by name. Like any program on a perf
 * tracepoint it does not run while another one runs on that CPU. The request is then counted with
 * device 0:0 and operation "unknown". Raw tracepoints have no such limit: only a run inside a run
 * of the same function is left out, and the kernel counts those.
 *
 * Requests are followed whatever the gate of a CPU, so that `in_flight` is right. Each value is
 * counted if the gate is open where and when it arises: depth at the issue, all others of a
 * request at its completion.
 */
#include <uapi/linux/errno.h>
#include "collectord.h"

#define DEPTH_MAX 64 /* slot of this depth and all larger ones */

/* "read", "write", "discard", "flush", "other" or "unknown", NUL to the end. */
struct operation {
	char name[8];
};

/* The state of a request once it is issued. */
struct issued_request {
	u64 start_ns; /* when it was issued or, with `queued`, inserted */
	u32 device;   /* MAJOR << 20 | MINOR */
	u32 bytes;
	u32 done; /* bytes completed so far */
	struct operation operation;
};

/* Fields of the request that this CPU is issuing. */
struct issuing_request {
	u64 valid;
	u32 device;
	u32 bytes;
	struct operation operation;
};

struct total_key {
	u32 device;
	char operation[8];
};

struct total {
	u64 requests;
	u64 ns; /* sum of their times */
	u64 bytes;
	u64 errors;
};

struct latency_key {
	u32 device;
	char operation[8];
	u32 slot;
};

struct depth_key {
	u32 device;
	u32 slot;
};

/* Requests missing from the histograms. */
struct biolatency_counts {
	u64 unmatched;	/* issued before the attachment, untracked, or one end was not seen */
	u64 untracked;	/* issued, but `requests` was full */
	u64 unrecorded; /* measured, but a histogram or table was full */
};

BPF_PERCPU_ARRAY(issuing, struct issuing_request, 1);
BPF_HASH(requests, u64, struct issued_request, PARAMETER_MAX_REQUESTS);
BPF_HASH(in_flight, u32, u64, 1024);
BPF_PERCPU_HASH(latency, struct latency_key, u64, 8192);
BPF_PERCPU_HASH(latency_sum, struct total_key, u64, 1024); /* us */
BPF_PERCPU_HASH(depth, struct depth_key, u64, 8192);
BPF_PERCPU_HASH(totals, struct total_key, struct total, 1024);
BPF_PERCPU_ARRAY(counts, struct biolatency_counts, 1);
#if PARAMETER_QUEUED
BPF_HASH(inserted, u64, u64, PARAMETER_MAX_REQUESTS);
#endif

/*
 * All adds are atomic: an interrupt's program may count on the same CPU. If an entry does not
 * exist yet, the first program inserts a zero, and all add.
 */
#define ADD(place, number) __sync_fetch_and_add(&(place), number)

static inline struct biolatency_counts *this_cpu_counts(void)
{
	u32 zero = 0;

	return counts.lookup(&zero);
}

static inline void count_unmatched(void)
{
	struct biolatency_counts *found = this_cpu_counts();

	if (found && collectord_open())
		ADD(found->unmatched, 1);
}

static inline void count_untracked(void)
{
	struct biolatency_counts *found = this_cpu_counts();

	if (found && collectord_open())
		ADD(found->untracked, 1);
}

/* Count it only behind an open gate. */
static inline void count_unrecorded(void)
{
	struct biolatency_counts *found = this_cpu_counts();

	if (found)
		ADD(found->unrecorded, 1);
}

static inline bool wanted(u32 device)
{
	if (PARAMETER_MAJOR >= 0 && device >> 20 != PARAMETER_MAJOR)
		return false;
	return PARAMETER_MINOR < 0 || (device & 0xfffff) == PARAMETER_MINOR;
}

/* Returns the operation of `rwbs`: its letter, behind an F if a flush precedes it. */
static inline struct operation operation_of(char first, char second)
{
	char letter = first;

	if (first == 'F' && (second == 'W' || second == 'R' || second == 'D' || second == 'Z'))
		letter = second;
	switch (letter) {
	case 'R':
		return (struct operation){"read"};
	case 'W':
		return (struct operation){"write"};
	case 'D':
		return (struct operation){"discard"};
	case 'F':
		return (struct operation){"flush"};
	}
	return (struct operation){"other"};
}

/* Change the number of a device's requests between issue and completion. Returns the new number. */
static inline u64 change_in_flight(u32 device, s64 change)
{
	u64 zero = 0;
	u64 *number = in_flight.lookup(&device);

	if (!number) {
		in_flight.insert(&device, &zero);
		number = in_flight.lookup(&device);
		if (!number)
			return 0;
	}
	ADD(*number, change);
	return *number;
}

static inline void record_depth(u32 device, u64 now_in_flight)
{
	struct depth_key key = {.device = device};
	u64 zero = 0;
	u64 *number;

	key.slot = now_in_flight < DEPTH_MAX ? now_in_flight : DEPTH_MAX;
	number = depth.lookup(&key);
	if (!number) {
		depth.insert(&key, &zero);
		number = depth.lookup(&key);
		if (!number) {
			count_unrecorded();
			return;
		}
	}
	ADD(*number, 1);
}

static inline void record_latency(struct issued_request *request, u64 ns)
{
	struct latency_key key = {.device = request->device};
	u64 zero = 0;
	u64 *number;

	__builtin_memcpy(key.operation, &request->operation, sizeof(key.operation));
	key.slot = bpf_log2l(ns / 1000);
	number = latency.lookup(&key);
	if (!number) {
		latency.insert(&key, &zero);
		number = latency.lookup(&key);
		if (!number) {
			count_unrecorded();
			return;
		}
	}
	ADD(*number, 1);
}

static inline void record_total(struct issued_request *request, u64 ns, u32 bytes, bool failed)
{
	struct total_key key = {.device = request->device};
	struct total none = {};
	struct total *total;
	u64 zero = 0;
	u64 *sum_us;

	__builtin_memcpy(key.operation, &request->operation, sizeof(key.operation));
	total = totals.lookup(&key);
	sum_us = latency_sum.lookup(&key);
	if (!total || !sum_us) {
		totals.insert(&key, &none);
		latency_sum.insert(&key, &zero);
		total = totals.lookup(&key);
		sum_us = latency_sum.lookup(&key);
		if (!total || !sum_us) {
			count_unrecorded();
			return;
		}
	}
	ADD(total->requests, 1);
	ADD(total->ns, ns);
	*sum_us = total->ns / 1000; /* whole us, without a loss from sum to sum */
	ADD(total->bytes, bytes);
	if (failed)
		ADD(total->errors, 1);
}

/* Forget a request that is no longer on the device. */
static inline void forget(u64 request, u32 device)
{
	requests.delete(&request);
	change_in_flight(device, -1);
}

int leave_fields(struct tracepoint__block__block_rq_issue *args)
{
	u32 zero = 0;
	struct issuing_request *request = issuing.lookup(&zero);

	if (request) {
		request->device = args->dev;
		request->bytes = args->bytes;
		request->operation = operation_of(args->rwbs[0], args->rwbs[1]);
		request->valid = 1;
	}
	return 1;
}

RAW_TRACEPOINT_PROBE(block_rq_issue)
{
	struct issued_request request = {.operation = {"unknown"}};
	struct issued_request *stale;
	struct issuing_request *fields;
	u64 address = ctx->args[0];
	u64 now_in_flight;
	u32 zero = 0;
	int error;

	request.start_ns = bpf_ktime_get_ns();
	fields = issuing.lookup(&zero);
	if (fields && fields->valid) {
		fields->valid = 0;
		request.device = fields->device;
		request.bytes = fields->bytes;
		request.operation = fields->operation;
	}
#if PARAMETER_QUEUED
	u64 *inserted_ns = inserted.lookup(&address);

	if (inserted_ns) {
		request.start_ns = *inserted_ns;
		inserted.delete(&address);
	}
#endif
	error = requests.insert(&address, &request);
	if (error == -EEXIST) {
		/* Its completion was missed, and its memory is reused. */
		count_unmatched();
		stale = requests.lookup(&address);
		if (stale)
			forget(address, stale->device);
		error = requests.insert(&address, &request);
	}
	if (error) {
		count_untracked();
		return 0;
	}
	now_in_flight = change_in_flight(request.device, 1);
	if (!wanted(request.device) || !collectord_open())
		return 0;
	if (now_in_flight)
		record_depth(request.device, now_in_flight);
	else
		count_unrecorded();
	return 0;
}

/* The driver returned it: it waits in a queue again, and is issued once more. */
RAW_TRACEPOINT_PROBE(block_rq_requeue)
{
	u64 address = ctx->args[0];
	struct issued_request *request = requests.lookup(&address);

	if (!request)
		return 0;
#if PARAMETER_QUEUED
	u64 start_ns = request->start_ns;

	inserted.update(&address, &start_ns);
#endif
	forget(address, request->device);
	return 0;
}

RAW_TRACEPOINT_PROBE(block_rq_complete)
{
	u64 address = ctx->args[0];
	u32 error = ctx->args[1];
	u32 bytes = ctx->args[2];
	struct issued_request *found = requests.lookup(&address);
	struct issued_request request;
	u64 ns;

	if (!found) {
#if PARAMETER_QUEUED
		inserted.delete(&address);
#endif
		/* 0 bytes: the second completion of a write that had to wait for a flush. */
		if (bytes)
			count_unmatched();
		return 0;
	}
	found->done += bytes;
	if (found->done < found->bytes)
		return 0; /* a part; the rest completes later */
	request = *found;
	forget(address, request.device);
	if (!wanted(request.device) || !collectord_open())
		return 0;
	ns = bpf_ktime_get_ns() - request.start_ns;
	record_latency(&request, ns);
	record_total(&request, ns, request.done, error != 0);
	return 0;
}

#if PARAMETER_QUEUED
/* A returned request keeps its first time. */
RAW_TRACEPOINT_PROBE(block_rq_insert)
{
	u64 address = ctx->args[0];
	u64 now_ns = bpf_ktime_get_ns();
	int error = inserted.insert(&address, &now_ns);

	if (error && error != -EEXIST)
		count_untracked();
	return 0;
}

/* It was merged into another request, and is never issued. */
RAW_TRACEPOINT_PROBE(block_rq_merge)
{
	u64 address = ctx->args[0];

	inserted.delete(&address);
	return 0;
}
#endif
