/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "check.h"
#include "guarded.h"
#include "pages.h"
#include "walk.h"

#define PAGE_BYTES 4096u
#define DATA_BYTES (PAGE_BYTES - SUBBUF_HEADER_BYTES)

static struct guarded memory;
static uint8_t *page;

static enum fault walk(struct subbuf_tally *tally, struct subbuf_walk *place)
{
	*tally = (struct subbuf_tally){0};
	return subbuf__page(page, PAGE_BYTES, place, tally);
}

/* Whatever is wrong in these words, two sound events stand before. */
static void expect_fault(const uint32_t *words, uint32_t count, enum fault fault)
{
	struct subbuf_tally tally;
	struct subbuf_walk place;

	page__start(page, PAGE_BYTES, 100);
	page__event(page, 1, 0);
	page__event(page, 2, 1);
	page__words(page, words, count);
	CHECK_EQ(walk(&tally, &place), fault);
	CHECK_EQ(tally.events, 2);
	CHECK_EQ(tally.first_ns, 101);
	CHECK_EQ(tally.last_ns, 103);
	CHECK_EQ(place.at, SUBBUF_HEADER_BYTES + 2 * PAGES_EVENT_BYTES);
}

static void each_fault_is_told_and_keeps_what_is_before(void)
{
	expect_fault((uint32_t[]){5 | 1 << 5, 0, 0}, 3, SUBBUF_EVENT_BEYOND_DATA);
	expect_fault((uint32_t[]){0, 9}, 2, SUBBUF_EVENT_BEYOND_DATA);
	expect_fault((uint32_t[]){0, UINT32_MAX}, 2, SUBBUF_EVENT_BEYOND_DATA);
	expect_fault((uint32_t[]){29 | 1 << 5, UINT32_MAX - 3}, 2, SUBBUF_EVENT_BEYOND_DATA);
	expect_fault((uint32_t[]){0}, 1, SUBBUF_SHORT_EVENT);
	expect_fault((uint32_t[]){30}, 1, SUBBUF_SHORT_EVENT);
	expect_fault((uint32_t[]){31}, 1, SUBBUF_SHORT_EVENT);
	expect_fault((uint32_t[]){29 | 1 << 5}, 1, SUBBUF_SHORT_EVENT);
	expect_fault((uint32_t[]){0, 3}, 2, SUBBUF_BAD_LENGTH);
	expect_fault((uint32_t[]){29 | 1 << 5, 0}, 2, SUBBUF_BAD_LENGTH);
}

static void a_header_that_is_short_or_says_too_much_is_refused(void)
{
	struct subbuf_tally tally;
	struct subbuf_walk place;
	struct subbuf_head head;

	/* The last bytes before memory that must not be read. */
	for (uint32_t bytes = 0; bytes < SUBBUF_HEADER_BYTES; bytes++)
		CHECK_EQ(subbuf__open(memory.data + memory.bytes - bytes, bytes, &head),
			 SUBBUF_SHORT_HEADER);
	page__fill(page, PAGE_BYTES, 1, 0);
	walk__store(page + 8, DATA_BYTES + 4);
	CHECK_EQ(walk(&tally, &place), SUBBUF_DATA_BEYOND_PAGE);
	CHECK_EQ(tally.events, 0);
	walk__store(page + 8, SUBBUF_LENGTH_MASK | SUBBUF_LOST | SUBBUF_LOST_STORED);
	CHECK_EQ(walk(&tally, &place), SUBBUF_DATA_BEYOND_PAGE);
	CHECK_EQ(tally.lost_unknown, 1);
}

static void every_length_of_a_page_is_walked_within_it(void)
{
	struct subbuf_tally tally;
	struct subbuf_walk place;

	page__fill(page, PAGE_BYTES, 1, 0);
	for (uint32_t data = 0; data <= DATA_BYTES; data++) {
		walk__store(page + 8, data);
		CHECK_EQ(walk(&tally, &place) == FAULT_NONE, data % PAGES_EVENT_BYTES == 0);
		CHECK_EQ(tally.events, data / PAGES_EVENT_BYTES);
	}
}

