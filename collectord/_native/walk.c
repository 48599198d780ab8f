/* SPDX-License-Identifier: Apache-2.0 */
#include "walk.h"

#include <linux/perf_event.h>

#include "aux_piece.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "record headers are taken apart as little-endian words"
#endif

const char *walk_fault__name(enum walk_fault fault)
{
	static const char *const names[WALK_FAULTS] = {
		[WALK_OK] = "ok",
		[WALK_BAD_SIZE] = "bad_size",
		[WALK_BAD_TYPE] = "bad_type",
		[WALK_PAST_HEAD] = "past_head",
		[WALK_BAD_HEAD] = "bad_head",
	};

	return fault < WALK_FAULTS ? names[fault] : "unknown";
}

uint64_t walk__trailer_time(const uint8_t *record, const struct walk_layout *layout)
{
	const uint16_t size = walk__size(walk__load(record));

	if (layout->time_trailer < sizeof(uint64_t) ||
	    (uint32_t)layout->time_trailer + WALK_HEADER_BYTES > size)
		return 0;
	return walk__load(record + size - layout->time_trailer);
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
	uint64_t time_ns;

	tally->samples++;
	if (layout->time_offset == 0 ||
	    (uint32_t)layout->time_offset + sizeof(uint64_t) > size)
		return;
	time_ns = walk__load(record + layout->time_offset);
	if (time_ns < tally->first_ns || tally->first_ns == 0)
		tally->first_ns = time_ns;
	if (time_ns > tally->last_ns)
		tally->last_ns = time_ns;
}

static bool walk_ids__has(const struct walk_ids *ids, uint64_t id)
{
	uint32_t low = 0, high = ids->count;

	while (low < high) {
		const uint32_t middle = low + (high - low) / 2;

		if (ids->all[middle] < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < ids->count && ids->all[low] == id;
}

/* Returns the id that the sample has afterwards. */
static uint64_t relabel(uint8_t *record, uint16_t size, const struct walk_ids *ids,
			struct walk_tally *tally)
{
	uint64_t id;

	if (size < WALK_ID_AT + sizeof(id) || ids->count == 0)
		return 0;
	id = walk__load(record + WALK_ID_AT);
	if (walk_ids__has(ids, id))
		return id;
	walk__store(record + WALK_ID_AT, ids->all[0]);
	tally->relabelled++;
	return ids->all[0];
}

static void tally__other(struct walk_tally *tally, const uint8_t *record, uint32_t type,
			 uint16_t size)
{
	switch (type) {
	case PERF_RECORD_LOST: /* u64 id, u64 lost */
		if (size >= 24)
			tally->lost_records += walk__load(record + 16);
		break;
	case PERF_RECORD_LOST_SAMPLES: /* u64 lost */
		if (size >= 16)
			tally->lost_samples += walk__load(record + 8);
		break;
	case PERF_RECORD_THROTTLE:
		tally->throttles++;
		break;
	case PERF_RECORD_UNTHROTTLE:
		tally->unthrottles++;
		break;
	default:
		break;
	}
}

size_t walk__run(uint8_t *copy, size_t bytes, const struct walk_layout *layout,
		 struct walk_tally *tally, enum walk_fault *fault)
{
	uint64_t known_id = 0; /* neighbours mostly have the same one; 0 is nobody's */
	size_t at = 0;

	*fault = WALK_OK;
	while (bytes - at >= WALK_HEADER_BYTES) {
		uint8_t *const record = copy + at;
		const uint64_t header = walk__load(record);
		const uint32_t type = walk__type(header);
		const uint16_t size = walk__size(header);

		if (size < WALK_HEADER_BYTES || (size & 7u) != 0) {
			*fault = WALK_BAD_SIZE;
			break;
		}
		if (type == 0 || type >= WALK_USER_TYPE_MIN) {
			*fault = WALK_BAD_TYPE;
			break;
		}
		if (size > bytes - at)
			break;
		if (type == PERF_RECORD_SAMPLE) {
			if (layout->ids != NULL && size > WALK_ID_AT &&
			    walk__load(record + WALK_ID_AT) != known_id)
				known_id = relabel(record, size, layout->ids, tally);
			tally__sample(tally, record, size, layout);
		} else if (type <= WALK_KERNEL_TYPE_MAX) {
			tally__other(tally, record, type, size);
		} else {
			walk__store(record, walk__header(WALK_FINISHED_INIT, 0, size));
			tally->neutralised++;
		}
		tally->records++;
		at += size;
	}
	return at;
}

/* Length of the AUX piece at `record`, 0 if it is none. */
static uint64_t tally__aux(struct walk_tally *tally, const uint8_t *record, size_t bytes)
{
	struct aux_piece piece;
	uint64_t whole;

	if (!aux_piece__read(record, bytes, &piece, &whole))
		return 0;
	if (whole > bytes)
		return whole;
	tally->aux_pieces++;
	tally->aux_bytes += piece.bytes;
	return whole;
}

size_t walk__file(const uint8_t *data, size_t bytes, const struct walk_layout *layout,
		  struct walk_tally *tally, enum walk_fault *fault, size_t *last)
{
	size_t at = 0;

	*fault = WALK_OK;
	*last = 0;
	while (bytes - at >= WALK_HEADER_BYTES) {
		const uint64_t header = walk__load(data + at);
		const uint32_t type = walk__type(header);
		const uint16_t size = walk__size(header);
		const bool known = (type >= 1 && type <= WALK_KERNEL_TYPE_MAX) ||
				   (type >= WALK_USER_TYPE_MIN && type <= WALK_FINISHED_INIT);
		uint64_t whole = size;

		if (size < WALK_HEADER_BYTES || (size & 7u) != 0) {
			*fault = WALK_BAD_SIZE;
			break;
		}
		if (!known) {
			*fault = WALK_BAD_TYPE;
			break;
		}
		if (size <= bytes - at && type == WALK_AUXTRACE) {
			whole = tally__aux(tally, data + at, bytes - at);
			if (whole == 0) {
				*fault = WALK_BAD_SIZE;
				break;
			}
		}
		if (whole > bytes - at) {
			*fault = WALK_PAST_HEAD;
			break;
		}
		if (type == PERF_RECORD_SAMPLE)
			tally__sample(tally, data + at, size, layout);
		else if (type == WALK_FINISHED_INIT)
			(void)tally__aux(tally, data + at, size);
		else
			tally__other(tally, data + at, type, size);
		tally->records++;
		*last = at;
		at += whole;
	}
	return at;
}
