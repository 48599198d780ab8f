/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "check.h"
#include "fake_ring.h"
#include "records.h"
#include "rig.h"
#include "ring.h"

static struct rig rig;

static void fill(struct fake_ring *fake, uint32_t samples, uint64_t first)
{
	static uint8_t record[1024];

	for (uint32_t i = 0; i < samples; i++)
		CHECK(fake_ring__write(fake, record,
				       record__sample(record, 1024, first + i, 1 + first + i)));
}

static struct ring *add(uint32_t shard, uint32_t stream, struct fake_ring *fake)
{
	struct ring *const ring = fake_ring__open(fake);

	CHECK_EQ(stream__add_ring(&rig.streams[stream], ring), 0);
	CHECK_EQ(shard__add(&rig.shards[shard], &rig.streams[stream], ring), 0);
	return ring;
}

static void start_shards(void)
{
	for (uint32_t i = 0; i < rig.shard_count; i++)
		CHECK_EQ(shard__start(&rig.shards[i]), 0);
}

static void start_writer(void)
{
	CHECK_EQ(writer__start(&rig.writer), 0);
}

static void check_finished(uint32_t stream, int fd, uint64_t samples)
{
	struct output output;
	const uint8_t *record;
	uint64_t serial = 0;
	size_t at = 0;

	rig__finish(&rig, stream, fd, &output);
	while ((record = output__next(&output, &at)) != NULL)
		CHECK_EQ(record__check_sample(record), serial++);
	CHECK_EQ(serial, samples);
	output__free(&output);
}

static void a_starved_ring_is_read_on_when_chunks_come_back(void)
{
	const int fd = output__file();
	struct fake_ring fake;
	struct ring *ring;

	rig__init(&rig, 1, 1, 2, RIG_NEVER_NS);
	fake_ring__init(&fake, 64);
	ring = add(0, 0, &fake);
	fill(&fake, 250, 0); /* four chunks */
	start_shards();
	fake_ring__wake(&fake);
	while (counter__read(&ring->starved) == 0)
		sched_yield();
	CHECK(counter__read(&ring->samples) < 250);
	/* Left in the ring, where the kernel counts what does not fit. */
	CHECK_EQ(fake.head - ring_map__tail(&fake.map), 250 * 1024 - counter__read(&ring->bytes));
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	rig__await_written(&rig, writer__issue(&rig.writer));
	check_finished(0, fd, 250);
	CHECK_EQ(counter__read(&ring->stored), 250);
	rig__deinit(&rig);
	fake_ring__deinit(&fake);
	close(fd);
}

/* Of two chunks the writer has one, which waits for others, and the other one is half full. */
static void a_generation_ends_though_a_chunk_waits_for_others(void)
{
	const int fd = output__file();
	struct fake_ring fake;
	struct ring *ring;

	rig__init(&rig, 1, 1, 2, RIG_NEVER_NS);
	fake_ring__init(&fake, 64);
	ring = add(0, 0, &fake);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	start_shards();
	fill(&fake, 70, 0); /* a chunk has 67 */
	fake_ring__wake(&fake);
	while (counter__read(&ring->samples) < 70)
		sched_yield();
	rig__await_written(&rig, writer__issue(&rig.writer));
	check_finished(0, fd, 70);
	rig__deinit(&rig);
	fake_ring__deinit(&fake);
	close(fd);
}

/* No flush follows. */
static void chunks_of_a_ring_that_left_wait_for_no_others(void)
{
	const int fd = output__file();
	struct fake_ring fake;
	struct ring *ring;

	rig__init(&rig, 1, 1, 16, RIG_NEVER_NS);
	fake_ring__init(&fake, 64);
	ring = add(0, 0, &fake);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	start_shards();
	fill(&fake, 70, 0); /* a chunk has 67 */
	fake_ring__wake(&fake);
	while (counter__read(&ring->samples) < 70)
		sched_yield();
	CHECK_EQ(rig__tell(ring, COMMAND_REMOVE), 0);
	while (counter__read(&ring->stored) < 70)
		sched_yield();
	check_finished(0, fd, 70);
	rig__deinit(&rig);
	fake_ring__deinit(&fake);
	close(fd);
}

