/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * A PMU without hardware: an hrtimer on each CPU writes into real AUX buffers.
 *
 * Who may touch what: all of `struct trace_cpu` belongs to its CPU with interrupts off (callbacks
 * of the PMU, the timer, cross calls). Nothing else takes a lock. Only `pauses` and `resumes` are
 * also counted from NMI context.
 */
#ifndef TEST_PMU_H
#define TEST_PMU_H

#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/percpu.h>
#include <linux/perf_event.h>
#include <linux/types.h>

#define FILTERS_MAX 8
#define WORD_BYTES ((u64)sizeof(u64))
/* What fills the bytes of skip_bytes: no counter word, whose CPU number is below 255. */
#define PAD_WORD (~0ULL)

enum kind { KIND_GENERIC, KIND_INTEL_PT, KIND_CS_ETM, KIND_ARM_SPE };

/* How aux_head is given back in overwrite mode, and how large the AUX record says its data are. */
enum head_rule {
	HEAD_MONOTONIC, /* counts on, the record has what was written, at most the buffer */
	HEAD_OFFSET,	/* offset in the buffer, the record has what was written, as SPE's */
	HEAD_WHOLE,	/* offset in the buffer, the record always has the whole buffer, as PT's */
};

enum forced_flag { FORCED_TRUNCATED, FORCED_PARTIAL, FORCED_COLLISION, FORCED_FLAGS };

struct knobs {
	unsigned int period_us;
	unsigned int chunk_bytes;
	unsigned int aux_record_bytes;
	unsigned int catch_up_ticks;
	unsigned int skip_bytes;
	unsigned int format_flags;
	unsigned long long hw_id;
	bool hw_id_per_cpu;
	bool running;
	bool stop_on_full;
	bool flag_full_record;
	bool flush_on_stop;
	bool produce_while_stopped;
	bool upload;
	bool upload_repeat;
	int forced[FORCED_FLAGS];
	/* Goes up at each write to a knob of `forced`: -1 is obeyed once per write and CPU. */
	unsigned int forced_writes[FORCED_FLAGS];
};

/* Set when the module is loaded. */
struct identity {
	const char *name;
	enum kind kind;
	enum head_rule head;
	bool count_bytes;
	unsigned int nr_addr_filters;
};

/* Bytes the owner of the misc device wants to be produced on one CPU. */
struct upload {
	u64 bytes;
	u8 data[];
};

struct recorded_filter {
	int action; /* enum perf_addr_filter_action_t */
	u64 start;
	u64 bytes;
};

struct tally {
	u64 produced_bytes; /* = written + truncated + still in `backlog` */
	u64 written_bytes;
	u64 truncated_bytes;
	u64 skipped_bytes;
	u64 transactions; /* ended ones */
	u64 records;	  /* of these, those for which the kernel tries to post an AUX record */
	u64 begin_failed; /* perf_aux_output_begin() gave no buffer */
	u64 ticks;
	u64 missed_ticks; /* periods that passed without production because the timer was late */
	u64 starts;
	u64 stops;
	u64 halts;     /* stops by TRUNCATED */
	u64 halted_ns; /* from there to the next start of the same event */
	u64 truncated_flags;
	u64 partial_flags;
	u64 collision_flags;
	u64 pauses;
	u64 resumes;
	u64 filter_syncs;
};

struct trace_cpu {
	struct perf_output_handle handle; /* .event is set while a transaction is open */
	struct hrtimer timer;
	struct perf_event *event; /* the one that was added */
	struct perf_event *halted_event;
	u64 halted_at_ns;

	u64 rest_ns;	   /* of the period in which the event was stopped last */
	u64 counter_bytes; /* position of the counter stream: the next word is this / 8 */
	u64 upload_bytes;  /* position in the uploaded bytes; goes on over their end to repeat */
	struct upload *upload;
	/* Fixed for the open transaction */
	bool uploading;
	bool flushing; /* flush_on_stop, in a buffer that user space empties */

	u64 head;	   /* where the transaction began; overwrite: where it writes */
	u64 filled;	   /* written since */
	u64 limit;	   /* most that may be written */
	u64 backlog;	   /* flush_on_stop: produced since, not yet written */
	u64 pending_flags; /* for the next transaction that ends */
	unsigned int forced_seen[FORCED_FLAGS];

	unsigned int nr_filters;
	struct recorded_filter filters[FILTERS_MAX];
	struct tally tally;
};

/* What setup_aux() makes for one AUX mapping. */
struct trace_buffer {
	void **pages; /* the ring buffer's own array, which outlives this */
	u64 bytes;    /* a power of two */
	bool overwrite;
	struct cpumask hw_id_done;
};

DECLARE_PER_CPU(struct trace_cpu, trace_cpu);
extern struct knobs knobs;
extern struct identity identity;
extern struct pmu test_pmu;

/* producer.c; all of it on the CPU of `tc`, interrupts off */
bool producer__start(struct trace_cpu *tc);
void producer__stop(struct trace_cpu *tc);
enum hrtimer_restart producer__tick(struct hrtimer *timer);

/* describe.c */
const struct attribute_group **describe__groups(void);
int describe__add(struct pmu *pmu);
void describe__remove(void);

/* device.c */
int device__add(void);
void device__remove(void);

#endif
