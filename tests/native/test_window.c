/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "chunk.h"
#include "core.h"
#include "fake_ring.h"
#include "output.h"
#include "records.h"
#include "rig.h"
#include "ring.h"
#include "perf_ring.h"

#define CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)
#define SERIALS_MAX 8192u
#define STEPS 20000
#define ROUNDS 40

static struct guarded staging;
static struct chunk chunk;
static struct fake_ring fake;
static struct ring *ring;
static uint8_t record[65536];
static uint64_t serial; /* of the next record */

static struct ring *new_noted_ring(int wakeup_fd, struct ring_note *note)
{
	const struct perf_ring_options options = {
		.map = &fake.map,
		.wakeup_fd = wakeup_fd,
		.layout = records__layout,
		.note = note,
	};
	struct ring *made;

	CHECK_EQ(window__new(&options, &made), 0);
	return made;
}

static struct ring *new_ring(int wakeup_fd)
{
	return new_noted_ring(wakeup_fd, NULL);
}

static void open_ring(uint32_t pages)
{
	fake_ring__init(&fake, pages);
	fake.map.overwrite = true;
	ring = new_ring(-1);
	serial = 0;
}

static void close_ring(void)
{
	ring->ops->free(ring);
	fake_ring__deinit(&fake);
}

static void look(void)
{
	ring->swept = true;
	ring__begin(ring);
}

static void write_sample(uint16_t size)
{
	fake_ring__write_backward(&fake, record,
				  record__sample(record, size, serial, 1000 + serial));
	serial++;
}

static void empty_chunk(uint32_t used)
{
	records__chunk(&chunk, staging.data);
	chunk.used = used;
}

/* Take a window, all of it; returns how many samples, whose serials are one run that ends at the
 * last one written. */
static uint64_t take_all(void)
{
	uint64_t samples = 0, next = 0;
	enum ring_take took;

	ring->ops->hold(ring, false);
	do {
		uint32_t at = 0;

		empty_chunk(0);
		took = RING_MORE;
		while (took == RING_MORE)
			took = ring->ops->take(ring, &chunk, CHUNK_BYTES);
		for (; at < chunk.used; at += walk__size(walk__load(chunk.data + at))) {
			const uint64_t found = record__check_sample(chunk.data + at);

			CHECK(samples == 0 || found == next);
			next = found + 1;
			samples++;
		}
	} while (took == RING_CHUNK_FULL);
	CHECK_EQ(took, RING_EMPTY);
	CHECK_EQ(ring->head, ring->position);
	CHECK(samples == 0 || next == serial);
	return samples;
}

static void an_empty_ring_has_an_empty_window(void)
{
	open_ring(1);
	CHECK_EQ(take_all(), 0);
	CHECK_EQ(counter__read(&window__of(ring)->windows), 1);
	CHECK_EQ(counter__read(&window__of(ring)->overwritten_bytes), 0);
	close_ring();
}

static void what_fits_is_all_there_oldest_first(void)
{
	open_ring(1);
	for (int i = 0; i < 4096 / 64; i++)
		write_sample(64);
	CHECK_EQ(take_all(), 64);
	CHECK_EQ(counter__read(&ring->samples), 64);
	CHECK_EQ(counter__read(&window__of(ring)->taken), 64);
	CHECK_EQ(counter__read(&ring->last_sample_ns), 1063);
	CHECK_EQ(counter__read(&window__of(ring)->overwritten_bytes), 0);
	close_ring();
}

/* At the oldest end as much as four records may be half overwritten. */
static void a_full_ring_gives_its_oldest_end_up(void)
{
	open_ring(1);
	for (int i = 0; i < 1000; i++)
		write_sample(64);
	CHECK_EQ(take_all(), 64 - 4);
	CHECK_EQ(counter__read(&window__of(ring)->overwritten_bytes), (1000 - 60) * 64);
	close_ring();
}

