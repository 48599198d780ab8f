/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "fake_ring.h"
#include "core.h"
#include "mapped_pages.h"
#include "output.h"
#include "page_ring.h"
#include "pages.h"
#include "rig.h"

#define PAGE_BYTES 4096u
#define CHUNK_BYTES (32 * PAGE_BYTES)
#define EXTENT_BYTES (UINT64_C(160) << 10) /* some fill up before the segment does */
#define LIMIT_BYTES (UINT64_C(400) << 10)
#define SEGMENTS_MAX 512u
#define SERIALS 400000u
#define RINGS 4u

/* What feeds one ring: a thread that plays the kernel. */
struct feed {
	enum page_transport transport;
	struct ring *ring;
	struct mapped_pages mapped;
	int source, sink;
	_Atomic bool done;
	pthread_t thread;
	uint64_t random;
	uint64_t stored; /* serials found in the files so far */
	uint64_t last_ns;
};

static struct core *core;
static struct stream *stream;
static struct feed feeds[RINGS];
static int files[SEGMENTS_MAX];
static uint32_t file_count;
static bool finished;

/* Sub-buffers as read(2) gives them: whole, or in pieces that go on in time. */
static void *feed_pages(void *context)
{
	struct feed *feed = context;
	uint64_t serial = 0, ns = 1000;
	uint8_t page[PAGE_BYTES];

	while (serial < SERIALS) {
		uint32_t left = 340;

		ns += 100;
		while (left > 0 && serial < SERIALS) {
			uint32_t events = left;

			if (feed->transport == PAGE_READ && random__next(&feed->random) % 3 == 0)
				events = 1 + (uint32_t)(random__next(&feed->random) % left);
			if (events > SERIALS - serial)
				events = (uint32_t)(SERIALS - serial);
			page__start(page, PAGE_BYTES, ns);
			for (left -= events; events > 0; events--, ns++)
				page__event(page, 1, serial++);
			while (write(feed->sink, page, PAGE_BYTES) < 0) {
				CHECK_EQ(errno, EAGAIN);
				sched_yield();
			}
		}
	}
	feed->done = true;
	return NULL;
}

static void *feed_mapped(void *context)
{
	struct feed *feed = context;

	for (uint64_t serial = 0; serial < SERIALS;) {
		if (mapped_pages__write(&feed->mapped, serial))
			serial++;
		else
			sched_yield();
	}
	feed->done = true;
	return NULL;
}

static void prepare(void)
{
	uint64_t extents[RINGS];

	CHECK(file_count < SEGMENTS_MAX);
	for (uint32_t i = 0; i < RINGS; i++)
		extents[i] = PAGE_BYTES + i * EXTENT_BYTES;
	files[file_count++] = output__file();
	check_prepared(rig__prepare_pages(core, stream, file_count, files[file_count - 1], extents,
					  RINGS, EXTENT_BYTES, LIMIT_BYTES, 1 << 16));
}

static void read_segment(const struct event *event)
{
	static uint8_t data[EXTENT_BYTES];
	const int fd = files[event->segment.token - 1];

	for (uint32_t i = 0; i < event->ring_count; i++) {
		struct feed *feed = &feeds[event->rings[i].id];
		const uint64_t bytes = event->rings[i].bytes;
		const off_t at = (off_t)(PAGE_BYTES + event->rings[i].id * EXTENT_BYTES);

		CHECK_EQ(pread(fd, data, bytes, at), bytes);
		pages__check(data, bytes, PAGE_BYTES, &feed->stored, &feed->last_ns);
		if (feed->transport != PAGE_SPLICE)
			output__check_sums(data, bytes, event->rings[i].sums,
					   event->rings[i].sum_count);
	}
	finished |= event->final;
}

static void serve(void)
{
	struct event *event;

	await_notice(core->events.fd);
	while ((event = core__event(core)) != NULL) {
		if (event->kind == EVENT_SEGMENT_CLOSED)
			read_segment(event);
		else if (event->kind == EVENT_SEGMENT_WANTED)
			prepare();
		else if (event->kind == EVENT_SPACE_WANTED)
			CHECK_EQ(event->error, EXFULL); /* the next one was on its way */
		else
			CHECK(false);
		event__free(event);
	}
	CHECK(core__find_ring(core, ring__tells_fault) == NULL);
}

