/* SPDX-License-Identifier: Apache-2.0 */
#include "perf.h"

#include <errno.h>
#include <linux/perf_event.h>

#include "../walk.h"
#include "scan.h"

/* Records of perf.data that are no samples: losses, and what is said of tasks, mappings, AUX areas
 * and cgroups. */

#define WORD_BYTES 8u
#define AT_PID 8u /* in COMM, MMAP, MMAP2, FORK and EXIT: the thread they are about */
#define MAP_BYTES 40u
#define AUX_BYTES 32u
#define ITRACE_BYTES 16u

int perf__take_loss(struct piece *piece, size_t at, uint32_t type, uint16_t size)
{
	const struct perf_events *const events = &piece->source->perf;
	const uint8_t *const record = piece->data + at;
	const struct perf_event *const event = perf__noted(events, record, size);
	const bool is_total = type == PERF_RECORD_LOST_SAMPLES;
	const uint32_t bytes = is_total ? PERF_LOST_SAMPLES_BYTES : PERF_LOST_BYTES;

	if (size < bytes)
		return piece__damaged(piece, at, 0, fault_names[SUBBUF_SHORT_EVENT]);
	return piece__lost(piece,
			   &(struct loss){
				   .offset = piece->offset + at,
				   .stamp_ns = perf__trailer_time(event, record, size),
				   .lost = walk__load(record + bytes - WORD_BYTES),
				   .cpu = perf__trailer_cpu(event, record, size),
				   .label = is_total ? (int32_t)(event - events->event) : ROW_NONE,
				   .is_known = true,
			   });
}

/* A record of a task or a mapping tells this. */
struct about {
	uint32_t bytes;		 /* the least that it has, without its trailer */
	uint32_t pid_at, tid_at; /* 0: its trailer tells them */
	int32_t label;
};

/* Whether a record is one of those that the source is about. */
static bool is_about(enum perf_rows rows, uint64_t header, struct about *about)
{
	const uint32_t type = walk__type(header);
	const uint16_t misc = walk__misc(header);
	const bool has_id = (misc & PERF_RECORD_MISC_MMAP_BUILD_ID) != 0;

	*about = (struct about){MAP_BYTES, AT_PID, PERF_AT_TID, ROW_NONE};
	switch (type) {
	case PERF_RECORD_COMM:
		about->bytes = PERF_AT_COMM;
		about->label =
			(misc & PERF_RECORD_MISC_COMM_EXEC) != 0 ? PERF_TASK_EXEC : PERF_TASK_COMM;
		return rows == PERF_ROWS_TASKS;
	case PERF_RECORD_FORK:
	case PERF_RECORD_EXIT:
		about->bytes = PERF_TASK_BYTES;
		about->tid_at = PERF_AT_TASK_TID;
		about->label = type == PERF_RECORD_FORK ? PERF_TASK_FORK : PERF_TASK_EXIT;
		return rows == PERF_ROWS_TASKS;
	case PERF_RECORD_AUX:
		*about = (struct about){.bytes = AUX_BYTES, .label = PERF_AUX_DATA};
		return rows == PERF_ROWS_AUX;
	case PERF_RECORD_ITRACE_START:
		about->bytes = ITRACE_BYTES;
		about->label = PERF_AUX_START;
		return rows == PERF_ROWS_AUX;
	case PERF_RECORD_MMAP:
		return rows == PERF_ROWS_MMAP;
	case PERF_RECORD_MMAP2:
		return rows == (has_id ? PERF_ROWS_BUILD_ID : PERF_ROWS_MMAP2);
	default:
		return false;
	}
}

int perf__take_note(struct piece *piece, size_t at, uint64_t header)
{
	const struct source *const source = piece->source;
	const uint8_t *const record = piece->data + at;
	const uint16_t size = walk__size(header);
	const struct perf_event *const event = perf__noted(&source->perf, record, size);
	const uint64_t stamp_ns = perf__trailer_time(event, record, size);
	struct about about;
	struct row *row;

	if (!is_about(source->perf_rows, header, &about) || !piece__in_time(piece, stamp_ns))
		return 0;
	if (size < about.bytes + event->trailer_bytes)
		return piece__damaged(piece, at, stamp_ns, fault_names[SUBBUF_SHORT_EVENT]);
	row = rows__add(piece->rows);
	if (row == NULL)
		return -ENOMEM;
	*row = (struct row){
		.payload = record,
		.bytes = size - event->trailer_bytes,
		.cpu = perf__trailer_cpu(event, record, size),
		.pid = ROW_NONE,
		.tid = ROW_NONE,
		.stamp_ns = stamp_ns,
		.label = about.label,
	};
	if (about.tid_at != 0) {
		row->pid = (int32_t)load32(record + about.pid_at);
		row->tid = (int32_t)load32(record + about.tid_at);
	} else if (event->tid_back != 0) {
		row->pid = (int32_t)load32(record + size - event->tid_back);
		row->tid = (int32_t)load32(record + size - event->tid_back + sizeof(uint32_t));
	}
	/* Neither a parent nor AUX data: the other fields are null. */
	if (walk__type(header) == PERF_RECORD_COMM || walk__type(header) == PERF_RECORD_ITRACE_START)
		row->bytes = 0;
	return 0;
}

int perf__take_name(struct piece *piece, size_t at, uint64_t header)
{
	const uint8_t *const record = piece->data + at;
	const uint16_t size = walk__size(header);
	const struct perf_event *const event = perf__noted(&piece->source->perf, record, size);
	const uint64_t stamp_ns = perf__trailer_time(event, record, size);
	const uint32_t least = PERF_AT_COMM + event->trailer_bytes;

	if (walk__type(header) == PERF_RECORD_FORK && size >= PERF_TASK_BYTES)
		return names__fork(piece->names, (int32_t)load32(record + PERF_AT_TASK_TID),
				   (int32_t)load32(record + PERF_AT_TASK_PARENT), stamp_ns);
	/* The idle threads have one name whatever the recorder says. */
	if (walk__type(header) == PERF_RECORD_COMM && size >= least &&
	    load32(record + PERF_AT_TID) != 0)
		return names__add(piece->names, (int32_t)load32(record + PERF_AT_TID), stamp_ns,
				  (const char *)record + PERF_AT_COMM, size - least);
	return 0;
}

int perf__take_cgroup(struct cgroups *cgroups, const struct perf_events *events,
		      const uint8_t *record)
{
	const uint16_t size = walk__size(walk__load(record));
	const struct perf_event *const event = perf__noted(events, record, size);
	const uint32_t least = PERF_AT_CGROUP_PATH + event->trailer_bytes;

	if (size <= least)
		return 0;
	return cgroups__add(cgroups, walk__load(record + PERF_AT_CGROUP_ID),
			    (const char *)record + PERF_AT_CGROUP_PATH, size - least);
}
