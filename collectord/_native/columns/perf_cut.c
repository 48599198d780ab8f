/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>

#include "../walk.h"
#include "cut.h"

/* Which records of a perf.data a cut has, and their ids in the new file. */

#define WORD_BYTES 8u
#define RECORD_BYTES_MAX 65528u	       /* the size has 16 bits, and is of whole words */
#define FORMAT_LOST (UINT64_C(1) << 4) /* PERF_FORMAT_LOST, Linux 6.0 */
/* All up to RAW, IDENTIFIER, and CGROUP. */
#define KNOWN_FIELDS \
	((uint64_t)(2 * PERF_SAMPLE_RAW - 1) | PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_CGROUP)
#define CPUS_MAX (1u << 16)
#define AT_LOST_ID 8u
#define AT_THROTTLE_ID 16u /* of UNTHROTTLE too */
#define AT_READ_VALUES 16u

enum rule {
	LEFT_OUT,
	NAMES,	 /* a sample of later on needs it: those of all the time before the end are kept */
	IN_TIME, /* it is of its own time */
	OF_AUX,	 /* it is of use with the data of an AUX area only */
};

/* A rule tells what is done with a kind of the kernel's records; readers expect so many bytes. */
static const struct {
	uint8_t rule, bytes;
} kinds[WALK_KERNEL_TYPE_MAX + 1] = {
	[PERF_RECORD_MMAP] = {NAMES, 40},
	[PERF_RECORD_LOST] = {IN_TIME, PERF_LOST_BYTES},
	[PERF_RECORD_COMM] = {NAMES, PERF_AT_COMM},
	[PERF_RECORD_EXIT] = {NAMES, PERF_TASK_BYTES},
	[PERF_RECORD_THROTTLE] = {IN_TIME, 32},
	[PERF_RECORD_UNTHROTTLE] = {IN_TIME, 32},
	[PERF_RECORD_FORK] = {NAMES, PERF_TASK_BYTES},
	[PERF_RECORD_READ] = {IN_TIME, AT_READ_VALUES + WORD_BYTES},
	[PERF_RECORD_MMAP2] = {NAMES, 72},
	[PERF_RECORD_AUX] = {OF_AUX, 32},
	[PERF_RECORD_ITRACE_START] = {OF_AUX, 16},
	[PERF_RECORD_LOST_SAMPLES] = {IN_TIME, PERF_LOST_SAMPLES_BYTES},
	[PERF_RECORD_SWITCH] = {IN_TIME, 8},
	[PERF_RECORD_SWITCH_CPU_WIDE] = {IN_TIME, 16},
	[PERF_RECORD_NAMESPACES] = {NAMES, 24},
	[PERF_RECORD_KSYMBOL] = {NAMES, 24},
	[PERF_RECORD_BPF_EVENT] = {NAMES, 24},
	[PERF_RECORD_CGROUP] = {NAMES, 16},
	[PERF_RECORD_TEXT_POKE] = {NAMES, 24},
	[PERF_RECORD_AUX_OUTPUT_HW_ID] = {OF_AUX, 16},
};

static int add(struct piece *piece, size_t at, uint16_t size, uint64_t stamp_ns)
{
	struct row *const row = rows__add(piece->rows);

	if (row == NULL)
		return -ENOMEM;
	*row = (struct row){.payload = piece->data + at, .bytes = size, .stamp_ns = stamp_ns};
	return 0;
}

/* Whether the parts of a sample fill it, where all of its parts are known, and its CPU can be one. Some
 * readers crash at others. */
static bool is_plausible(const struct perf_event *event, const struct perf_parts *parts,
			 const uint8_t *record, uint16_t size)
{
	if ((event->sample_type & ~KNOWN_FIELDS) == 0 && parts->end + event->cgroup_back != size)
		return false;
	return event->cpu_at == 0 || load32(record + event->cpu_at) < CPUS_MAX;
}

static int take_sample(struct piece *piece, size_t at, uint16_t size)
{
	const uint8_t *const record = piece->data + at;
	const struct perf_event *const event = perf__sampled(&piece->source->perf, record, size);
	struct perf_parts parts;
	uint64_t stamp_ns;

	if (event == NULL)
		return piece__damaged(piece, at, 0, PERF_UNKNOWN_ID);
	stamp_ns = perf__sample_time(event, record, size);
	if (!perf__find_parts(event, record, size, &parts) ||
	    !is_plausible(event, &parts, record, size))
		return piece__damaged(piece, at, stamp_ns, fault_names[SUBBUF_SHORT_EVENT]);
	return piece__in_time(piece, stamp_ns) ? add(piece, at, size, stamp_ns) : 0;
}

int perf_cut__take(struct piece *piece, size_t at, uint64_t header)
{
	const struct source *const source = piece->source;
	const uint8_t *const record = piece->data + at;
	const uint32_t type = walk__type(header);
	const uint16_t size = walk__size(header);
	const struct perf_event *event;
	uint64_t stamp_ns;
	int ret = 0;

	if (type == PERF_RECORD_SAMPLE)
		return take_sample(piece, at, size);
	if (type == WALK_FINISHED_ROUND || type == WALK_AUXTRACE)
		return add(piece, at, size, 0);
	if (perf__is_compressed(header))
		return piece__damaged(piece, at, 0, PERF_NOT_DECOMPRESSED);
	if (type > WALK_KERNEL_TYPE_MAX || kinds[type].rule == LEFT_OUT)
		return 0;
	/* Readers refuse a whole file for one id that they do not know. */
	if (!perf__has_known_id(&source->perf, record, size))
		return piece__damaged(piece, at, 0, PERF_UNKNOWN_ID);
	event = perf__noted(&source->perf, record, size);
	if (size < kinds[type].bytes + event->trailer_bytes)
		return piece__damaged(piece, at, 0, fault_names[SUBBUF_SHORT_EVENT]);
	stamp_ns = perf__trailer_time(event, record, size);
	if (type == PERF_RECORD_LOST || type == PERF_RECORD_LOST_SAMPLES)
		ret = perf__take_loss(piece, at, type, size);
	if (kinds[type].rule == NAMES ? stamp_ns > source->until_ns
				      : !piece__in_time(piece, stamp_ns))
		return ret;
	if (kinds[type].rule == OF_AUX && type != PERF_RECORD_AUX)
		return ret;
	return ret < 0 ? ret : add(piece, at, size, stamp_ns);
}