static void flush(void)
{
	const uint64_t generation = writer__issue(&core->writer);

	while (stream__written(stream, core->writer.generation) < generation)
		serve();
}

static void open_feed(struct feed *feed, enum page_transport transport)
{
	struct page_ring_options options = {
		.transport = transport, .page_bytes = PAGE_BYTES, .subbufs = MAPPED_PAGES};
	int fds[2];

	*feed = (struct feed){.transport = transport, .source = -1, .sink = -1, .random = 7};
	if (transport == PAGE_MMAP) {
		mapped_pages__init(&feed->mapped);
		options.map = &feed->mapped.map;
		options.fd = feed->mapped.fd;
	} else {
		if (transport == PAGE_READ)
			CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
		else
			CHECK_EQ(pipe2(fds, O_NONBLOCK), 0);
		feed->source = options.fd = fds[0];
		feed->sink = fds[1];
	}
	CHECK_EQ(rig__add_page_ring(core, (uint32_t)(feed - feeds) % 2, stream, &options,
				    &feed->ring),
		 0);
}

static void close_feed(struct feed *feed)
{
	if (feed->transport == PAGE_MMAP) {
		mapped_pages__deinit(&feed->mapped);
		return;
	}
	close(feed->source);
	close(feed->sink);
}

static void start_feed(struct feed *feed)
{
	CHECK_EQ(pthread_create(&feed->thread, NULL,
				feed->transport == PAGE_MMAP ? feed_mapped : feed_pages, feed),
		 0);
}

static void concurrent_rings_of_every_transport_lose_and_repeat_nothing(void)
{
	static const enum page_transport transports[RINGS] = {PAGE_READ, PAGE_MMAP, PAGE_SPLICE,
							      PAGE_READ};
	const struct core_options options = {
		.shards = 2, .chunks = 6, .chunk_bytes = CHUNK_BYTES, .flush_ns = 1000000};

	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_stream(core, 4096, PAGE_BYTES, false, &stream), 0);
	for (uint32_t i = 0; i < RINGS; i++)
		open_feed(&feeds[i], transports[i]);
	prepare();
	CHECK_EQ(core__start(core), 0);
	for (uint32_t i = 0; i < RINGS; i++)
		start_feed(&feeds[i]);
	for (uint32_t i = 0; i < 40; i++) {
		rig__tell(feeds[3].ring, i % 2 == 0 ? COMMAND_HOLD : COMMAND_LET_GO);
		if (i % 5 == 0)
			core__request(core, stream, ROTATE);
		flush();
	}
	rig__tell(feeds[3].ring, COMMAND_LET_GO);
	for (uint32_t i = 0; i < RINGS; i++) {
		while (!feeds[i].done || (counter__read(&feeds[i].ring->samples) < SERIALS &&
					  feeds[i].transport != PAGE_SPLICE))
			flush();
		CHECK_EQ(pthread_join(feeds[i].thread, NULL), 0);
	}
	/* Pages wait in sockets and pipes: a pass takes no more than a ring can hold. */
	for (uint32_t i = 0; i < 30; i++)
		flush();
	CHECK_EQ(rig__tell(feeds[0].ring, COMMAND_REMOVE), 0);
	core__request(core, stream, FINISH);
	while (!finished)
		serve();
	core__stop(core);
	for (uint32_t i = 0; i < RINGS; i++) {
		const struct ring *ring = feeds[i].ring;

		CHECK_EQ(feeds[i].stored, SERIALS);
		CHECK_EQ(counter__read(&ring->lost_disk_full) + counter__read(&ring->lost_dropped),
			 0);
		CHECK_EQ(ring->in_flight, 0);
		CHECK_EQ(counter__read(&ring->stored), counter__read(&ring->samples));
		if (feeds[i].transport != PAGE_SPLICE)
			CHECK_EQ(counter__read(&ring->stored), SERIALS);
		else
			CHECK(counter__read(&page_ring__of(ring)->spliced_bytes) > 0);
	}
	CHECK(file_count > 3);
	core__free(core);
	for (uint32_t i = 0; i < RINGS; i++)
		close_feed(&feeds[i]);
	while (file_count > 0)
		close(files[--file_count]);
}

