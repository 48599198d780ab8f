/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "thread.h"
#include "walk.h"

#define AT_MMAP2_NAME 72u /* in PERF_RECORD_MMAP2 */

#define MAPPED_FILES_MAX 4096u /* files of one segment */
#define MAPPED_FILES_SLOTS (2u * MAPPED_FILES_MAX)
#define MAPPED_FILES_BYTES (768u << 10) /* bytes of their records */
#define CODE_MAKERS_MAX 1024u		/* processes of one segment */
#define CODE_MAKERS_SLOTS (2u * CODE_MAKERS_MAX)

/*
 * The files whose code was mapped, each with the first MMAP2 record that named it: the files whose
 * build-ids are needed. A file is identified by name, device, inode and inode generation.
 *
 * There are two sets: of the running segment, and of the one before it. A new segment replays the
 * live mappings, so a file in neither set is no longer mapped. Both sets have a fixed size, whose
 * pages are touched as they fill; files that do not fit are counted. Any thread may call.
 *
 * With them the processes are noted that mapped executable memory without a file: they may make
 * code while they run, and say elsewhere what is where in it. Those that do not fit are left out.
 */
struct file_set {
	uint32_t count, used;
	uint64_t first;			    /* number of its first file, among all of the stream */
	uint16_t slots[MAPPED_FILES_SLOTS]; /* by hash: a file's number in this set plus 1 */
	uint32_t places[MAPPED_FILES_MAX];  /* by number: offset of its record */
	uint8_t records[MAPPED_FILES_BYTES];
	uint32_t maker_count;
	uint32_t makers[CODE_MAKERS_SLOTS]; /* by hash: processes; 0: nothing */
};

struct mapped_files {
	pthread_mutex_t lock;
	struct file_set *now, *before;
	counter_t dropped;
};

int mapped_files__init(struct mapped_files *files);
void mapped_files__deinit(struct mapped_files *files);
/* Note a whole record of any type; anything but a mapping of code is ignored. */
void mapped_files__note(struct mapped_files *files, const uint8_t *record);
/* Begin the set of the next segment. */
void mapped_files__turn(struct mapped_files *files);

/* Returns the records noted since file number `*since` that are still there, oldest first: a
 * copy that the caller frees, or NULL if there are none or memory is short. `*since` moves on. */
uint8_t *mapped_files__copy(struct mapped_files *files, uint64_t *since, size_t *bytes);
/* Store the processes that make code, at most 2 * CODE_MAKERS_MAX, and return how many: of both sets,
 * so a process may be there twice. */
size_t mapped_files__makers(struct mapped_files *files, uint32_t *pids);

struct sideband_table;

#define SIDEBAND_CPUS 4096u

/*
 * The tasks, mappings, kernel symbols and cgroups that a reader must know to interpret a segment that
 * begins in the middle of their lives.
 *
 *   writer ──append──► log (raw records, as they came) ──settle──► table ──┐
 *                       └───────────────────────────────────────────────── replay ──► segment head
 *
 * A record enters the log when the writer is done with its chunk: so no segment has it both in its
 * replay and in its data. Records without a chunk (a stream of snapshots, dropped records) are
 * appended by the pass. A record moves from the log to the table only when every ring of the
 * stream has been written past its time. So the table is the state at the time of the oldest
 * unwritten sample, and later changes follow it in the replay with their own times; a reader sorts
 * the two. The replay has forks, execs and exits as changes of state, not as themselves: those are
 * stored once, in the segment that was open then.
 *
 * The running task of each CPU, the owner of each trace, and hardware ids (SWITCH, ITRACE_START,
 * AUX_OUTPUT_HW_ID) are state too: only the last of each counts. Switches are frequent. When the
 * log is half full, the next switch of a CPU replaces that CPU's last one: the resulting state is
 * the same, but intermediate changes are not reported.
 *
 * The writer and passes append, under `log_lock` and without allocating. Only the writer settles
 * and replays; `table_lock` excludes sideband__load() meanwhile.
 */
struct sideband {
	pthread_mutex_t log_lock;
	pthread_mutex_t table_lock;
	uint8_t *log;
	uint8_t *scratch; /* as large as the log: settle and replay use a copy */
	size_t log_bytes;
	size_t log_used;
	uint32_t switches[SIDEBAND_CPUS]; /* offset of each CPU's last switch in the log, plus 1 */
	bool foreign_clock;		  /* records do not use the clock of clock__now_ns() */
	int64_t behind_ns, behind_before_ns; /* least delay from a record's time to its append:
					      * since the last settle, and in the interval
					      * before */
	struct walk_layout layout;
	struct sideband_table *table;
	struct mapped_files files;
	/* Records dropped because the log was full; written under log_lock. The table and the
	 * files count theirs. */
	counter_t log_dropped;
};

/* Takes one record of a replay. A negative return ends the replay and is passed on. */
typedef int sideband_emit_fn(void *context, const uint8_t *record, uint16_t size);
/* `bytes` bounds the table's memory; the log has a quarter of that. */
int sideband__init(struct sideband *sideband, size_t bytes);
void sideband__deinit(struct sideband *sideband);

/* Register the layout of a ring with sideband, before its first record. -EINVAL: it differs
 * from others. */
int sideband__join_layout(struct sideband *sideband, const struct walk_layout *layout);
/* Note whole, walked records of any type; only sideband is kept. */
void sideband__append(struct sideband *sideband, const uint8_t *records, size_t bytes);
/* Likewise of a time before sideband__load(), which knows better about tasks that still run: other
 * records of theirs may be gone. */
void sideband__append_past(struct sideband *sideband, const uint8_t *records, size_t bytes);
/* Apply whole records at once, in the order of time: the state at the session's start. Those from
 * `until_ns` on, in their own time, settle like records that come from a ring: older data are unread
 * still, in which tasks occur that end here. If half of the log has no room for all of these, the
 * oldest are applied too. -EINVAL: invalid records; -ENOMEM. */
int sideband__load(struct sideband *sideband, const uint8_t *records, size_t bytes,
		   uint64_t until_ns);

/* Move records older than `until_ns`, in the time of clock__now_ns(), from the log into the table,
 * in time order. The lag of a foreign clock is taken as the least delay of any record: if the real
 * lag is smaller, records stay longer than necessary. */
void sideband__settle(struct sideband *sideband, uint64_t until_ns);
/* Whether more than half of the log is in use. */
bool sideband__is_crowded(struct sideband *sideband);
/* Emit the table, then the log; `stored`: earlier segments have the log's records. */
int sideband__replay(struct sideband *sideband, bool stored, sideband_emit_fn *emit, void *context);
