/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "fake_ring.h"
#include "records.h"
#include "rig.h"
#include "ring.h"

/* More comes than goes. Where no thread is started the test makes the passes, and is the writer. */
static struct rig rig;
static struct fake_ring fakes[RIG_STREAMS];
static struct ring *rings[RIG_STREAMS];
static uint64_t serials[RIG_STREAMS];
static uint32_t ranks[RIG_STREAMS]; /* of streams, set before begin() */

static void begin(uint32_t count, uint32_t streams, uint32_t chunks, uint64_t flush_ns)
{
	rig__init(&rig, 1, streams, chunks, flush_ns);
	for (uint32_t i = 0; i < streams; i++)
		stream__set_rank(&rig.streams[i], ranks[i]);
	for (uint32_t i = 0; i < count; i++) {
		serials[i] = 0;
		fake_ring__init(&fakes[i], 64);
		rings[i] = fake_ring__open(&fakes[i]);
		CHECK_EQ(stream__add_ring(&rig.streams[i % streams], rings[i]), 0);
		CHECK_EQ(shard__add(&rig.shards[0], &rig.streams[i % streams], rings[i]), 0);
	}
}

static void end(uint32_t count)
{
	rig__deinit(&rig);
	for (uint32_t i = 0; i < count; i++)
		fake_ring__deinit(&fakes[i]);
}

static void put(uint32_t i, uint32_t samples)
{
	static uint8_t record[1024];

	for (; samples > 0; samples--, serials[i]++)
		CHECK(fake_ring__write(&fakes[i], record,
				       record__sample(record, 1024, serials[i], 1 + serials[i])));
}

static void start(void)
{
	CHECK_EQ(writer__start(&rig.writer), 0);
	CHECK_EQ(shard__start(&rig.shards[0]), 0);
}

/* As much as the ring takes. */
static void fill(uint32_t i)
{
	static uint8_t record[1024];

	while (fake_ring__write(&fakes[i], record,
				record__sample(record, 1024, serials[i], 1 + serials[i])))
		serials[i]++;
}

static void pass(void)
{
	pass__run(&rig.shards[0], rig.writer.generation);
}

/* What the writer does with the oldest item of a stream: false if there is none. */
static bool take(uint32_t stream)
{
	struct stream *const from = &rig.streams[stream];
	struct item *const item = from->first;

	if (item == NULL)
		return false;
	from->first = item->next;
	if (from->first == NULL)
		from->last = &from->first;
	atomic_fetch_sub(&item->lane->queued, 1);
	if (item->chunk != NULL)
		pool__give(&rig.pool, item->chunk);
	else
		atomic_store(&item->lane->mark_queued, false);
	return true;
}

static void a_generation_ends_though_its_ring_is_always_full(void)
{
	uint32_t passes = 0;

	begin(1, 1, 1, RIG_NEVER_NS);
	fill(0);
	writer__issue(&rig.writer);
	while (shard__drained(&rig.shards[0]) < 1) {
		CHECK(passes++ < 8); /* the ring is no longer than five chunks */
		fill(0);
		pass();
		CHECK(fakes[0].head != rings[0]->position);
		CHECK(take(0));
	}
	CHECK(passes > 2);
	end(1);
}

/* Nobody notes a new goal while the ring is on its way to the last one. */
static void a_generation_that_takes_long_outlives_the_next_ones(void)
{
	begin(1, 1, 1, RIG_NEVER_NS);
	fill(0);
	for (uint32_t passes = 0; shard__drained(&rig.shards[0]) < 1; passes++) {
		CHECK(passes < 8);
		writer__issue(&rig.writer);
		pass();
		CHECK(take(0));
	}
	/* Nothing is left to read, and still the last one that was issued is begun at once. */
	CHECK_EQ(rings[0]->position, rings[0]->head);
	CHECK(rig.shards[0].again);
	pass();
	CHECK_EQ(shard__drained(&rig.shards[0]), rig.writer.generation);
	CHECK(!rig.shards[0].again);
	end(1);
}

