/* SPDX-License-Identifier: Apache-2.0 */
#include "walk.h"

#include <string.h>

enum fault subbuf__open(const uint8_t *page, size_t bytes, struct subbuf_head *head)
{
	uint32_t commit;

	*head = (struct subbuf_head){0};
	if (bytes < SUBBUF_HEADER_BYTES)
		return SUBBUF_SHORT_HEADER;
	commit = subbuf__commit(page);
	head->timestamp_ns = subbuf__timestamp(page);
	head->end = SUBBUF_HEADER_BYTES + (commit & SUBBUF_LENGTH_MASK);
	head->lost_any = (commit & SUBBUF_LOST) != 0;
	if (head->lost_any && (commit & SUBBUF_LOST_STORED) != 0 &&
	    head->end + sizeof(uint64_t) <= bytes) {
		head->lost_known = true;
		head->lost = walk__load(page + head->end);
	}
	return head->end > bytes ? SUBBUF_DATA_BEYOND_PAGE : FAULT_NONE;
}

enum fault subbuf__run(const uint8_t *page, uint32_t end, struct subbuf_walk *walk,
		       struct subbuf_tally *tally)
{
	uint64_t now_ns = walk->now_ns, events = 0, first_ns = tally->first_ns;
	const bool begun = tally->events > 0;
	enum fault fault = FAULT_NONE;
	uint32_t at = walk->at;

	while (at < end) {
		const uint32_t left = end - at;
		uint32_t word, type, delta, second, bytes;

		if (left < SUBBUF_WORD_BYTES) {
			fault = SUBBUF_SHORT_EVENT;
			break;
		}
		word = load32(page + at);
		type = word & SUBBUF_TYPE_MASK;
		delta = word >> SUBBUF_TYPE_BITS;
		if (type - 1 < SUBBUF_TYPE_DATA_MAX) {
			bytes = (type + 1) * SUBBUF_WORD_BYTES;
		} else if (type == SUBBUF_TYPE_PADDING && delta == 0) {
			walk->rest_unused = true;
			at = end;
			break;
		} else if (left < 2 * SUBBUF_WORD_BYTES) {
			fault = SUBBUF_SHORT_EVENT;
			break;
		} else {
			second = load32(page + at + SUBBUF_WORD_BYTES);
			if (type == SUBBUF_TYPE_TIME_EXTEND || type == SUBBUF_TYPE_TIME_STAMP) {
				const uint64_t wide =
					delta + ((uint64_t)second << SUBBUF_DELTA_BITS);

				now_ns = type == SUBBUF_TYPE_TIME_EXTEND
						 ? now_ns + wide
						 : subbuf__full_stamp(wide, now_ns);
				if (type == SUBBUF_TYPE_TIME_STAMP)
					walk->skipped_ns = 0;
				at += 2 * SUBBUF_WORD_BYTES;
				continue;
			}
			if (second < SUBBUF_WORD_BYTES) {
				fault = SUBBUF_BAD_LENGTH;
				break;
			}
			/* More than there is stays more, and in 32 bits. */
			bytes = SUBBUF_WORD_BYTES + (((uint32_t)least(second, end) + 3) & ~3u);
		}
		if (bytes > left) {
			fault = SUBBUF_EVENT_BEYOND_DATA;
			break;
		}
		now_ns += delta;
		if (type == SUBBUF_TYPE_PADDING)
			walk->skipped_ns += delta;
		else if (events++ == 0 && !begun)
			first_ns = now_ns;
		at += bytes;
	}
	walk->at = at;
	walk->now_ns = now_ns;
	tally->events += events;
	tally->first_ns = first_ns;
	tally->last_ns = now_ns;
	return fault;
}

enum fault subbuf__page(const uint8_t *page, size_t bytes, struct subbuf_walk *walk,
			struct subbuf_tally *tally)
{
	struct subbuf_head head;
	const enum fault fault = subbuf__open(page, bytes, &head);

	*walk = subbuf__start(&head);
	if (fault == SUBBUF_SHORT_HEADER)
		return fault;
	tally->pages++;
	tally->lost += head.lost;
	tally->lost_unknown += head.lost_any && !head.lost_known;
	if (fault != FAULT_NONE)
		return fault;
	return subbuf__run(page, head.end, walk, tally);
}

size_t subbuf__pages(const uint8_t *data, size_t bytes, uint32_t page_bytes,
		     struct subbuf_tally *tally, enum fault *fault)
{
	struct subbuf_walk walk;
	size_t at = 0;

	*fault = FAULT_NONE;
	while (bytes - at >= page_bytes) {
		const uint8_t *const page = data + at;
		struct subbuf_tally with = *tally;

		if (subbuf__timestamp(page) == 0 && subbuf__commit(page) == 0)
			break;
		*fault = subbuf__page(page, page_bytes, &walk, &with);
		if (*fault != FAULT_NONE)
			break;
		*tally = with;
		at += page_bytes;
	}
	return at;
}

bool subbuf__append(uint8_t *page, const uint8_t *piece, uint32_t page_bytes)
{
	const uint32_t commit = subbuf__commit(page), more = subbuf__commit(piece);
	const uint32_t stored = (commit & SUBBUF_LOST_STORED) != 0 ? sizeof(uint64_t) : 0;
	const uint32_t end = SUBBUF_HEADER_BYTES + (commit & SUBBUF_LENGTH_MASK);
	uint64_t lost = 0;

	if ((more & SUBBUF_LOST) != 0 || more > page_bytes - SUBBUF_HEADER_BYTES ||
	    end + stored > page_bytes || page_bytes - end - stored < more)
		return false;
	if (stored > 0)
		lost = walk__load(page + end);
	memcpy(page + end, piece + SUBBUF_HEADER_BYTES, more);
	if (stored > 0)
		walk__store(page + end + more, lost);
	walk__store(page + 8, commit + more);
	return true;
}

void subbuf__end(uint8_t *page, uint32_t end, const struct subbuf_head *head, uint32_t page_bytes)
{
	uint32_t commit = (end - SUBBUF_HEADER_BYTES) | (head->lost_any ? SUBBUF_LOST : 0);

	if (head->lost_known && page_bytes - end >= sizeof(head->lost)) {
		commit |= SUBBUF_LOST_STORED;
		walk__store(page + end, head->lost);
		end += (uint32_t)sizeof(head->lost);
	}
	walk__store(page + 8, commit);
	memset(page + end, 0, page_bytes - end);
}

void subbuf__cut(uint8_t *page, uint32_t end, uint32_t page_bytes)
{
	struct subbuf_head head;

	(void)subbuf__open(page, page_bytes, &head);
	subbuf__end(page, end, &head, page_bytes);
}
