/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "fake_ring.h"
#include "output.h"
#include "records.h"
#include "rig.h"
#include "stream.h"

#define PRODUCERS 4
#define STREAMS 2
#define SAMPLES 6000u /* of one producer */
#define SEGMENTS_MAX 4096
#define SERIAL_RING(serial) ((uint32_t)((serial) >> 32))
#define SERIAL_NUMBER(serial) ((uint32_t)(serial))

struct producer {
	struct fake_ring fake;
	struct ring *ring;
	pthread_t thread;
	uint32_t id, written;
	uint64_t told_lost;
	_Atomic bool stop, ended;
	bool forever;
	uint64_t visible_ns[SAMPLES]; /* when record n was in the ring at the latest */
};

struct written {
	int fd;
	uint64_t end, samples;
	struct sum *sums;
	uint32_t sum_count;
};

static struct producer producers[PRODUCERS];
static struct core *core;
static struct stream *streams[STREAMS];
static struct written segments[SEGMENTS_MAX];
static uint32_t segment_count, prepared_count;
static _Atomic uint32_t rotations[STREAMS];
static bool stream_closed[STREAMS];

static uint64_t visible(uint64_t serial)
{
	return producers[SERIAL_RING(serial)].visible_ns[SERIAL_NUMBER(serial)];
}

/* By each third of the records the stream has been in another segment: who writes awaits it. */
static bool awaits_rotation(const struct producer *producer)
{
	return !producer->forever &&
	       producer->written / (SAMPLES / 3) > rotations[producer->id / 2 % STREAMS] &&
	       producer->written % (SAMPLES / 3) == 0 && producer->written < SAMPLES;
}

/* Write as fast as it goes; what finds the ring full is lost, as in the kernel. */
static void *produce(void *context)
{
	struct producer *producer = context;
	uint64_t state = producer->id * 77 + 1, woken_at = 0;
	static _Thread_local uint8_t record[65536];

	while ((producer->forever || producer->written < SAMPLES) && !atomic_load(&producer->stop)) {
		const uint64_t random = random__next(&state);
		const uint16_t size =
			(uint16_t)(24 + 8 * (random % 64 == 0 ? random % 4096 : random % 40));
		const uint32_t number = producer->written % SAMPLES;

		if (awaits_rotation(producer)) {
			sched_yield();
			continue;
		}
		record__sample(record, size, (uint64_t)producer->id << 32 | number, clock__now_ns());
		if (fake_ring__write(&producer->fake, record, size)) {
			producer->visible_ns[number] = clock__now_ns();
			producer->written++;
		} else {
			sched_yield();
		}
		if (producer->fake.head - woken_at > producer->fake.map.data_bytes / 2) {
			woken_at = producer->fake.head;
			fake_ring__wake(&producer->fake);
		}
	}
	atomic_store(&producer->ended, true);
	return NULL;
}

static bool is_running(void)
{
	for (uint32_t i = 0; i < PRODUCERS; i++)
		if (!atomic_load(&producers[i].ended))
			return true;
	return false;
}

static void begin(const struct core_options *options, bool forever)
{
	CHECK_EQ(core__new(options, &core), 0);
	segment_count = prepared_count = 0;
	memset(segments, 0, sizeof(segments));
	for (uint32_t i = 0; i < STREAMS; i++)
		rotations[i] = 0;
	memset(stream_closed, 0, sizeof(stream_closed));
	for (uint32_t i = 0; i < STREAMS; i++)
		CHECK_EQ(rig__add_stream(core, 1 << 20, 0, false, &streams[i]), 0);
	for (uint32_t i = 0; i < PRODUCERS; i++) {
		struct producer *producer = &producers[i];

		memset(producer, 0, sizeof(*producer));
		producer->id = i;
		producer->forever = forever;
		fake_ring__init(&producer->fake, 32);
		CHECK_EQ(rig__add_ring(core, i % options->shards, streams[i / 2 % STREAMS],
				       &producer->fake.map, producer->fake.wakeup_fd,
				       &records__layout, &(struct walk_ids){0}, false, false,
				       &producer->ring),
			 0);
	}
}

static void start_producers(void)
{
	for (uint32_t i = 0; i < PRODUCERS; i++)
		CHECK(pthread_create(&producers[i].thread, NULL, produce, &producers[i]) == 0);
}

