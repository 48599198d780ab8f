/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"

#define WALK_HEADER_BYTES 8u
/*
 * The last kernel record type known to perf 6.1, the oldest reader, which stops at any later one
 * below the user range; a record of a later type is turned into padding.
 */
#define WALK_KERNEL_TYPE_MAX 21u   /* PERF_RECORD_AUX_OUTPUT_HW_ID */
#define WALK_USER_TYPE_MIN 64u	   /* PERF_RECORD_USER_TYPE_START, tools/lib/perf */
#define WALK_FINISHED_ROUND 68u	   /* likewise: orders the records before it */
#define WALK_AUXTRACE 71u	   /* likewise: its payload follows, see aux_piece.h */
#define WALK_FINISHED_INIT 82u	   /* likewise: readers ignore it, whatever its size */

#define WALK_ID_AT 8u /* PERF_SAMPLE_IDENTIFIER comes first in a sample */

/*
 * The id of an event in the kernel, and in files. A file names its ids at its beginning, and the
 * kernel never uses one again: an event that is opened anew keeps the id that files know.
 */
struct walk_id {
	uint64_t own, filed;
};

/*
 * The ids of a ring's events, ascending by those of the kernel. The kernel makes one sample of a
 * software event and passes it to everybody who counts that event on the CPU, with the id of the
 * first of them (kernel/events/core.c, do_perf_sw_event(), since 6.2). A reader rejects a whole
 * file for one unknown id, so a foreign id is replaced by one of the ring.
 */
struct walk_ids {
	const struct walk_id *all;
	uint32_t count;
	bool renamed; /* files know one of them by another id */
};

/* The place of time and CPU in the records of a ring, in bytes; 0: absent. */
struct walk_layout {
	uint16_t time_offset;	    /* in a sample, from its start */
	uint16_t time_trailer;	    /* in any other record, from its end back */
	uint16_t cpu_trailer;	    /* likewise, for CPU */
	const struct walk_ids *ids; /* NULL: samples carry no id, or any id is accepted. Else
				     * any other record that has a time ends in an id. */
};

/* The result of walks. The caller zeroes it; walks add to it. */
struct walk_tally {
	uint64_t records;
	uint64_t samples;
	uint64_t lost_records;	/* sum over PERF_RECORD_LOST */
	uint64_t lost_samples;	/* sum over PERF_RECORD_LOST_SAMPLES */
	uint64_t neutralised;
	uint64_t relabelled;	/* samples with a foreign id */
	uint64_t throttles;
	uint64_t first_ns;	/* time of samples; 0: none seen */
	uint64_t last_ns;
	uint64_t aux_pieces; /* in a file; also counted in `records` */
	uint64_t aux_bytes;  /* their payload */
};

/*
 * Walk the whole records at the start of `bytes` bytes copied from a ring, add them to `tally` and
 * return their length. The walk ends before a record that is cut by the end of the copy (fault
 * FAULT_NONE) or that no kernel writes (its fault); it never reads beyond `bytes`. Records unknown
 * to readers become WALK_FINISHED_INIT in place, and ids become those of files: a record is walked
 * once.
 */
size_t walk__run(uint8_t *copy, size_t bytes, const struct walk_layout *layout,
		 struct walk_tally *tally, enum fault *fault);

/* Walk like walk__run(), over bytes of a file: user types may occur, nothing is changed, and
 * the data after an AUXTRACE record belong to it. `last` is the offset of the last whole
 * record. */
size_t walk__file(const uint8_t *data, size_t bytes, const struct walk_layout *layout,
		  struct walk_tally *tally, enum fault *fault, size_t *last);

/* Returns the time of the non-sample record at `record`, 0 if it carries none. */
uint64_t walk__trailer_time(const uint8_t *record, const struct walk_layout *layout);
/* Read the CPU of such a record. False: it carries none. */
bool walk__trailer_cpu(const uint8_t *record, const struct walk_layout *layout, uint32_t *cpu);

static inline uint32_t walk__type(uint64_t header)
{
	return (uint32_t)header;
}

static inline uint16_t walk__misc(uint64_t header)
{
	return (uint16_t)(header >> 32);
}

static inline uint16_t walk__size(uint64_t header)
{
	return (uint16_t)(header >> 48);
}

static inline uint64_t walk__header(uint32_t type, uint16_t misc, uint16_t size)
{
	return (uint64_t)type | (uint64_t)misc << 32 | (uint64_t)size << 48;
}

/* Returns why no kernel's record can have this header, or FAULT_NONE. */
static inline enum fault walk__check(uint64_t header)
{
	const uint16_t size = walk__size(header);

	if (size < WALK_HEADER_BYTES || (size & 7u) != 0)
		return WALK_BAD_SIZE;
	return walk__type(header) == 0 || walk__type(header) >= WALK_USER_TYPE_MIN ? WALK_BAD_TYPE
										   : FAULT_NONE;
}

static inline uint64_t walk__load(const uint8_t *at)
{
	uint64_t value;

	__builtin_memcpy(&value, at, sizeof(value));
	return value;
}

static inline uint16_t load16(const uint8_t *at)
{
	uint16_t value;

	__builtin_memcpy(&value, at, sizeof(value));
	return value;
}

static inline uint32_t load32(const uint8_t *at)
{
	uint32_t value;

	__builtin_memcpy(&value, at, sizeof(value));
	return value;
}

static inline void store32(uint8_t *at, uint32_t value)
{
	__builtin_memcpy(at, &value, sizeof(value));
}

static inline void walk__store(uint8_t *at, uint64_t value)
{
	__builtin_memcpy(at, &value, sizeof(value));
}