/* One chunk for two lanes, on one shard or on two: nobody may keep it half full. */
static void one_chunk_serves_two_lanes(uint32_t shards, uint32_t streams, uint64_t flush_ns)
{
	const int fds[2] = {output__file(), output__file()};
	struct fake_ring fakes[2];
	struct ring *rings[2];

	rig__init(&rig, shards, streams, 1, flush_ns);
	for (uint32_t i = 0; i < 2; i++) {
		fake_ring__init(&fakes[i], 64);
		rings[i] = add(i % shards, i % streams, &fakes[i]);
		if (i < streams)
			CHECK_EQ(rig__prepare(&rig, i, fds[i], 0, RIG_LIMIT), 0);
	}
	start_writer();
	for (uint32_t i = 0; i < streams; i++)
		rig__expect(&rig, EVENT_SEGMENT_WANTED);
	start_shards();
	for (uint64_t round = 0; round < 50; round++) {
		for (uint32_t i = 0; i < 2; i++) {
			fill(&fakes[i], 1, round);
			fake_ring__wake(&fakes[i]);
		}
		rig__await_written(&rig, writer__issue(&rig.writer));
	}
	for (uint32_t i = 0; i < 2; i++) {
		CHECK_EQ(counter__read(&rings[i]->stored), 50);
		if (streams == 2)
			check_finished(i, fds[i], 50);
	}
	rig__deinit(&rig);
	for (uint32_t i = 0; i < 2; i++) {
		fake_ring__deinit(&fakes[i]);
		close(fds[i]);
	}
}

static void one_chunk_serves_two_streams_of_a_shard(void)
{
	one_chunk_serves_two_lanes(1, 2, 5000000);
}

static void one_chunk_serves_two_shards_of_a_stream(void)
{
	one_chunk_serves_two_lanes(2, 1, 5000000);
}

/* The writer has the marks of an earlier generation still: what is drained does not wait for it. */
static void a_generation_ends_while_the_marks_of_the_last_are_queued(void)
{
	struct fake_ring fakes[2];

	rig__init(&rig, 1, 2, 2, RIG_NEVER_NS);
	for (uint32_t i = 0; i < 2; i++) {
		fake_ring__init(&fakes[i], 1);
		add(0, i, &fakes[i]);
	}
	start_shards();
	writer__issue(&rig.writer);
	while (shard__drained(&rig.shards[0]) < 1)
		await_notice(rig.events.fd);
	writer__issue(&rig.writer);
	while (shard__drained(&rig.shards[0]) < 2)
		await_notice(rig.events.fd);
	CHECK_EQ(rig__written(&rig), 0);
	start_writer();
	rig__await_written(&rig, 2);
	rig__deinit(&rig);
	for (uint32_t i = 0; i < 2; i++)
		fake_ring__deinit(&fakes[i]);
}

/* What the writer does with a mark, one at a time. */
static void take_mark(struct lane *expected)
{
	struct item *item;

	pthread_mutex_lock(&rig.writer.disks[0].lock);
	item = expected->stream->first;
	expected->stream->first = item->next;
	if (item->next == NULL)
		expected->stream->last = &expected->stream->first;
	pthread_mutex_unlock(&rig.writer.disks[0].lock);
	CHECK(item->lane == expected && item->chunk == NULL);
	atomic_store(&expected->mark_queued, false);
	atomic_fetch_sub(&expected->queued, 1);
	shard__wake_starved(&rig.shards[0]);
}

/* Lanes are stamped as their marks come free, never again: else two could wait for each other. */
static void a_lane_is_stamped_once_for_a_generation(void)
{
	struct fake_ring fakes[2];
	struct ring *rings[2];

	rig__init(&rig, 1, 2, 2, RIG_NEVER_NS);
	for (uint32_t i = 0; i < 2; i++) {
		fake_ring__init(&fakes[i], 1);
		rings[i] = add(0, i, &fakes[i]);
	}
	start_shards();
	writer__issue(&rig.writer);
	while (shard__drained(&rig.shards[0]) < 1)
		await_notice(rig.events.fd);
	take_mark(rings[0]->lane);
	writer__issue(&rig.writer);
	while (rings[0]->lane->queued == 0 || !rig.shards[0].unstamped)
		sched_yield();
	take_mark(rings[1]->lane);
	while (rings[1]->lane->queued == 0)
		sched_yield();
	CHECK_EQ(shard__drained(&rig.shards[0]), 2);
	CHECK_EQ(rings[0]->lane->queued, 1);
	CHECK_EQ(rings[1]->lane->queued, 1);
	rig__deinit(&rig);
	for (uint32_t i = 0; i < 2; i++)
		fake_ring__deinit(&fakes[i]);
}

