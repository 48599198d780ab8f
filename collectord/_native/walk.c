/* SPDX-License-Identifier: Apache-2.0 */
#include "walk.h"

#include <linux/perf_event.h>

uint64_t walk__trailer_time(const uint8_t *record, const struct walk_layout *layout)
{
	const uint16_t size = walk__size(walk__load(record));

	if (layout->time_trailer < sizeof(uint64_t) ||
	    (uint32_t)layout->time_trailer + WALK_HEADER_BYTES > size)
		return 0;
	return walk__load(record + size - layout->time_trailer);
}

static inline uint64_t sample_time(const uint8_t *record, uint16_t size,
				   const struct walk_layout *layout)
{
	if (layout->time_offset == 0 || (uint32_t)layout->time_offset + sizeof(uint64_t) > size)
		return 0;
	return walk__load(record + layout->time_offset);
}

uint64_t walk__time(const uint8_t *record, const struct walk_layout *layout)
{
	const uint64_t header = walk__load(record);

	return walk__type(header) == PERF_RECORD_SAMPLE
		       ? sample_time(record, walk__size(header), layout)
		       : walk__trailer_time(record, layout);
}

bool walk__trailer_cpu(const uint8_t *record, const struct walk_layout *layout, uint32_t *cpu)
{
	const uint16_t size = walk__size(walk__load(record));

	if (layout->cpu_trailer < sizeof(uint64_t) ||
	    (uint32_t)layout->cpu_trailer + WALK_HEADER_BYTES > size)
		return false;
	*cpu = (uint32_t)walk__load(record + size - layout->cpu_trailer);
	return true;
}

static inline void tally__sample(struct walk_tally *tally, const uint8_t *record, uint16_t size,
				 const struct walk_layout *layout)
{
	const uint64_t time_ns = sample_time(record, size, layout);

	tally->samples++;
	note_times(&tally->first_ns, &tally->last_ns, time_ns, time_ns);
}