/* One segment is prepared after the other, and only when the writer says that it is missing. */
static void full_extents_wait_for_the_next_segment(enum page_transport transport)
{
	const struct core_options options = {
		.shards = 1, .chunks = 1, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};
	const uint64_t extent = 0, capacity = 2 * PAGE_BYTES;
	const uint32_t whole = MAPPED_PAGES + 1; /* of a pass */
	uint8_t page[PAGE_BYTES], data[2 * PAGE_BYTES];
	uint64_t generation, serial = 0, fed = 0, last_ns = 0;
	uint32_t wanted = 0;
	struct event *event;

	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_stream(core, 4096, PAGE_BYTES, false, &stream), 0);
	open_feed(&feeds[0], transport);
	for (uint32_t i = 0; i < whole; i++) {
		fed = page__fill(page, PAGE_BYTES, 1000 * (i + 1), fed);
		CHECK_EQ(write(feeds[0].sink, page, PAGE_BYTES), PAGE_BYTES);
	}
	CHECK_EQ(core__start(core), 0);
	generation = writer__issue(&core->writer);
	for (finished = false; !finished;) {
		if (stream__written(stream, core->writer.generation) >= generation)
			core__request(core, stream, FINISH);
		await_notice(core->events.fd);
		while ((event = core__event(core)) != NULL) {
			if (event->kind == EVENT_SPACE_WANTED) {
				CHECK_EQ(event->error, EXFULL);
				wanted++;
				files[file_count++] = output__file();
				CHECK_EQ(rig__prepare_pages(core, stream, file_count,
							    files[file_count - 1], &extent, 1,
							    capacity, capacity, 0),
					 0);
			} else if (event->kind == EVENT_SEGMENT_CLOSED) {
				const uint64_t bytes = event->rings[0].bytes;

				CHECK_EQ(pread(files[event->segment.token - 1], data, bytes, 0),
					 bytes);
				pages__check(data, bytes, PAGE_BYTES, &serial, &last_ns);
				finished |= event->final;
			}
			event__free(event);
		}
	}
	core__stop(core);
	CHECK_EQ(wanted, (whole + 1) / 2);
	CHECK_EQ(serial, fed);
	CHECK_EQ(counter__read(&feeds[0].ring->lost_disk_full), 0);
	CHECK_EQ(feeds[0].ring->in_flight, 0);
	core__free(core);
	close_feed(&feeds[0]);
	while (file_count > 0)
		close(files[--file_count]);
}

static void full_extents_of_pages_wait_for_the_next_segment(void)
{
	full_extents_wait_for_the_next_segment(PAGE_READ);
}

static void full_extents_of_pipes_wait_for_the_next_segment(void)
{
	full_extents_wait_for_the_next_segment(PAGE_SPLICE);
}

/* Such a segment never ends, and another one would be the same. */
static void a_ring_without_an_extent_of_an_empty_segment_is_counted(void)
{
	const struct core_options options = {
		.shards = 1, .chunks = 1, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};
	const uint64_t extent = NO_PLACE;
	uint8_t page[PAGE_BYTES];
	uint64_t generation;

	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_stream(core, 4096, PAGE_BYTES, false, &stream), 0);
	open_feed(&feeds[0], PAGE_READ);
	page__fill(page, PAGE_BYTES, 1000, 0);
	CHECK_EQ(write(feeds[0].sink, page, PAGE_BYTES), PAGE_BYTES);
	files[0] = output__file();
	CHECK_EQ(rig__prepare_pages(core, stream, 1, files[0], &extent, 1, EXTENT_BYTES,
				    LIMIT_BYTES, 0),
		 0);
	CHECK_EQ(core__start(core), 0);
	generation = writer__issue(&core->writer);
	while (stream__written(stream, core->writer.generation) < generation)
		await_notice(core->events.fd);
	CHECK_EQ(counter__read(&feeds[0].ring->lost_disk_full), 340);
	CHECK_EQ(feeds[0].ring->in_flight, 0);
	core__stop(core);
	core__free(core);
	close_feed(&feeds[0]);
	close(files[0]);
}

