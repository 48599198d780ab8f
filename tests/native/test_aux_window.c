/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "aux_ring.h"
#include "check.h"
#include "fake_aux.h"

#define PAGES 4u
#define BYTES (PAGES * 4096u)

static struct fake_aux aux;
static struct aux_window window;
static uint64_t taken;
static bool place; /* what the head is */

/* How a driver's head is, and what is known of it: what the head is comes out. */
struct driver {
	enum aux_head_rule known;
	bool place;
};

static const struct driver counts = {AUX_MONOTONIC, false}, places = {AUX_OFFSET, true};
static const struct driver counts_unknown = {AUX_LEARNED, false};
static const struct driver places_unknown = {AUX_LEARNED, true};

static void begin(struct driver driver)
{
	place = driver.place;
	fake_aux__init(&aux, 1, PAGES, true);
	window = (struct aux_window){.rule = driver.known};
	taken = 0;
}

static void end(void)
{
	fake_aux__deinit(&aux);
}

static void run(uint64_t words)
{
	fake_aux__overwrite(&aux, words, place);
}

static uint64_t word_at(uint64_t position)
{
	uint64_t word;

	ring_map__copy(&aux.map, position, &word, sizeof(word));
	return word;
}

/* A window that has `fresh` new words at its end, all of them in order up to the newest. */
static struct aux_extent expect(uint64_t held, uint64_t fresh)
{
	struct aux_extent extent;

	CHECK(aux_window__find(&window, &aux.map, taken, &extent));
	CHECK_EQ(extent.held, held * 8);
	CHECK_EQ(extent.end - extent.begin, fresh * 8);
	CHECK_EQ(extent.begin - (extent.end - extent.held), (held - fresh) * 8);
	CHECK(extent.begin >= taken);
	for (uint64_t i = 0; i < held; i++)
		CHECK_EQ(word_at(extent.end - 8 - i * 8), aux.word - 1 - i);
	taken = extent.end;
	return extent;
}

static void a_window_is_found(struct driver driver)
{
	const uint64_t all = BYTES / 8;

	begin(driver);
	(void)expect(0, 0);
	run(100);
	(void)expect(100, 100);
	(void)expect(100, 0); /* nothing came */
	run(50);
	(void)expect(150, 50);
	run(all - 150 + 200); /* around the end */
	(void)expect(all, all - 150 + 200 > all ? all : all - 150 + 200);
	run(10);
	(void)expect(all, 10);
	run(3 * all + 7); /* around several times */
	(void)expect(all, all);
	run(all - 200);
	(void)expect(all, all - 200);
	run(all - 1); /* one word is left of the last one */
	(void)expect(all, all - 1);
	run(all);
	(void)expect(all, all);
	run(2 * all);
	(void)expect(all, all);
	(void)expect(all, 0);
	end();
}

static void a_head_that_counts_tells_the_window(void)
{
	a_window_is_found(counts);
}

static void a_head_that_is_a_place_does_with_the_contents(void)
{
	a_window_is_found(places);
}

static void what_nobody_took_is_overwritten_where_the_head_counts(void)
{
	begin(counts);
	run(100);
	CHECK_EQ(expect(100, 100).overwritten, 0);
	run(BYTES / 8 + 300);
	CHECK_EQ(expect(BYTES / 8, BYTES / 8).overwritten, 300 * 8);
	end();
}

static void windows_of_any_lengths_join_or_leave_a_gap(struct driver driver)
{
	uint64_t state = 7;

	for (uint32_t round = 0; round < 30; round++) {
		uint64_t written = 0, last_end = 0;

		begin(driver);
		for (uint32_t i = 0; i < 12; i++) {
			const uint64_t words = random__next(&state) % 4 == 0
						       ? 1 + random__next(&state) % (BYTES / 2)
						       : 1 + random__next(&state) % (BYTES / 32);
			struct aux_extent extent;
			uint64_t fresh;

			run(words);
			written += words;
			CHECK(aux_window__find(&window, &aux.map, last_end, &extent));
			fresh = extent.end - extent.begin;
			CHECK_EQ(extent.held, written * 8 < BYTES ? written * 8 : BYTES);
			CHECK_EQ(fresh, words * 8 < BYTES ? words * 8 : BYTES);
			for (uint64_t at = 0; at < fresh; at += 8)
				CHECK_EQ(word_at(extent.begin + at), aux.word - fresh / 8 + at / 8);
			last_end = extent.end;
		}
		end();
	}
}

