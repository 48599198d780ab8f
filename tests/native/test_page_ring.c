/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "check.h"
#include "page_rig.h"
#include "pages.h"

static uint64_t left_in_source(void)
{
	uint64_t count = 0;

	while (read(source, page, PAGE_BYTES) > 0)
		count++;
	return count;
}

static void pages_are_taken_until_there_is_none(void)
{
	begin();
	page__fill(page, PAGE_BYTES, 1000, 0);
	give();
	page__fill(page, PAGE_BYTES, 2000, 340);
	give();
	give_events(3000, 5, 680);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 3 * PAGE_BYTES);
	expect_serials(0, 685);
	CHECK_EQ(chunk.span_count, 1);
	CHECK_EQ(chunk.spans[0].samples, 685);
	CHECK_EQ(chunk.spans[0].bytes, 3 * PAGE_BYTES);
	CHECK_EQ(chunk.spans[0].first_ns, 1000);
	CHECK_EQ(chunk.spans[0].last_ns, 3005);
	CHECK_EQ(counter__read(&ring->samples), 685);
	CHECK_EQ(ring->in_flight, 685);
	CHECK_EQ(counter__read(&ring->bytes), 685 * PAGES_EVENT_BYTES);
	CHECK_EQ(counter__read(&pages->pages), 3);
	CHECK_EQ(ring->position, 685 * PAGES_EVENT_BYTES);
	end();
}

static void pieces_of_one_sub_buffer_are_one_page(void)
{
	begin();
	give_events(1000, 5, 0);
	CHECK_EQ(take(true), RING_EMPTY);
	give_events(1005, 5, 5);
	CHECK_EQ(take(true), RING_EMPTY);
	give_events(1010, 330, 10);
	give_events(9000, 2, 340);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 2 * PAGE_BYTES);
	expect_serials(0, 342);
	CHECK_EQ(counter__read(&pages->pages), 2);
	CHECK_EQ(chunk.spans[0].last_ns, 9002);
	end();
}

static void a_pass_does_not_chase_the_writer(void)
{
	begin();
	for (uint32_t i = 0; i < 6; i++)
		give_events(1000 + i, 1, i);
	CHECK_EQ(take(false), RING_EMPTY);
	expect_serials(0, 2);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(0, 4);
	CHECK_EQ(left_in_source(), 2);
	end();

	/* Nor does it take more than the ring can have held. */
	begin();
	for (uint32_t i = 0; i < SUBBUFS + 3; i++) {
		page__fill(page, PAGE_BYTES, 1000 * (i + 1), 340 * i);
		give();
	}
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(0, 340 * (SUBBUFS + 1));
	CHECK_EQ(left_in_source(), 2);
	end();
}

/* The next event may have been too long for the room that a complete sub-buffer has left. */
static void a_complete_sub_buffer_may_look_like_a_partial_one(void)
{
	begin();
	give_events(1000, 5, 0);
	give_events(2000, 300, 5);
	give_events(3000, 5, 305);
	CHECK_EQ(take(false), RING_EMPTY);
	CHECK_EQ(chunk.used, 3 * PAGE_BYTES);
	expect_serials(0, 310);
	end();
}

static void what_follows_a_loss_is_a_page_of_its_own(void)
{
	struct subbuf_tally tally = {0};
	enum fault fault;

	begin();
	give_events(1000, 5, 0);
	page__start(page, PAGE_BYTES, 1005);
	page__event(page, 1, 5);
	page__lost(page, 9, true);
	give();
	page__start(page, PAGE_BYTES, 1006);
	page__lost(page, 0, false);
	give();
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 3 * PAGE_BYTES);
	CHECK_EQ(counter__read(&pages->pages), 3);
	CHECK_EQ(subbuf__pages(chunk.data, chunk.used, PAGE_BYTES, &tally, &fault), chunk.used);
	CHECK_EQ(tally.lost, 9);
	CHECK_EQ(tally.lost_unknown, 1);
	end();
}

/* The kernel stamps the remainder without the time of what was discarded. */
static void a_discarded_event_shifts_no_time(void)
{
	begin();
	page__start(page, PAGE_BYTES, 1000);
	page__event(page, 10, 0);
	page__discarded(page, 100);
	page__event(page, 10, 1);
	give();
	page__start(page, PAGE_BYTES, 1020);
	page__discarded(page, 7);
	page__event(page, 1, 2);
	give();
	CHECK_EQ(take(true), RING_EMPTY);
	give_events(1021, 1, 3);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, PAGE_BYTES);
	expect_serials(0, 4);
	CHECK_EQ(chunk.spans[0].last_ns, 1129);
	end();
}

static void an_empty_page_is_left_out(void)
{
	begin();
	page__start(page, PAGE_BYTES, 0);
	give();
	give_events(1000, 5, 0);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, PAGE_BYTES);
	expect_serials(0, 5);
	end();
}

static void a_full_chunk_ends_no_page(void)
{
	begin();
	chunk.used = CHUNK_BYTES - PAGE_BYTES - 1;
	give_events(1000, 5, 0);
	ring->swept = true;
	ring->ops->begin(ring);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_CHUNK_FULL);
	empty_chunk();
	give_events(1005, 5, 5);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_EMPTY);
	/* The predecessor is elsewhere: the time goes on, the page is another. */
	CHECK_EQ(subbuf__timestamp(chunk.data), 1005);
	end();
}