static void losses_are_counted_where_the_page_tells_how_many(void)
{
	struct subbuf_tally tally;
	struct subbuf_walk place;

	page__start(page, PAGE_BYTES, 7);
	page__event(page, 1, 0);
	page__lost(page, 123, true);
	CHECK_EQ(walk(&tally, &place), FAULT_NONE);
	CHECK_EQ(tally.lost, 123);
	CHECK_EQ(tally.lost_unknown, 0);
	page__start(page, PAGE_BYTES, 7);
	page__lost(page, 0, false);
	CHECK_EQ(walk(&tally, &place), FAULT_NONE);
	CHECK_EQ(tally.lost_unknown, 1);
	/* Room for half of the number only. */
	walk__store(page + 8, (DATA_BYTES - 4) | SUBBUF_LOST | SUBBUF_LOST_STORED);
	(void)walk(&tally, &place);
	CHECK_EQ(tally.lost_unknown, 1);
}

static void times_are_extended_and_absolute(void)
{
	const uint64_t stamp = UINT64_C(3) << 59 | 5;
	struct subbuf_tally tally;
	struct subbuf_walk place;

	page__start(page, PAGE_BYTES, stamp);
	page__words(page, (uint32_t[]){30 | 7 << 5, 2}, 2);
	page__event(page, 1, 0);
	CHECK_EQ(walk(&tally, &place), FAULT_NONE);
	CHECK_EQ(tally.first_ns, stamp + 7 + (UINT64_C(2) << 27) + 1);
	/* A little earlier: an event that another one interrupted. */
	page__words(page, (uint32_t[]){31 | 9 << 5, 0}, 2);
	CHECK_EQ(walk(&tally, &place), FAULT_NONE);
	CHECK_EQ(tally.last_ns, (UINT64_C(3) << 59) + 9);
	/* Much earlier: the 59 bits wrapped. */
	page__words(page, (uint32_t[]){31, 0xffffffff}, 2);
	page__words(page, (uint32_t[]){31 | 1 << 5, 0}, 2);
	CHECK_EQ(walk(&tally, &place), FAULT_NONE);
	CHECK_EQ(tally.last_ns, (UINT64_C(4) << 59) + 1);
}

static void discarded_events_pass_time_that_the_kernel_skips(void)
{
	struct subbuf_tally tally;
	struct subbuf_walk place;

	page__start(page, PAGE_BYTES, 100);
	page__discarded(page, 30);
	page__event(page, 5, 0);
	CHECK_EQ(walk(&tally, &place), FAULT_NONE);
	CHECK_EQ(tally.events, 1);
	CHECK_EQ(place.now_ns, 135);
	CHECK_EQ(place.skipped_ns, 30);
	CHECK(!place.rest_unused);
	page__words(page, (uint32_t[]){29, 0, 0}, 3);
	CHECK_EQ(walk(&tally, &place), FAULT_NONE);
	CHECK(place.rest_unused);
	CHECK_EQ(tally.events, 1);
}

static void a_piece_is_put_behind_what_it_continues(void)
{
	uint8_t piece[PAGE_BYTES], before[PAGE_BYTES];
	struct subbuf_tally tally;
	struct subbuf_walk place;

	page__start(page, PAGE_BYTES, 100);
	page__event(page, 1, 0);
	page__lost(page, 55, true);
	page__start(piece, PAGE_BYTES, 101);
	page__event(piece, 2, 1);
	CHECK(subbuf__append(page, piece, PAGE_BYTES));
	CHECK_EQ(walk(&tally, &place), FAULT_NONE);
	CHECK_EQ(tally.events, 2);
	CHECK_EQ(tally.last_ns, 103);
	CHECK_EQ(tally.lost, 55);

	memcpy(before, page, PAGE_BYTES);
	page__lost(piece, 1, true);
	CHECK(!subbuf__append(page, piece, PAGE_BYTES));
	/* The number of the lost ones must fit too. */
	page__start(piece, PAGE_BYTES, 101);
	while (page__data(piece) + page__data(page) + 8 <= DATA_BYTES)
		page__event(piece, 1, 1);
	CHECK(!subbuf__append(page, piece, PAGE_BYTES));
	walk__store(piece + 8, UINT32_C(1) << 27);
	CHECK(!subbuf__append(page, piece, PAGE_BYTES));
	walk__store(piece + 8, UINT32_C(1) << 30);
	CHECK(!subbuf__append(page, piece, PAGE_BYTES));
	CHECK(memcmp(before, page, PAGE_BYTES) == 0);
}