/* Nothing waits for ever, and what is given up is counted. */
static void a_full_disk_is_counted_in_events(void)
{
	const struct core_options options = {
		.shards = 2, .chunks = 4, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};
	const int full = output__full();
	const uint64_t extents[2] = {0, 1 << 20};
	struct event *event;
	uint32_t wanted = 0;
	uint64_t generation;

	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_stream(core, 4096, PAGE_BYTES, false, &stream), 0);
	open_feed(&feeds[0], PAGE_READ);
	open_feed(&feeds[1], PAGE_SPLICE);
	CHECK_EQ(rig__prepare_pages(core, stream, 1, full, extents, 2, 1 << 20, 1 << 20, 0), 0);
	for (uint32_t i = 0; i < 2; i++) {
		uint8_t page[PAGE_BYTES];

		page__fill(page, PAGE_BYTES, 1000, 0);
		CHECK_EQ(write(feeds[i].sink, page, PAGE_BYTES), PAGE_BYTES);
	}
	CHECK_EQ(core__start(core), 0);
	generation = writer__issue(&core->writer);
	while (stream__written(stream, core->writer.generation) < generation) {
		await_notice(core->events.fd);
		while ((event = core__event(core)) != NULL) {
			if (event->kind == EVENT_SPACE_WANTED) {
				core__request(core, stream, SPACE_GIVE_UP);
				wanted++;
			}
			event__free(event);
		}
	}
	CHECK(wanted > 0);
	for (uint32_t i = 0; i < 2; i++) {
		CHECK_EQ(counter__read(&feeds[i].ring->lost_disk_full), 340);
		CHECK_EQ(feeds[i].ring->in_flight, 0);
	}
	core__stop(core);
	core__free(core);
	close_feed(&feeds[0]);
	close_feed(&feeds[1]);
	close(full);
}

static void pages_and_records_do_not_mix(void)
{
	const struct core_options options = {
		.shards = 1, .chunks = 2, .chunk_bytes = CHUNK_BYTES, .flush_ns = 1000000};
	const struct page_ring_options ring = {.fd = 0, .page_bytes = PAGE_BYTES, .subbufs = 1};
	const struct walk_layout layout = {0};
	const struct walk_ids ids = {0};
	const uint64_t crooked = 100;
	struct stream *records;
	struct fake_ring fake;
	struct ring *added;

	fake_ring__init(&fake, 1);
	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(-rig__add_stream(core, 4096, 2 * CHUNK_BYTES, false, &stream), EINVAL);
	CHECK_EQ(rig__add_stream(core, 4096, 2 * PAGE_BYTES, false, &stream), 0);
	CHECK_EQ(rig__add_stream(core, 4096, 0, false, &records), 0);
	CHECK_EQ(-rig__add_page_ring(core, 0, stream, &ring, &added), EINVAL);
	CHECK_EQ(-rig__add_page_ring(core, 0, records, &ring, &added), EINVAL);
	CHECK_EQ(-rig__add_ring(core, 0, stream, &fake.map, 0, &layout, &ids, false, false, &added),
		 EINVAL);
	CHECK_EQ(-rig__prepare_pages(core, records, 1, 0, NULL, 0, 1, 1, 0), EINVAL);
	CHECK_EQ(-rig__prepare_pages(core, stream, 1, 0, &crooked, 1, 1, 1, 0), EINVAL);
	CHECK_EQ(-rig__prepare_records(core, stream, 1, 0, 0, 1, 0), EINVAL);
	core__free(core);
	fake_ring__deinit(&fake);
}

int main(void)
{
	RUN(concurrent_rings_of_every_transport_lose_and_repeat_nothing);
	RUN(full_extents_of_pages_wait_for_the_next_segment);
	RUN(full_extents_of_pipes_wait_for_the_next_segment);
	RUN(a_ring_without_an_extent_of_an_empty_segment_is_counted);
	RUN(a_full_disk_is_counted_in_events);
	RUN(pages_and_records_do_not_mix);
	return 0;
}
