/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "counter.h"
#include "mapped_files.h"
#include "walk.h"

struct sideband_table;

#define SIDEBAND_CPUS 4096u

/*
 * What a reader must know of tasks, mappings and kernel symbols to make sense of a segment that
 * begins in the middle of their lives.
 *
 *   writer ──append──► log (raw records, as they came) ──settle──► table ──┐
 *                       └───────────────────────────────────────────────── replay ──► segment head
 *
 * A record comes into the log when the writer is done with the chunk that held it: no segment has
 * it in its replay and in its data. What no chunk holds (a stream of snapshots, a ring that is
 * passed over) a pass appends itself. It leaves the log for the table only when every ring of the
 * stream has been written past its time. So the table is the state that the oldest unwritten
 * sample saw, and what changed since follows it in the replay with its own times; a reader sorts
 * the two. Forks, execs and exits are told as changes of state there, not as themselves: those
 * stand in the segment that was open then, once.
 *
 * Who runs on each CPU, which trace belongs to whom, and hardware ids (SWITCH, ITRACE_START,
 * AUX_OUTPUT_HW_ID) are state too: the last of each counts. Switches are many. When half of the log
 * is full the next one of a CPU takes the place of that CPU's last one: the state that comes out
 * is the same, when it changed in between is not told.
 *
 * Threads: the writer and passes append, under `log_lock` and without allocating. Only the writer
 * settles and replays, `table_lock` keeps sideband__load() out meanwhile.
 */
struct sideband {
	pthread_mutex_t log_lock;
	pthread_mutex_t table_lock;
	uint8_t *log;
	uint8_t *scratch; /* as large as the log: settle and replay work on a copy */
	size_t log_bytes;
	size_t log_used;
	uint32_t switches[SIDEBAND_CPUS]; /* where in the log each CPU's last switch is, plus 1 */
	bool foreign_clock;		  /* records carry another clock than clock__now_ns() */
	int64_t behind_ns, behind_before_ns; /* least time from a record's time to its append, since
					      * the last settle and between the two before */
	struct walk_layout layout;
	struct sideband_table *table;
	struct mapped_files files;
	/* Records that found the log full; written under log_lock. Others that found no room are counted by
	 * the table and the files. */
	counter_t log_dropped;
};

/* Takes one record of a replay. A negative return ends the replay and is passed on. */
typedef int sideband_emit_fn(void *context, const uint8_t *record, uint16_t size);

/* `bytes` bounds the table's memory; the log is a quarter of that. */
int sideband__init(struct sideband *sideband, size_t bytes);
void sideband__deinit(struct sideband *sideband);

/* A ring of this layout carries sideband; before its first record. -EINVAL: not where the others
 * have it. */
int sideband__join_layout(struct sideband *sideband, const struct walk_layout *layout);

/* Note whole, walked records of any type; those that are no sideband are passed over. */
void sideband__append(struct sideband *sideband, const uint8_t *records, size_t bytes);

/* Apply whole records at once: the state at the start of the session. -EINVAL: not records. */
int sideband__load(struct sideband *sideband, const uint8_t *records, size_t bytes);

/*
 * Move what is older than `until_ns`, as clock__now_ns() tells time, from the log into the table, in
 * the order of time. A foreign clock is taken to be behind by the least time that it took a record
 * to come here: if it is in fact behind by less, records stay longer than they must.
 */
void sideband__settle(struct sideband *sideband, uint64_t until_ns);

/* Is more than half of the log in use? */
bool sideband__is_crowded(struct sideband *sideband);

/* Emit the table, then the log; `stored`: earlier segments have what is in the log. */
int sideband__replay(struct sideband *sideband, bool stored, sideband_emit_fn *emit,
		     void *context);
