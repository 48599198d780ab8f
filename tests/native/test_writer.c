/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "fake_ring.h"
#include "records.h"
#include "rig.h"
#include "ring.h"

/* Items are queued by hand, before the writer starts: what it does is then decided. */
static struct rig rig;
static struct lane lanes[2];
static struct fake_ring fake;
static struct ring *ring;

static void begin_streams(uint32_t chunks, uint32_t streams)
{
	rig__init(&rig, 0, streams, chunks, RIG_NEVER_NS);
	fake_ring__init(&fake, 1);
	ring = fake_ring__open(&fake);
	CHECK_EQ(stream__add_ring(&rig.streams[0], ring), 0);
	for (uint32_t i = 0; i < 2; i++) {
		lanes[i] = (struct lane){.stream = &rig.streams[0], .rings = 1};
		atomic_store(&rig.streams[0].lanes[i], &lanes[i]);
	}
}

static void begin(uint32_t chunks)
{
	begin_streams(chunks, 1);
}

static void end(void)
{
	/* They are not allocated, which a stream takes for granted. */
	for (uint32_t i = 0; i < 2; i++)
		atomic_store(&rig.streams[0].lanes[i], NULL);
	atomic_store(&rig.streams[1].lanes[0], NULL);
	rig__deinit(&rig);
	fake_ring__deinit(&fake);
}

/* One sample in a chunk of this lane; returns nothing but what the file will say. */
static void queue(struct lane *lane, uint64_t stamp, uint64_t serial)
{
	struct chunk *chunk = pool__take(&rig.pool, NULL);
	uint8_t record[32];

	CHECK(chunk != NULL);
	CHECK(fake_ring__write(&fake, record, record__sample(record, 32, serial, 1000 + serial)));
	ring__begin(ring);
	CHECK_EQ(ring->ops->take(ring, chunk, RIG_CHUNK_BYTES), RING_EMPTY);
	chunk->item.lane = lane;
	chunk->item.stamp = stamp;
	chunk->item.begun_ns = stamp;
	lane->queued++;
	disk__queue(lane->stream, &chunk->item, true);
}

/* "01R2": the samples' serials (one digit each) and the rounds, in the order of the file. */
static void check_order(const struct output *output, const char *expected)
{
	uint16_t size;

	for (size_t at = 0; at < output->bytes; at += size) {
		const uint64_t header = walk__load(output->data + at);

		size = walk__size(header);
		if (walk__type(header) == WALK_FINISHED_INIT)
			continue;
		if (walk__type(header) == WALK_FINISHED_ROUND)
			CHECK_EQ('R', *expected);
		else
			CHECK_EQ('0' + record__check_sample(output->data + at), *expected);
		expected++;
	}
	CHECK_EQ(*expected, 0);
}

static void finish_and_check(int fd, const char *expected)
{
	struct output output;

	rig__finish(&rig, 0, fd, &output);
	check_order(&output, expected);
	CHECK_EQ(pool__free_count(&rig.pool), rig.pool.count);
	CHECK_EQ(ring->in_flight, 0);
	output__free(&output);
}

/* Wait until each lane that has rings came to this generation. */
static void await_written(uint64_t generation)
{
	for (uint32_t i = 0; i < 2; i++)
		while (lanes[i].rings > 0 && lane__written(&lanes[i]) < generation)
			await_notice(rig.events.fd);
}

