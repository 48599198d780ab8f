/* SPDX-License-Identifier: Apache-2.0 */
#include "perf.h"

#include <errno.h>
#include <linux/perf_event.h>

#include "../walk.h"
#include "cut.h"
#include "scan.h"

/* Records of perf.data, framed as include/uapi/linux/perf_event.h has them. */

#define WORD_BYTES 8u
/* How far ahead of a record memory is loaded into the nearest cache: a few records. */
#define AHEAD_BYTES 512

/* Returns the event with an id, NULL if there is none. */
static inline const struct perf_event *event_of(const struct perf_events *events, uint64_t id)
{
	size_t at = (size_t)id & events->mask;

	if (events->place == NULL)
		return NULL;
	while (events->place[at].event != 0 && events->place[at].id != id)
		at = (at + 1) & events->mask;
	return events->place[at].event != 0 ? &events->event[events->place[at].event - 1] : NULL;
}

static inline const struct perf_event *sampled(const struct perf_events *events,
					       const uint8_t *record, uint16_t size)
{
	if (events->id_at == 0 || events->id_count == 0)
		return events->event;
	if ((size_t)events->id_at + WORD_BYTES > size)
		return NULL;
	return event_of(events, walk__load(record + events->id_at));
}

const struct perf_event *perf__sampled(const struct perf_events *events, const uint8_t *record,
				       uint16_t size)
{
	return sampled(events, record, size);
}

const struct perf_event *perf__noted(const struct perf_events *events, const uint8_t *record,
				     uint16_t size)
{
	const struct perf_event *event = NULL;

	if (events->id_back != 0 && WALK_HEADER_BYTES + (size_t)events->id_back <= size)
		event = event_of(events, walk__load(record + size - events->id_back));
	return event != NULL ? event : events->event;
}

bool perf__has_known_id(const struct perf_events *events, const uint8_t *record, uint16_t size)
{
	uint64_t id;

	if (events->id_back == 0 || events->id_count == 0 ||
	    WALK_HEADER_BYTES + (size_t)events->id_back > size)
		return true;
	id = walk__load(record + size - events->id_back);
	return id == 0 || event_of(events, id) != NULL;
}

static inline enum fault check(uint64_t header, size_t left)
{
	const uint16_t size = walk__size(header);

	if (size < WALK_HEADER_BYTES || size % WORD_BYTES != 0)
		return WALK_BAD_SIZE;
	/* The payload of TRACING_DATA follows it, in pipes only. */
	if (walk__type(header) == 0 || walk__type(header) == 66)
		return WALK_BAD_TYPE;
	return size > left ? WALK_PAST_HEAD : FAULT_NONE;
}

enum fault perf__check(uint64_t header, size_t left)
{
	return check(header, left);
}

bool perf__begins_chunk(const struct perf_events *events, const uint8_t *record, size_t left)
{
	const uint64_t header = walk__load(record);
	const uint16_t size = walk__size(header);

	if (check(header, left) != FAULT_NONE || walk__type(header) >= WALK_USER_TYPE_MIN)
		return false;
	if (walk__type(header) == PERF_RECORD_SAMPLE)
		return sampled(events, record, size) != NULL;
	return events->id_back != 0 && WALK_HEADER_BYTES + (size_t)events->id_back <= size &&
	       event_of(events, walk__load(record + size - events->id_back)) != NULL;
}

/* Returns the first chunk behind a damaged record that begins with a record of a known event, or
 * where the next piece may find one. */
static uint64_t resume(const struct piece *piece, size_t damaged)
{
	uint64_t at = damaged + PERF_CHUNK_BYTES - (piece->offset + damaged) % PERF_CHUNK_BYTES;

	for (; at < piece->bytes && piece->bytes - at >= 2 * WORD_BYTES; at += PERF_CHUNK_BYTES)
		if (perf__begins_chunk(&piece->source->perf, piece->data + at, piece->bytes - at))
			break;
	return at;
}

static inline uint32_t bits(uint64_t value)
{
	return (uint32_t)__builtin_popcountll(value);
}