/* Returns an id in the new file. */
static uint64_t renamed(const struct cut_ids *ids, uint64_t from)
{
	size_t low = 0, high = ids->count;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (ids->id[middle].from < from)
			low = middle + 1;
		else
			high = middle;
	}
	return low < ids->count && ids->id[low].from == from ? ids->id[low].to : from;
}

static void rename_at(const struct cut_ids *ids, uint8_t *at)
{
	walk__store(at, renamed(ids, walk__load(at)));
}

/* Returns the words of one event that reads of it begin with. */
static uint32_t read_head(uint64_t format)
{
	const uint64_t times = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;

	return 1 + (uint32_t)__builtin_popcountll(format & times);
}

/* Rename the ids among the values that a sample has of its group; they are known to fit. */
static void rename_values(const struct cut_ids *ids, uint64_t format, uint8_t *values)
{
	const uint32_t each = (format & FORMAT_LOST) != 0 ? 3 : 2;
	const uint64_t count = walk__load(values);

	values += (size_t)read_head(format) * WORD_BYTES;
	if ((format & PERF_FORMAT_ID) == 0)
		return;
	if ((format & PERF_FORMAT_GROUP) == 0) {
		rename_at(ids, values);
		return;
	}
	for (uint64_t i = 0; i < count; i++)
		rename_at(ids, values + (i * each + 1) * WORD_BYTES);
}

static void rename_sample(const struct cut_ids *ids, const struct perf_event *event, uint8_t *to,
			  uint32_t shift)
{
	if (event->identifier_at != 0)
		rename_at(ids, to + event->identifier_at);
	if (event->id_at != 0)
		rename_at(ids, to + event->id_at + shift);
	if ((event->sample_type & PERF_SAMPLE_READ) != 0)
		rename_values(ids, event->read_format, to + event->fixed_bytes + shift);
}

/* Rename the ids in the body of another record, of which `bytes` are there. */
static void rename_body(const struct cut_ids *ids, const struct perf_event *event, uint8_t *to,
			uint32_t bytes)
{
	const uint32_t at_id = AT_READ_VALUES + read_head(event->read_format) * WORD_BYTES;

	switch (walk__type(walk__load(to))) {
	case PERF_RECORD_LOST:
		rename_at(ids, to + AT_LOST_ID);
		break;
	case PERF_RECORD_THROTTLE:
	case PERF_RECORD_UNTHROTTLE:
		rename_at(ids, to + AT_THROTTLE_ID);
		break;
	case PERF_RECORD_READ:
		if ((event->read_format & PERF_FORMAT_ID) != 0 && at_id + WORD_BYTES <= bytes)
			rename_at(ids, to + at_id);
		break;
	default:
		break;
	}
}

static void rename_other(const struct cut_ids *ids, const struct perf_event *event, uint8_t *to,
			 uint32_t size)
{
	rename_body(ids, event, to, size - event->trailer_bytes);
	if (event->identifier_back != 0)
		rename_at(ids, to + size - event->identifier_back);
	if (event->id_back != 0)
		rename_at(ids, to + size - event->id_back);
}

/* Returns the id of a record in the new file. */
static uint64_t id_of(const struct cut_ids *ids, const struct perf_events *events,
		      const uint8_t *record, uint32_t size, bool is_sample)
{
	const uint16_t at = is_sample ? events->id_at : events->id_back;

	if (at == 0 || events->id_count == 0)
		return ids->unnamed;
	return renamed(ids, walk__load(record + (is_sample ? at : size - at)));
}

size_t perf_cut__put(const struct cut_ids *ids, const struct perf_events *events,
		     const uint8_t *record, uint8_t *to)
{
	const uint64_t header = walk__load(record);
	const uint32_t size = walk__size(header), type = walk__type(header);
	const bool is_sample = type == PERF_RECORD_SAMPLE;
	const struct perf_event *event;
	uint32_t more = 0;

	if (type >= WALK_USER_TYPE_MIN || (ids->count == 0 && !ids->adds)) {
		memcpy(to, record, size);
		return size;
	}
	event = is_sample ? perf__sampled(events, record, (uint16_t)size)
			  : perf__noted(events, record, (uint16_t)size);
	if (ids->adds && (is_sample || event->has_trailer))
		more = WORD_BYTES;
	if (size + more > RECORD_BYTES_MAX)
		return 0;
	if (is_sample) {
		/* The identifier is a sample's first word. */
		memcpy(to + WALK_HEADER_BYTES + more, record + WALK_HEADER_BYTES,
		       size - WALK_HEADER_BYTES);
		rename_sample(ids, event, to, more);
		if (more > 0)
			walk__store(to + WALK_ID_AT, id_of(ids, events, record, size, true));
	} else {
		/* It is the last word of others. */
		memcpy(to, record, size);
		rename_other(ids, event, to, size);
		if (more > 0)
			walk__store(to + size, id_of(ids, events, record, size, false));
	}
	walk__store(to, walk__header(type, walk__misc(header), (uint16_t)(size + more)));
	return size + more;
}
