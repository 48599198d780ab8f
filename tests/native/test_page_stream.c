/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "page_ring.h"
#include "pages.h"
#include "rig.h"

#define PAGE_BYTES 4096u
#define RINGS 2u
#define EXTENT_AT 8192u
#define EXTENT_BYTES (64u * PAGE_BYTES)
#define EVENTS 340u /* of a full page */

static struct rig rig;
static struct stream *stream;
static struct ring *rings[RINGS];
static struct chunk *chunk;
static uint64_t token;

static uint64_t extent(uint32_t index)
{
	return EXTENT_AT + index * EXTENT_BYTES;
}

/* The segment's file has an extent for the first `count` rings. */
static void prepare(int fd, uint32_t count, uint64_t capacity, uint64_t limit)
{
	struct segment segment = {
		.token = ++token,
		.limit = limit,
		.places = calloc(count + 1, sizeof(*segment.places)),
		.place_count = count,
		.capacity = capacity,
		.fd = fd,
		.open = true,
	};

	for (uint32_t i = 0; i < count; i++)
		segment.places[i] = extent(i);
	CHECK_EQ(stream__prepare(stream, &segment), 0);
}

static void begin_with(uint32_t chunks)
{
	rig__init(&rig, 0, 1, chunks, RIG_NEVER_NS);
	stream = &rig.streams[0];
	stream->page_bytes = PAGE_BYTES;
	stream->ops = &page_stream__ops;
	for (uint32_t i = 0; i < RINGS; i++) {
		const struct page_ring_options options = {
			.transport = PAGE_SPLICE,
			.fd = -1,
			.page_bytes = PAGE_BYTES,
			.subbufs = 4,
		};

		CHECK_EQ(page_ring__new(&options, &rings[i]), 0);
		rings[i]->id = i;
		CHECK_EQ(stream__add_ring(stream, rings[i]), 0);
	}
	chunk = pool__take(&rig.pool, NULL);
	token = 0;
}

static void begin(void)
{
	begin_with(4);
}

static void end(void)
{
	rig__deinit(&rig);
	for (uint32_t i = 0; i < RINGS; i++) {
		rings[i]->ops->free(rings[i]);
	}
}

/* A page of events 1 ns apart behind `ns`, as a pass leaves it in the chunk. */
static void add(uint32_t index, uint64_t ns, uint32_t events, uint64_t serial)
{
	uint8_t *const page = chunk->data + chunk->used;
	struct subbuf_tally tally = {0};
	struct subbuf_walk walk;

	page__start(page, PAGE_BYTES, ns);
	for (uint32_t i = 0; i < events; i++)
		page__event(page, 1, serial + i);
	CHECK_EQ(subbuf__page(page, PAGE_BYTES, &walk, &tally), FAULT_NONE);
	chunk__append(chunk,
		      &(struct span){.ring = rings[index],
				     .samples = tally.events,
				     .bytes = PAGE_BYTES,
				     .records = tally.events,
				     .first_ns = tally.first_ns},
		      false);
	chunk->spans[chunk->span_count - 1].last_ns = tally.last_ns;
	rings[index]->in_flight += events;
}

/* Write the chunk as the writer does, without its answer to errors. Returns the first one. */
static int write_chunk(void)
{
	struct item item = {.chunk = chunk};
	uint64_t bytes;
	int ret;

	stream->work = (struct work){0};
	do
		ret = page_stream__ops.write(stream, &item, &bytes);
	while (ret > 0);
	pool__give(&rig.pool, chunk);
	chunk = pool__take(&rig.pool, NULL);
	return ret;
}

static int write_one(uint32_t index, uint64_t ns, uint32_t events, uint64_t serial)
{
	add(index, ns, events, serial);
	return write_chunk();
}

static struct event *finished(void)
{
	stream->finish_wanted = true;
	stream__serve(stream);
	return rig__event(&rig, EVENT_SEGMENT_CLOSED);
}