static void prepare(uint32_t stream, uint64_t limit)
{
	CHECK(prepared_count < SEGMENTS_MAX);
	segments[prepared_count].fd = output__file();
	check_prepared(rig__prepare_records(core, streams[stream], prepared_count,
					    segments[prepared_count].fd, 0, limit, 0));
	prepared_count++;
}

static void serve(uint64_t limit)
{
	struct event *event;

	while ((event = core__event(core)) != NULL) {
		if (event->kind == EVENT_SEGMENT_WANTED) {
			prepare(event->stream, limit);
		} else {
			CHECK_EQ(event->kind, EVENT_SEGMENT_CLOSED);
			segments[event->segment.token].end = event->segment.offset;
			segments[event->segment.token].sums = event->sums;
			segments[event->segment.token].sum_count = event->sum_count;
			event->sums = NULL;
			segments[event->segment.token].samples = event->segment.samples;
			rotations[event->stream]++;
			stream_closed[event->stream] = true;
		}
		event__free(event);
	}
}

/* The last generation that is written of every stream. */
static uint64_t written(void)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < STREAMS; i++)
		if (stream__written(streams[i], core->writer.generation) < least)
			least = stream__written(streams[i], core->writer.generation);
	return least;
}

static void finish(uint64_t limit)
{
	const uint64_t generation = writer__issue(&core->writer);

	while (written() < generation) {
		await_notice(core->events.fd);
		serve(limit);
	}
	for (uint32_t i = 0; i < STREAMS; i++) {
		serve(limit);
		stream_closed[i] = false;
		core__request(core, streams[i], FINISH);
		while (!stream_closed[i]) {
			await_notice(core->events.fd);
			serve(limit);
		}
	}
}

/* Every sample that entered a ring is in one file, in its ring's order; every lost one is told. */
static void check_segments(void)
{
	uint32_t next[PRODUCERS] = {0};
	uint64_t told[PRODUCERS] = {0};

	for (uint32_t i = 0; i < prepared_count; i++) {
		struct output output;
		const uint8_t *record;
		size_t at = 0;

		output__read(&output, segments[i].fd, 0, segments[i].end, visible);
		if (segments[i].end > 0)
			output__check_sums(output.data, output.bytes, segments[i].sums,
					   segments[i].sum_count);
		CHECK_EQ(output.samples, segments[i].samples);
		while ((record = output__next(&output, &at)) != NULL) {
			uint64_t serial;

			if (walk__type(walk__load(record)) == PERF_RECORD_LOST)
				continue;
			serial = record__check_sample(record);
			CHECK_EQ(SERIAL_NUMBER(serial), next[SERIAL_RING(serial)]);
			next[SERIAL_RING(serial)]++;
		}
		output__free(&output);
		close(segments[i].fd);
	}
	for (uint32_t i = 0; i < PRODUCERS; i++) {
		const struct producer *producer = &producers[i];

		told[i] = counter__read(&perf_ring__of(producer->ring)->lost_records);
		CHECK_EQ(next[i], producer->written);
		CHECK_EQ(counter__read(&producer->ring->samples), producer->written);
		CHECK_EQ(counter__read(&producer->ring->stored), producer->written);
		CHECK_EQ(producer->ring->in_flight, 0);
		CHECK_EQ(told[i] + producer->fake.lost, producer->fake.lost_all);
	}
}

static void end(void)
{
	for (uint32_t i = 0; i < prepared_count; i++)
		free(segments[i].sums);
	core__free(core);
	for (uint32_t i = 0; i < PRODUCERS; i++)
		fake_ring__deinit(&producers[i].fake);
}

static void run_to_the_end(const struct core_options *options, uint64_t limit)
{
	uint64_t state = 1;

	begin(options, false);
	for (uint32_t i = 0; i < STREAMS; i++)
		prepare(i, limit);
	CHECK_EQ(core__start(core), 0);
	start_producers();
	while (is_running()) {
		const uint64_t random = random__next(&state);

		if (random % 4 == 0)
			writer__issue(&core->writer);
		if (random % 32 == 0)
			core__request(core, streams[random / 32 % STREAMS], ROTATE);
		serve(limit);
		sched_yield();
	}
	for (uint32_t i = 0; i < PRODUCERS; i++)
		pthread_join(producers[i].thread, NULL);
	finish(limit);
	check_segments();
	end();
}