/* The one chunk is open on a shard that has ended the generation; another waits for it. */
static void a_starved_shard_gets_a_new_generation(void)
{
	const int fd = output__file();
	struct fake_ring fakes[2];
	struct ring *rings[2];

	rig__init(&rig, 2, 1, 1, 5000000);
	for (uint32_t i = 0; i < 2; i++) {
		fake_ring__init(&fakes[i], 16);
		rings[i] = add(i, 0, &fakes[i]);
	}
	writer__issue(&rig.writer);
	CHECK_EQ(shard__start(&rig.shards[0]), 0);
	while (shard__drained(&rig.shards[0]) < 1)
		await_notice(rig.events.fd);
	fill(&fakes[0], 1, 0);
	fake_ring__wake(&fakes[0]);
	while (counter__read(&rings[0]->samples) < 1)
		sched_yield();
	fill(&fakes[1], 1, 1);
	CHECK_EQ(shard__start(&rig.shards[1]), 0);
	while (counter__read(&rings[1]->starved) < 1)
		sched_yield();
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	rig__await_written(&rig, 1);
	CHECK_EQ(counter__read(&rings[1]->stored), 1);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	rig__deinit(&rig);
	for (uint32_t i = 0; i < 2; i++)
		fake_ring__deinit(&fakes[i]);
	close(fd);
}