/* The ring's extent has these events, and the event tells of it what it is. */
static void expect_track(const struct event *event, int fd, uint32_t index, uint64_t serial,
			 uint64_t until, uint64_t bytes)
{
	static uint8_t data[EXTENT_BYTES];
	uint64_t last_ns = 0, events = until - serial;

	CHECK(event->split);
	CHECK_EQ(event->rings[index].id, index);
	CHECK_EQ(event->rings[index].bytes, bytes);
	memset(data, 0, sizeof(data));
	CHECK(pread(fd, data, sizeof(data), (off_t)extent(index)) >= 0);
	pages__check(data, bytes, PAGE_BYTES, &serial, &last_ns);
	CHECK_EQ(serial, until);
	CHECK_EQ(event->rings[index].samples, events);
	output__check_sums(data, bytes, event->rings[index].sums, event->rings[index].sum_count);
	for (uint64_t at = bytes; at < bytes + PAGE_BYTES; at++)
		CHECK_EQ(data[at], 0);
}

static void each_ring_has_an_extent_of_its_own(void)
{
	const int fd = output__file();
	struct event *event;

	begin();
	prepare(fd, RINGS, EXTENT_BYTES, RIG_LIMIT);
	for (uint32_t i = 0; i < 4; i++) {
		add(0, 1000 * (i + 1), EVENTS, EVENTS * i);
		if (i % 2 == 0)
			add(1, 500 * (i + 1), EVENTS, EVENTS * (i / 2));
	}
	CHECK_EQ(write_chunk(), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	expect_track(event, fd, 0, 0, 4 * EVENTS, 4 * PAGE_BYTES);
	expect_track(event, fd, 1, 0, 2 * EVENTS, 2 * PAGE_BYTES);
	CHECK_EQ(event->segment.samples, 6 * EVENTS);
	CHECK_EQ(event->segment.records, 6 * EVENTS);
	CHECK_EQ(event->segment.offset, 6 * PAGE_BYTES);
	CHECK_EQ(event->sum_count, 0);
	CHECK_EQ(event->segment.first_ns, 501);
	CHECK_EQ(event->segment.last_ns, 4000 + EVENTS);
	CHECK(event->final);
	CHECK_EQ(counter__read(&rings[0]->stored), 4 * EVENTS);
	CHECK_EQ(rings[0]->in_flight, 0);
	event__free(event);
	end();
	close(fd);
}

static void a_tail_grows_in_its_place(void)
{
	const int fd = output__file();
	struct event *event, *progress;
	uint64_t serial = 0;

	begin();
	prepare(fd, RINGS, EXTENT_BYTES, RIG_LIMIT);
	for (uint32_t i = 0; i < 100; i++, serial += 10)
		CHECK_EQ(write_one(0, 1000 + serial, 10, serial), 0);
	progress = page_stream__progress(stream);
	CHECK_EQ(progress->segment.token, 1);
	CHECK_EQ(progress->ring_count, 2);
	CHECK_EQ(progress->rings[0].id, 0);
	/* 34 pieces fill a page to the last word. */
	CHECK_EQ(progress->rings[0].bytes, 3 * PAGE_BYTES);
	CHECK_EQ(progress->rings[1].bytes, 0);
	event__free(progress);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	expect_track(event, fd, 0, 0, serial, 3 * PAGE_BYTES);
	progress = page_stream__progress(stream);
	CHECK_EQ(progress->segment.token, 0);
	CHECK_EQ(progress->ring_count, 0);
	event__free(progress);
	event__free(event);
	end();
	close(fd);
}

static void what_does_not_go_on_is_the_next_page(void)
{
	const int fd = output__file();
	struct event *event;

	begin();
	prepare(fd, RINGS, EXTENT_BYTES, RIG_LIMIT);
	CHECK_EQ(write_one(0, 1000, 10, 0), 0);
	CHECK_EQ(write_one(0, 1011, 10, 10), 0); /* another time */
	add(0, 1021, EVENTS, 20);		 /* too much */
	add(0, 9000, 1, 20 + EVENTS);
	chunk->spans[0].sealed = true;
	CHECK_EQ(write_chunk(), 0);
	CHECK_EQ(write_one(0, 9001, 1, 21 + EVENTS), 0); /* sealed */
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	expect_track(event, fd, 0, 0, 22 + EVENTS, 5 * PAGE_BYTES);
	event__free(event);
	end();
	close(fd);
}

static void a_rotation_begins_every_track_anew(void)
{
	const int one = output__file(), two = output__file();
	struct event *event;

	begin();
	prepare(one, RINGS, EXTENT_BYTES, 3 * PAGE_BYTES);
	CHECK_EQ(write_one(0, 1000, EVENTS, 0), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	CHECK_EQ(write_one(1, 1000, EVENTS, 0), 0);
	CHECK_EQ(write_one(0, 2000, 10, EVENTS), 0);
	prepare(two, RINGS, EXTENT_BYTES, 3 * PAGE_BYTES);
	/* All that is left of the limit is what the piece may need. */
	CHECK_EQ(write_one(0, 2010, 10, EVENTS + 10), 0);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	CHECK(!event->final);
	expect_track(event, one, 0, 0, EVENTS + 10, 2 * PAGE_BYTES);
	expect_track(event, one, 1, 0, EVENTS, PAGE_BYTES);
	event__free(event);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	expect_track(event, two, 0, EVENTS + 10, EVENTS + 20, PAGE_BYTES);
	expect_track(event, two, 1, 0, 0, 0);
	event__free(event);
	end();
	close(one);
	close(two);
}

static void a_full_extent_ends_the_segment(void)
{
	const int one = output__file(), two = output__file();
	struct event *event;

	begin();
	prepare(one, RINGS, 2 * PAGE_BYTES, RIG_LIMIT);
	for (uint32_t i = 0; i < 3; i++)
		add(0, 1000 * (i + 1), EVENTS, EVENTS * i);
	/* The part that fits is there, and accounted. */
	CHECK_EQ(-write_chunk(), EXFULL);
	CHECK_EQ(counter__read(&rings[0]->stored), 2 * EVENTS);
	CHECK_EQ(rings[0]->in_flight, EVENTS);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	prepare(two, RINGS, 2 * PAGE_BYTES, RIG_LIMIT);
	CHECK_EQ(write_one(0, 4000, 10, 0), 0);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	expect_track(event, one, 0, 0, 2 * EVENTS, 2 * PAGE_BYTES);
	event__free(event);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	expect_track(event, two, 0, 0, 10, PAGE_BYTES);
	event__free(event);
	end();
	close(one);
	close(two);
}

static void each_segment_tells_the_time_of_its_own_first_event(void)
{
	const int one = output__file(), two = output__file();
	struct event *event;

	begin();
	prepare(one, RINGS, 2 * PAGE_BYTES, RIG_LIMIT);
	CHECK_EQ(write_one(1, 900, 10, 0), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	prepare(two, RINGS, 2 * PAGE_BYTES, RIG_LIMIT);
	for (uint32_t i = 0; i < 2; i++)
		add(0, 1000 * (i + 1), EVENTS, EVENTS * i);
	add(0, 3000, 0, 0); /* only tells a time */
	add(0, 4000, 10, 2 * EVENTS);
	CHECK_EQ(write_chunk(), 0);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	expect_track(event, one, 0, 0, 2 * EVENTS, 2 * PAGE_BYTES);
	CHECK_EQ(event->segment.first_ns, 901);
	CHECK_EQ(event->segment.last_ns, 2000 + EVENTS);
	event__free(event);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	expect_track(event, two, 0, 2 * EVENTS, 2 * EVENTS + 10, 2 * PAGE_BYTES);
	CHECK_EQ(event->segment.first_ns, 4001);
	CHECK_EQ(event->segment.last_ns, 4010);
	event__free(event);
	end();
	close(one);
	close(two);
}

static void without_a_next_segment_an_extent_goes_on_to_its_end(void)
{
	const int fd = output__file();
	struct event *event;

	begin();
	prepare(fd, 1, 3 * PAGE_BYTES, PAGE_BYTES);
	for (uint32_t i = 0; i < 3; i++)
		CHECK_EQ(write_one(0, 1000 * (i + 1), 100, 100 * i), 0);
	/* There is room for what goes on, and for nothing else. */
	CHECK_EQ(write_one(0, 3100, 100, 300), 0);
	CHECK_EQ(-write_one(0, 9000, 1, 400), EXFULL);
	CHECK_EQ(-write_one(1, 9000, 1, 0), EXFULL);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	expect_track(event, fd, 0, 0, 400, 3 * PAGE_BYTES);
	CHECK_EQ(event->rings[1].bytes, 0);
	event__free(event);
	end();
	close(fd);
}

static void a_write_that_ends_early_keeps_its_whole_pages(void)
{
	uint8_t page[PAGE_BYTES];
	const int fd = output__file();
	struct event *event;

	begin();
	prepare(fd, 1, EXTENT_BYTES, RIG_LIMIT);
	CHECK_EQ(write_one(0, 1000, 10, 0), 0);
	add(0, 1010, 10, 10);
	add(0, 2000, EVENTS, 20);
	add(0, 3000, EVENTS, 20 + EVENTS);
	output__limit(extent(0) + 2 * PAGE_BYTES + 512);
	CHECK_EQ(-write_chunk(), EFBIG);
	CHECK_EQ(counter__read(&rings[0]->stored), 20 + EVENTS);
	CHECK_EQ(rings[0]->in_flight, EVENTS);
	CHECK_EQ(counter__read(&page_ring__of(rings[0])->track.bytes), 2 * PAGE_BYTES);
	output__limit(UINT64_MAX);
	CHECK_EQ(pread(fd, page, sizeof(page), (off_t)extent(0) + 2 * PAGE_BYTES), 512);
	CHECK(page[0] == 0 && memcmp(page, page + 1, 511) == 0);
	CHECK_EQ(write_one(0, 4000, 5, 20 + EVENTS), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	expect_track(event, fd, 0, 0, 25 + EVENTS, 3 * PAGE_BYTES);
	event__free(event);
	end();
	close(fd);
}

static void a_tail_that_cannot_be_written_stays_as_it_was(void)
{
	const int fd = output__file();
	struct event *event;

	begin();
	prepare(fd, 1, EXTENT_BYTES, RIG_LIMIT);
	CHECK_EQ(write_one(0, 1000, 10, 0), 0);
	/* The first blocks of the new tail are written, and taken back. */
	output__limit(extent(0) + 512);
	CHECK_EQ(-write_one(0, 1010, 100, 999), EFBIG);
	output__limit(UINT64_MAX);
	CHECK_EQ(write_one(0, 1010, 10, 10), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	expect_track(event, fd, 0, 0, 20, PAGE_BYTES);
	event__free(event);
	end();
	close(fd);
}

/* A write has ended early: from here on the file takes nothing at all. */
static void on_early_end(int number)
{
	(void)number;
	output__limit(extent(0));
}

/* `more` events come when the file is well again, `gap` ns behind the tail. */
static void a_tail_fails_twice(uint64_t gap, uint32_t more)
{
	static uint8_t data[2 * PAGE_BYTES];
	const int fd = output__file();
	struct event *event;
	uint64_t serial = 0, last_ns = 0;
	uint8_t tail[PAGE_BYTES];

	begin();
	prepare(fd, 1, EXTENT_BYTES, RIG_LIMIT);
	CHECK_EQ(write_one(0, 1000, 10, 0), 0);
	CHECK_EQ(pread(fd, tail, sizeof(tail), (off_t)extent(0)), sizeof(tail));
	output__limit(extent(0) + 512);
	CHECK(signal(SIGXFSZ, on_early_end) != SIG_ERR);
	CHECK_EQ(-write_one(0, 1010, 100, 999), EFBIG);
	CHECK(signal(SIGXFSZ, SIG_IGN) == SIG_IGN); /* on_early_end() was there */
	output__limit(UINT64_MAX);
	if (more > 0)
		CHECK_EQ(write_one(0, 1010 + gap, more, 10), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	if (more > 0 && gap == 0) {
		expect_track(event, fd, 0, 0, 10 + more, PAGE_BYTES);
	} else {
		/* The file has a page that nobody can mend: it is not what the digest tells. */
		CHECK_EQ(event->rings[0].bytes, more > 0 ? 2 * PAGE_BYTES : PAGE_BYTES);
		CHECK(pread(fd, data, sizeof(data), (off_t)extent(0)) >= PAGE_BYTES);
		CHECK(memcmp(data, tail, PAGE_BYTES) != 0);
		memcpy(data, tail, PAGE_BYTES);
		pages__check(data, event->rings[0].bytes, PAGE_BYTES, &serial, &last_ns);
		CHECK_EQ(serial, 10 + more);
		output__check_sums(data, event->rings[0].bytes, event->rings[0].sums,
				   event->rings[0].sum_count);
	}
	event__free(event);
	end();
	close(fd);
}

static void a_tail_that_was_torn_is_written_anew_or_told_by_the_digest(void)
{
	a_tail_fails_twice(0, 10);
	a_tail_fails_twice(5, 10);
	a_tail_fails_twice(0, 0);
}

static void fill_pipe(uint32_t index, uint32_t count, uint64_t ns, uint64_t serial)
{
	uint8_t page[PAGE_BYTES];
	struct page_ring *pages = page_ring__of(rings[index]);

	for (uint32_t i = 0; i < count; i++, serial += EVENTS) {
		page__fill(page, PAGE_BYTES, ns + 1000 * i, serial);
		CHECK_EQ(write(pages->pipe[1], page, PAGE_BYTES), PAGE_BYTES);
	}
	pages->pipe_bytes += count * PAGE_BYTES;
}

static void a_pipe_goes_behind_the_tail(void)
{
	const int fd = output__file();
	struct item item;
	struct event *event;
	uint64_t moved;

	begin();
	item = (struct item){.ticket = rings[0]};
	prepare(fd, 1, EXTENT_BYTES, RIG_LIMIT);
	CHECK_EQ(write_one(0, 1000, 10, 0), 0);
	fill_pipe(0, 3, 2000, 10);
	stream->work = (struct work){0};
	CHECK_EQ(page_stream__ops.write(stream, &item, &moved), 1);
	CHECK_EQ(moved, 3 * PAGE_BYTES);
	CHECK_EQ(page_stream__ops.write(stream, &item, &moved), 0);
	CHECK_EQ(page_ring__of(rings[0])->pipe_bytes, 0);
	CHECK_EQ(write_one(0, 9000, 10, 10 + 3 * EVENTS), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = finished();
	CHECK_EQ(event->rings[0].sum_count, 0);
	CHECK_EQ(event->rings[0].samples, 20);
	CHECK_EQ(counter__read(&page_ring__of(rings[0])->spliced_bytes), 3 * PAGE_BYTES);
	/* What was not seen is checked by whoever reads it. */
	event->rings[0].samples += 3 * EVENTS;
	{
		static uint8_t data[5 * PAGE_BYTES];

		CHECK_EQ(pread(fd, data, sizeof(data), (off_t)extent(0)), sizeof(data));
		event->rings[0].sums = malloc(sizeof(struct sum));
		CHECK(event->rings[0].sums != NULL);
		*event->rings[0].sums = (struct sum){sizeof(data), XXH3_64bits(data, sizeof(data))};
		event->rings[0].sum_count = 1;
	}
	expect_track(event, fd, 0, 0, 20 + 3 * EVENTS, 5 * PAGE_BYTES);
	event__free(event);
	end();
	close(fd);
}

static void a_pipe_that_no_file_takes_is_counted(void)
{
	const int fd = output__file(), full = output__full();
	struct work *work;
	const struct span *lost;
	struct item item;
	uint64_t bytes;

	begin();
	work = &stream->work;
	item = (struct item){.ticket = rings[0]};
	fill_pipe(0, 3, 2000, 0);
	CHECK_EQ(-page_stream__ops.write(stream, &item, &bytes), EXFULL);
	prepare(full, 1, EXTENT_BYTES, RIG_LIMIT);
	CHECK(page_stream__ops.write(stream, &item, &bytes) < 0);
	CHECK_EQ(bytes, 3 * PAGE_BYTES);
	CHECK_EQ(page_ring__of(rings[0])->pipe_bytes, 3 * PAGE_BYTES);
	/* Then it is read, and written as other pages. */
	CHECK_EQ(page_stream__ops.pass_over(stream, &item, &lost), 0);
	CHECK_EQ(-page_stream__ops.write(stream, &item, &bytes), ENOSPC);
	CHECK_EQ(work->load.span.samples, 3 * EVENTS);
	CHECK_EQ(work->load.span.bytes, 3 * PAGE_BYTES);
	CHECK_EQ(rings[0]->in_flight, 3 * EVENTS);
	CHECK_EQ(page_stream__ops.pass_over(stream, &item, &lost), 1);
	CHECK_EQ(lost->samples, 3 * EVENTS);
	CHECK_EQ(page_stream__ops.write(stream, &item, &bytes), 0);
	end();
	close(fd);
	close(full);
}

static struct lane lane;
static uint32_t sent;	 /* chunks */
static uint32_t refused; /* the one of these that a write in flight does not take */
static int refusing_fd;
static const struct chunk *given_up; /* it is refused as it is written alone, too */

static bool send_counted(struct stream *to, struct chunk *one)
{
	const bool ready = page_stream__ops.send(to, one);

	if (ready && ++sent == refused)
		one->flight.fd = refusing_fd;
	return ready;
}

static int write_but_given_up(struct stream *to, struct item *item, uint64_t *bytes)
{
	if (item->chunk == given_up && to->work.span == 0) {
		to->work.load.span = given_up->spans[to->work.span++];
		return -EIO;
	}
	return page_stream__ops.write(to, item, bytes);
}

/* The chunk is the writer's, which begins when all are queued. */
static void queue_chunk(void)
{
	chunk->item.lane = &lane;
	lane.queued++;
	disk__queue(stream, &chunk->item, true);
	chunk = pool__take(&rig.pool, NULL);
}

static void begin_flight(uint32_t chunks, uint32_t refuse)
{
	static struct stream_ops ops;

	begin_with(chunks);
	ops = page_stream__ops;
	ops.send = send_counted;
	ops.write = write_but_given_up;
	given_up = NULL;
	stream->ops = &ops;
	lane = (struct lane){.stream = stream, .rings = 1};
	atomic_store(&stream->lanes[0], &lane);
	sent = 0;
	refused = refuse;
	refusing_fd = memfd_create("refusing", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(refusing_fd >= 0 && fcntl(refusing_fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
}

static struct event *end_flight(void)
{
	pool__give(&rig.pool, chunk);
	chunk = NULL;
	CHECK_EQ(writer__start(&rig.writer), 0);
	writer__stop(&rig.writer);
	atomic_store(&stream->lanes[0], NULL); /* it is not allocated */
	close(refusing_fd);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	if (counter__read(&rig.writer.disks[0].write_errors) > 0)
		rig__expect(&rig, EVENT_WRITE_FAILED);
	return finished();
}

/* What is queued while more is goes to the disk several chunks at a time, but for what goes into a
 * tail, and what is of two rings. Refused once, it is written alone. */
static void chunks_in_flight(uint32_t refuse)
{
	const int fd = output__file();
	const uint32_t many = 12;
	uint64_t serials[RINGS] = {0}, pages[RINGS] = {0}, last_ns[RINGS] = {0};
	struct event *event;

	begin_flight(many + 1, refuse);
	prepare(fd, RINGS, EXTENT_BYTES, RIG_LIMIT);
	for (uint32_t i = 0; i < many; i++) {
		const bool goes_on = i == 7;

		for (uint32_t page = 0; page < 3; page++) {
			const uint32_t index = (i + (i == 9 && page == 2)) % RINGS;
			const bool part = (i == 5 && page == 2) || (goes_on && page == 0);
			const uint32_t events = part ? 100 : EVENTS;
			const uint64_t ns = goes_on && page == 0 ? last_ns[index]
								 : 10000 * (i + 1) + 1000 * page;

			add(index, ns, events, serials[index]);
			serials[index] += events;
			last_ns[index] = ns + events;
			pages[index] += !goes_on || page > 0;
		}
		queue_chunk();
	}
	event = end_flight();
	CHECK(sent >= many / 2);
	CHECK_EQ(counter__read(&rig.writer.disks[0].write_errors), 0);
	for (uint32_t i = 0; i < RINGS; i++) {
		expect_track(event, fd, i, 0, serials[i], pages[i] * PAGE_BYTES);
		CHECK_EQ(rings[i]->in_flight, 0);
	}
	event__free(event);
	end();
	close(fd);
}

static void chunks_in_flight_stand_in_their_order(void)
{
	chunks_in_flight(0);
}

static void what_is_behind_a_refused_write_is_written_again(void)
{
	chunks_in_flight(2);
}

/* Where the last chunk was, before one ahead of it was lost, nothing stays. */
static void what_was_in_flight_behind_a_loss_is_erased(void)
{
	const int fd = output__file();
	struct event *event;

	begin_flight(6, 2);
	prepare(fd, 1, EXTENT_BYTES, RIG_LIMIT);
	for (uint32_t i = 0; i < 5; i++) {
		add(0, 1000 * (i + 1), EVENTS, (i - (i > 2)) * EVENTS);
		if (i == 2)
			given_up = chunk;
		queue_chunk();
	}
	event = end_flight();
	CHECK(sent >= 4);
	expect_track(event, fd, 0, 0, UINT64_C(4) * EVENTS, UINT64_C(4) * PAGE_BYTES);
	CHECK_EQ(counter__read(&rings[0]->lost_dropped), EVENTS);
	event__free(event);
	end();
	close(fd);
}

/* A limit in the middle of what is in flight: nothing of what is behind it stays. */
static void of_what_went_in_part_whole_pages_stay(void)
{
	const int fd = output__file();
	struct event *event;

	begin_flight(7, 0);
	prepare(fd, 1, EXTENT_BYTES, RIG_LIMIT);
	for (uint32_t i = 0; i < 18; i++) {
		add(0, 1000 * (i + 1), EVENTS, i * EVENTS);
		if (i % 3 == 2)
			queue_chunk();
	}
	output__limit(extent(0) + 7 * PAGE_BYTES + 512);
	event = end_flight();
	output__limit(UINT64_MAX);
	CHECK(sent >= 2);
	expect_track(event, fd, 0, 0, UINT64_C(7) * EVENTS, UINT64_C(7) * PAGE_BYTES);
	CHECK_EQ(counter__read(&rings[0]->lost_dropped), UINT64_C(11) * EVENTS);
	CHECK_EQ(rings[0]->in_flight, 0);
	event__free(event);
	end();
	close(fd);
}

static void segments_of_another_kind_are_refused(void)
{
	struct segment segment = {.fd = -1, .open = true};

	begin();
	CHECK_EQ(-stream__prepare(stream, &segment), EINVAL);
	segment.capacity = PAGE_BYTES;
	CHECK_EQ(segment__set_places(&segment, 0, (uint64_t[]){NO_PLACE, PAGE_BYTES + 8}, 2), 0);
	CHECK_EQ(-stream__prepare(stream, &segment), EINVAL); /* not aligned */
	segment__forget(&segment);
	stream->ops = &record_stream__ops;
	segment.places = calloc(1, sizeof(*segment.places));
	CHECK_EQ(-stream__prepare(stream, &segment), EINVAL);
	free(segment.places);
	end();
}

int main(void)
{
	RUN(each_ring_has_an_extent_of_its_own);
	RUN(a_tail_grows_in_its_place);
	RUN(what_does_not_go_on_is_the_next_page);
	RUN(a_rotation_begins_every_track_anew);
	RUN(a_full_extent_ends_the_segment);
	RUN(each_segment_tells_the_time_of_its_own_first_event);
	RUN(without_a_next_segment_an_extent_goes_on_to_its_end);
	RUN(a_write_that_ends_early_keeps_its_whole_pages);
	RUN(a_tail_that_cannot_be_written_stays_as_it_was);
	RUN(a_tail_that_was_torn_is_written_anew_or_told_by_the_digest);
	RUN(a_pipe_goes_behind_the_tail);
	RUN(a_pipe_that_no_file_takes_is_counted);
	RUN(chunks_in_flight_stand_in_their_order);
	RUN(what_is_behind_a_refused_write_is_written_again);
	RUN(what_was_in_flight_behind_a_loss_is_erased);
	RUN(of_what_went_in_part_whole_pages_stay);
	RUN(segments_of_another_kind_are_refused);
	return 0;
}
