/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "../walk.h"
#include "scan.h"

/* Sub-buffers of ftrace's rings: walk.h has their layout. */

#define TYPE_FIELD_BYTES 2u /* common_type, at the start of each record */

/* Add the record if it is one of those that are asked for. */
static int add(struct piece *piece, const uint8_t *payload, uint32_t bytes, uint64_t stamp_ns)
{
	const struct source *const source = piece->source;
	struct row *row;
	uint32_t tid = (uint32_t)ROW_NONE;

	if (!piece__in_time(piece, stamp_ns))
		return 0;
	if (piece->wanted == WANT_EVENTS &&
	    (bytes < TYPE_FIELD_BYTES || load16(payload) != source->event))
		return 0;
	row = rows__add(piece->rows);
	if (row == NULL)
		return -ENOMEM;
	if (bytes >= sizeof(tid) && bytes - sizeof(tid) >= source->tid_offset)
		tid = load32(payload + source->tid_offset);
	*row = (struct row){
		.payload = payload,
		.bytes = bytes,
		.cpu = piece->cpu,
		.pid = ROW_NONE,
		.tid = (int32_t)tid,
		.stamp_ns = stamp_ns,
		.label = bytes < TYPE_FIELD_BYTES ? 0 : load16(payload),
	};
	return 0;
}

/* The place of a walk over one page. */
struct place {
	uint32_t at, end;
	uint64_t now_ns;
};

/* Walk the events of a page as subbuf__run() does. Returns a fault, or -errno. */
static int walk(struct piece *piece, const uint8_t *page, struct place *place)
{
	const bool is_wanted = piece->wanted == WANT_EVENTS || piece->wanted >= WANT_ALL;
	const uint32_t end = place->end;
	uint64_t now_ns = place->now_ns;
	uint32_t at = place->at;
	int ret = FAULT_NONE;

	while (at < end && ret == 0) {
		uint32_t word, type, delta, second, bytes = 0;
		uint64_t past;

		if (end - at < SUBBUF_WORD_BYTES) {
			ret = SUBBUF_SHORT_EVENT;
			break;
		}
		word = load32(page + at);
		type = word & SUBBUF_TYPE_MASK;
		delta = word >> SUBBUF_TYPE_BITS;
		if (type - 1 < SUBBUF_TYPE_DATA_MAX) {
			bytes = type * SUBBUF_WORD_BYTES;
			past = (uint64_t)at + SUBBUF_WORD_BYTES + bytes;
			if (past > end) {
				ret = SUBBUF_EVENT_BEYOND_DATA;
				break;
			}
			now_ns += delta;
			if (is_wanted)
				ret = add(piece, page + at + SUBBUF_WORD_BYTES, bytes, now_ns);
			at = (uint32_t)past;
			continue;
		}
		if (type == SUBBUF_TYPE_PADDING && delta == 0)
			break;
		if (end - at < 2 * SUBBUF_WORD_BYTES) {
			ret = SUBBUF_SHORT_EVENT;
			break;
		}
		second = load32(page + at + SUBBUF_WORD_BYTES);
		if (type == SUBBUF_TYPE_TIME_EXTEND || type == SUBBUF_TYPE_TIME_STAMP) {
			const uint64_t bits = delta + ((uint64_t)second << SUBBUF_DELTA_BITS);

			now_ns = type == SUBBUF_TYPE_TIME_EXTEND ? now_ns + bits
								 : subbuf__full_stamp(bits, now_ns);
			at += 2 * SUBBUF_WORD_BYTES;
			continue;
		}
		if (second < SUBBUF_WORD_BYTES) {
			ret = SUBBUF_BAD_LENGTH;
			break;
		}
		bytes = second - SUBBUF_WORD_BYTES;
		past = (uint64_t)at + 2 * SUBBUF_WORD_BYTES + (((uint64_t)bytes + 3) & ~UINT64_C(3));
		if (past > end) {
			ret = SUBBUF_EVENT_BEYOND_DATA;
			break;
		}
		now_ns += delta;
		if (type != SUBBUF_TYPE_PADDING && is_wanted)
			ret = add(piece, page + at + 2 * SUBBUF_WORD_BYTES, bytes, now_ns);
		at = (uint32_t)past;
	}
	place->at = at;
	place->now_ns = now_ns;
	return ret;
}

/* Whether no event of a page is in the time that is asked for. The next page tells when this one
 * ends, if its own time is sound. */
static bool is_out_of_time(const struct piece *piece, uint64_t stamp_ns, const uint8_t *next)
{
	if (stamp_ns > piece->source->until_ns)
		return true;
	if (next == NULL || stamp_ns >= piece->source->since_ns)
		return false;
	return subbuf__timestamp(next) >= stamp_ns &&
	       subbuf__timestamp(next) < piece->source->since_ns;
}

static int find_in_page(struct piece *piece, size_t at, size_t bytes, const uint8_t *next)
{
	const uint8_t *const page = piece->data + at;
	struct subbuf_head head;
	struct place place;
	int ret = (int)subbuf__open(page, bytes, &head);

	if (ret == SUBBUF_SHORT_HEADER)
		return piece__damaged(piece, at, 0, fault_names[SUBBUF_SHORT_HEADER]);
	/* Damage is looked for at any time. */
	if (piece->wanted != WANT_DAMAGE && is_out_of_time(piece, head.timestamp_ns, next))
		return 0;
	place = (struct place){
		.at = SUBBUF_HEADER_BYTES, .end = head.end, .now_ns = head.timestamp_ns};
	if (head.lost_any) {
		const int told = piece__lost(piece, &(struct loss){
							    .offset = piece->offset + at,
							    .stamp_ns = head.timestamp_ns,
							    .lost = head.lost,
							    .cpu = piece->cpu,
							    .label = ROW_NONE,
							    .is_known = head.lost_known,
						    });

		if (told < 0)
			return told;
	}
	if (ret == FAULT_NONE)
		ret = walk(piece, page, &place);
	if (ret <= FAULT_NONE)
		return ret;
	return piece__damaged(piece, at + place.at, place.now_ns, fault_names[ret]);
}

static int find(struct piece *piece, uint64_t *used)
{
	const size_t step = piece->source->page_bytes;
	size_t at = 0;

	while (at < piece->bytes) {
		const size_t left = piece->bytes - at, bytes = left < step ? left : step;
		const bool has_next = left - bytes >= SUBBUF_HEADER_BYTES;
		int ret;

		if (bytes < step && !piece->is_last)
			break;
		ret = find_in_page(piece, at, bytes, has_next ? piece->data + at + step : NULL);
		if (ret < 0)
			return ret;
		at += bytes;
	}
	*used = at;
	return 0;
}

const struct source_kind source_kind__ftrace = {.name = "ftrace", .find = find};