static void what_is_being_written_there_is_not_looked_at(void)
{
	const uint64_t noise[8] = {UINT64_MAX, 7, 0, UINT64_MAX, 1, 2, 3, 4};

	open_ring(1);
	for (int i = 0; i < 1000; i++)
		write_sample(64);
	/* Someone is in the middle of the next record, and one of an interrupt. */
	fake_ring__poke(&fake, fake.head - 64, noise, 64);
	fake_ring__poke(&fake, fake.head - 128, noise, 64);
	CHECK_EQ(take_all(), 60);
	CHECK_EQ(ring->fault, FAULT_NONE);
	close_ring();
}

static void each_record_is_given_once(void)
{
	open_ring(4);
	for (int i = 0; i < 30; i++)
		write_sample(128);
	CHECK_EQ(take_all(), 30);
	CHECK_EQ(take_all(), 0);
	CHECK_EQ(counter__read(&window__of(ring)->repeated), 30);
	CHECK_EQ(counter__read(&window__of(ring)->repeated_bytes), 30 * 128);
	for (int i = 0; i < 10; i++)
		write_sample(128);
	CHECK_EQ(take_all(), 10);
	CHECK_EQ(counter__read(&window__of(ring)->repeated), 60);
	for (int i = 0; i < 1000; i++)
		write_sample(128);
	CHECK_EQ(take_all(), 128 - 4);
	CHECK_EQ(counter__read(&window__of(ring)->repeated), 60);
	CHECK_EQ(counter__read(&window__of(ring)->taken), 40 + 124);
	close_ring();
}

static void a_chunk_takes_what_fits(void)
{
	open_ring(64);
	for (int i = 0; i < 100; i++)
		write_sample(1024);
	ring->ops->hold(ring, false);
	empty_chunk(CHUNK_BYTES - CHUNK_MARKER_BYTES - 30000);
	/* The oldest piece is what the others have left over: 4 records. */
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_MORE);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_CHUNK_FULL);
	CHECK_EQ(ring->head - ring->position, 96 * 1024);
	empty_chunk(0);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_MORE);
	CHECK_EQ(record__check_sample(chunk.data), 4);
	CHECK_EQ(chunk.used, 32768);
	CHECK_EQ(chunk.span_count, 1);
	CHECK_EQ(ring->in_flight, 36);
	close_ring();
}

static void largest_records_fill_one_chunk_each(void)
{
	open_ring(64);
	for (int i = 0; i < 40; i++)
		write_sample(65528);
	/* A quarter of a million bytes holds four, of which two may be half overwritten. */
	CHECK_EQ(take_all(), 2);
	close_ring();
}

/* A second window that is wanted early is taken when the first one is given out. */
static void one_that_is_wanted_early_comes_next(void)
{
	open_ring(16);
	for (int i = 0; i < 10; i++)
		write_sample(64);
	ring->ops->hold(ring, false);
	for (int i = 0; i < 5; i++)
		write_sample(64);
	ring->ops->hold(ring, false);
	empty_chunk(0);
	CHECK_EQ(counter__read(&window__of(ring)->windows), 1);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_MORE);
	CHECK_EQ(counter__read(&window__of(ring)->windows), 2);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_EMPTY);
	for (uint32_t i = 0; i < 15; i++)
		CHECK_EQ(record__check_sample(chunk.data + i * 64), i);
	CHECK_EQ(chunk.used, 15 * 64);
	close_ring();
}

static enum fault fault_before_two_samples(uint64_t header)
{
	const uint64_t bad[2] = {header, 0};
	enum fault fault;

	open_ring(1);
	fake_ring__write_backward(&fake, (const uint8_t *)bad, 16);
	write_sample(64);
	write_sample(64);
	CHECK_EQ(take_all(), 2);
	fault = (enum fault)ring->last_fault;
	/* The next one has what is new, and the same fault is none again. */
	write_sample(64);
	CHECK_EQ(counter__read(&window__of(ring)->windows), 1);
	CHECK_EQ(take_all(), 1);
	CHECK_EQ(counter__read(&window__of(ring)->windows), 2);
	CHECK_EQ(counter__read(&ring->faults), 1);
	CHECK_EQ(ring->fault, FAULT_NONE);
	close_ring();
	return fault;
}