static void a_stream_does_not_wait_for_the_generation_of_another(void)
{
	begin(2, 2, 16, RIG_NEVER_NS);
	for (uint64_t generation = 1; generation < 4; generation++) {
		fill(0);
		put(1, 1);
		CHECK_EQ(writer__issue(&rig.writer), generation);
		for (uint32_t passes = 0; passes < 8; passes++) {
			fill(0);
			pass();
		}
		CHECK_EQ(stream__drained(&rig.streams[1], generation), generation);
		CHECK_EQ(counter__read(&rings[1]->samples), generation);
	}
	CHECK(stream__drained(&rig.streams[0], 3) < 3);
	CHECK_EQ(counter__read(&rings[1]->starved), 0);
	end(2);
}

/* Two are always full, with chunks for one. */
static void check_shares(uint32_t streams, uint32_t chunks)
{
	uint64_t low, high;

	begin(2, streams, chunks, RIG_NEVER_NS);
	for (uint32_t turns = 0; turns < 100; turns++) {
		fill(0);
		fill(1);
		pass();
		CHECK(take(turns % streams) || take((turns + 1) % streams));
	}
	low = counter__read(&rings[0]->bytes);
	high = counter__read(&rings[1]->bytes);
	if (low > high) {
		const uint64_t swapped = low;

		low = high;
		high = swapped;
	}
	CHECK(low * 10 >= high * 9);
	end(2);
}

static void rings_of_a_stream_that_are_always_full_get_equal_shares(void)
{
	check_shares(1, 1);
	check_shares(1, 3);
}

static void streams_that_are_always_full_get_equal_shares(void)
{
	check_shares(2, 1);
	check_shares(2, 16);
}

/* Two are always full, and the disk is slower than either, but fair. */
static void a_stream_that_matters_more_is_short_last(void)
{
	const struct share *const less = &rig.streams[0].data_share;
	const struct share *const more = &rig.streams[1].data_share;
	uint32_t held = 0;

	ranks[0] = 2;
	begin(2, 2, 32, RIG_NEVER_NS);
	for (uint32_t turn = 0; turn < 200; turn++) {
		const bool is_short = pool__is_short(&rig.pool, more);

		held = less->held;
		fill(0);
		fill(1);
		pass();
		CHECK(!is_short || less->held <= held || less->held <= SHARE_DATA_CHUNKS);
		CHECK(counter__read(&rings[0]->starved) > 0 ||
		      counter__read(&rings[1]->starved) == 0);
		CHECK(take(turn % 2) || take((turn + 1) % 2));
	}
	CHECK(counter__read(&rings[0]->starved) > 100);
	CHECK(less->held <= SHARE_DATA_CHUNKS);
	CHECK(more->held >= 32 - SHARE_DATA_CHUNKS - 1);
	/* Neither is without its reserve. */
	CHECK(counter__read(&rings[0]->bytes) * 3 > counter__read(&rings[1]->bytes));
	end(2);
	ranks[0] = 0;
}

/* Once an interval something comes in the one, while the other has all that is not kept. */
static void a_quiet_stream_loses_nothing_while_the_writer_stands(void)
{
	begin(2, 2, 16, RIG_NEVER_NS);
	atomic_store(&rig.streams[1].begun, true);
	for (uint32_t i = 0; i < 20; i++) {
		fill(0);
		pass();
	}
	CHECK(counter__read(&rings[0]->starved) > 0);
	for (uint64_t i = 1; i <= 60; i++) {
		fill(0);
		put(1, 1);
		writer__issue(&rig.writer);
		pass();
		CHECK_EQ(counter__read(&rings[1]->samples), i);
		CHECK_EQ(stream__drained(&rig.streams[1], i), i);
	}
	CHECK_EQ(counter__read(&rings[1]->starved), 0);
	CHECK(rig.streams[1].data_share.held <= SHARE_DATA_CHUNKS);
	end(2);
}