static void a_page_is_cut_with_its_number_of_lost_events(void)
{
	struct subbuf_tally tally;
	struct subbuf_walk place;

	for (uint32_t kept = 0; kept < 3; kept++) {
		page__fill(page, PAGE_BYTES, 1, 0);
		walk__store(page + 8, 3 * PAGES_EVENT_BYTES);
		page__lost(page, 77, true);
		subbuf__cut(page, SUBBUF_HEADER_BYTES + kept * PAGES_EVENT_BYTES, PAGE_BYTES);
		CHECK_EQ(walk(&tally, &place), FAULT_NONE);
		CHECK_EQ(tally.events, kept);
		CHECK_EQ(tally.lost, 77);
		for (uint32_t at = place.at + 8; at < PAGE_BYTES; at++)
			CHECK_EQ(page[at], 0);
	}
}

static void pages_are_walked_up_to_one_of_zeros_or_a_bad_one(void)
{
	struct subbuf_tally tally = {0};
	struct guarded pages;
	enum fault fault;
	uint64_t serial = 0;

	guarded__init(&pages, 4 * PAGE_BYTES, -1);
	for (uint32_t i = 0; i < 3; i++)
		serial = page__fill(pages.data + i * PAGE_BYTES, PAGE_BYTES, 1 + i, serial);
	CHECK_EQ(subbuf__pages(pages.data, 4 * PAGE_BYTES, PAGE_BYTES, &tally, &fault),
		 3 * PAGE_BYTES);
	CHECK_EQ(fault, FAULT_NONE);
	CHECK_EQ(tally.pages, 3);
	CHECK_EQ(tally.events, serial);
	CHECK_EQ(subbuf__pages(pages.data, 3 * PAGE_BYTES - 1, PAGE_BYTES, &tally, &fault),
		 2 * PAGE_BYTES);
	walk__store(pages.data + 2 * PAGE_BYTES + 8, PAGE_BYTES);
	tally = (struct subbuf_tally){0};
	CHECK_EQ(subbuf__pages(pages.data, 4 * PAGE_BYTES, PAGE_BYTES, &tally, &fault),
		 2 * PAGE_BYTES);
	CHECK_EQ(fault, SUBBUF_DATA_BEYOND_PAGE);
	CHECK_EQ(tally.pages, 2);
	guarded__deinit(&pages);
}

int main(void)
{
	guarded__init(&memory, PAGE_BYTES, -1);
	page = memory.data + memory.bytes - PAGE_BYTES;
	RUN(each_fault_is_told_and_keeps_what_is_before);
	RUN(a_header_that_is_short_or_says_too_much_is_refused);
	RUN(every_length_of_a_page_is_walked_within_it);
	RUN(losses_are_counted_where_the_page_tells_how_many);
	RUN(times_are_extended_and_absolute);
	RUN(discarded_events_pass_time_that_the_kernel_skips);
	RUN(a_piece_is_put_behind_what_it_continues);
	RUN(a_page_is_cut_with_its_number_of_lost_events);
	RUN(pages_are_walked_up_to_one_of_zeros_or_a_bad_one);
	guarded__deinit(&memory);
	return 0;
}
