/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The rows that a scan makes of the records of a perf.data file. */
enum perf_rows {
	PERF_ROWS_RAW,	    /* samples of the wanted events: what a tracepoint or program wrote */
	PERF_ROWS_SAMPLES,  /* the same, but the payload is the whole record */
	PERF_ROWS_TASKS,    /* names, forks and exits; labels: enum perf_task */
	PERF_ROWS_MMAP,	    /* the payload is the record without its trailer, as in the next two */
	PERF_ROWS_MMAP2,    /* those without a build-id */
	PERF_ROWS_BUILD_ID, /* those with one */
};

enum perf_task { PERF_TASK_COMM, PERF_TASK_EXEC, PERF_TASK_FORK, PERF_TASK_EXIT };

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