static void a_fault_keeps_what_is_newer(void)
{
	CHECK_EQ(fault_before_two_samples(UINT64_C(0x0007000000000009)), WALK_BAD_SIZE);
	CHECK_EQ(fault_before_two_samples(UINT64_C(0x0010000000000000)), WALK_BAD_TYPE);
	CHECK_EQ(fault_before_two_samples(UINT64_C(0x0020000000000009)), WALK_PAST_HEAD);
}

/* What is behind the fault and was in the last window is no loss. */
static void a_fault_loses_what_is_new(void)
{
	const uint64_t bad[2] = {UINT64_C(0x0007000000000009), 0};

	open_ring(1);
	for (int i = 0; i < 10; i++)
		write_sample(64);
	CHECK_EQ(take_all(), 10);
	write_sample(64);
	fake_ring__write_backward(&fake, (const uint8_t *)bad, 16);
	write_sample(64);
	ring->ops->hold(ring, false);
	CHECK_EQ(ring->last_fault, WALK_BAD_SIZE);
	CHECK_EQ(ring->head - ring->position, 64);
	CHECK_EQ(counter__read(&ring->quarantined_bytes), 16 + 64);
	CHECK_EQ(counter__read(&window__of(ring)->overwritten_bytes), 0);
	close_ring();
}

/* It has no chunk when its ring goes: lost, and counted. */
static void a_window_that_is_left_is_counted(void)
{
	static struct rig rig;
	struct ring *added;

	rig__init(&rig, 1, 1, 1, RIG_NEVER_NS);
	fake_ring__init(&fake, 64);
	fake.map.overwrite = true;
	added = new_ring(fake.wakeup_fd);
	added->held = true;
	CHECK_EQ(stream__add_ring(&rig.streams[0], added), 0);
	CHECK_EQ(shard__add(&rig.shards[0], &rig.streams[0], added), 0);
	serial = 0;
	for (int i = 0; i < 200; i++)
		write_sample(1024);
	CHECK_EQ(rig__tell(added, COMMAND_LET_GO), 0);
	CHECK_EQ(-rig__tell(added, COMMAND_REMOVE), EAGAIN);
	CHECK(counter__read(&added->abandoned) > 0 && added->in_flight > 0);
	CHECK_EQ(added->in_flight + counter__read(&added->abandoned), 200);
	CHECK_EQ(counter__read(&added->samples), 200);
	CHECK_EQ(counter__read(&added->records), 200);
	CHECK_EQ(counter__read(&added->bytes), 200 * 1024);
	CHECK_EQ(added->head, added->position);
	rig__deinit(&rig);
	added->ops->free(added);
	fake_ring__deinit(&fake);
}

static void how_far_it_reaches_is_known(void)
{
	uint64_t before_ns, between_ns;

	open_ring(1);
	look();
	CHECK_EQ(counter__read(&ring->used_bytes), 0);
	before_ns = clock__now_ns();
	for (int i = 0; i < 10; i++)
		write_sample(64);
	look();
	CHECK_EQ(counter__read(&ring->used_bytes), 640);
	/* All that it holds was written after it was seen empty. */
	CHECK(counter__read(&ring->horizon_ns) <= before_ns);
	CHECK(counter__read(&ring->horizon_ns) > 0);
	between_ns = clock__now_ns();
	look();
	for (int i = 0; i < 70; i++)
		write_sample(64);
	look();
	CHECK_EQ(counter__read(&ring->used_bytes), 4096);
	CHECK(counter__read(&ring->horizon_ns) >= between_ns);
	/* For ever so many looks. */
	for (uint32_t i = 0; i < 10 * WINDOW_STEPS; i++) {
		write_sample(64);
		look();
		CHECK(counter__read(&window__of(ring)->held_ns) <= clock__now_ns() - before_ns);
	}
	close_ring();
}

