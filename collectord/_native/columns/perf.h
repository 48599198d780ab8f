/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../walk.h"
#include "rows.h"

/* The rows that a scan makes of the records of a perf.data file. */
enum perf_rows {
	PERF_ROWS_RAW,	    /* samples of the wanted events: what a tracepoint or program wrote */
	PERF_ROWS_SAMPLES,  /* the same, but the payload is the whole record */
	PERF_ROWS_TASKS,    /* names, forks and exits; labels: enum perf_task */
	PERF_ROWS_MMAP,	    /* the payload is the record without its trailer, as in the next two */
	PERF_ROWS_MMAP2,    /* those without a build-id */
	PERF_ROWS_BUILD_ID, /* those with one */
	PERF_ROWS_AUX,	    /* likewise, of AUX rings; labels: enum perf_aux */
};

enum perf_task { PERF_TASK_COMM, PERF_TASK_EXEC, PERF_TASK_FORK, PERF_TASK_EXIT };

enum perf_aux { PERF_AUX_DATA, PERF_AUX_START };

/* An event of a file. Offsets are in bytes, 0: absent. */
struct perf_event {
	uint64_t sample_type, read_format;
	bool has_trailer; /* records other than samples end with ids, attr.sample_id_all */
	bool is_wanted;
	int32_t label;			  /* of its rows */
	uint16_t tid_at, time_at, cpu_at; /* in a sample, from its start */
	uint16_t fixed_bytes;		  /* of a sample up to its first part of variable size */
	uint16_t tid_back, time_back, cpu_back; /* in other records, from the end back */
	uint16_t trailer_bytes;
	uint16_t identifier_at, id_at;	   /* in a sample, from its start */
	uint16_t identifier_back, id_back; /* in other records, from the end back */
	uint16_t cgroup_back; /* in a sample, from the end back; 0 too if AUX data are behind it */
};

/* The events of a file, by the ids in its records. */
struct perf_events {
	struct perf_event *event;
	size_t count;
	struct perf_id {
		uint64_t id;
		uint32_t event; /* its number + 1; 0: this place is free */
	} *place;
	size_t id_count, mask;	 /* mask: number of places - 1, a power of two - 1 */
	uint16_t id_at, id_back; /* where all records have the id; 0: all are of the first event */
};

/* Add an event. Returns -errno. */
int perf_events__add(struct perf_events *events, const struct perf_event *event);
/* Add an id of the last event; an id that another one has is left there. Returns -errno. */
int perf_events__add_id(struct perf_events *events, uint64_t id);
void perf_events__deinit(struct perf_events *events);

/* Used by those that walk over records: */

#define PERF_CHUNK_BYTES 4096u /* writers of this program begin a chunk at a multiple of it */
#define PERF_AT_TID 12u	       /* in COMM, MMAP and MMAP2; in FORK and EXIT the parent's process */
#define PERF_AT_TASK_TID 16u
#define PERF_AT_TASK_PARENT 20u
#define PERF_AT_COMM 16u
#define PERF_AT_CGROUP_ID 8u
#define PERF_AT_CGROUP_PATH 16u
#define PERF_TASK_BYTES 32u
#define PERF_LOST_BYTES 24u
#define PERF_LOST_SAMPLES_BYTES 16u
#define PERF_UNKNOWN_ID "unknown_id"
#define PERF_NOT_DECOMPRESSED "not_decompressed"

static inline bool perf__is_compressed(uint64_t header)
{
	return walk__type(header) == WALK_COMPRESSED || walk__type(header) == WALK_COMPRESSED2;
}

/* The parts of a sample behind those at fixed places; 0: absent. `end`: of those up to RAW. */
struct perf_parts {
	uint32_t chain, raw, raw_bytes, end, cgroup;
};

/* Returns why a record with this header, of which `left` bytes are there, cannot be one. */
enum fault perf__check(uint64_t header, size_t left);

/* Set how long a checked record is with the payload of AUXTRACE, which follows it. Returns whether that
 * can be true. */
static inline bool perf__whole(const uint8_t *record, uint64_t *whole)
{
	const uint64_t header = walk__load(record);
	struct aux_piece aux;

	*whole = walk__size(header);
	return walk__type(header) != WALK_AUXTRACE ||
	       (aux_piece__read(record, walk__size(header), &aux, whole) && *whole <= INT64_MAX);
}

/* Whether a record of a known event is at the start of a chunk. */
bool perf__begins_chunk(const struct perf_events *events, const uint8_t *record, size_t left);
/* Returns the event of a sample of `size` bytes, NULL if it is not known. */
const struct perf_event *perf__sampled(const struct perf_events *events, const uint8_t *record,
				       uint16_t size);
/* The same of another record: one that a recorder made is of no event, and laid out as the first
 * one's. */
const struct perf_event *perf__noted(const struct perf_events *events, const uint8_t *record,
				     uint16_t size);
/* Whether a record that is no sample is of a known event, or of none. */
bool perf__has_known_id(const struct perf_events *events, const uint8_t *record, uint16_t size);
/* Returns the time of a sample, 0 if it has none. */
uint64_t perf__sample_time(const struct perf_event *event, const uint8_t *record, uint16_t size);
/* Find the parts of a sample, whose fixed places are in it then. False: they do not fit into it. */
bool perf__find_parts(const struct perf_event *event, const uint8_t *record, uint32_t size,
		      struct perf_parts *parts);
/* Returns the time of another record, 0 if it has none. */
uint64_t perf__trailer_time(const struct perf_event *event, const uint8_t *record, uint16_t size);
/* The same for its CPU, or ROW_NONE. */
int32_t perf__trailer_cpu(const struct perf_event *event, const uint8_t *record, uint16_t size);

struct cgroups;
struct piece;

/* Add the row of a record that the source is about, which is no sample. Returns -errno. */
int perf__take_note(struct piece *piece, size_t at, uint64_t header);
/* Note the name that a COMM or a FORK gives. Returns -errno. */
int perf__take_name(struct piece *piece, size_t at, uint64_t header);
/* Note what a CGROUP tells. Returns -errno. */
int perf__take_cgroup(struct cgroups *cgroups, const struct perf_events *events,
		      const uint8_t *record);
/* Take a loss: LOST tells what a ring lost before this record; LOST_SAMPLES what an event lost in
 * all. Returns -errno. */
int perf__take_loss(struct piece *piece, size_t at, uint32_t type, uint16_t size);

/* Where a sample was taken. */
static inline void perf__place(const struct perf_event *event, const uint8_t *record, int32_t *cpu,
			       int32_t *pid, int32_t *tid)
{
	*cpu = event->cpu_at != 0 ? (int32_t)load32(record + event->cpu_at) : ROW_NONE;
	*pid = event->tid_at != 0 ? (int32_t)load32(record + event->tid_at) : ROW_NONE;
	*tid = event->tid_at != 0 ? (int32_t)load32(record + event->tid_at + 4) : ROW_NONE;
}