/* Returns the entry of this id of the kernel, NULL if there is none. */
static const struct walk_id *walk_ids__find(const struct walk_ids *ids, uint64_t id)
{
	uint32_t low = 0, high = ids->count;

	while (low < high) {
		const uint32_t middle = low + (high - low) / 2;

		if (ids->all[middle].own < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < ids->count && ids->all[low].own == id ? &ids->all[low] : NULL;
}

static void walk_ids__rename(const struct walk_ids *ids, uint8_t *at)
{
	const struct walk_id *const found = walk_ids__find(ids, walk__load(at));

	if (found != NULL)
		walk__store(at, found->filed);
}

/* Set the ids of files in a record that is no sample: in its body, and in its trailer. */
static void walk_ids__rename_other(const struct walk_layout *layout, uint8_t *record, uint32_t type,
				   uint16_t size)
{
	const uint16_t id_bytes = sizeof(uint64_t);
	uint32_t body_bytes = WALK_HEADER_BYTES; /* at least; the trailer is behind them */

	if (type == PERF_RECORD_LOST) { /* u64 id, u64 lost */
		body_bytes = 24;
		if (size >= body_bytes)
			walk_ids__rename(layout->ids, record + 8);
	} else if (type == PERF_RECORD_LOST_SAMPLES) { /* u64 lost */
		body_bytes = 16;
	} else if (type == PERF_RECORD_THROTTLE || type == PERF_RECORD_UNTHROTTLE) {
		body_bytes = 32; /* u64 time, u64 id, u64 stream id */
		for (uint32_t at = 16; size >= body_bytes && at < body_bytes; at += id_bytes)
			walk_ids__rename(layout->ids, record + at);
	}
	if (layout->time_trailer > id_bytes && body_bytes + layout->time_trailer <= size)
		walk_ids__rename(layout->ids, record + size - id_bytes);
}

static void tally__other(struct walk_tally *tally, const uint8_t *record, uint32_t type,
			 uint16_t size)
{
	if (type == PERF_RECORD_LOST && size >= 24) /* u64 id, u64 lost */
		tally->lost_records += walk__load(record + 16);
	else if (type == PERF_RECORD_LOST_SAMPLES && size >= 16) /* u64 lost */
		tally->lost_samples += walk__load(record + 8);
	else if (type == PERF_RECORD_THROTTLE)
		tally->throttles++;
}

/* Own ids seen so far, at the index of their low bits: the kernel numbers events consecutively. */
#define KNOWN_IDS 16u

struct known_ids {
	uint64_t at[KNOWN_IDS];
	uint64_t filed[KNOWN_IDS]; /* the id that files know for the one of the same index */
};

static void known_ids__init(struct known_ids *known)
{
	for (uint64_t i = 0; i < KNOWN_IDS; i++)
		known->at[i] = i + 1; /* it does not fit here: a foreign id */
}

static inline bool known_ids__has(const struct known_ids *known, uint64_t id)
{
	return known->at[id % KNOWN_IDS] == id;
}

/* Set the id of files in the sample; a foreign id becomes an own one. */
static void known_ids__check(struct known_ids *known, uint8_t *record, uint16_t size,
			     const struct walk_ids *ids, struct walk_tally *tally)
{
	const struct walk_id *found;
	uint64_t id;

	if (size < WALK_ID_AT + sizeof(id) || ids->count == 0)
		return;
	id = walk__load(record + WALK_ID_AT);
	if (known_ids__has(known, id)) {
		walk__store(record + WALK_ID_AT, known->filed[id % KNOWN_IDS]);
		return;
	}
	found = walk_ids__find(ids, id);
	if (found == NULL) {
		found = &ids->all[0];
		tally->relabelled++;
	}
	if (found->filed != id)
		walk__store(record + WALK_ID_AT, found->filed);
	known->at[found->own % KNOWN_IDS] = found->own;
	known->filed[found->own % KNOWN_IDS] = found->filed;
}

/*
 * perf_event_mmap_output() (kernel/events/core.c) passes the same header to all listeners of a
 * mapping, one after the other, and leaves this bit in it once one of them has asked for
 * build-ids. The other listeners get the file's device and inode all the same: our events never
 * ask for build-ids.
 */
#define MAPPED_BUILD_ID ((uint64_t)PERF_RECORD_MISC_MMAP_BUILD_ID << 32)

/* A sample whose size is a multiple of 8, whatever its misc bits are. */
#define SHAPE_MASK UINT64_C(0x00070000ffffffff)

/* How far ahead of a record memory is loaded into the nearest cache: a few records. */
#define AHEAD_BYTES 512

/*
 * Returns the length of the samples at the start that only need counting: those with a time and a
 * known id. Nearly all records are such samples, so this loop determines the cost of a record: it
 * has few branches, and keeps its counts in registers, for which it is not inlined: a tally that may
 * alias the records would prevent it.
 */
static __attribute__((noinline)) size_t walk__samples(uint8_t *records, size_t bytes,
						      size_t time_at, const struct known_ids *known,
						      bool renames, struct walk_tally *tally)
{
	const size_t word = sizeof(uint64_t);
	const size_t least = (time_at < WALK_ID_AT ? WALK_ID_AT : time_at) + word;
	uint64_t samples = 0, first_ns = UINT64_MAX, last_ns = 0;
	uint8_t *record = records;
	size_t left = bytes;

	while (left >= least) {
		const uint64_t header = walk__load(record);
		const size_t size = walk__size(header);
		const uint64_t time_ns = walk__load(record + time_at);
		const uint64_t id = walk__load(record + WALK_ID_AT);

		/* The next record's place is known only by this one's size, and the copy has
		 * pushed some of its own first bytes out of the nearest cache. */
		__builtin_prefetch(record + AHEAD_BYTES);
		if ((header & SHAPE_MASK) != PERF_RECORD_SAMPLE || size - least > left - least ||
		    !known_ids__has(known, id))
			break;
		if (renames)
			walk__store(record + WALK_ID_AT, known->filed[id % KNOWN_IDS]);
		record += size;
		left -= size;
		samples++;
		first_ns = time_ns < first_ns ? time_ns : first_ns;
		last_ns = time_ns > last_ns ? time_ns : last_ns;
	}
	tally->samples += samples;
	tally->records += samples;
	if (samples > 0)
		note_times(&tally->first_ns, &tally->last_ns, first_ns, last_ns);
	return bytes - left;
}

size_t walk__run(uint8_t *copy, size_t bytes, const struct walk_layout *layout,
		 struct walk_tally *tally, enum fault *fault)
{
	const bool plain = layout->ids != NULL && layout->time_offset != 0;
	const bool renames = layout->ids != NULL && layout->ids->renamed;
	struct known_ids known;
	size_t at = 0;

	known_ids__init(&known);
	*fault = FAULT_NONE;
	while (bytes - at >= WALK_HEADER_BYTES) {
		uint8_t *const record = copy + at;
		const uint64_t header = walk__load(record);
		const uint32_t type = walk__type(header);
		const uint16_t size = walk__size(header);

		*fault = walk__check(header);
		if (*fault != FAULT_NONE || size > bytes - at)
			break;
		if (type == PERF_RECORD_SAMPLE) {
			if (layout->ids != NULL)
				known_ids__check(&known, record, size, layout->ids, tally);
			tally__sample(tally, record, size, layout);
		} else if (type <= WALK_KERNEL_TYPE_MAX) {
			tally__other(tally, record, type, size);
			if (renames)
				walk_ids__rename_other(layout, record, type, size);
			if (type == PERF_RECORD_MMAP2)
				walk__store(record, header & ~MAPPED_BUILD_ID);
		} else {
			walk__store(record, walk__header(WALK_FINISHED_INIT, 0, size));
			tally->neutralised++;
		}
		tally->records++;
		at += size;
		if (plain && type == PERF_RECORD_SAMPLE)
			at += walk__samples(copy + at, bytes - at, layout->time_offset, &known,
					    renames, tally);
	}
	return at;
}

/* Returns the length of the AUX piece at `record`, or sets the fault. */
static uint64_t tally__aux(struct walk_tally *tally, const uint8_t *record, size_t bytes,
			   enum fault *fault)
{
	struct aux_piece piece;
	uint64_t whole = 0;

	if (!aux_piece__read(record, bytes, &piece, &whole)) {
		*fault = WALK_BAD_SIZE;
	} else if (whole > bytes) {
		*fault = WALK_PAST_HEAD;
	} else {
		tally->aux_pieces++;
		tally->aux_bytes += piece.bytes;
	}
	return whole;
}

size_t walk__file(const uint8_t *data, size_t bytes, const struct walk_layout *layout,
		  struct walk_tally *tally, enum fault *fault, size_t *last)
{
	size_t at = 0;

	*fault = FAULT_NONE;
	*last = 0;
	while (bytes - at >= WALK_HEADER_BYTES) {
		const uint64_t header = walk__load(data + at);
		const uint32_t type = walk__type(header);
		const uint16_t size = walk__size(header);
		uint64_t whole = size;

		if (size < WALK_HEADER_BYTES || (size & 7u) != 0)
			*fault = WALK_BAD_SIZE;
		else if (type == 0 || type > WALK_FINISHED_INIT ||
			 (type > WALK_KERNEL_TYPE_MAX && type < WALK_USER_TYPE_MIN))
			*fault = WALK_BAD_TYPE;
		else if (size > bytes - at)
			*fault = WALK_PAST_HEAD;
		else if (type == WALK_AUXTRACE)
			whole = tally__aux(tally, data + at, bytes - at, fault);
		if (*fault != FAULT_NONE)
			break;
		if (type == PERF_RECORD_SAMPLE)
			tally__sample(tally, data + at, size, layout);
		else if (type == WALK_FINISHED_INIT)
			(void)tally__aux(tally, data + at, size, &(enum fault){FAULT_NONE});
		else
			tally__other(tally, data + at, type, size);
		tally->records++;
		*last = at;
		at += whole;
	}
	return at;
}