static inline uint64_t sample_time(const struct perf_event *event, const uint8_t *record,
				   uint16_t size)
{
	if (event->time_at == 0 || (size_t)event->time_at + WORD_BYTES > size)
		return 0;
	return walk__load(record + event->time_at);
}

uint64_t perf__sample_time(const struct perf_event *event, const uint8_t *record, uint16_t size)
{
	return sample_time(event, record, size);
}

static inline bool find_parts(const struct perf_event *event, const uint8_t *record, uint32_t size,
			      struct perf_parts *parts)
{
	const uint64_t times = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
	const uint64_t each = PERF_FORMAT_ID | UINT64_C(1) << 4; /* PERF_FORMAT_LOST, Linux 6.0 */
	uint32_t at = event->fixed_bytes;
	uint64_t words = 0;

	*parts = (struct perf_parts){0};
	if (at > size)
		return false;
	if ((event->sample_type & PERF_SAMPLE_READ) != 0) {
		words = 1 + bits(event->read_format & times);
		if ((event->read_format & PERF_FORMAT_GROUP) == 0) {
			words += bits(event->read_format & each);
		} else {
			if (size - at < WORD_BYTES || walk__load(record + at) > size)
				return false;
			words += walk__load(record + at) * (1 + bits(event->read_format & each));
		}
		if (words > (size - at) / WORD_BYTES)
			return false;
		at += (uint32_t)words * WORD_BYTES;
	}
	if ((event->sample_type & PERF_SAMPLE_CALLCHAIN) != 0) {
		if (size - at < WORD_BYTES)
			return false;
		words = walk__load(record + at);
		if (words > (size - at) / WORD_BYTES - 1)
			return false;
		parts->chain = at;
		at += (1 + (uint32_t)words) * WORD_BYTES;
	}
	if ((event->sample_type & PERF_SAMPLE_RAW) != 0) {
		const uint32_t head = sizeof(uint32_t);

		if (size - at < head || load32(record + at) > size - at - head)
			return false;
		parts->raw = at + head;
		parts->raw_bytes = load32(record + at);
		at = parts->raw + parts->raw_bytes;
	}
	parts->end = at;
	if (size - at < event->cgroup_back)
		return false;
	if (event->cgroup_back != 0)
		parts->cgroup = size - event->cgroup_back;
	return true;
}

bool perf__find_parts(const struct perf_event *event, const uint8_t *record, uint32_t size,
		      struct perf_parts *parts)
{
	return find_parts(event, record, size, parts);
}

static int take_sample(struct piece *piece, size_t at, uint16_t size)
{
	const struct source *const source = piece->source;
	const uint8_t *const record = piece->data + at;
	const struct perf_event *const event = sampled(&source->perf, record, size);
	struct perf_parts parts;
	struct row *row;
	uint64_t stamp_ns;

	if (event == NULL)
		return piece__damaged(piece, at, 0, PERF_UNKNOWN_ID);
	if (piece->wanted == WANT_EVENTS ? !event->is_wanted || source->perf_rows > PERF_ROWS_SAMPLES
					 : piece->wanted != WANT_DAMAGE)
		return 0;
	stamp_ns = sample_time(event, record, size);
	if (piece->wanted == WANT_EVENTS && !piece__in_time(piece, stamp_ns))
		return 0;
	if (!find_parts(event, record, size, &parts))
		return piece__damaged(piece, at, stamp_ns, fault_names[SUBBUF_SHORT_EVENT]);
	if (piece->wanted != WANT_EVENTS)
		return 0;
	row = rows__add(piece->rows);
	if (row == NULL)
		return -ENOMEM;
	*row = (struct row){
		.payload = record,
		.bytes = size,
		.stamp_ns = stamp_ns,
		.loose = parts.chain,
		.label = event->label,
	};
	perf__place(event, record, &row->cpu, &row->pid, &row->tid);
	if (source->perf_rows == PERF_ROWS_RAW) {
		row->payload = record + parts.raw;
		row->bytes = parts.raw_bytes;
		row->loose = parts.cgroup != 0 ? parts.cgroup - parts.raw : 0;
	}
	return 0;
}