static void a_bad_page_keeps_its_sound_events_and_the_next_is_read(void)
{
	begin();
	page__start(page, PAGE_BYTES, 1000);
	page__event(page, 1, 0);
	page__event(page, 1, 1);
	page__words(page, (uint32_t[]){0, 2, 7}, 3);
	give();
	CHECK_EQ(take(true), RING_FAULTY);
	expect_serials(0, 2);
	CHECK_EQ(ring->last_fault, SUBBUF_BAD_LENGTH);
	CHECK_EQ(counter__read(&ring->quarantined_bytes), PAGE_BYTES - 2 * PAGES_EVENT_BYTES);
	CHECK_EQ(counter__read(&ring->samples), 2);
	CHECK_EQ(counter__read(&ring->faults), 1);
	/* At the time where that one stood, and yet no rest of it. */
	give_events(1001, 3, 2);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(0, 5);
	CHECK_EQ(counter__read(&pages->pages), 2);
	CHECK_EQ(ring->fault, 0);
	for (uint32_t i = 1; i < RING_FAULTS_MAX; i++) {
		CHECK_EQ(ring->fault, 0);
		CHECK_EQ(write(sink, page, 10), 10);
		CHECK_EQ(take(true), RING_FAULTY);
	}
	CHECK_EQ(ring->fault, SUBBUF_SHORT_HEADER);
	end();

	begin();
	CHECK_EQ(write(sink, page, 10), 10);
	CHECK_EQ(take(true), RING_FAULTY);
	CHECK_EQ(ring->last_fault, SUBBUF_SHORT_HEADER);
	CHECK_EQ(chunk.used, 0);
	end();

	/* Less than a sub-buffer came, with data up to its end, and behind it. */
	begin();
	page__start(page, PAGE_BYTES, 1000);
	page__event(page, 1, 0);
	CHECK_EQ(write(sink, page, 28), 28);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(0, 1);
	page__event(page, 1, 1);
	walk__store(page, 2000);
	CHECK_EQ(write(sink, page, 28), 28);
	CHECK_EQ(take(true), RING_FAULTY);
	CHECK_EQ(ring->last_fault, SUBBUF_DATA_BEYOND_PAGE);
	end();
}

static void whole_pages_go_into_the_pipe(void)
{
	int fds[2];

	CHECK_EQ(pipe2(fds, O_NONBLOCK), 0);
	source = fds[0];
	sink = fds[1];
	begin_with(PAGE_SPLICE, NULL);
	page__fill(page, PAGE_BYTES, 1000, 0);
	give();
	give();
	CHECK_EQ(take(true), RING_TICKET);
	CHECK_EQ(pages->pipe_bytes, 2 * PAGE_BYTES);
	CHECK_EQ(counter__read(&pages->pages), 2);
	/* While the writer has the pipe, more goes by read. */
	pages->ticket_queued = true;
	give();
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_EMPTY);
	expect_serials(0, 340);
	/* What may go on is read too. */
	pages->ticket_queued = false;
	pages->taken = 12;
	give();
	CHECK_EQ(take(false), RING_EMPTY);
	CHECK_EQ(chunk.used, 2 * PAGE_BYTES);
	end();
}

static void a_ring_that_takes_no_splice_is_read(void)
{
	source = eventfd(0, EFD_NONBLOCK);
	begin_with(PAGE_SPLICE, NULL);
	CHECK_EQ(take(false), RING_EMPTY);
	CHECK_EQ(pages->options.transport, PAGE_READ);
	end();
}

static void sizes_that_do_not_fit_are_refused(void)
{
	struct page_map map = {.subbuf_bytes = PAGE_BYTES};
	struct page_ring_options options = {.page_bytes = PAGE_BYTES, .subbufs = 1};

	options.page_bytes = 2048;
	CHECK(page_ring__new(&options, &ring) < 0);
	options.page_bytes = PAGE_BYTES + 512;
	CHECK(page_ring__new(&options, &ring) < 0);
	options.page_bytes = 2 * SUBBUF_BYTES_MAX;
	CHECK(page_ring__new(&options, &ring) < 0);
	options.page_bytes = 2 * PAGE_BYTES;
	options.transport = PAGE_MMAP;
	CHECK(page_ring__new(&options, &ring) < 0);
	options.map = &map;
	CHECK(page_ring__new(&options, &ring) < 0);
}

int main(void)
{
	RUN(pages_are_taken_until_there_is_none);
	RUN(pieces_of_one_sub_buffer_are_one_page);
	RUN(a_pass_does_not_chase_the_writer);
	RUN(a_complete_sub_buffer_may_look_like_a_partial_one);
	RUN(what_follows_a_loss_is_a_page_of_its_own);
	RUN(a_discarded_event_shifts_no_time);
	RUN(an_empty_page_is_left_out);
	RUN(a_full_chunk_ends_no_page);
	RUN(a_bad_page_keeps_its_sound_events_and_the_next_is_read);
	RUN(whole_pages_go_into_the_pipe);
	RUN(a_ring_that_takes_no_splice_is_read);
	RUN(sizes_that_do_not_fit_are_refused);
	return 0;
}