/* The writer takes as much as one of eight makes, in turns; seven make a record an interval. */
static void seven_of_eight_streams_lose_nothing_beside_one_that_is_always_full(void)
{
	begin(RIG_STREAMS, RIG_STREAMS, 8 * RIG_STREAMS, RIG_NEVER_NS);
	for (uint32_t i = 0; i < RIG_STREAMS; i++)
		atomic_store(&rig.streams[i].begun, true);
	for (uint64_t turn = 1; turn <= 200; turn++) {
		uint32_t next = (uint32_t)turn % RIG_STREAMS;

		fill(0);
		for (uint32_t i = 1; i < RIG_STREAMS; i++)
			put(i, 1); /* the ring has room for it: nothing is lost */
		writer__issue(&rig.writer);
		pass();
		for (uint32_t i = 1; i < RIG_STREAMS; i++) {
			CHECK_EQ(counter__read(&rings[i]->samples), turn);
			CHECK_EQ(stream__drained(&rig.streams[i], turn), turn);
		}
		for (uint32_t i = 0; i < RIG_STREAMS && !take(next); i++)
			next = (next + 1) % RIG_STREAMS;
	}
	CHECK(counter__read(&rings[0]->starved) > 0);
	for (uint32_t i = 1; i < RIG_STREAMS; i++)
		CHECK_EQ(counter__read(&rings[i]->starved), 0);
	end(RIG_STREAMS);
}

/* Whenever a generation ends the open chunk has something in it, and others are queued: when it is
 * full it carries the end. */
static void generations_go_with_full_chunks_while_these_are_short(void)
{
	const uint32_t whole = (RIG_CHUNK_BYTES - CHUNK_MARKER_BYTES) / 1024;
	uint64_t stamp = 0;

	begin(1, 1, 4, RIG_NEVER_NS);
	atomic_store(&rig.streams[0].begun, true);
	put(0, 3 * whole + 1);
	pass();
	for (uint32_t turn = 0; turn < 40; turn++) {
		if (turn % 2 == 1) {
			const struct item *const item = rig.streams[0].first;

			CHECK(item->chunk != NULL && item->chunk->used > 65536);
			CHECK(item->stamp > stamp || turn < 7);
			stamp = item->stamp;
			CHECK(take(0));
		}
		put(0, whole / 2 + turn % 2);
		writer__issue(&rig.writer);
		pass();
		CHECK_EQ(shard__drained(&rig.shards[0]), rig.writer.generation);
	}
	end(1);
}

static void sideband_is_read_when_its_own_stream_has_all_chunks(void)
{
	uint8_t record[128];

	rig__init(&rig, 1, 1, 16, RIG_NEVER_NS);
	for (uint32_t i = 0; i < 2; i++) {
		serials[i] = 0;
		fake_ring__init(&fakes[i], 64);
		rings[i] = fake_ring__open(&fakes[i]);
		if (i == 1)
			rings[i]->sideband = &rig.streams[0].sideband;
		CHECK_EQ(stream__add_ring(&rig.streams[0], rings[i]), 0);
		CHECK_EQ(shard__add(&rig.shards[0], &rig.streams[0], rings[i]), 0);
	}
	for (uint32_t i = 0; i < 20; i++) {
		fill(0);
		pass();
	}
	CHECK(counter__read(&rings[0]->starved) > 0);
	CHECK(fake_ring__write(&fakes[1], record, record__comm(record, 10, 10, "x", 1, 1)));
	pass();
	CHECK_EQ(counter__read(&rings[1]->records), 1);
	end(2);
}