/* Records of the time before the first look are as old as the ring at most. */
static void what_came_before_the_first_look_has_an_age(void)
{
	uint64_t made_ns, written_ns, looked_ns;

	open_ring(1);
	made_ns = clock__now_ns();
	for (int i = 0; i < 10; i++)
		write_sample(64);
	written_ns = clock__now_ns();
	look();
	looked_ns = clock__now_ns();
	CHECK(counter__read(&window__of(ring)->held_ns) >= written_ns - made_ns);
	CHECK(counter__read(&ring->horizon_ns) > 0);
	CHECK(counter__read(&ring->horizon_ns) <= made_ns);
	/* It grows as long as nothing more is written. */
	while (clock__now_ns() == looked_ns)
		;
	look();
	CHECK(counter__read(&window__of(ring)->held_ns) > looked_ns - made_ns);
	close_ring();
}

/* What is on its way to a file holds back what its names are forgotten by. */
static void names_are_kept_for_what_is_on_its_way(void)
{
	uint64_t horizon_ns;

	open_ring(1);
	look();
	for (int i = 0; i < 10; i++)
		write_sample(64);
	look();
	horizon_ns = counter__read(&ring->horizon_ns);
	ring->ops->hold(ring, false);
	for (int i = 0; i < 2; i++) {
		for (int n = 0; n < 200; n++)
			write_sample(64);
		look();
		CHECK_EQ(counter__read(&ring->horizon_ns), horizon_ns);
		empty_chunk(0);
		ring->ops->take(ring, &chunk, CHUNK_BYTES);
	}
	CHECK_EQ(ring->in_flight, 10);
	ring->in_flight = 0;
	for (int n = 0; n < 200; n++)
		write_sample(64);
	look();
	CHECK(counter__read(&ring->horizon_ns) > horizon_ns);
	close_ring();
}

/* Any order of records, windows and chunks: each record at most once, in order, none missing of
 * what was still there. */
static void any_order_of_calls_is_right(void)
{
	static uint16_t sizes[SERIALS_MAX];
	uint64_t state = 88172645463325252u, taken = 0, expected = 0;

	open_ring(4);
	for (int step = 0; step < STEPS; step++) {
		const uint64_t word = random__next(&state);

		if (word % 16 > 0) {
			const uint16_t size = (uint16_t)(24 + word / 16 % 100 * 8);

			sizes[serial % SERIALS_MAX] = size;
			write_sample(size);
			continue;
		}
		{
			const uint64_t before = taken;
			uint64_t room = 4 * 4096, largest = 0, kept = 0, at = serial;

			/* Those that fit behind the newest, without four of the largest. */
			while (at > 0 && at + SERIALS_MAX > serial &&
			       sizes[(at - 1) % SERIALS_MAX] <= room) {
				room -= sizes[--at % SERIALS_MAX];
				if (sizes[at % SERIALS_MAX] > largest)
					largest = sizes[at % SERIALS_MAX];
			}
			if (at > 0)
				for (; at < serial && room < 4 * largest; at++)
					room += sizes[at % SERIALS_MAX];
			kept = at > before ? serial - at : serial - before;
			expected += kept;
			CHECK_EQ(take_all(), kept);
			taken = serial;
		}
	}
	CHECK_EQ(counter__read(&ring->samples), expected);
	CHECK(expected > 1000);
	close_ring();
}