static void every_sample_is_stored_once_in_order(void)
{
	run_to_the_end(&(struct core_options){.shards = 1,
					      .chunks = 16,
					      .chunk_bytes = RIG_CHUNK_BYTES,
					      .flush_ns = 3000000,
					      .floor_bytes = 8192},
		       1 << 20);
	CHECK(rotations[0] > 1 && rotations[1] > 1);
}

static void likewise_with_two_shards_for_each_stream(void)
{
	run_to_the_end(&(struct core_options){.shards = 2,
					      .chunks = 16,
					      .chunk_bytes = RIG_CHUNK_BYTES,
					      .flush_ns = 1000000,
					      .floor_bytes = 0},
		       1 << 20);
}

static void likewise_with_fewer_chunks_than_lanes(void)
{
	run_to_the_end(&(struct core_options){.shards = 2,
					      .chunks = 2,
					      .chunk_bytes = RIG_CHUNK_BYTES,
					      .flush_ns = 1000000,
					      .floor_bytes = 8192},
		       256 << 10);
}

static void rings_come_and_go_while_others_run(void)
{
	const struct core_options options = {.shards = 2,
					     .chunks = 8,
					     .chunk_bytes = RIG_CHUNK_BYTES,
					     .flush_ns = 1000000,
					     .floor_bytes = 8192};
	uint64_t stored = 0;
	struct ring *guests[40];

	begin(&options, true);
	for (uint32_t i = 0; i < STREAMS; i++)
		prepare(i, RIG_LIMIT);
	CHECK_EQ(core__start(core), 0);
	start_producers();
	for (uint32_t n = 0; n < 40; n++) {
		struct fake_ring fake;
		uint8_t record[128];

		fake_ring__init(&fake, 1);
		CHECK_EQ(rig__add_ring(core, n % 2, streams[n / 2 % STREAMS], &fake.map,
				       fake.wakeup_fd, &records__layout, &(struct walk_ids){0},
				       n % 3 == 0, false, &guests[n]),
			 0);
		for (uint32_t i = 0; i < 20; i++)
			CHECK(fake_ring__write(&fake, record,
					       n % 3 == 0 ? record__comm(record, n, n, "x", 1, i)
							  : record__sample(record, 128, i, i + 1)));
		if (n % 2 == 0)
			fake_ring__wake(&fake);
		CHECK_EQ(rig__tell(guests[n], COMMAND_REMOVE), 0);
		CHECK_EQ(counter__read(&guests[n]->records), 20);
		fake_ring__deinit(&fake);
		serve(RIG_LIMIT);
	}
	for (uint32_t i = 0; i < PRODUCERS; i++) {
		atomic_store(&producers[i].stop, true);
		pthread_join(producers[i].thread, NULL);
	}
	finish(RIG_LIMIT);
	for (uint32_t n = 0; n < 40; n++)
		stored += counter__read(&guests[n]->stored);
	CHECK_EQ(stored, 20 * (40 - 14));
	for (uint32_t i = 0; i < PRODUCERS; i++)
		CHECK_EQ(counter__read(&producers[i].ring->stored), producers[i].written);
	for (uint32_t i = 0; i < prepared_count; i++)
		close(segments[i].fd);
	end();
}

/* What was taken out of the rings is stored or counted as in flight; the rest is still there. */
static void stop_while_data_flows_keeps_the_books(void)
{
	const struct core_options options = {.shards = 2,
					     .chunks = 8,
					     .chunk_bytes = RIG_CHUNK_BYTES,
					     .flush_ns = 1000000,
					     .floor_bytes = 8192};

	for (int n = 0; n < 5; n++) {
		begin(&options, true);
		for (uint32_t i = 0; i < STREAMS; i++)
			prepare(i, RIG_LIMIT);
		CHECK_EQ(core__start(core), 0);
		start_producers();
		while (written() < 2) {
			await_notice(core->events.fd);
			serve(RIG_LIMIT);
		}
		core__stop(core);
		for (uint32_t i = 0; i < PRODUCERS; i++) {
			struct producer *const producer = &producers[i];
			const struct ring *const ring = producer->ring;
			const uint64_t tail = ring_map__tail(&producer->fake.map);

			atomic_store(&producer->stop, true);
			pthread_join(producer->thread, NULL);
			CHECK_EQ(ring->fault, FAULT_NONE);
			CHECK_EQ(counter__read(&ring->samples),
				 counter__read(&ring->stored) + ring->in_flight);
			CHECK_EQ(counter__read(&ring->bytes), tail);
			CHECK(counter__read(&ring->samples) <= producer->written);
			CHECK(producer->fake.head - tail < producer->fake.map.data_bytes);
		}
		for (uint32_t i = 0; i < prepared_count; i++)
			close(segments[i].fd);
		end();
	}
}