/* Whatever a pass finds, it takes what was there when it began: the next one has done what was posted. */
static void what_is_posted_is_done_by_the_next_pass(void)
{
	struct shard *const shard = &rig.shards[0];
	uint64_t before, passes;

	begin(2, 2, 16, 1000000);
	start();
	for (uint32_t n = 0; n < 200; n++) {
		struct ring *const ring = rings[n % 2];

		fill(0);
		fill(1);
		fake_ring__wake(&fakes[n % 2]);
		CHECK_EQ(shard__post(ring, n % 4 < 2 ? COMMAND_HOLD : COMMAND_LET_GO), 0);
		before = counter__read(&shard->passes); /* not earlier: a pass may begin meanwhile */
		for (;;) {
			fill(0);
			fill(1);
			passes = counter__read(&shard->passes);
			if (shard__has_answered(ring))
				break;
			/* One that had begun before is over, not the next one. */
			CHECK(passes - before <= 1);
		}
	}
	end(2);
}

/* Each ring has one letter of a kind on its way, and those of one ring are done in their order. */
static void letters_are_read_in_their_order(void)
{
	begin(1, 1, 4, RIG_NEVER_NS);
	rig.shards[0].running = true; /* so that the test makes the passes */
	CHECK_EQ(shard__post(rings[0], COMMAND_HOLD), 0);
	CHECK_EQ(-shard__post(rings[0], COMMAND_HOLD), EBUSY);
	CHECK_EQ(shard__post(rings[0], COMMAND_LET_GO), 0);
	CHECK(!shard__has_answered(rings[0]));
	CHECK(!rings[0]->held);
	shard__serve(&rig.shards[0]);
	CHECK(shard__has_answered(rings[0]));
	CHECK(!rings[0]->held);
	CHECK_EQ(shard__post(rings[0], COMMAND_LET_GO), 0);
	CHECK_EQ(shard__post(rings[0], COMMAND_HOLD), 0);
	shard__serve(&rig.shards[0]);
	CHECK(rings[0]->held);
	rig.shards[0].running = false;
	end(1);
}

static void generations_are_issued_without_a_writer(void)
{
	begin(1, 1, 4, 2000000);
	CHECK_EQ(shard__start(&rig.shards[0]), 0);
	while (shard__drained(&rig.shards[0]) < 5)
		await_notice(rig.events.fd);
	end(1);
}

static void await_stream(uint32_t stream, uint64_t generation)
{
	while (stream__written(&rig.streams[stream], generation) < generation)
		await_notice(rig.events.fd);
}

static void expect_missing(void)
{
	struct event *event = rig__event(&rig, EVENT_SPACE_WANTED);

	CHECK_EQ(event->error, EXFULL);
	event__free(event);
}

/* The first stream has no segment, and nobody answers. */
static void a_stream_without_a_segment_keeps_nobody_waiting(void)
{
	const int fd = output__file();
	uint64_t generation;

	begin(2, 2, 16, RIG_NEVER_NS);
	CHECK_EQ(rig__prepare(&rig, 1, fd, 0, RIG_LIMIT), 0);
	start();
	fill(0);
	fake_ring__wake(&fakes[0]);
	do { /* the one wants a segment, the other the next one */
		struct event *event;

		while ((event = event_list__pop(&rig.events)) == NULL)
			await_notice(rig.events.fd);
		generation = event->kind == EVENT_SPACE_WANTED;
		event__free(event);
	} while (generation == 0);
	for (uint64_t i = 1; i <= 50; i++) {
		put(1, 1);
		generation = writer__issue(&rig.writer);
		await_stream(1, generation);
		CHECK_EQ(stream__drained(&rig.streams[1], generation), generation);
		CHECK_EQ(counter__read(&rings[1]->stored), i);
	}
	CHECK_EQ(counter__read(&rings[0]->stored), 0);
	CHECK_EQ(counter__read(&rings[0]->lost_disk_full), 0);
	end(2);
	close(fd);
}