/* Names are kept for as long as the window reaches back, and there is memory. */
static void names_give_way_where_they_are_too_many(void)
{
	static struct rig rig;
	struct lane lane = {0};
	const struct item item = {.lane = &lane, .stamp = 1, .begun_ns = 2000000000};
	struct stream *stream;
	struct sideband *names;
	size_t used;

	rig__init(&rig, 1, 1, 2, RIG_NEVER_NS);
	stream = &rig.streams[0];
	names = &stream->sideband;
	stream->snapshots = true;
	open_ring(1);
	CHECK_EQ(stream__add_ring(stream, ring), 0);
	CHECK_EQ(sideband__join_layout(names, &records__layout), 0);
	for (uint32_t i = 1; i <= 10; i++)
		sideband__append(names, record,
				 record__comm(record, i, i, "early", 0, i * UINT64_C(100000000)));
	used = names->log_used;
	/* The ring may reach back to the beginning. */
	stream__pass_written(stream, &lane, &item);
	CHECK_EQ(names->log_used, used);
	counter__set(&ring->horizon_ns, 450000000);
	stream__pass_written(stream, &lane, &item);
	CHECK_EQ(names->log_used, used / 10 * 7);
	while (!sideband__is_crowded(names))
		sideband__append(names, record, record__comm(record, 7, 7, "late", 0, 1900000000));
	used = names->log_used - 7 * (used / 10);
	/* Half of the time that is left, less what may lie between a record and its time. */
	stream__pass_written(stream, &lane, &item);
	CHECK_EQ(names->log_used, used);
	/* Of a ring that left they are kept until what it gave has been written. */
	ring->left = true;
	ring->in_flight = 1;
	stream->crowded_ns = 0;
	names->log_used = 0;
	counter__set(&ring->horizon_ns, 450000000);
	sideband__append(names, record, record__comm(record, 8, 8, "last", 0, 500000000));
	used = names->log_used;
	stream__pass_written(stream, &lane, &item);
	CHECK_EQ(names->log_used, used);
	ring->in_flight = 0;
	stream__pass_written(stream, &lane, &item);
	CHECK_EQ(names->log_used, 0);
	stream->rings[0] = NULL;
	stream->ring_count = 0;
	close_ring();
	rig__deinit(&rig);
}

static struct {
	pthread_mutex_t still;
	uint64_t written;
	_Atomic bool stop;
} producer = {.still = PTHREAD_MUTEX_INITIALIZER};

static void *produce(void *context)
{
	static uint8_t bytes[256];

	(void)context;
	while (!atomic_load(&producer.stop)) {
		pthread_mutex_lock(&producer.still);
		fake_ring__write_backward(&fake, bytes,
					  record__sample(bytes, 128, producer.written,
							 1 + producer.written));
		producer.written++;
		pthread_mutex_unlock(&producer.still);
	}
	return NULL;
}

/* The whole core, with windows wanted at any time: segments hold runs, none twice. */
static void a_core_stores_windows_while_records_come(void)
{
	const struct core_options options = {.shards = 1,
					     .chunks = 4,
					     .chunk_bytes = CHUNK_BYTES,
					     .flush_ns = 2000000,
					     .floor_bytes = 0};
	const int fd = output__file();
	struct output output;
	const uint8_t *stored;
	struct stream *stream;
	struct core *core;
	struct ring *added;
	pthread_t thread;
	uint64_t samples = 0, next = 0, generation, runs = 0;
	size_t at = 0;
	uint64_t end = 0;
	bool closed = false;

	fake_ring__init(&fake, 64);
	fake.map.overwrite = true;
	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_stream(core, 1 << 20, 0, true, &stream), 0);
	CHECK_EQ(rig__add_ring(core, 0, stream, &fake.map, fake.wakeup_fd, &records__layout,
			       &(struct walk_ids){0}, false, true, &added),
		 0);
	CHECK_EQ(rig__prepare_records(core, stream, 1, fd, 0, UINT64_C(1) << 40, 0), 0);
	CHECK_EQ(core__start(core), 0);
	CHECK_EQ(pthread_create(&thread, NULL, produce, NULL), 0);
	for (int i = 0; i < ROUNDS; i++) {
		window__warm(added);
		pthread_mutex_lock(&producer.still);
		rig__tell(added, COMMAND_LET_GO);
		pthread_mutex_unlock(&producer.still);
		generation = writer__issue(&core->writer);
		while (stream__written(stream, core->writer.generation) < generation)
			await_notice(core->events.fd);
	}
	atomic_store(&producer.stop, true);
	pthread_join(thread, NULL);
	core__request(core, stream, FINISH);
	while (!closed) {
		struct event *event = core__event(core);

		closed = event != NULL && event->kind == EVENT_SEGMENT_CLOSED;
		if (closed)
			end = event->segment.offset;
		if (event == NULL)
			await_notice(core->events.fd);
		event__free(event);
	}
	output__read(&output, fd, 0, end, NULL);
	while ((stored = output__next(&output, &at)) != NULL) {
		const uint64_t found = record__check_sample(stored);

		CHECK(found >= next);
		runs += samples == 0 || found != next;
		next = found + 1;
		samples++;
	}
	CHECK(runs <= ROUNDS);
	CHECK_EQ(samples, counter__read(&added->stored));
	CHECK_EQ(samples, counter__read(&window__of(added)->taken));
	CHECK_EQ(counter__read(&window__of(added)->windows), ROUNDS);
	CHECK_EQ(added->in_flight, 0);
	output__free(&output);
	core__free(core);
	fake_ring__deinit(&fake);
	close(fd);
}