static void options_that_make_no_core_are_refused(void)
{
	static const struct core_options bad[] = {
		{.shards = 0, .chunks = 1, .chunk_bytes = RIG_CHUNK_BYTES, .flush_ns = 1},
		{.shards = 65, .chunks = 1, .chunk_bytes = RIG_CHUNK_BYTES, .flush_ns = 1},
		{.shards = 1, .chunks = 0, .chunk_bytes = RIG_CHUNK_BYTES, .flush_ns = 1},
		{.shards = 1, .chunks = 1, .chunk_bytes = 65536, .flush_ns = 1},
		{.shards = 1, .chunks = 1, .chunk_bytes = RIG_CHUNK_BYTES, .flush_ns = 0},
	};
	struct stream *stream;
	struct ring *ring;
	struct fake_ring fake;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK_EQ(-core__new(&bad[i], &core), EINVAL);
	CHECK_EQ(core__new(&(struct core_options){.shards = 1,
						  .chunks = 1,
						  .chunk_bytes = RIG_CHUNK_BYTES,
						  .flush_ns = 1},
			   &core),
		 0);
	CHECK_EQ(rig__add_stream(core, 4096, 0, false, &stream), 0);
	fake_ring__init(&fake, 1);
	CHECK_EQ(-rig__add_ring(core, 1, stream, &fake.map, fake.wakeup_fd, &records__layout,
				&(struct walk_ids){0}, false, false, &ring),
		 EINVAL);
	CHECK_EQ(-rig__add_ring(core, 0, stream, &fake.map, -1, &records__layout,
				&(struct walk_ids){0}, false, false, &ring),
		 EBADF);
	for (uint32_t i = 1; i < STREAMS_MAX; i++)
		CHECK_EQ(rig__add_stream(core, 4096, 0, false, &stream), 0);
	CHECK_EQ(-rig__add_stream(core, 4096, 0, false, &stream), ENOSPC);
	core__free(core);
	fake_ring__deinit(&fake);
}

/* Like writer__place(), whose files would be on as many file systems. */
static struct disk *place(struct stream *stream, dev_t device)
{
	struct disk *const disk = writer__disk(&core->writer, device);

	CHECK(disk != NULL);
	disk__move(stream, disk);
	CHECK(atomic_load(&stream->disk) == disk);
	return disk;
}

static void streams_on_as_many_file_systems_share_no_queue(void)
{
	struct stream *all[STREAMS_MAX];
	struct disk *disks[STREAMS_MAX];

	CHECK_EQ(core__new(&(struct core_options){.shards = 1,
						  .chunks = 1,
						  .chunk_bytes = RIG_CHUNK_BYTES,
						  .flush_ns = 1},
			   &core),
		 0);
	for (uint32_t i = 0; i < STREAMS_MAX; i++) {
		CHECK_EQ(rig__add_stream(core, 4096, 0, false, &all[i]), 0);
		disks[i] = place(all[i], 1 + i);
		for (uint32_t j = 0; j < i; j++)
			CHECK(disks[j] != disks[i]);
		CHECK(place(all[i], 1 + i) == disks[i]);
	}
	/* Nor does one that moves on, again and again, while the others stay where they are. */
	for (uint32_t i = 0; i < 3 * STREAMS_MAX; i++) {
		struct disk *const moved = place(all[7], 1000 + i);

		for (uint32_t j = 0; j < STREAMS_MAX; j++)
			CHECK((atomic_load(&all[j]->disk) == moved) == (j == 7));
	}
	CHECK_EQ(writer__disks(&core->writer), DISKS_MAX);
	core__free(core);
}

static int count_record(void *context, const uint8_t *record, uint16_t size)
{
	(void)record;
	(void)size;
	(*(uint32_t *)context)++;
	return 0;
}

/* Returns how many records the next segment would begin with. */
static uint32_t replayed(struct stream *stream)
{
	uint32_t count = 0;

	CHECK_EQ(sideband__replay(&stream->sideband, true, count_record, &count), 0);
	return count;
}