/* Two streams with a segment each, the first of which hurries. */
static void begin_hurry(const int fds[2], uint64_t hurry_ns)
{
	begin(2, 2, 16, RIG_NEVER_NS);
	rig.writer.hurry_ns = hurry_ns;
	for (uint32_t i = 0; i < 2; i++)
		CHECK_EQ(rig__prepare(&rig, i, fds[i], 0, RIG_LIMIT), 0);
	atomic_store(&rig.streams[0].hurries, true);
	start();
	put(1, 10);
	put(0, 10);
}

static void others_begin_no_write_while_a_stream_hurries(void)
{
	const int fds[] = {output__file(), output__file()};
	uint64_t generation;

	begin_hurry(fds, UINT64_MAX);
	generation = writer__issue(&rig.writer);
	await_stream(0, generation);
	CHECK_EQ(counter__read(&rings[0]->stored), 10);
	/* Another generation: the writer has looked at both streams since. */
	put(0, 10);
	await_stream(0, writer__issue(&rig.writer));
	CHECK_EQ(counter__read(&rings[1]->stored), 0);
	CHECK(stream__written(&rig.streams[1], generation) < generation);
	atomic_store(&rig.streams[0].hurries, false);
	writer__poke(&rig.writer);
	await_stream(1, generation);
	CHECK_EQ(counter__read(&rings[1]->stored), 10);
	end(2);
	close(fds[0]);
	close(fds[1]);
}

static void a_stream_that_hurries_is_let_pass_for_a_limited_time(void)
{
	const int fds[] = {output__file(), output__file()};

	begin_hurry(fds, 1000000);
	await_stream(1, writer__issue(&rig.writer));
	CHECK_EQ(counter__read(&rings[1]->stored), 10);
	end(2);
	close(fds[0]);
	close(fds[1]);
}

static void a_segment_that_nobody_makes_is_not_waited_for_for_ever(void)
{
	const int fd = output__file();
	struct stream *stream;
	uint64_t lost;

	begin(1, 1, 16, RIG_NEVER_NS);
	rig.writer.segment_wait_ns = 1000000;
	stream = &rig.streams[0];
	atomic_store(&stream->begun, true);
	start();
	put(0, 10);
	await_stream(0, writer__issue(&rig.writer));
	CHECK_EQ(counter__read(&rings[0]->lost_disk_full), 10);
	expect_missing();
	/* What comes meanwhile does not wait again, and is not asked for. */
	put(0, 10);
	await_stream(0, writer__issue(&rig.writer));
	lost = counter__read(&rings[0]->lost_disk_full);
	CHECK_EQ(lost, 20);
	rig__expect_none(&rig);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	put(0, 10);
	await_stream(0, writer__issue(&rig.writer));
	CHECK_EQ(counter__read(&rings[0]->stored), 10);
	CHECK_EQ(rings[0]->in_flight, 0);
	end(1);
	close(fd);
}

int main(void)
{
	RUN(a_generation_ends_though_its_ring_is_always_full);
	RUN(a_generation_that_takes_long_outlives_the_next_ones);
	RUN(a_stream_does_not_wait_for_the_generation_of_another);
	RUN(rings_of_a_stream_that_are_always_full_get_equal_shares);
	RUN(streams_that_are_always_full_get_equal_shares);
	RUN(a_stream_that_matters_more_is_short_last);
	RUN(a_quiet_stream_loses_nothing_while_the_writer_stands);
	RUN(seven_of_eight_streams_lose_nothing_beside_one_that_is_always_full);
	RUN(generations_go_with_full_chunks_while_these_are_short);
	RUN(sideband_is_read_when_its_own_stream_has_all_chunks);
	RUN(what_is_posted_is_done_by_the_next_pass);
	RUN(letters_are_read_in_their_order);
	RUN(generations_are_issued_without_a_writer);
	RUN(a_stream_without_a_segment_keeps_nobody_waiting);
	RUN(others_begin_no_write_while_a_stream_hurries);
	RUN(a_stream_that_hurries_is_let_pass_for_a_limited_time);
	RUN(a_segment_that_nobody_makes_is_not_waited_for_for_ever);
	return 0;
}
