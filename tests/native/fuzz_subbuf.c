/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "check.h"
#include "guarded.h"
#include "walk.h"

#define PAGE_BYTES 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct guarded memory, other;

static enum fault walk(const uint8_t *page, size_t bytes, struct subbuf_walk *place,
		       struct subbuf_tally *tally)
{
	*tally = (struct subbuf_tally){0};
	return subbuf__page(page, bytes, place, tally);
}

/* A sound page can be cut anywhere between events, and be put together again. */
static void cut_and_join(const uint8_t *page, uint32_t at, const struct subbuf_tally *whole)
{
	uint8_t *const first = memory.data, *const second = other.data;
	const uint32_t end = SUBBUF_HEADER_BYTES + (subbuf__commit(page) & SUBBUF_LENGTH_MASK);
	struct subbuf_tally tally = {0}, joined;
	struct subbuf_head head;
	struct subbuf_walk place;

	CHECK_EQ(subbuf__open(page, PAGE_BYTES, &head), FAULT_NONE);
	place = subbuf__start(&head);
	(void)subbuf__run(page, at, &place, &tally);
	if (place.rest_unused)
		return;
	memmove(first, page, PAGE_BYTES);
	memset(second, 0, PAGE_BYTES);
	walk__store(second, place.now_ns);
	walk__store(second + 8, end - place.at);
	memcpy(second + SUBBUF_HEADER_BYTES, page + place.at, end - place.at);
	subbuf__cut(first, place.at, PAGE_BYTES);
	CHECK_EQ(walk(first, PAGE_BYTES, &place, &joined), FAULT_NONE);
	CHECK_EQ(joined.events, tally.events);
	if (!subbuf__append(first, second, PAGE_BYTES))
		return; /* a number of lost events that had no room before has some now */
	CHECK_EQ(walk(first, PAGE_BYTES, &place, &joined), FAULT_NONE);
	CHECK_EQ(joined.events, whole->events);
	CHECK_EQ(joined.last_ns, whole->last_ns);
	CHECK_EQ(joined.lost, whole->lost);
	CHECK_EQ(joined.lost_unknown, whole->lost_unknown);
}

/* {u16 where to cut, bytes of a page}. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t page[PAGE_BYTES];
	struct subbuf_tally tally, pages = {0};
	struct subbuf_walk place;
	enum fault fault, other_fault;
	uint16_t cut;

	if (memory.data == NULL) {
		guarded__init(&memory, PAGE_BYTES, -1);
		guarded__init(&other, PAGE_BYTES, -1);
	}
	if (size < sizeof(cut))
		return 0;
	memcpy(&cut, data, sizeof(cut));
	data += sizeof(cut);
	size -= sizeof(cut);
	if (size > PAGE_BYTES)
		size = PAGE_BYTES;
	/* As it is, up to memory that must not be read. */
	memcpy(memory.data + PAGE_BYTES - size, data, size);
	fault = walk(memory.data + PAGE_BYTES - size, size, &place, &tally);
	CHECK(fault <= SUBBUF_EVENT_BEYOND_DATA && place.at <= (size < 16 ? 16 : size));
	CHECK(tally.events <= size / 4);

	memset(page, 0, sizeof(page));
	memcpy(page, data, size);
	fault = walk(page, PAGE_BYTES, &place, &tally);
	if (fault == FAULT_NONE)
		cut_and_join(page, SUBBUF_HEADER_BYTES + cut % (place.at - 15), &tally);
	CHECK_EQ(subbuf__pages(page, PAGE_BYTES, PAGE_BYTES, &pages, &other_fault) == PAGE_BYTES,
		 fault == FAULT_NONE && (subbuf__timestamp(page) != 0 || subbuf__commit(page) != 0));
	if (fault != FAULT_NONE && fault != SUBBUF_DATA_BEYOND_PAGE) {
		struct subbuf_tally sound;

		subbuf__cut(page, place.at, PAGE_BYTES);
		CHECK_EQ(walk(page, PAGE_BYTES, &place, &sound), FAULT_NONE);
		CHECK_EQ(sound.events, tally.events);
		CHECK_EQ(sound.last_ns, tally.last_ns);
	}
	return 0;
}