static void a_little_data_waits_for_the_generation(void)
{
	struct fake_ring fakes[2];
	struct ring *rings[2];
	const int fd = output__file();

	rig__init(&rig, 1, 1, 4, RIG_NEVER_NS);
	rig.shards[0].floor_bytes = 2048;
	for (uint32_t i = 0; i < 2; i++) {
		fake_ring__init(&fakes[i], 16);
		rings[i] = add(0, 0, &fakes[i]);
		fill(&fakes[i], 1, i);
	}
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	start_shards();
	fake_ring__wake(&fakes[0]);
	while (counter__read(&rings[0]->samples) == 0)
		sched_yield();
	CHECK_EQ(counter__read(&rings[1]->samples), 0);
	CHECK_EQ(counter__read(&rings[0]->wakeups_watermark), 1);
	rig__await_written(&rig, writer__issue(&rig.writer));
	CHECK_EQ(counter__read(&rings[1]->stored), 1);
	CHECK_EQ(counter__read(&rings[1]->wakeups_timer), 1);
	CHECK_EQ(counter__read(&rings[1]->wakeups_watermark), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	rig__deinit(&rig);
	for (uint32_t i = 0; i < 2; i++)
		fake_ring__deinit(&fakes[i]);
	close(fd);
}

/* What names a sample comes before it, though it alone would not have been read yet. */
static void sideband_is_read_before_samples(void)
{
	struct fake_ring samples, names;
	struct ring *rings[2];
	struct output output;
	uint8_t record[128];
	const uint8_t *first;
	size_t at = 0;
	const int fd = output__file();

	rig__init(&rig, 1, 1, 4, RIG_NEVER_NS);
	rig.shards[0].floor_bytes = 2048;
	fake_ring__init(&samples, 16);
	fake_ring__init(&names, 16);
	rings[0] = add(0, 0, &samples);
	rings[1] = add(0, 0, &names);
	rings[1]->sideband = &rig.streams[0].sideband;
	CHECK(fake_ring__write(&names, record, record__comm(record, 10, 10, "x", 1, 1)));
	fill(&samples, 1, 0);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	start_shards();
	fake_ring__wake(&samples);
	while (counter__read(&rings[0]->samples) == 0)
		sched_yield();
	CHECK_EQ(counter__read(&rings[1]->records), 1);
	rig__await_written(&rig, writer__issue(&rig.writer));
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	rig__finish(&rig, 0, fd, &output);
	CHECK_EQ(output.samples, 1);
	CHECK_EQ(output__count(&output, PERF_RECORD_COMM, 10), 1);
	first = output__next(&output, &at);
	CHECK(first != NULL);
	CHECK_EQ(walk__type(walk__load(first)), PERF_RECORD_COMM);
	output__free(&output);
	rig__deinit(&rig);
	fake_ring__deinit(&samples);
	fake_ring__deinit(&names);
	close(fd);
}

static void a_ring_that_leaves_is_drained_and_never_read_again(void)
{
	struct fake_ring fakes[2];
	struct ring *rings[2];
	const int fd = output__file();

	rig__init(&rig, 1, 1, 4, RIG_NEVER_NS);
	for (uint32_t i = 0; i < 2; i++) {
		fake_ring__init(&fakes[i], 16);
		rings[i] = add(0, 0, &fakes[i]);
	}
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	start_shards();
	fill(&fakes[0], 10, 0);
	CHECK_EQ(rig__tell(rings[0], COMMAND_REMOVE), 0);
	CHECK_EQ(counter__read(&rings[0]->samples), 10);
	CHECK_EQ(rig__tell(rings[0], COMMAND_REMOVE), 0);
	fake_ring__deinit(&fakes[0]); /* a read would trap */
	fill(&fakes[1], 5, 10);
	rig__await_written(&rig, writer__issue(&rig.writer));
	CHECK_EQ(counter__read(&rings[0]->stored), 10);
	/* The last ring of its lane: its chunk does not wait for a generation. */
	fill(&fakes[1], 5, 15);
	CHECK_EQ(rig__tell(rings[1], COMMAND_REMOVE), 0);
	fake_ring__deinit(&fakes[1]);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	check_finished(0, fd, 20);
	CHECK_EQ(pool__free_count(&rig.pool), 4);
	rig__deinit(&rig);
	close(fd);
}

static void *remove_ring(void *ring)
{
	CHECK_EQ(rig__tell(ring, COMMAND_REMOVE), 0);
	return NULL;
}

static void leaving_waits_for_a_chunk(void)
{
	struct fake_ring fake;
	struct ring *ring;
	pthread_t remover;
	const int fd = output__file();

	rig__init(&rig, 1, 1, 1, RIG_NEVER_NS);
	fake_ring__init(&fake, 64);
	ring = add(0, 0, &fake);
	fill(&fake, 200, 0);
	start_shards();
	CHECK(pthread_create(&remover, NULL, remove_ring, ring) == 0);
	while (counter__read(&ring->starved) == 0)
		sched_yield();
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	pthread_join(remover, NULL);
	fake_ring__deinit(&fake);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	check_finished(0, fd, 200);
	rig__deinit(&rig);
	close(fd);
}

static void a_ring_that_finds_no_chunk_is_left_undrained(void)
{
	struct fake_ring fakes[2];
	struct ring *rings[2];
	uint64_t abandoned;
	const int fd = output__file();

	rig__init(&rig, 1, 1, 1, RIG_NEVER_NS);
	for (uint32_t i = 0; i < 2; i++) {
		fake_ring__init(&fakes[i], 64);
		rings[i] = add(0, 0, &fakes[i]);
	}
	fill(&fakes[0], 200, 0);
	start_shards();
	CHECK_EQ(-rig__tell(rings[0], COMMAND_REMOVE), EAGAIN);
	CHECK(rings[0]->left);
	CHECK(rig.shards[0].rings == rings[1] && rings[1]->next == NULL);
	/* What is still in the ring is lost, and none is left out of the count. */
	abandoned = counter__read(&rings[0]->abandoned);
	CHECK(abandoned > 0);
	CHECK_EQ(counter__read(&rings[0]->samples), 200);
	CHECK_EQ(counter__read(&rings[0]->bytes), 200 * 1024);
	CHECK_EQ(rings[0]->in_flight, 200 - abandoned);
	CHECK_EQ(fakes[0].head - ring_map__tail(&fakes[0].map), abandoned * 1024);
	CHECK_EQ(rig__tell(rings[0], COMMAND_REMOVE), 0);
	/* Whatever has its descriptor's number next is not looked at; a read would trap. */
	CHECK_EQ(epoll_ctl(rig.shards[0].epoll_fd, EPOLL_CTL_DEL, fakes[0].wakeup_fd, NULL), -1);
	CHECK_EQ(errno, ENOENT);
	fake_ring__deinit(&fakes[0]);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	rig__await_written(&rig, writer__issue(&rig.writer));
	CHECK_EQ(counter__read(&rings[0]->stored), 200 - abandoned);
	fill(&fakes[1], 10, 200 - abandoned);
	CHECK_EQ(rig__tell(rings[1], COMMAND_REMOVE), 0);
	check_finished(0, fd, 200 - abandoned + 10);
	fake_ring__deinit(&fakes[1]);
	rig__deinit(&rig);
	close(fd);
}

static void a_ring_with_a_fault_goes_on_and_leaves_the_others_alone(void)
{
	struct fake_ring fakes[2];
	struct ring *rings[2];
	const uint8_t zeroes[64] = {0};
	const int fd = output__file();

	rig__init(&rig, 1, 1, 4, RIG_NEVER_NS);
	for (uint32_t i = 0; i < 2; i++) {
		fake_ring__init(&fakes[i], 16);
		rings[i] = add(0, 0, &fakes[i]);
	}
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	start_shards();
	fill(&fakes[0], 1, 0);
	fake_ring__poke(&fakes[0], 1024, zeroes, sizeof(zeroes));
	fake_ring__set_head(&fakes[0], 1088);
	rig__await_written(&rig, writer__issue(&rig.writer));
	CHECK_EQ(rings[0]->last_fault, WALK_BAD_SIZE);
	CHECK_EQ(counter__read(&rings[0]->stored), 1);
	fill(&fakes[1], 3, 1);
	rig__await_written(&rig, writer__issue(&rig.writer));
	CHECK_EQ(counter__read(&rings[1]->stored), 3);
	fill(&fakes[0], 2, 4);
	rig__await_written(&rig, writer__issue(&rig.writer));
	CHECK_EQ(counter__read(&rings[0]->stored), 3);
	CHECK_EQ(rig__tell(rings[0], COMMAND_REMOVE), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	check_finished(0, fd, 6);
	rig__deinit(&rig);
	for (uint32_t i = 0; i < 2; i++)
		fake_ring__deinit(&fakes[i]);
	close(fd);
}

static void a_hang_up_is_noted_and_the_ring_still_read(void)
{
	struct fake_ring fake;
	struct ring *ring;
	const int fd = output__file();
	int ends[2];

	rig__init(&rig, 1, 1, 4, RIG_NEVER_NS);
	fake_ring__init(&fake, 16);
	CHECK(pipe(ends) == 0);
	CHECK(dup2(ends[0], fake.wakeup_fd) == fake.wakeup_fd);
	ring = add(0, 0, &fake);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	start_writer();
	start_shards();
	fill(&fake, 1, 0);
	close(ends[1]);
	while (counter__read(&ring->samples) < 1 || !ring->hung_up)
		sched_yield();
	fill(&fake, 1, 1);
	rig__await_written(&rig, writer__issue(&rig.writer));
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	check_finished(0, fd, 2);
	rig__deinit(&rig);
	fake_ring__deinit(&fake);
	close(ends[0]);
	close(fd);
}

static void an_fd_that_cannot_be_polled_is_refused(void)
{
	struct fake_ring fake;
	struct ring *ring;

	rig__init(&rig, 1, 1, 1, RIG_NEVER_NS);
	fake_ring__init(&fake, 1);
	ring = fake_ring__open(&fake);
	ring->wakeup_fd = -1;
	CHECK_EQ(-shard__add(&rig.shards[0], &rig.streams[0], ring), EBADF);
	CHECK(rig.shards[0].rings == NULL);
	start_shards();
	shard__poke(&rig.shards[0]);
	rig__deinit(&rig);
	fake_ring__deinit(&fake);
}

int main(void)
{
	RUN(a_starved_ring_is_read_on_when_chunks_come_back);
	RUN(a_generation_ends_though_a_chunk_waits_for_others);
	RUN(chunks_of_a_ring_that_left_wait_for_no_others);
	RUN(one_chunk_serves_two_streams_of_a_shard);
	RUN(one_chunk_serves_two_shards_of_a_stream);
	RUN(a_generation_ends_while_the_marks_of_the_last_are_queued);
	RUN(a_lane_is_stamped_once_for_a_generation);
	RUN(a_starved_shard_gets_a_new_generation);
	RUN(a_little_data_waits_for_the_generation);
	RUN(sideband_is_read_before_samples);
	RUN(a_ring_that_leaves_is_drained_and_never_read_again);
	RUN(leaving_waits_for_a_chunk);
	RUN(a_ring_that_finds_no_chunk_is_left_undrained);
	RUN(a_ring_with_a_fault_goes_on_and_leaves_the_others_alone);
	RUN(a_hang_up_is_noted_and_the_ring_still_read);
	RUN(an_fd_that_cannot_be_polled_is_refused);
	return 0;
}
