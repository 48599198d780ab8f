/* SPDX-License-Identifier: Apache-2.0 */
#include "pages.h"

#include <string.h>

#include "check.h"

#define DATA_WORDS 2u /* an event's payload, and its type */
#define PADDING 29u
#define TYPE_BITS 5u

void page__start(uint8_t *page, uint32_t page_bytes, uint64_t timestamp_ns)
{
	memset(page, 0, page_bytes);
	walk__store(page, timestamp_ns);
}

uint32_t page__data(const uint8_t *page)
{
	return subbuf__commit(page) & SUBBUF_LENGTH_MASK;
}

void page__words(uint8_t *page, const uint32_t *words, uint32_t count)
{
	memcpy(page + SUBBUF_HEADER_BYTES + page__data(page), words, count * sizeof(*words));
	walk__store(page + 8, walk__load(page + 8) + count * sizeof(*words));
}

void page__event_at(uint8_t *at, uint32_t delta, uint64_t serial)
{
	const uint32_t words[] = {DATA_WORDS | delta << TYPE_BITS, (uint32_t)serial,
				  (uint32_t)(serial >> 32)};

	memcpy(at, words, sizeof(words));
}

void page__event(uint8_t *page, uint32_t delta, uint64_t serial)
{
	page__event_at(page + SUBBUF_HEADER_BYTES + page__data(page), delta, serial);
	walk__store(page + 8, walk__load(page + 8) + PAGES_EVENT_BYTES);
}

void page__discarded(uint8_t *page, uint32_t delta)
{
	const uint32_t words[] = {PADDING | delta << TYPE_BITS, 4};

	page__words(page, words, 2);
}

void page__lost(uint8_t *page, uint64_t lost, bool known)
{
	if (known)
		walk__store(page + SUBBUF_HEADER_BYTES + page__data(page), lost);
	/* Sign-extended, as the kernel does it. */
	walk__store(page + 8, walk__load(page + 8) | UINT64_C(0xffffffff80000000) |
				      (known ? SUBBUF_LOST_STORED : 0));
}

uint64_t page__fill(uint8_t *page, uint32_t page_bytes, uint64_t timestamp_ns, uint64_t serial)
{
	page__start(page, page_bytes, timestamp_ns);
	page__event(page, 0, serial++);
	while (page_bytes - SUBBUF_HEADER_BYTES - page__data(page) >= PAGES_EVENT_BYTES)
		page__event(page, 1, serial++);
	return serial;
}

static void check_page(const uint8_t *page, uint32_t page_bytes, uint64_t *serial, uint64_t *last_ns)
{
	const uint32_t end = SUBBUF_HEADER_BYTES + page__data(page);
	struct subbuf_tally tally = {0};
	struct subbuf_head head;
	struct subbuf_walk walk;

	CHECK_EQ(subbuf__open(page, page_bytes, &head), FAULT_NONE);
	walk = subbuf__start(&head);
	while (walk.at < end) {
		const uint32_t word = load32(page + walk.at);
		const uint32_t at = walk.at;
		const uint64_t events = tally.events;
		uint32_t past = at + PAGES_EVENT_BYTES;

		if ((word & 31u) == PADDING)
			past = at + 4 + ((load32(page + at + 4) + 3) & ~3u);
		CHECK_EQ(subbuf__run(page, past, &walk, &tally), FAULT_NONE);
		CHECK_EQ(walk.at, past);
		CHECK(walk.now_ns >= *last_ns);
		*last_ns = walk.now_ns;
		if (tally.events == events)
			continue;
		CHECK_EQ(walk__load(page + at + 4), *serial);
		++*serial;
	}
	for (uint32_t at = end + (head.lost_known ? 8 : 0); at < page_bytes; at++)
		CHECK_EQ(page[at], 0);
}

void pages__check(const uint8_t *data, uint64_t bytes, uint32_t page_bytes, uint64_t *serial,
		  uint64_t *last_ns)
{
	CHECK_EQ(bytes % page_bytes, 0);
	for (uint64_t at = 0; at < bytes; at += page_bytes)
		check_page(data + at, page_bytes, serial, last_ns);
}