uint64_t perf__trailer_time(const struct perf_event *event, const uint8_t *record, uint16_t size)
{
	if (event->time_back == 0 || WALK_HEADER_BYTES + (size_t)event->time_back > size)
		return 0;
	return walk__load(record + size - event->time_back);
}

int32_t perf__trailer_cpu(const struct perf_event *event, const uint8_t *record, uint16_t size)
{
	if (event->cpu_back == 0 || WALK_HEADER_BYTES + (size_t)event->cpu_back > size)
		return ROW_NONE;
	return (int32_t)load32(record + size - event->cpu_back);
}

static int take(struct piece *piece, size_t at, uint64_t header)
{
	const uint32_t type = walk__type(header);

	if (piece->wanted == WANT_NAMES && type == PERF_RECORD_CGROUP)
		return perf__take_cgroup(piece->cgroups, &piece->source->perf, piece->data + at);
	if (piece->wanted == WANT_NAMES)
		return perf__take_name(piece, at, header);
	if (piece->wanted == WANT_CUT)
		return perf_cut__take(piece, at, header);
	if (type == PERF_RECORD_SAMPLE)
		return take_sample(piece, at, walk__size(header));
	if (type == PERF_RECORD_LOST || type == PERF_RECORD_LOST_SAMPLES)
		return perf__take_loss(piece, at, type, walk__size(header));
	if (perf__is_compressed(header))
		return piece__damaged(piece, at, 0, PERF_NOT_DECOMPRESSED);
	return piece->wanted == WANT_EVENTS && piece->source->perf_rows >= PERF_ROWS_TASKS
		       ? perf__take_note(piece, at, header)
		       : 0;
}

/* Returns the bytes of the whole samples from `at` on, of which nothing is wanted. */
static size_t skip_samples(const struct piece *piece, size_t at)
{
	const size_t start = at;

	while (piece->bytes - at >= WALK_HEADER_BYTES) {
		const uint64_t header = walk__load(piece->data + at);
		const uint16_t size = walk__size(header);

		if (walk__type(header) != PERF_RECORD_SAMPLE || size < WALK_HEADER_BYTES ||
		    size % WORD_BYTES != 0 || size > piece->bytes - at)
			break;
		__builtin_prefetch(piece->data + at + AHEAD_BYTES);
		at += size;
	}
	return at - start;
}

static int find(struct piece *piece, uint64_t *used)
{
	/* Samples have none of what is wanted. */
	const bool passes_samples =
		piece->wanted == WANT_NAMES ||
		(piece->wanted == WANT_EVENTS && piece->source->perf_rows >= PERF_ROWS_TASKS);
	uint64_t at = 0;
	int ret = 0;

	if (piece->source->perf.count == 0)
		return -EINVAL;
	while (ret == 0 && at < piece->bytes) {
		uint64_t header = 0, whole = 0;
		enum fault fault = WALK_PAST_HEAD;
		size_t left;

		if (passes_samples)
			at += skip_samples(piece, (size_t)at);
		left = piece->bytes - (size_t)at;
		if (left == 0)
			break;
		__builtin_prefetch(piece->data + at + AHEAD_BYTES);
		if (left >= WALK_HEADER_BYTES) {
			header = walk__load(piece->data + at);
			fault = check(header, left);
		}
		if (fault == WALK_PAST_HEAD && !piece->is_last)
			break;
		if (fault == FAULT_NONE && !perf__whole(piece->data + at, &whole))
			fault = WALK_BAD_SIZE;
		if (fault != FAULT_NONE) {
			ret = piece__damaged(piece, at, 0, fault_names[fault]);
			at = resume(piece, (size_t)at);
			continue;
		}
		ret = take(piece, (size_t)at, header);
		at += whole;
	}
	*used = at;
	return ret;
}

const struct source_kind source_kind__perf = {.name = "perf", .find = find, .tells_names = true};