static void start(int fd)
{
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	CHECK_EQ(writer__start(&rig.writer), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
}

static void a_round_ends_when_the_last_lane_came_to_it(void)
{
	const int fd = output__file();

	begin(8);
	rig.writer.generation = 1;
	queue(&lanes[0], 1, 0);
	queue(&lanes[0], 0, 1);
	queue(&lanes[1], 0, 2);
	queue(&lanes[1], 1, 3);
	queue(&lanes[0], 0, 4);
	start(fd);
	await_written(1);
	finish_and_check(fd, "0123R4");
	end();
	close(fd);
}

/*
 * Generation 2 was issued while 1 was still on its way, so lane 0's pass for it is older than
 * what lane 1 put before the first marker: a second marker would let a reader print too much.
 */
static void a_generation_issued_before_the_last_marker_ends_no_round(void)
{
	const int fd = output__file();

	begin(8);
	rig.writer.generation = 2;
	queue(&lanes[0], 1, 0);
	queue(&lanes[0], 2, 1);
	queue(&lanes[1], 1, 2);
	queue(&lanes[1], 2, 3);
	start(fd);
	await_written(2);
	CHECK_EQ(writer__issue(&rig.writer), 3);
	queue(&lanes[1], 3, 4);
	queue(&lanes[0], 3, 5);
	await_written(3);
	finish_and_check(fd, "012R345R");
	end();
	close(fd);
}

/* A lane that its last ring has left still has a chunk on the way: its samples may be old. */
static void a_round_waits_for_what_a_left_lane_has_queued(void)
{
	const int fd = output__file();

	begin(8);
	rig.writer.generation = 1;
	lanes[1].rings = 0;
	queue(&lanes[0], 1, 0);
	queue(&lanes[1], 0, 1);
	start(fd);
	while (pool__free_count(&rig.pool) < 8)
		await_notice(rig.events.fd);
	CHECK_EQ(writer__issue(&rig.writer), 2);
	queue(&lanes[0], 2, 2);
	await_written(2);
	finish_and_check(fd, "012R");
	end();
	close(fd);
}

static void a_round_without_records_writes_no_marker(void)
{
	const int fd = output__file();
	struct item marks[2] = {{.lane = &lanes[0], .stamp = 1}, {.lane = &lanes[1], .stamp = 1}};

	begin(2);
	rig.writer.generation = 1;
	for (uint32_t i = 0; i < 2; i++) {
		lanes[i].queued++;
		lanes[i].mark_queued = true;
		disk__queue(&rig.streams[0], &marks[i], true);
	}
	start(fd);
	await_written(1);
	CHECK(!lanes[0].mark_queued && !lanes[1].mark_queued);
	finish_and_check(fd, "");
	end();
	close(fd);
}

static void a_mark_ends_a_round_with_a_marker_of_its_own(void)
{
	const int fd = output__file();
	struct item mark = {.lane = &lanes[1], .stamp = 1};

	begin(2);
	rig.writer.generation = 1;
	queue(&lanes[0], 1, 0);
	lanes[1].queued++;
	disk__queue(&rig.streams[0], &mark, true);
	start(fd);
	await_written(1);
	finish_and_check(fd, "0R");
	end();
	close(fd);
}

static void answer(bool retry)
{
	struct stream *const stream = &rig.streams[0];

	pthread_mutex_lock(&stream->lock);
	stream->space_answer = retry ? SPACE_RETRY : SPACE_GIVE_UP;
	pthread_mutex_unlock(&stream->lock);
	writer__poke(&rig.writer);
}

static void expect_wanted(int error)
{
	struct event *event = rig__event(&rig, EVENT_SPACE_WANTED);

	CHECK_EQ(event->error, error);
	event__free(event);
}

static void expect_space_wanted(void)
{
	expect_wanted(ENOSPC);
}

static void a_full_disk_is_tried_again_after_room_was_made(void)
{
	const int fd = output__full(), file = output__file();

	begin(8);
	queue(&lanes[0], 0, 0);
	start(fd);
	expect_space_wanted();
	CHECK(dup2(file, fd) == fd);
	answer(true);
	queue(&lanes[0], 0, 1);
	finish_and_check(fd, "01");
	CHECK_EQ(counter__read(&ring->stored), 2);
	CHECK_EQ(counter__read(&ring->lost_disk_full), 0);
	CHECK_EQ(counter__read(&rig.writer.disks[0].write_errors), 0);
	end();
	close(fd);
	close(file);
}

static void a_disk_that_stays_full_loses_and_counts_each_sample_once(void)
{
	const int fd = output__full();

	begin(8);
	rig.writer.generation = 1;
	for (uint64_t i = 0; i < 3; i++)
		queue(&lanes[0], i == 2, i);
	lanes[1].rings = 0;
	start(fd);
	expect_space_wanted();
	answer(true); /* in vain, and asked once only: the next ones are given up at once */
	await_written(1);
	rig__expect_none(&rig);
	CHECK_EQ(counter__read(&ring->stored), 0);
	CHECK_EQ(counter__read(&ring->lost_disk_full), 3);
	CHECK_EQ(counter__read(&ring->lost_dropped), 0);
	CHECK_EQ(ring->in_flight, 0);
	CHECK_EQ(counter__read(&rig.writer.disks[0].write_errors), 3);
	CHECK_EQ(pool__free_count(&rig.pool), 8);
	end();
	close(fd);
}

static void a_refusal_gives_the_chunk_up(void)
{
	const int fd = output__full();

	begin(8);
	rig.writer.generation = 1;
	lanes[1].rings = 0;
	queue(&lanes[0], 1, 0);
	start(fd);
	expect_space_wanted();
	answer(false);
	await_written(1);
	CHECK_EQ(counter__read(&ring->lost_disk_full), 1);
	end();
	close(fd);
}

static void with_few_free_chunks_nobody_waits_for_room(void)
{
	const int fd = output__full();

	begin(4);
	rig.writer.generation = 1;
	lanes[1].rings = 0;
	for (uint64_t i = 0; i < 4; i++)
		queue(&lanes[0], i == 3, i);
	start(fd);
	await_written(1); /* without an answer */
	CHECK_EQ(counter__read(&ring->lost_disk_full), 4);
	end();
	close(fd);
}

static void other_errors_lose_the_chunk_and_are_told_once(void)
{
	const int file = output__file(), fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct event *event;

	begin(8);
	rig.writer.generation = 1;
	lanes[1].rings = 0;
	for (uint64_t i = 0; i < 3; i++)
		queue(&lanes[0], i == 2, i);
	start(fd);
	event = rig__event(&rig, EVENT_WRITE_FAILED);
	CHECK_EQ(event->error, EBADF);
	CHECK(event->segment.token != 0);
	event__free(event);
	await_written(1);
	rig__expect_none(&rig);
	CHECK_EQ(counter__read(&ring->lost_dropped), 3);
	CHECK_EQ(counter__read(&ring->lost_disk_full), 0);
	CHECK_EQ(ring->in_flight, 0);
	end();
	close(fd);
	close(file);
}

static void what_comes_before_the_first_segment_waits_for_it(void)
{
	const int fd = output__file();

	begin(8);
	queue(&lanes[0], 0, 0);
	CHECK_EQ(writer__start(&rig.writer), 0);
	expect_wanted(EXFULL);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	finish_and_check(fd, "0");
	CHECK_EQ(counter__read(&ring->lost_disk_full), 0);
	end();
	close(fd);
}

/* It is prepared once it is known what it begins with. Another stream shows that the writer looked. */
static void what_comes_before_a_reserved_segment_waits_and_asks_for_nothing(void)
{
	const int fd = output__file();
	struct lane other = {.stream = &rig.streams[1], .rings = 1};
	struct event *event;

	begin_streams(8, 2);
	CHECK_EQ(stream__add_ring(&rig.streams[1], ring), 0);
	atomic_store(&rig.streams[1].lanes[0], &other);
	store_relaxed(&rig.streams[0].reserved, true);
	rig.writer.segment_wait_ns = 0;
	queue(&lanes[0], 0, 0);
	queue(&other, 0, 1);
	CHECK_EQ(writer__start(&rig.writer), 0);
	event = rig__event(&rig, EVENT_SPACE_WANTED);
	CHECK_EQ(event->stream, 1);
	event__free(event);
	while (counter__read(&ring->lost_disk_full) == 0)
		sched_yield();
	rig__expect_none(&rig);
	CHECK_EQ(ring->in_flight, 1);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	finish_and_check(fd, "0");
	CHECK_EQ(counter__read(&ring->lost_disk_full), 1);
	CHECK_EQ(ring->in_flight, 0);
	end();
	close(fd);
}

static void the_end_of_a_stream_does_not_wait_for_a_reserved_segment(void)
{
	begin(8);
	store_relaxed(&rig.streams[0].reserved, true);
	rig.writer.segment_wait_ns = 0;
	queue(&lanes[0], 0, 0);
	CHECK_EQ(writer__start(&rig.writer), 0);
	pthread_mutex_lock(&rig.streams[0].lock);
	rig.streams[0].finish_wanted = true;
	pthread_mutex_unlock(&rig.streams[0].lock);
	writer__poke(&rig.writer);
	expect_wanted(EXFULL);
	while (counter__read(&ring->lost_disk_full) == 0)
		sched_yield();
	end();
}

/* The disk has room: chunks may run out, and then the rings hold what comes. */
static void a_missing_segment_is_waited_for_without_a_free_chunk(void)
{
	const int fd = output__file();

	begin(2);
	queue(&lanes[0], 0, 0);
	queue(&lanes[0], 0, 1);
	CHECK_EQ(writer__start(&rig.writer), 0);
	expect_wanted(EXFULL);
	usleep(100000);
	CHECK_EQ(counter__read(&ring->lost_disk_full), 0);
	CHECK_EQ(pool__free_count(&rig.pool), 0);
	/* A yes that comes without a segment has it ask again, in the same flush interval too. */
	answer(true);
	expect_wanted(EXFULL);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	finish_and_check(fd, "01");
	CHECK_EQ(counter__read(&ring->lost_disk_full), 0);
	CHECK_EQ(counter__read(&rig.writer.disks[0].write_errors), 0);
	end();
	close(fd);
}

static void a_segment_that_cannot_be_made_gives_the_chunk_up(void)
{
	const int fd = output__file();

	begin(2);
	queue(&lanes[0], 0, 0);
	queue(&lanes[0], 0, 1);
	CHECK_EQ(writer__start(&rig.writer), 0);
	expect_wanted(EXFULL);
	answer(false);
	/* It says nothing of the chunk behind it. */
	expect_wanted(EXFULL);
	CHECK_EQ(counter__read(&ring->lost_disk_full), 1);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	finish_and_check(fd, "1");
	CHECK_EQ(counter__read(&ring->lost_disk_full), 1);
	CHECK_EQ(counter__read(&ring->lost_dropped), 0);
	end();
	close(fd);
}

/* That a segment was missing is no reason not to ask for room in it. */
static void a_segment_that_came_late_may_be_on_a_full_disk(void)
{
	const int fd = output__full(), file = output__file();

	begin(8);
	queue(&lanes[0], 0, 0);
	CHECK_EQ(writer__start(&rig.writer), 0);
	expect_wanted(EXFULL);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	expect_space_wanted();
	CHECK(dup2(file, fd) == fd);
	answer(true);
	finish_and_check(fd, "0");
	end();
	close(fd);
	close(file);
}

static void finish(void)
{
	struct stream *const stream = &rig.streams[0];
	struct event *event;

	pthread_mutex_lock(&stream->lock);
	stream->finish_wanted = true;
	pthread_mutex_unlock(&stream->lock);
	writer__poke(&rig.writer);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	CHECK(event->final);
	event__free(event);
}

/* Another file has the number of the one that was prepared and never begun. */
static void what_comes_late_is_written_nowhere(void)
{
	const int first = output__file(), next = output__file(), victim = output__file();
	const int refused = output__file();

	begin(8);
	rig.writer.generation = 1;
	lanes[1].rings = 0;
	queue(&lanes[0], 0, 0);
	start(first);
	CHECK_EQ(rig__prepare(&rig, 0, next, 0, RIG_LIMIT), 0);
	finish();
	CHECK(dup2(victim, next) == next);
	CHECK_EQ(-rig__prepare(&rig, 0, refused, 0, RIG_LIMIT), ESHUTDOWN);
	CHECK_EQ(-stream__add_ring(&rig.streams[0], ring), ESHUTDOWN);
	queue(&lanes[0], 1, 1);
	await_written(1);
	CHECK_EQ(lseek(victim, 0, SEEK_END), 0);
	CHECK_EQ(counter__read(&ring->stored), 1);
	CHECK_EQ(counter__read(&ring->lost_dropped), 1);
	CHECK_EQ(counter__read(&ring->lost_disk_full), 0);
	CHECK_EQ(counter__read(&rig.writer.disks[0].write_errors), 0);
	CHECK_EQ(ring->in_flight, 0);
	CHECK_EQ(pool__free_count(&rig.pool), 8);
	rig__expect_none(&rig);
	end();
	close(first);
	close(next);
	close(victim);
	close(refused);
}

static void nothing_is_kept_for_a_finished_stream(void)
{
	const int fd = output__file();
	struct stream *stream;

	begin(8);
	stream = &rig.streams[0];
	pool__join(&rig.pool, &stream->data_share, 2);
	CHECK_EQ(rig.pool.owed, 2);
	start(fd);
	finish();
	writer__stop(&rig.writer);
	CHECK_EQ(rig.pool.owed, 0);
	end();
	close(fd);
}

static void stop_writes_what_is_queued(void)
{
	const int fd = output__file();

	begin(8);
	for (uint64_t i = 0; i < 8; i++)
		queue(&lanes[i % 2], 0, i);
	start(fd);
	writer__stop(&rig.writer);
	CHECK_EQ(counter__read(&ring->stored), 8);
	CHECK_EQ(ring->in_flight, 0);
	CHECK_EQ(writer__oldest_ns(&rig.writer), 0);
	end();
	close(fd);
}

static void stop_does_not_wait_for_room(void)
{
	const int fd = output__full();

	begin(8);
	queue(&lanes[0], 0, 0);
	queue(&lanes[0], 0, 1);
	start(fd);
	expect_space_wanted();
	writer__stop(&rig.writer);
	CHECK_EQ(counter__read(&ring->lost_disk_full), 2);
	CHECK_EQ(ring->in_flight, 0);
	end();
	close(fd);
}

static void stop_does_not_wait_for_a_segment(void)
{
	begin(8);
	queue(&lanes[0], 0, 0);
	queue(&lanes[0], 0, 1);
	CHECK_EQ(writer__start(&rig.writer), 0);
	expect_wanted(EXFULL);
	writer__stop(&rig.writer);
	CHECK_EQ(counter__read(&ring->lost_disk_full), 2);
	CHECK_EQ(ring->in_flight, 0);
	end();
}

/* The one of these numbers is refused as it is sent, and as it is written alone if `always`. */
static uint64_t refused_serial;
static int refusing_fd; /* a write of it fails, and not its submission */
static uint32_t many_sent, most_at_once;
static bool refused_always;
static uint32_t recalled;

static bool is_refused(const struct chunk *chunk)
{
	return record__check_sample(chunk->data) == refused_serial;
}

static bool send_refused(struct stream *stream, struct chunk *chunk)
{
	const bool sent = record_stream__ops.send(stream, chunk);

	/* A successor writes it there if this process is killed now. */
	if (sent)
		CHECK(chunk->note->file == RIG_FILE && chunk->note->at == chunk->flight.offset);
	if (sent && is_refused(chunk))
		chunk->flight.fd = refusing_fd;
	many_sent += sent;
	return sent;
}

static void recall_counted(struct stream *stream)
{
	record_stream__ops.recall(stream);
	recalled++;
}

static void land_counted(struct stream *stream, const struct chunk *chunk)
{
	if (chunk->flight.chunks > most_at_once)
		most_at_once = chunk->flight.chunks;
	record_stream__ops.land(stream, chunk);
}

static int write_refused(struct stream *stream, struct item *item, uint64_t *bytes)
{
	/* The place of the next one may be another's now. */
	if (recalled > 0 && item->next != NULL)
		CHECK_EQ(item->next->chunk->note->file, 0);
	if (refused_always && item->chunk != NULL && stream->work.span == 0 &&
	    is_refused(item->chunk))
		return -EIO;
	return record_stream__ops.write(stream, item, bytes);
}

static void refuse(uint64_t serial, bool always)
{
	static struct stream_ops ops;

	ops = record_stream__ops;
	ops.send = send_refused;
	ops.land = land_counted;
	ops.write = write_refused;
	ops.recall = recall_counted;
	refused_serial = serial;
	refused_always = always;
	many_sent = most_at_once = recalled = 0;
	refusing_fd = memfd_create("refusing", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(refusing_fd >= 0 && fcntl(refusing_fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
	rig.streams[0].ops = &ops;
}

static void await_stored(uint64_t samples)
{
	while (counter__read(&ring->stored) < samples)
		usleep(1000);
}

/* The first chunk of a stream, which opens the segment, is written: those that follow may wait for
 * others. */
static void begin_to_gather(uint32_t chunks, uint32_t with_lanes, int fd)
{
	begin(chunks);
	rig.writer.fast_ns = 0;
	lanes[1].rings = with_lanes - 1;
	refuse(UINT64_MAX, false);
	queue(&lanes[0], 0, 0);
	start(fd);
	await_stored(1);
}

static void end_of_gathering(int fd)
{
	end();
	close(refusing_fd);
	close(fd);
}

static void chunks_wait_until_they_are_enough_for_one_write(void)
{
	const int fd = output__file();

	begin_to_gather(16, 1, fd);
	for (uint64_t i = 1; i < 5; i++)
		queue(&lanes[0], 0, i);
	await_stored(5);
	finish_and_check(fd, "01234");
	CHECK_EQ(most_at_once, 4);
	end_of_gathering(fd);
}

static void a_fast_disk_gets_twice_as_many(void)
{
	const int fd = output__file();

	begin_to_gather(32, 1, fd);
	rig.writer.fast_ns = UINT64_MAX;
	for (uint64_t i = 1; i < 5; i++)
		queue(&lanes[0], 0, i);
	await_stored(5); /* of the first one nobody knew that the disk is fast */
	for (uint64_t i = 5; i < 13; i++)
		queue(&lanes[0], 0, i);
	await_stored(13);
	finish_and_check(fd, "0123456789:;<");
	CHECK_EQ(most_at_once, 8);
	end_of_gathering(fd);
}

static void chunks_wait_no_longer_than_for_the_next_flush(void)
{
	const int fd = output__file();

	begin_to_gather(16, 1, fd);
	queue(&lanes[0], 0, 1);
	queue(&lanes[0], 1, 2);
	await_written(1);
	CHECK_EQ(counter__read(&ring->stored), 3);
	finish_and_check(fd, "012R");
	end_of_gathering(fd);
}

static void none_waits_for_more_while_chunks_are_short(void)
{
	const int fd = output__file();
	struct chunk *taken[4];

	begin_to_gather(6, 1, fd);
	queue(&lanes[0], 0, 1);
	for (uint32_t i = 0; i < 4; i++) {
		taken[i] = pool__take(&rig.pool, NULL);
		CHECK(taken[i] != NULL);
	}
	writer__poke(&rig.writer);
	await_stored(2);
	for (uint32_t i = 0; i < 4; i++)
		pool__give(&rig.pool, taken[i]);
	finish_and_check(fd, "01");
	end_of_gathering(fd);
}

/* No stamp comes from it any more. A chunk that waits for more does not wait for the disk. */
static void none_waits_for_more_from_a_lane_that_was_left(void)
{
	const int fd = output__file();

	begin_to_gather(16, 1, fd);
	queue(&lanes[0], 0, 1);
	while (disk__waits_ns(&rig.streams[0]) > 0)
		usleep(1000);
	CHECK_EQ(counter__read(&ring->stored), 1);
	lanes[0].rings = 0;
	writer__poke(&rig.writer);
	await_stored(2);
	finish_and_check(fd, "01");
	end_of_gathering(fd);
}

/* The chunk that fills a segment begins its end, which the lanes come to one after the other. */
static void none_waits_for_more_in_a_stream_of_several_lanes(void)
{
	const int fd = output__file();

	begin_to_gather(16, 2, fd);
	queue(&lanes[0], 0, 1);
	await_stored(2);
	finish_and_check(fd, "01");
	end_of_gathering(fd);
}

/* What is written while more is queued goes to the disk several chunks at a time, by one write where they
 * stand together. */
static void many_in_flight_stand_in_their_order(void)
{
	static const char expected[] = "0123456789:;<=>?@ABCDEFG";
	const uint32_t many = sizeof(expected) - 1;
	const int fd = output__file();

	begin(many);
	rig.writer.fast_ns = 0;
	refuse(UINT64_MAX, false);
	for (uint64_t i = 0; i < many; i++)
		queue(&lanes[i % 2], 0, i);
	start(fd);
	finish_and_check(fd, expected);
	CHECK_EQ(many_sent, many - 1); /* with the first one comes the replay */
	CHECK_EQ(most_at_once, 4);
	CHECK_EQ(counter__read(&ring->stored), many);
	CHECK_EQ(counter__read(&rig.writer.disks[0].written_chunks), many);
	end();
	close(refusing_fd);
	close(fd);
}

static void what_is_behind_a_refused_write_is_written_again(void)
{
	const int fd = output__file();

	begin(12);
	refuse(4, false);
	for (uint64_t i = 0; i < 10; i++)
		queue(&lanes[i % 2], 0, i);
	start(fd);
	finish_and_check(fd, "0123456789");
	CHECK_EQ(recalled, 1);
	CHECK_EQ(counter__read(&ring->stored), 10);
	CHECK_EQ(counter__read(&ring->lost_dropped), 0);
	CHECK_EQ(counter__read(&rig.writer.disks[0].write_errors), 0);
	end();
	close(refusing_fd);
	close(fd);
}

static void one_that_is_refused_again_is_lost_alone(void)
{
	const int fd = output__file();
	struct event *event;

	begin(12);
	refuse(4, true);
	for (uint64_t i = 0; i < 10; i++)
		queue(&lanes[i % 2], 0, i);
	start(fd);
	event = rig__event(&rig, EVENT_WRITE_FAILED);
	CHECK_EQ(event->error, EIO);
	event__free(event);
	finish_and_check(fd, "012356789");
	CHECK_EQ(counter__read(&ring->stored), 9);
	CHECK_EQ(counter__read(&ring->lost_dropped), 1);
	CHECK_EQ(counter__read(&rig.writer.disks[0].write_errors), 1);
	end();
	close(refusing_fd);
	close(fd);
}

/* A limit in the middle of a chunk: a part of it goes, and those behind it may as well be begun. */
static void a_part_that_went_is_cut_off_with_all_behind_it(void)
{
	const int fd = output__file();
	struct event *event;

	begin(12);
	output__limit(3 * CHUNK_ALIGN_BYTES + 512);
	for (uint64_t i = 0; i < 10; i++)
		queue(&lanes[i % 2], i == 9, i); /* with the last one a flush waits for all */
	start(fd);
	event = rig__event(&rig, EVENT_WRITE_FAILED);
	CHECK_EQ(event->error, EFBIG);
	event__free(event);
	while (pool__free_count(&rig.pool) < 12)
		usleep(1000);
	CHECK_EQ(lseek(fd, 0, SEEK_END), 3 * CHUNK_ALIGN_BYTES);
	output__limit(UINT64_MAX);
	queue(&lanes[0], 0, 7);
	finish_and_check(fd, "0127");
	CHECK_EQ(counter__read(&ring->stored), 4);
	CHECK_EQ(counter__read(&ring->lost_dropped), 7);
	end();
	close(fd);
}

static sem_t stuck;

static int write_stuck(struct stream *stream, struct item *item, uint64_t *bytes)
{
	while (sem_wait(&stuck) < 0)
		continue;
	CHECK_EQ(sem_post(&stuck), 0);
	return record_stream__ops.write(stream, item, bytes);
}

/* A write of the first stream does not return; the second one's file is on another file system. */
static void a_stuck_file_system_delays_no_other(void)
{
	static struct stream_ops ops;
	const int fd = output__file(), other = memfd_create("other", MFD_CLOEXEC);
	struct lane lane = {.stream = &rig.streams[1], .rings = 1};
	struct stream *streams;

	begin_streams(8, 2);
	streams = rig.streams;
	CHECK_EQ(sem_init(&stuck, 0, 0), 0);
	ops = record_stream__ops;
	ops.write = write_stuck;
	ops.send = NULL;
	streams[0].ops = &ops;
	CHECK_EQ(writer__start(&rig.writer), 0);
	for (uint32_t i = 0; i < 2; i++) {
		writer__place(&rig.writer, &streams[i],
			      &(struct segment){.fd = i == 0 ? fd : other});
		CHECK_EQ(rig__prepare(&rig, i, i == 0 ? fd : other, 0, RIG_LIMIT), 0);
		rig__expect(&rig, EVENT_SEGMENT_WANTED);
	}
	CHECK(atomic_load(&streams[0].disk) != atomic_load(&streams[1].disk));
	atomic_store(&streams[1].lanes[0], &lane);
	queue(&lanes[0], 1, 0);
	queue(&lane, 1, 1);
	while (lane__written(&lane) < 1)
		await_notice(rig.events.fd);
	CHECK_EQ(counter__read(&ring->stored), 1);
	CHECK_EQ(lane__written(&lanes[0]), 0);
	CHECK(writer__oldest_ns(&rig.writer) > 0);
	CHECK_EQ(sem_post(&stuck), 0);
	while (lane__written(&lanes[0]) < 1)
		await_notice(rig.events.fd);
	CHECK_EQ(counter__read(&ring->stored), 2);
	end();
	CHECK_EQ(sem_destroy(&stuck), 0);
	close(fd);
	close(other);
}

static uint32_t written[32], written_count;

static int write_noted(struct stream *stream, struct item *item, uint64_t *bytes)
{
	static const struct item *last;

	if (item != last)
		written[written_count++] = stream->id;
	last = item;
	return record_stream__ops.write(stream, item, bytes);
}

/* Queue ten chunks of each of three streams, with so many more taken. Returns how many of the first
 * sixteen writes were of each. */
static void count_turns(uint32_t taken, const uint32_t ranks[3], uint32_t counts[3])
{
	static struct stream_ops ops;
	static struct lane others[2];
	int fds[3];

	begin_streams(128, 3);
	written_count = 0;
	ops = record_stream__ops;
	ops.write = write_noted;
	ops.send = NULL;
	for (uint32_t i = 0; i < 3; i++) {
		counts[i] = 0;
		fds[i] = output__file();
		stream__set_rank(&rig.streams[i], ranks[i]);
		rig.streams[i].ops = &ops;
		CHECK_EQ(rig__prepare(&rig, i, fds[i], 0, RIG_LIMIT), 0);
		if (i == 0)
			continue;
		others[i - 1] = (struct lane){.stream = &rig.streams[i], .rings = 1};
		atomic_store(&rig.streams[i].lanes[0], &others[i - 1]);
	}
	for (uint64_t i = 0; i < 30; i++)
		queue(i % 3 == 0 ? &lanes[0] : &others[i % 3 - 1], 0, i);
	while (taken-- > 0)
		CHECK(pool__take(&rig.pool, NULL) != NULL);
	CHECK_EQ(writer__start(&rig.writer), 0);
	writer__stop(&rig.writer);
	CHECK_EQ(written_count, 30);
	for (uint32_t i = 0; i < 16; i++)
		counts[written[i]]++;
	for (uint32_t i = 0; i < 3; i++)
		close(fds[i]);
	atomic_store(&rig.streams[2].lanes[0], NULL);
	end();
}

static void while_chunks_are_short_what_matters_more_has_most_turns(void)
{
	const uint32_t equal[3] = {1, 1, 1}, ranks[3] = {2, 0, 1};
	uint32_t counts[3];

	count_turns(98, equal, counts);
	for (uint32_t i = 0; i < 3; i++)
		CHECK(counts[i] == 5 || counts[i] == 6);
	count_turns(0, ranks, counts);
	for (uint32_t i = 0; i < 3; i++)
		CHECK(counts[i] == 5 || counts[i] == 6);
	/* All ten with one of another after the seventh; of the other five the next rank has four. */
	count_turns(98, ranks, counts);
	CHECK_EQ(counts[1], 10);
	CHECK_EQ(counts[0], 2);
	CHECK_EQ(counts[2], 4);
}

int main(void)
{
	RUN(a_round_ends_when_the_last_lane_came_to_it);
	RUN(while_chunks_are_short_what_matters_more_has_most_turns);
	RUN(a_generation_issued_before_the_last_marker_ends_no_round);
	RUN(a_round_waits_for_what_a_left_lane_has_queued);
	RUN(a_round_without_records_writes_no_marker);
	RUN(a_mark_ends_a_round_with_a_marker_of_its_own);
	RUN(a_full_disk_is_tried_again_after_room_was_made);
	RUN(a_disk_that_stays_full_loses_and_counts_each_sample_once);
	RUN(a_refusal_gives_the_chunk_up);
	RUN(with_few_free_chunks_nobody_waits_for_room);
	RUN(other_errors_lose_the_chunk_and_are_told_once);
	RUN(what_comes_before_the_first_segment_waits_for_it);
	RUN(what_comes_before_a_reserved_segment_waits_and_asks_for_nothing);
	RUN(the_end_of_a_stream_does_not_wait_for_a_reserved_segment);
	RUN(a_missing_segment_is_waited_for_without_a_free_chunk);
	RUN(a_segment_that_cannot_be_made_gives_the_chunk_up);
	RUN(a_segment_that_came_late_may_be_on_a_full_disk);
	RUN(what_comes_late_is_written_nowhere);
	RUN(nothing_is_kept_for_a_finished_stream);
	RUN(stop_writes_what_is_queued);
	RUN(stop_does_not_wait_for_room);
	RUN(stop_does_not_wait_for_a_segment);
	RUN(chunks_wait_until_they_are_enough_for_one_write);
	RUN(a_fast_disk_gets_twice_as_many);
	RUN(chunks_wait_no_longer_than_for_the_next_flush);
	RUN(none_waits_for_more_while_chunks_are_short);
	RUN(none_waits_for_more_from_a_lane_that_was_left);
	RUN(none_waits_for_more_in_a_stream_of_several_lanes);
	RUN(many_in_flight_stand_in_their_order);
	RUN(what_is_behind_a_refused_write_is_written_again);
	RUN(one_that_is_refused_again_is_lost_alone);
	RUN(a_part_that_went_is_cut_off_with_all_behind_it);
	RUN(a_stuck_file_system_delays_no_other);
	return 0;
}