static void await_generation(struct stream *stream)
{
	const uint64_t generation = writer__issue(&core->writer);

	while (stream__written(stream, core->writer.generation) < generation)
		await_notice(core->events.fd);
}

static const struct core_options lone = {
	.shards = 1, .chunks = 2, .chunk_bytes = RIG_CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};

/* The ring is held until names are known; whatever generations pass by then, the task that has ended
 * is named where its sample is written. */
static void names_of_what_a_predecessor_left_stay_until_it_is_written(void)
{
	const uint64_t now_ns = clock__now_ns(), ended_ns = now_ns - 500000000;
	struct ring_note note = {0};
	struct fake_ring fake;
	struct perf_ring_options options = {.layout = records__layout, .note = &note};
	struct stream *stream;
	struct ring *ring;
	uint8_t record[128];
	uint16_t bytes;

	CHECK_EQ(core__new(&lone, &core), 0);
	CHECK_EQ(rig__add_stream(core, 1 << 20, 0, false, &stream), 0);
	CHECK_EQ(stream__left_ns(stream), UINT64_MAX);
	sideband__join_layout(&stream->sideband, &records__layout);
	fake_ring__init(&fake, 1);
	CHECK(fake_ring__write(&fake, record, record__sample(record, 64, 1, ended_ns - 1)));
	options.map = &fake.map;
	options.wakeup_fd = fake.wakeup_fd;
	CHECK_EQ(perf_ring__new(&options, &ring), 0);
	ring->held = true;
	CHECK_EQ(core__add_ring(core, 0, stream, ring), 0);
	CHECK_EQ(core__start(core), 0);
	/* A record may become visible some time after its own. */
	CHECK(stream__left_ns(stream) < ended_ns - 1);
	bytes = record__comm(record, 10, 10, "ended", 0, ended_ns - 2);
	bytes += record__exit(record + bytes, 10, 10, ended_ns);
	CHECK_EQ(sideband__load(&stream->sideband, record, bytes, stream__left_ns(stream)), 0);
	for (int i = 0; i < 3; i++)
		await_generation(stream);
	CHECK_EQ(replayed(stream), 1);
	check_prepared(rig__prepare_records(core, stream, 1, output__file(), 0, RIG_LIMIT, 0));
	CHECK_EQ(rig__tell(ring, COMMAND_LET_GO), 0);
	for (int i = 0; i < 2; i++)
		await_generation(stream);
	CHECK_EQ(counter__read(&ring->stored), 1);
	CHECK_EQ(stream->current.replayed, 1);
	CHECK_EQ(replayed(stream), 0);
	CHECK_EQ(stream__left_ns(stream), UINT64_MAX);
	close(stream->current.fd);
	core__free(core);
	fake_ring__deinit(&fake);
}

static void what_has_no_time_is_older_than_all_names(void)
{
	struct ring_note note = {0};
	struct fake_ring fake;
	struct perf_ring_options options = {.note = &note};
	const uint64_t headers[] = {
		walk__header(PERF_RECORD_SAMPLE, 0, 16),
		walk__header(PERF_RECORD_COMM, 0, 8),
		walk__header(PERF_RECORD_SAMPLE, 0, 64),
		walk__header(0, 0, 16),
		0,
		UINT64_MAX,
	};

	fake_ring__init(&fake, 1);
	fake_ring__set_head(&fake, 16);
	options.map = &fake.map;
	options.wakeup_fd = fake.wakeup_fd;
	options.layout = records__layout;
	for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
		struct ring *ring;

		fake_ring__poke(&fake, 0, &headers[i], sizeof(headers[i]));
		CHECK_EQ(perf_ring__new(&options, &ring), 0);
		CHECK_EQ(counter__read(&ring->left_ns), 0);
		ring->ops->free(ring);
	}
	fake_ring__deinit(&fake);
}

int main(void)
{
	RUN(options_that_make_no_core_are_refused);
	RUN(streams_on_as_many_file_systems_share_no_queue);
	RUN(every_sample_is_stored_once_in_order);
	RUN(likewise_with_two_shards_for_each_stream);
	RUN(likewise_with_fewer_chunks_than_lanes);
	RUN(rings_come_and_go_while_others_run);
	RUN(stop_while_data_flows_keeps_the_books);
	RUN(names_of_what_a_predecessor_left_stay_until_it_is_written);
	RUN(what_has_no_time_is_older_than_all_names);
	return 0;
}