/* Killed while it delivers a window, it leaves the rest to the next one, which has it in its ring. */
static void a_successor_takes_what_is_not_noted(void)
{
	struct ring_note note = {0};
	uint64_t position, samples, first;

	open_ring(16);
	ring->ops->free(ring);
	ring = new_noted_ring(-1, &note);
	for (int i = 0; i < 900; i++)
		write_sample(64);
	ring->ops->hold(ring, false);
	empty_chunk(0);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_MORE);
	first = chunk.used / 64;
	CHECK(first > 0 && first < 900);
	ring_note__read(&note, &position, &samples);
	CHECK_EQ(samples, first);
	CHECK_EQ(position, 0 - first * 64);

	ring->ops->free(ring);
	ring = new_noted_ring(-1, &note);
	for (int i = 0; i < 10; i++)
		write_sample(64);
	CHECK_EQ(take_all(), 910 - first);
	CHECK_EQ(counter__read(&window__of(ring)->repeated), first);
	ring_note__read(&note, &position, &samples);
	CHECK_EQ(samples, 910);
	CHECK_EQ(position, fake.head);

	ring->ops->free(ring);
	ring = new_noted_ring(-1, &note);
	CHECK_EQ(take_all(), 0);
	close_ring();
}

/* What is in the ring is as old as its oldest record, also for one who comes late. */
static void a_successor_knows_how_far_it_reaches(void)
{
	struct ring_note note = {0};
	const uint64_t age_ns = 5000000000u, begun_ns = clock__now_ns() - age_ns;

	open_ring(1);
	ring->ops->free(ring);
	fake_ring__write_backward(&fake, record, record__sample(record, 64, 0, begun_ns));
	ring = new_noted_ring(-1, &note);
	look();
	CHECK(counter__read(&window__of(ring)->held_ns) >= age_ns);
	CHECK(counter__read(&window__of(ring)->held_ns) <= clock__now_ns() - begun_ns);
	CHECK_EQ(counter__read(&ring->horizon_ns), 0);
	close_ring();
}

static struct lane names_lane;

/* Read the ring of names to its end, for a stream. */
static void read_names(void)
{
	do {
		empty_chunk(0);
		(void)ring__begin(ring);
	} while (ring->ops->take(ring, &chunk, CHUNK_BYTES) != RING_EMPTY);
	CHECK_EQ(ring->position, fake.head);
	CHECK(fake.head - ring_map__tail(&fake.map) <= fake.map.data_bytes / 2);
}