static void windows_of_a_head_that_counts_join_or_leave_a_gap(void)
{
	windows_of_any_lengths_join_or_leave_a_gap(counts);
}

static void windows_of_a_head_that_is_a_place_join_or_leave_a_gap(void)
{
	windows_of_any_lengths_join_or_leave_a_gap(places);
}

static void what_the_head_is_is_learned(void)
{
	a_window_is_found(counts_unknown);
	a_window_is_found(places_unknown);
	windows_of_any_lengths_join_or_leave_a_gap(counts_unknown);
	windows_of_any_lengths_join_or_leave_a_gap(places_unknown);
}

/* Until then both are the same, to the last byte of the area. */
static void the_way_around_tells_what_the_head_is(void)
{
	begin(counts_unknown);
	run(BYTES / 8);
	(void)expect(BYTES / 8, BYTES / 8);
	CHECK_EQ(window.rule, AUX_LEARNED);
	run(1);
	(void)expect(BYTES / 8, 1);
	CHECK_EQ(window.rule, AUX_MONOTONIC);
	run(BYTES / 8 + 300);
	CHECK_EQ(expect(BYTES / 8, BYTES / 8).overwritten, 300 * 8);
	end();
	begin(places_unknown);
	run(BYTES / 8 - 1);
	(void)expect(BYTES / 8 - 1, BYTES / 8 - 1);
	CHECK_EQ(window.rule, AUX_LEARNED);
	run(1);
	(void)expect(BYTES / 8, 1);
	CHECK_EQ(window.rule, AUX_OFFSET);
	end();
	begin(places_unknown); /* the first window is of a buffer that came around already */
	run(BYTES / 8 + 300);
	(void)expect(BYTES / 8, BYTES / 8);
	CHECK_EQ(window.rule, AUX_OFFSET);
	end();
}

/* Padding may be zeros, as bytes are that nobody wrote: then the head alone tells of the way. */
static void an_area_that_ends_with_zeros_came_around_too(void)
{
	static const uint8_t zeros[4096];
	struct aux_extent extent;

	begin(places_unknown);
	run(100);
	(void)expect(100, 100);
	run(BYTES / 8 - 50);
	fake_aux__poke(&aux, BYTES - sizeof(zeros), zeros, sizeof(zeros));
	CHECK(aux_window__find(&window, &aux.map, taken, &extent));
	CHECK_EQ(window.rule, AUX_OFFSET);
	CHECK_EQ(extent.held, BYTES);
	CHECK_EQ(extent.end - extent.begin, BYTES - 50 * 8);
	end();
}

static void a_head_that_goes_back_is_no_counter(void)
{
	struct aux_extent extent;

	begin(counts);
	run(100);
	(void)expect(100, 100);
	fake_aux__set_head(&aux, 80);
	CHECK(!aux_window__find(&window, &aux.map, taken, &extent));
	end();
}

int main(void)
{
	RUN(a_head_that_counts_tells_the_window);
	RUN(a_head_that_is_a_place_does_with_the_contents);
	RUN(what_nobody_took_is_overwritten_where_the_head_counts);
	RUN(windows_of_a_head_that_counts_join_or_leave_a_gap);
	RUN(windows_of_a_head_that_is_a_place_join_or_leave_a_gap);
	RUN(what_the_head_is_is_learned);
	RUN(the_way_around_tells_what_the_head_is);
	RUN(an_area_that_ends_with_zeros_came_around_too);
	RUN(a_head_that_goes_back_is_no_counter);
	return 0;
}
