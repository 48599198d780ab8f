/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "fake_ring.h"
#include "records.h"
#include "rig.h"
#include "ring.h"

/*
 * The segments of a stream with four shards, one CPU each: a ring of samples and one of sideband. A
 * sample's serial is the task's pid.
 */
#define CPUS 4u
#define CHUNKS 64u
#define PAGES 64u
#define TASKS_EACH 100u
#define TASKS 3000u /* what the log of sideband has room for */

static struct rig rig;
static struct stream *stream;
static struct fake_ring samples[CPUS], names[CPUS];
static struct ring *data[CPUS];
static int files[2];

static struct ring *add(uint32_t cpu, struct fake_ring *fake, struct sideband *sideband)
{
	struct ring *const ring = fake_ring__open(fake);

	ring->sideband = sideband;
	CHECK_EQ(stream__add_ring(stream, ring), 0);
	CHECK_EQ(shard__add(&rig.shards[cpu], stream, ring), 0);
	return ring;
}

/* One segment runs and holds a sample, and the next one is there. */
static void begin(uint32_t chunks)
{
	rig__init(&rig, CPUS, 1, chunks, RIG_NEVER_NS);
	stream = &rig.streams[0];
	rig.writer.cut_wait_ns = RIG_NEVER_NS;
	CHECK_EQ(sideband__join_layout(&stream->sideband, &records__layout), 0);
	for (uint32_t cpu = 0; cpu < CPUS; cpu++) {
		fake_ring__init(&samples[cpu], PAGES);
		fake_ring__init(&names[cpu], PAGES);
		data[cpu] = add(cpu, &samples[cpu], NULL);
		add(cpu, &names[cpu], &stream->sideband);
	}
	for (uint32_t i = 0; i < 2; i++)
		files[i] = output__file();
	CHECK_EQ(rig__prepare(&rig, 0, files[0], 0, RIG_LIMIT), 0);
	CHECK_EQ(writer__start(&rig.writer), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	CHECK_EQ(rig__prepare(&rig, 0, files[1], 0, RIG_LIMIT), 0);
}

static void end(void)
{
	rig__deinit(&rig);
	for (uint32_t cpu = 0; cpu < CPUS; cpu++) {
		fake_ring__deinit(&samples[cpu]);
		fake_ring__deinit(&names[cpu]);
	}
	for (uint32_t i = 0; i < 2; i++)
		close(files[i]);
}

static void write_record(struct fake_ring *fake, const uint8_t *record, uint16_t size)
{
	while (!fake_ring__write(fake, record, size))
		sched_yield(); /* until it was drained */
}

/* Later than before: sideband is settled by what the clock says. */
static uint64_t next_ns(void)
{
	static uint64_t last_ns;
	const uint64_t now_ns = clock__now_ns();

	last_ns = now_ns > last_ns ? now_ns : last_ns + 1;
	return last_ns;
}

static void name(uint32_t cpu, uint32_t pid)
{
	uint8_t record[128];

	write_record(&names[cpu], record, record__comm(record, pid, pid, "task", 1, next_ns()));
}

static void sample(uint32_t cpu, uint32_t pid)
{
	uint8_t record[1024];

	write_record(&samples[cpu], record, record__sample(record, 1024, pid, next_ns()));
}

/* A task executes on one CPU, and has a sample on another one. */
static void migrate(uint32_t from, uint32_t to, uint32_t pid)
{
	name(from, pid);
	sample(to, pid);
}

static void pass(uint32_t cpu)
{
	struct shard *const shard = &rig.shards[cpu];

	pass__run(shard, atomic_load_explicit(&rig.writer.generation, memory_order_acquire));
}

static void await_stored(uint32_t cpu, uint64_t count)
{
	while (counter__read(&data[cpu]->stored) < count)
		sched_yield();
}

/* Read the ring of one CPU, and write what it held. */
static void store(uint32_t cpu)
{
	const uint64_t taken = counter__read(&data[cpu]->samples);

	writer__issue(&rig.writer);
	pass(cpu);
	CHECK(counter__read(&data[cpu]->samples) > taken);
	await_stored(cpu, counter__read(&data[cpu]->samples));
}

static void rotate(void)
{
	pthread_mutex_lock(&stream->lock);
	stream->rotate_wanted = true;
	pthread_mutex_unlock(&stream->lock);
	writer__poke(&rig.writer);
}

/* The cut has begun: a generation was issued. */
static void await_cut(void)
{
	while (atomic_load(&stream->cut.generation) == 0 ||
	       atomic_load(&rig.writer.generation) < atomic_load(&stream->cut.generation))
		sched_yield();
}

/* Every lane has come to the boundary, or, without names, the segment was closed there. */
static void await_boundary(void)
{
	while (atomic_load(&stream->cut.generation) != 0 && atomic_load(&stream->cut.names) == 0)
		sched_yield();
}

/* Have the first `cpus` shards pass until the segment is closed. */
static struct event *closed(uint32_t cpus)
{
	struct event *event;

	while ((event = event_list__pop(&rig.events)) == NULL)
		for (uint32_t cpu = 0; cpu < cpus; cpu++)
			pass(cpu);
	CHECK_EQ(event->kind, EVENT_SEGMENT_CLOSED);
	return event;
}

static uint64_t time_of(const uint8_t *record)
{
	if (walk__type(walk__load(record)) == PERF_RECORD_SAMPLE)
		return record__sample_time(record);
	return walk__trailer_time(record, &records__layout);
}

/* How many samples the segment has, each of which it names. */
static uint64_t check_named(const struct output *output)
{
	static uint64_t named_ns[TASKS];
	const uint8_t *record;
	uint64_t count = 0;
	uint32_t pid;

	memset(named_ns, 0, sizeof(named_ns));
	for (size_t at = 0; (record = output__next(output, &at)) != NULL;) {
		if (walk__type(walk__load(record)) != PERF_RECORD_COMM)
			continue;
		memcpy(&pid, record + WALK_HEADER_BYTES, sizeof(pid));
		CHECK(pid < TASKS);
		named_ns[pid] = time_of(record);
	}
	for (size_t at = 0; (record = output__next(output, &at)) != NULL;) {
		if (walk__type(walk__load(record)) != PERF_RECORD_SAMPLE)
			continue;
		pid = (uint32_t)record__check_sample(record);
		CHECK(named_ns[pid] != 0 && named_ns[pid] <= time_of(record));
		count++;
	}
	return count;
}

/* Have the first `cpus` shards pass until the first segment ends, at its boundary, with so many
 * samples, each of which it names. */
static void end_named(struct output *output, uint32_t cpus, uint64_t samples)
{
	struct event *event = closed(cpus);

	CHECK(!event->early);
	CHECK_EQ(event->segment.samples, samples);
	output__read(output, files[0], 0, event->segment.offset, NULL);
	CHECK_EQ(check_named(output), samples);
	event__free(event);
}

/* The sample was written before the shard whose CPU it executed on came to look. */
static void what_names_a_sample_is_in_its_segment(void)
{
	struct output output;

	begin(CHUNKS);
	migrate(3, 0, 7);
	store(0);
	rotate();
	end_named(&output, CPUS, 1);
	output__free(&output);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	sample(2, 7);
	store(2);
	rig__finish(&rig, 0, files[1], &output);
	CHECK_EQ(check_named(&output), 1);
	output__free(&output);
	end();
}

/* What was in a ring when the generation began is in the segment, what came later in the next one;
 * names of either are in the first, and in the state that the second begins with. */
static void a_segment_ends_at_the_boundary_of_a_generation(void)
{
	struct output output;

	begin(CHUNKS);
	migrate(3, 0, 7);
	store(0);
	migrate(2, 3, 8);
	rotate();
	await_cut();
	for (uint32_t cpu = 0; cpu < 3; cpu++)
		pass(cpu);
	migrate(1, 0, 9);
	writer__issue(&rig.writer);
	pass(1);
	pass(0);
	CHECK_EQ(counter__read(&data[0]->samples), 2);
	end_named(&output, CPUS, 2);
	CHECK_EQ(output__count(&output, PERF_RECORD_COMM, 9), 1);
	output__free(&output);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	await_stored(0, 2);
	for (uint32_t cpu = 0; cpu < CPUS; cpu++)
		pass(cpu);
	rig__finish(&rig, 0, files[1], &output);
	CHECK_EQ(check_named(&output), 1);
	output__free(&output);
	end();
}

/* A task executes on a CPU whose shard has come to the boundary, and goes on to one whose has not; so
 * little sideband would wait for a generation else. */
static void names_are_read_once_more_at_the_boundary(void)
{
	struct output output;

	begin(CHUNKS);
	for (uint32_t cpu = 0; cpu < CPUS; cpu++)
		rig.shards[cpu].floor_bytes = 4096;
	migrate(3, 0, 7);
	store(0);
	rotate();
	await_cut();
	for (uint32_t cpu = 0; cpu < 3; cpu++)
		pass(cpu);
	migrate(1, 3, 8);
	pass(3);
	await_boundary();
	end_named(&output, CPUS, 2);
	output__free(&output);
	end();
}

/* What it still has waits, but for its names. */
static void a_ring_that_leaves_is_not_waited_for(void)
{
	struct output output;

	begin(CHUNKS);
	migrate(3, 0, 7);
	store(0);
	rotate();
	await_cut();
	for (uint32_t cpu = 0; cpu < CPUS; cpu++)
		pass(cpu);
	await_boundary();
	migrate(3, 3, 8);
	while (rig.shards[3].rings != NULL)
		CHECK_EQ(rig__tell(rig.shards[3].rings, COMMAND_REMOVE), 0);
	end_named(&output, 3, 1);
	CHECK_EQ(output__count(&output, PERF_RECORD_COMM, 8), 1);
	output__free(&output);
	end();
}

static void a_shard_that_does_not_come_is_not_waited_for_for_ever(void)
{
	struct event *event;

	begin(CHUNKS);
	rig.writer.cut_wait_ns = 1;
	migrate(0, 0, 7);
	store(0);
	rotate();
	event = closed(3);
	CHECK(event->early);
	CHECK_EQ(event->segment.samples, 1);
	event__free(event);
	end();
}

/* Without a limit in time: what waits has the chunks that the shard would need. */
static void a_cut_waits_with_no_more_than_the_chunks_there_are(void)
{
	struct event *event;

	begin(4);
	migrate(0, 0, 7);
	store(0);
	rotate();
	await_cut();
	pass(0);
	for (uint32_t i = 0; i < 250; i++)
		sample(0, 7);
	event = closed(1);
	CHECK(event->early);
	event__free(event);
	end();
}

/* A file that refuses what is written is left at once. */
static void a_refused_write_waits_for_no_names(void)
{
	struct event *event;

	begin(CHUNKS);
	migrate(0, 0, 7);
	store(0);
	rotate();
	await_cut();
	output__limit(4096);
	sample(0, 7);
	pass(0);
	rig__expect(&rig, EVENT_WRITE_FAILED);
	output__limit(UINT64_MAX);
	sample(0, 7);
	writer__issue(&rig.writer);
	event = closed(1);
	CHECK(event->early);
	event__free(event);
	end();
}

static _Atomic uint32_t turned; /* segments that were closed */

/* At least one segment for so many tasks. */
static void *produce(void *context)
{
	uint8_t record[128];
	uint32_t random = 1;

	for (uint32_t pid = 1; pid < TASKS; pid++) {
		uint32_t cpu = 0;

		while (atomic_load(&turned) < pid / TASKS_EACH)
			sched_yield();
		for (uint32_t i = 0; i < 4; i++) {
			random = random * 1664525u + 1013904223u;
			cpu = random >> 30;
			if (i == 0)
				name(cpu, pid);
			else
				sample(cpu, pid);
		}
		write_record(&names[cpu], record, record__exit(record, pid, pid, next_ns()));
	}
	return context;
}

/* Reads a closed segment that is in files[0], and has the other file be the next one. */
static uint64_t turn(struct event *event)
{
	struct output output;
	const int fd = files[0];
	uint64_t count;

	CHECK(!event->early);
	output__read(&output, fd, 0, event->segment.offset, NULL);
	count = check_named(&output);
	CHECK_EQ(count, event->segment.samples);
	output__free(&output);
	files[0] = files[1];
	files[1] = fd;
	CHECK_EQ(ftruncate(fd, 0), 0);
	return count;
}

static void tasks_that_migrate_have_their_names_in_every_segment(void)
{
	pthread_t producer;
	uint64_t count = 0;

	begin(CHUNKS);
	for (uint32_t cpu = 0; cpu < CPUS; cpu++)
		CHECK_EQ(shard__start(&rig.shards[cpu]), 0);
	CHECK(pthread_create(&producer, NULL, produce, NULL) == 0);
	while (count < 3 * (TASKS - 1)) {
		struct event *event;

		writer__issue(&rig.writer);
		while ((event = event_list__pop(&rig.events)) != NULL) {
			if (event->kind == EVENT_SEGMENT_CLOSED) {
				count += turn(event);
				atomic_fetch_add(&turned, 1);
			} else {
				CHECK_EQ(event->kind, EVENT_SEGMENT_WANTED);
				CHECK_EQ(rig__prepare(&rig, 0, files[1], 0, RIG_LIMIT), 0);
			}
			event__free(event);
		}
		rotate();
		sched_yield();
	}
	pthread_join(producer, NULL);
	CHECK_EQ(counter__read(&stream->sideband.log_dropped), 0);
	for (uint32_t cpu = 0; cpu < CPUS; cpu++) {
		shard__stop(&rig.shards[cpu]);
		CHECK_EQ(counter__read(&data[cpu]->stored), counter__read(&data[cpu]->samples));
	}
	end();
}

int main(void)
{
	RUN(what_names_a_sample_is_in_its_segment);
	RUN(a_segment_ends_at_the_boundary_of_a_generation);
	RUN(names_are_read_once_more_at_the_boundary);
	RUN(a_ring_that_leaves_is_not_waited_for);
	RUN(a_shard_that_does_not_come_is_not_waited_for_for_ever);
	RUN(a_cut_waits_with_no_more_than_the_chunks_there_are);
	RUN(a_refused_write_waits_for_no_names);
	RUN(tasks_that_migrate_have_their_names_in_every_segment);
	return 0;
}