static void open_names(struct stream *stream, struct ring_note *note)
{
	const struct perf_ring_options options = {
		.map = &fake.map,
		.wakeup_fd = -1,
		.layout = records__layout,
		.sideband = true,
		.note = note,
	};

	stream->snapshots = true;
	names_lane.stream = stream;
	CHECK_EQ(perf_ring__new(&options, &ring), 0);
	ring->lane = &names_lane;
	CHECK_EQ(perf_ring__join(ring, stream), 0);
}

static uint16_t write_name(uint32_t tid)
{
	const uint16_t size = record__comm(record, tid, tid, "name", 0, 1000 + tid);

	CHECK(fake_ring__write(&fake, record, size));
	return size;
}

/* They stay in the ring as long as there is room, and a successor reads them again, except those
 * of tasks that it knows already. */
static void names_are_kept_for_a_successor(void)
{
	static struct rig rig;
	struct ring_note note = {0};
	uint16_t size = 0;

	rig__init(&rig, 1, 2, 2, RIG_NEVER_NS);
	fake_ring__init(&fake, 1);
	open_names(&rig.streams[0], &note);
	for (uint32_t tid = 1; tid <= 10; tid++)
		size = write_name(tid);
	read_names();
	CHECK_EQ(ring_map__tail(&fake.map), 0);
	CHECK_EQ(rig.streams[0].sideband.log_used, 10u * size);
	write_name(11);
	ring->ops->free(ring);

	open_names(&rig.streams[1], &note);
	for (uint32_t tid = 3; tid <= 11; tid += 8)
		CHECK_EQ(sideband__load(&rig.streams[1].sideband, record,
					record__comm(record, tid, tid, "now", 0, 1), UINT64_MAX),
			 0);
	read_names();
	/* One that no process has read yet is news. */
	CHECK_EQ(rig.streams[1].sideband.log_used, 10u * size);
	for (uint32_t tid = 12; tid <= 1000; tid++) {
		write_name(tid);
		if (tid % 7 == 0)
			read_names();
	}
	read_names();
	CHECK(fake.head - ring_map__tail(&fake.map) >= fake.map.data_bytes / 4);
	CHECK_EQ(ring->fault, FAULT_NONE);
	ring->ops->free(ring);
	fake_ring__deinit(&fake);
	rig__deinit(&rig);
}

static void a_position_that_cannot_be_is_none(void)
{
	const uint64_t wrong[] = {4, 64, UINT64_MAX / 2, 0 - UINT64_C(1024)};

	for (uint32_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct ring_note note = {.at = {{.position = wrong[i]}}};

		open_ring(1);
		ring->ops->free(ring);
		write_sample(64);
		ring = new_noted_ring(-1, &note);
		(void)take_all();
		CHECK_EQ(ring->fault, FAULT_NONE);
		close_ring();
	}
}

int main(void)
{
	guarded__init(&staging, CHUNK_BYTES, -1);
	RUN(an_empty_ring_has_an_empty_window);
	RUN(what_fits_is_all_there_oldest_first);
	RUN(a_full_ring_gives_its_oldest_end_up);
	RUN(what_is_being_written_there_is_not_looked_at);
	RUN(each_record_is_given_once);
	RUN(a_chunk_takes_what_fits);
	RUN(largest_records_fill_one_chunk_each);
	RUN(one_that_is_wanted_early_comes_next);
	RUN(a_fault_keeps_what_is_newer);
	RUN(a_fault_loses_what_is_new);
	RUN(a_window_that_is_left_is_counted);
	RUN(how_far_it_reaches_is_known);
	RUN(what_came_before_the_first_look_has_an_age);
	RUN(names_are_kept_for_what_is_on_its_way);
	RUN(any_order_of_calls_is_right);
	RUN(names_give_way_where_they_are_too_many);
	RUN(a_core_stores_windows_while_records_come);
	RUN(a_successor_takes_what_is_not_noted);
	RUN(a_successor_knows_how_far_it_reaches);
	RUN(names_are_kept_for_a_successor);
	RUN(a_position_that_cannot_be_is_none);
	guarded__deinit(&staging);
	return 0;
}
