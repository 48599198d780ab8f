/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "check.h"
#include "dummy_event.h"
#include "fake_aux.h"
#include "output.h"
#include "records.h"
#include "rig.h"
#include "stream.h"

#define CPUS 3u
#define RUNS 4000u /* of one producer */
#define AUX_PAGES 32u
#define SEGMENTS_MAX 4096u
#define CHUNK_BYTES (AUX_PAGES * 4096u * 2)

struct cpu {
	struct fake_aux fake;
	struct ring *data, *aux;
	pthread_t thread;
	uint32_t id, runs;
	_Atomic bool stop, pause, paused, ended;
	bool endless;
};

struct segment_file {
	int fd;
	uint64_t end;
	struct sum *sums;
	uint32_t sum_count;
	uint64_t *index;
	uint32_t index_count;
	uint64_t payload[CPUS];
};

static struct cpu cpus[CPUS];
static struct core *core;
static struct stream *stream;
static struct segment_file segments[SEGMENTS_MAX];
static uint32_t prepared_count, closed_count;
static bool finished;
static enum aux_head_rule head_rule;

static void await_room(const struct cpu *cpu)
{
	/* Acquire; the partner is the release in ring_map__publish_tail(). */
	while (cpu->fake.head -
		       __atomic_load_n(&cpu->fake.ring.map.page->aux_tail, __ATOMIC_ACQUIRE) >
	       cpu->fake.map.data_bytes / 2)
		sched_yield();
}

/* Hand over bits of any size until there is no room, time and again. */
static void *produce(void *context)
{
	struct cpu *cpu = context;
	uint64_t state = cpu->id * 77 + 1, woken_at = 0;

	while ((cpu->endless || cpu->runs < RUNS) && !atomic_load(&cpu->stop)) {
		const uint64_t words = 1 + random__next(&state) % 1500;
		bool truncated = false;

		if (atomic_load(&cpu->pause)) {
			atomic_store(&cpu->paused, true);
			sched_yield();
			continue;
		}
		if (cpu->fake.map.overwrite)
			fake_aux__overwrite(&cpu->fake, words, head_rule == AUX_OFFSET);
		else
			truncated = fake_aux__run(&cpu->fake, words) < words;
		cpu->runs++;
		if (cpu->fake.head - woken_at > cpu->fake.map.data_bytes / 4) {
			woken_at = cpu->fake.head;
			fake_ring__wake(&cpu->fake.ring);
		}
		if (truncated)
			await_room(cpu);
		if (random__next(&state) % 8 == 0)
			sched_yield();
	}
	/* The last word there is shows in the file how many were truncated before it. */
	if (!cpu->fake.map.overwrite) {
		await_room(cpu);
		CHECK_EQ(fake_aux__run(&cpu->fake, 1), 1);
	}
	atomic_store(&cpu->ended, true);
	return NULL;
}

static void prepare(uint64_t limit)
{
	CHECK(prepared_count < SEGMENTS_MAX);
	segments[prepared_count].fd = output__file();
	check_prepared(rig__prepare_records(core, stream, prepared_count,
					    segments[prepared_count].fd, 0, limit, 0));
	prepared_count++;
}

static void serve(uint64_t limit)
{
	struct event *event;

	while ((event = core__event(core)) != NULL) {
		if (event->kind == EVENT_SEGMENT_WANTED) {
			prepare(limit);
		} else {
			struct segment_file *segment = &segments[event->segment.token];

			CHECK_EQ(event->kind, EVENT_SEGMENT_CLOSED);
			CHECK_EQ(event->segment.samples, 0); /* bytes are none */
			segment->end = event->segment.offset;
			segment->sums = event->sums;
			segment->sum_count = event->sum_count;
			event->sums = NULL;
			segment->index = event->segment.aux_index;
			segment->index_count = event->segment.aux_count;
			event->segment.aux_index = NULL;
			for (uint32_t i = 0; i < event->ring_count; i++)
				for (uint32_t c = 0; c < CPUS; c++)
					if (event->rings[i].id == cpus[c].aux->id) {
						CHECK(event->rings[i].payload);
						segment->payload[c] = event->rings[i].samples;
					}
			closed_count++;
			finished |= event->final;
		}
		event__free(event);
	}
}

static void begin(const struct core_options *options, const struct aux_ring_options *given,
		  bool snapshot)
{
	CHECK_EQ(core__new(options, &core), 0);
	CHECK_EQ(rig__add_stream(core, 1 << 20, 0, false, &stream), 0);
	prepared_count = closed_count = 0;
	finished = false;
	memset(segments, 0, sizeof(segments));
	head_rule = given->head_rule;
	for (uint32_t i = 0; i < CPUS; i++) {
		struct aux_ring_options own = *given;
		struct cpu *cpu = &cpus[i];

		memset(cpu, 0, sizeof(*cpu));
		cpu->id = i;
		/* Room for each AUX record of a full trace; a snapshot gives up the oldest. */
		fake_aux__init(&cpu->fake, snapshot ? 2 : 64, AUX_PAGES, snapshot);
		CHECK_EQ(rig__add_ring(core, i % options->shards, stream, &cpu->fake.ring.map,
				       cpu->fake.ring.wakeup_fd, &records__layout,
				       &(struct walk_ids){0}, false, snapshot, &cpu->data),
			 0);
		own.map = &cpu->fake.map;
		own.origin = (struct aux_origin){.idx = i, .tid = UINT32_MAX, .cpu = i};
		CHECK_EQ(rig__add_aux_ring(core, cpu->data, &own, &cpu->aux), 0);
	}
}

static void start(uint64_t limit)
{
	prepare(limit);
	CHECK_EQ(core__start(core), 0);
	for (uint32_t i = 0; i < CPUS; i++)
		CHECK(pthread_create(&cpus[i].thread, NULL, produce, &cpus[i]) == 0);
}

static void await_written(uint64_t generation, uint64_t limit)
{
	while (stream__written(stream, core->writer.generation) < generation) {
		await_notice(core->events.fd);
		serve(limit);
	}
}

static void finish(uint64_t limit)
{
	serve(limit);
	core__request(core, stream, FINISH);
	while (!finished) {
		await_notice(core->events.fd);
		serve(limit);
	}
}

static void end(void)
{
	core__free(core);
	for (uint32_t i = 0; i < CPUS; i++)
		fake_aux__deinit(&cpus[i].fake);
	for (uint32_t i = 0; i < prepared_count; i++) {
		close(segments[i].fd);
		free(segments[i].index);
		free(segments[i].sums);
	}
}

/* Where all payload went, in file order. */
struct trail {
	uint64_t bytes, word, gap_words, pieces;
	struct extent {
		uint64_t begin, end;
	} all[20000];
	struct extent records[20000];
	uint64_t record_count;
};

static struct trail trails[CPUS];

static void follow_piece(const struct aux_piece *piece, const uint8_t *payload)
{
	struct trail *trail = &trails[piece->origin.cpu];

	CHECK_EQ(piece->origin.idx, piece->origin.cpu);
	CHECK_EQ(piece->bytes % 8, 0);
	for (uint64_t i = 0; i < piece->bytes; i += 8) {
		const uint64_t word = walk__load(payload + i);

		CHECK(word >= trail->word);
		trail->gap_words += word - trail->word;
		trail->word = word + 1;
	}
	trail->bytes += piece->bytes;
	CHECK(trail->pieces < 20000);
	trail->all[trail->pieces++] = (struct extent){piece->offset, piece->offset + piece->bytes};
}

/* Every segment: what its event said is what is in it. */
static void follow_segments(bool listed)
{
	memset(trails, 0, sizeof(trails));
	for (uint32_t i = 0; i < prepared_count; i++) {
		const struct segment_file *segment = &segments[i];
		uint64_t payload[CPUS] = {0};
		struct aux_piece piece;
		struct output output;
		const uint8_t *at_payload, *record;
		size_t at = 0, at_piece;
		uint32_t count = 0;

		output__read(&output, segment->fd, 0, segment->end, NULL);
		if (segment->end > 0)
			output__check_sums(output.data, output.bytes, segment->sums,
					   segment->sum_count);
		while ((at_payload = output__next_piece(&output, &at, &piece, &at_piece)) != NULL) {
			CHECK(piece.origin.cpu < CPUS);
			if (listed)
				CHECK_EQ(segment->index[count], at_piece);
			count++;
			payload[piece.origin.cpu] += piece.bytes;
			follow_piece(&piece, at_payload);
		}
		CHECK_EQ(segment->index_count, listed ? count : 0);
		for (uint32_t c = 0; c < CPUS; c++)
			CHECK_EQ(segment->payload[c], payload[c]);
		/* The offsets of a CPU tell which records are its own: they are in no other order. */
		for (at = 0; (record = output__next(&output, &at)) != NULL;) {
			if (walk__type(walk__load(record)) != PERF_RECORD_AUX)
				continue;
			for (uint32_t c = 0; c < CPUS; c++) {
				struct trail *trail = &trails[c];
				const uint64_t size = walk__load(record + 16);

				CHECK(trail->record_count < 20000);
				trail->records[trail->record_count++] = (struct extent){
					walk__load(record + 8), walk__load(record + 8) + size};
			}
		}
		output__free(&output);
	}
}

static void check_full_trace(void)
{
	for (uint32_t c = 0; c < CPUS; c++) {
		const struct cpu *cpu = &cpus[c];
		const struct aux_ring *aux = aux_ring__of(cpu->aux);
		const struct trail *trail = &trails[c];

		CHECK_EQ(trail->bytes, cpu->fake.head);
		CHECK_EQ(trail->word, cpu->fake.word);
		CHECK_EQ(trail->gap_words, cpu->fake.truncated_words);
		CHECK_EQ(counter__read(&cpu->aux->bytes), cpu->fake.head);
		CHECK_EQ(counter__read(&cpu->aux->stored), cpu->fake.head);
		CHECK_EQ(cpu->aux->in_flight, 0);
		CHECK_EQ(counter__read(&aux->pieces), trail->pieces);
		CHECK_EQ(counter__read(&aux->aux_records),
			 cpu->fake.records - cpu->fake.lost_records);
		CHECK_EQ(counter__read(&aux->truncated), cpu->fake.truncated_records);
		for (uint64_t i = 1; i < trail->pieces; i++)
			CHECK_EQ(trail->all[i].begin, trail->all[i - 1].end);
	}
}

static uint32_t running(void)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < CPUS; i++)
		count += !atomic_load(&cpus[i].ended);
	return count;
}

static void run_to_the_end(const struct core_options *options, const struct aux_ring_options *given,
			   uint64_t limit)
{
	uint64_t state = 1;

	begin(options, given, false);
	start(limit);
	while (running() > 0) {
		const uint64_t random = random__next(&state);

		if (random % 4 == 0)
			writer__issue(&core->writer);
		if (random % 64 == 0)
			core__request(core, stream, ROTATE);
		serve(limit);
		sched_yield();
	}
	for (uint32_t i = 0; i < CPUS; i++)
		pthread_join(cpus[i].thread, NULL);
	for (uint32_t i = 0; i < CPUS; i++)
		CHECK_EQ(rig__tell(cpus[i].aux, COMMAND_LAST), 0);
	await_written(writer__issue(&core->writer), limit);
	finish(limit);
	CHECK(closed_count > 2);
	follow_segments(given->framing == AUX_AUXTRACE);
	check_full_trace();
}

static struct core_options fast(uint32_t shards, uint32_t chunks)
{
	return (struct core_options){.shards = shards,
				     .chunks = chunks,
				     .chunk_bytes = CHUNK_BYTES,
				     .flush_ns = 3000000,
				     .floor_bytes = 8192};
}

static void every_byte_is_stored_once_in_order(void)
{
	const struct core_options options = fast(1, 16);

	run_to_the_end(&options, &(struct aux_ring_options){0}, 1 << 20);
	end();
}

static void likewise_hidden_and_with_fewer_chunks_than_rings(void)
{
	const struct core_options options = fast(2, 2);

	run_to_the_end(&options, &(struct aux_ring_options){.framing = AUX_HIDDEN}, 1 << 20);
	end();
}

/* Each AUX record that was not lost lies in one piece. */
static void likewise_in_whole_records(void)
{
	const struct core_options options = fast(2, 4);
	uint64_t whole = 0;

	run_to_the_end(&options, &(struct aux_ring_options){.whole_records = true}, 1 << 20);
	for (uint32_t c = 0; c < CPUS; c++) {
		const struct trail *trail = &trails[c];

		CHECK_EQ(cpus[c].fake.lost_records, 0);
		/* An end of a piece is an end of a record of this CPU, or of another by chance. */
		for (uint64_t p = 0; p < trail->pieces; p++) {
			bool is_end = false;

			for (uint64_t r = 0; r < trail->record_count && !is_end; r++)
				is_end = trail->records[r].end == trail->all[p].end;
			CHECK(is_end);
			whole++;
		}
		CHECK_EQ(counter__read(&aux_ring__of(cpus[c].aux)->orphan_bytes), 0);
	}
	CHECK(whole > 0);
	end();
}

static void pause_producers(bool pause)
{
	for (uint32_t i = 0; i < CPUS; i++) {
		atomic_store(&cpus[i].paused, false);
		atomic_store(&cpus[i].pause, pause);
	}
	for (uint32_t i = 0; pause && i < CPUS; i++)
		while (!atomic_load(&cpus[i].paused))
			sched_yield();
}

static void hold(bool held)
{
	for (uint32_t i = 0; i < CPUS; i++)
		CHECK_EQ(rig__tell(cpus[i].data, held ? COMMAND_HOLD : COMMAND_LET_GO), 0);
}

/* Of a snapshot, the words up to the newest; what came with the last one is not there again. */
static void snapshots_hold_the_newest(enum aux_head_rule rule)
{
	const struct core_options options = fast(2, 16);
	uint64_t newest[CPUS] = {0}, stored[CPUS] = {0};

	begin(&options, &(struct aux_ring_options){.head_rule = rule}, true);
	for (uint32_t i = 0; i < CPUS; i++)
		cpus[i].endless = true;
	start(RIG_LIMIT);
	serve(RIG_LIMIT);
	for (uint32_t round = 0; round < 20; round++) {
		for (uint32_t i = 0; i < 1 + round % 3 * 40; i++)
			sched_yield();
		pause_producers(true);
		hold(false);
		await_written(writer__issue(&core->writer), RIG_LIMIT);
		hold(true);
		for (uint32_t c = 0; c < CPUS; c++) {
			const struct aux_ring *aux = aux_ring__of(cpus[c].aux);
			const uint64_t all = cpus[c].fake.word;
			const uint64_t held = counter__read(&aux->window_bytes) / 8;
			const uint64_t taken = counter__read(&aux->window_taken_bytes) / 8;
			const uint64_t fresh = all - newest[c];

			CHECK_EQ(held, all < AUX_PAGES * 512 ? all : AUX_PAGES * 512);
			CHECK_EQ(taken, fresh < held ? fresh : held);
			newest[c] = all;
			stored[c] += taken * 8;
		}
		pause_producers(false);
	}
	for (uint32_t i = 0; i < CPUS; i++) {
		atomic_store(&cpus[i].stop, true);
		pthread_join(cpus[i].thread, NULL);
	}
	finish(RIG_LIMIT);
	follow_segments(true);
	for (uint32_t c = 0; c < CPUS; c++) {
		CHECK_EQ(trails[c].bytes, stored[c]);
		CHECK_EQ(counter__read(&cpus[c].aux->stored), stored[c]);
		CHECK_EQ(trails[c].word, newest[c]);
		if (rule == AUX_MONOTONIC)
			CHECK_EQ(trails[c].bytes +
					 counter__read(&aux_ring__of(cpus[c].aux)->overwritten_bytes),
				 newest[c] * 8);
	}
	end();
}

static void snapshots_of_heads_that_count_hold_the_newest(void)
{
	snapshots_hold_the_newest(AUX_MONOTONIC);
}

static void snapshots_of_heads_that_are_places_hold_the_newest(void)
{
	snapshots_hold_the_newest(AUX_OFFSET);
}

/* Passes leave a held ring alone but for that, and take the rest when it is let go. */
static void a_held_data_ring_keeps_room_for_what_comes(void)
{
	const struct core_options options = {
		.shards = 1, .chunks = 8, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};
	const struct cpu *cpu = &cpus[1];
	uint64_t given_up;

	begin(&options, &(struct aux_ring_options){0}, true);
	prepare(RIG_LIMIT);
	CHECK_EQ(core__start(core), 0);
	for (uint32_t i = 0; i < 2 * 4096 / 40 - 1; i++)
		fake_aux__overwrite(&cpus[1].fake, 1, false);
	CHECK_EQ(cpu->fake.lost_records, 0);
	await_written(writer__issue(&core->writer), RIG_LIMIT);
	given_up = counter__read(&aux_ring__of(cpu->aux)->aux_records);
	CHECK_EQ(given_up, (203 * 40 - 4096 + 39) / 40);
	CHECK_EQ(counter__read(&cpu->data->records), 0);
	hold(false);
	await_written(writer__issue(&core->writer), RIG_LIMIT);
	CHECK_EQ(counter__read(&cpu->data->records), 203 - given_up);
	CHECK_EQ(counter__read(&aux_ring__of(cpu->aux)->aux_records), 203);
	CHECK_EQ(counter__read(&cpu->aux->stored), 203 * 8);
	end();
}

static void a_full_disk_is_counted_in_bytes(void)
{
	const struct core_options options = fast(1, 8);
	struct event *event = NULL;

	begin(&options, &(struct aux_ring_options){0}, false);
	segments[0].fd = output__full();
	CHECK_EQ(rig__prepare_records(core, stream, 0, segments[0].fd, 0, RIG_LIMIT, 0), 0);
	prepared_count = 1;
	CHECK_EQ(core__start(core), 0);
	CHECK_EQ(fake_aux__run(&cpus[1].fake, 100), 100);
	CHECK(writer__issue(&core->writer) > 0);
	while (event == NULL || event->kind != EVENT_SPACE_WANTED) {
		event__free(event);
		event = core__event(core);
		if (event == NULL)
			await_notice(core->events.fd);
	}
	event__free(event);
	core__request(core, stream, SPACE_GIVE_UP);
	while (counter__read(&cpus[1].aux->lost_disk_full) == 0)
		sched_yield();
	CHECK_EQ(counter__read(&cpus[1].aux->lost_disk_full), 800);
	CHECK_EQ(cpus[1].aux->in_flight, 0);
	CHECK_EQ(counter__read(&cpus[1].aux->stored), 0);
	end();
}

/* With its data ring it is read to the end, and then nobody looks at it any more. */
static void a_ring_that_leaves_takes_its_area_along(void)
{
	const struct core_options options = {
		.shards = 1, .chunks = 8, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};

	begin(&options, &(struct aux_ring_options){.whole_records = true}, false);
	prepare(RIG_LIMIT);
	CHECK_EQ(core__start(core), 0);
	CHECK_EQ(fake_aux__run(&cpus[0].fake, 100), 100);
	/* Nothing tells of these. */
	fake_aux__set_head(&cpus[0].fake, cpus[0].fake.head + 80);
	CHECK_EQ(rig__tell(cpus[0].data, COMMAND_REMOVE), 0);
	CHECK_EQ(counter__read(&cpus[0].aux->bytes), 880);
	CHECK_EQ(ring_map__tail(&cpus[0].fake.map), 880);
	cpus[0].fake.head += 80;
	CHECK_EQ(fake_aux__run(&cpus[0].fake, 100), 100);
	await_written(writer__issue(&core->writer), RIG_LIMIT);
	CHECK_EQ(counter__read(&cpus[0].aux->stored), 880);
	CHECK_EQ(ring_map__tail(&cpus[0].fake.map), 880);
	end();
}

/* The pass that makes room has the event go on, until it is told not to. */
static void events_are_enabled_after_their_bytes_were_taken(void)
{
	const struct core_options options = {
		.shards = 1, .chunks = 8, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};
	const int fd = dummy_event__open();
	uint64_t enabled_ns;

	begin(&options, &(struct aux_ring_options){.enable_fds = &fd, .enable_count = 1}, false);
	prepare(RIG_LIMIT);
	CHECK_EQ(core__start(core), 0);
	await_written(writer__issue(&core->writer), RIG_LIMIT);
	CHECK_EQ(dummy_event__enabled_ns(fd), 0);
	CHECK_EQ(fake_aux__run(&cpus[2].fake, 100), 100);
	await_written(writer__issue(&core->writer), RIG_LIMIT);
	CHECK(dummy_event__enabled_ns(fd) > 0);
	/* A wake-up of the data ring, by which the kernel says that the area is full, is enough. */
	CHECK_EQ(ioctl(fd, PERF_EVENT_IOC_DISABLE, 0), 0);
	enabled_ns = dummy_event__enabled_ns(fd);
	fake_ring__wake(&cpus[2].fake.ring);
	while (dummy_event__enabled_ns(fd) == enabled_ns)
		sched_yield();
	CHECK_EQ(rig__tell(cpus[2].aux, COMMAND_LAST), 0);
	CHECK_EQ(ioctl(fd, PERF_EVENT_IOC_DISABLE, 0), 0);
	enabled_ns = dummy_event__enabled_ns(fd);
	CHECK_EQ(fake_aux__run(&cpus[2].fake, 100), 100);
	await_written(writer__issue(&core->writer), RIG_LIMIT);
	CHECK_EQ(dummy_event__enabled_ns(fd), enabled_ns);
	end();
	close(fd);
}

/* What came since the ring was let go is another window; a ring may be let go at its end, too. */
static void letting_go_twice_takes_two_windows(void)
{
	const struct core_options options = {
		.shards = 1, .chunks = 8, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};

	begin(&options, &(struct aux_ring_options){0}, true);
	prepare(RIG_LIMIT);
	CHECK_EQ(core__start(core), 0);
	for (uint32_t i = 1; i <= 3; i++) {
		fake_aux__overwrite(&cpus[0].fake, 10, false);
		CHECK_EQ(rig__tell(cpus[0].data, COMMAND_LET_GO), 0);
		await_written(writer__issue(&core->writer), RIG_LIMIT);
		CHECK_EQ(counter__read(&cpus[0].aux->stored), i * 80);
	}
	end();
}

/* Whatever no chunk came free for is lost when its ring goes, and counted. */
static void an_area_that_is_left_is_counted(void)
{
	const struct core_options options = {
		.shards = 1, .chunks = 1, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};
	uint64_t abandoned = 0;

	begin(&options, &(struct aux_ring_options){0}, false);
	CHECK_EQ(core__start(core), 0);
	for (uint32_t i = 0; i < CPUS; i++)
		CHECK_EQ(fake_aux__run(&cpus[i].fake, 13000), 13000);
	for (uint32_t i = 0; i < CPUS; i++) {
		const struct ring *const aux = cpus[i].aux;
		const uint64_t left = rig__tell(cpus[i].data, COMMAND_REMOVE) < 0;

		CHECK_EQ(counter__read(&aux->abandoned) > 0, left);
		CHECK_EQ(counter__read(&aux->bytes), cpus[i].fake.head);
		CHECK_EQ(aux->in_flight + counter__read(&aux->abandoned), cpus[i].fake.head);
		abandoned += counter__read(&aux->abandoned);
	}
	CHECK(abandoned > 0);
	end();
}

/* With one chunk, and no segment, a pass of the generation begins anew with each wake-up. */
static void a_starved_generation_is_counted_once(void)
{
	const struct core_options options = {
		.shards = 1, .chunks = 1, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};
	struct core_counters counters;
	static uint8_t record[4096];

	begin(&options, &(struct aux_ring_options){.whole_records = true}, false);
	fake_aux__set_head(&cpus[0].fake, 800); /* no record tells of it, yet */
	for (uint32_t i = 1; i < CPUS; i++)
		while (fake_ring__write(&cpus[i].fake.ring, record,
					record__sample(record, 4096, 1, 1)))
			;
	CHECK_EQ(core__start(core), 0);
	writer__issue(&core->writer);
	for (uint64_t passes = 1; passes < 10;) {
		core__read_counters(core, &counters);
		if (counters.passes < passes) {
			sched_yield();
			continue;
		}
		passes = counters.passes + 1;
		fake_ring__wake(&cpus[2].fake.ring);
	}
	CHECK_EQ(writer__drained(&core->writer), 0);
	core__stop(core);
	/* Its record may be on its way still. */
	CHECK_EQ(aux_ring__of(cpus[0].aux)->orphan_end, 0);
	end();
}

/* A segment that a window comes to, long after the last rotation, knows the names of its time. */
static void a_window_keeps_its_names_over_a_rotation(void)
{
	const struct core_options options = {
		.shards = 1, .chunks = 8, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};
	const uint64_t past_ns = clock__now_ns() - 2000000000;
	struct fake_ring fake;
	struct ring *names;
	struct output output;
	uint8_t record[128];

	begin(&options, &(struct aux_ring_options){0}, true);
	fake_ring__init(&fake, 4);
	CHECK_EQ(rig__add_ring(core, 0, stream, &fake.map, fake.wakeup_fd, &records__layout,
			       &(struct walk_ids){0}, true, false, &names),
		 0);
	prepare(RIG_LIMIT);
	CHECK_EQ(core__start(core), 0);
	fake_aux__overwrite(&cpus[0].fake, 10, false);
	CHECK(fake_ring__write(&fake, record, record__comm(record, 77, 77, "gone", 0, past_ns)));
	CHECK(fake_ring__write(&fake, record, record__exit(record, 77, 77, past_ns + 1)));
	for (uint32_t i = 0; i < 3; i++)
		await_written(writer__issue(&core->writer), RIG_LIMIT);
	for (uint32_t i = 0; i < 2; i++) {
		core__request(core, stream, ROTATE);
		while (closed_count == i) {
			await_notice(core->events.fd);
			serve(RIG_LIMIT);
		}
		fake_aux__overwrite(&cpus[0].fake, 10, false);
		hold(false);
		await_written(writer__issue(&core->writer), RIG_LIMIT);
		hold(true);
		/* What was in the first window comes no more; the next segment needs no name of it. */
		await_written(writer__issue(&core->writer), RIG_LIMIT);
		await_written(writer__issue(&core->writer), RIG_LIMIT);
	}
	finish(RIG_LIMIT);
	CHECK_EQ(closed_count, 3);
	/* The first one has it as it came, the second one from its replay. */
	for (uint32_t i = 0; i < 3; i++) {
		output__read(&output, segments[i].fd, 0, segments[i].end, NULL);
		CHECK_EQ(output__count(&output, PERF_RECORD_COMM, 77), i < 2 ? 1 : 0);
		output__free(&output);
	}
	end();
	fake_ring__deinit(&fake);
}

/* Names are read before a sample of an AUX area whose data ring nobody reads any more. */
static void names_come_first_without_a_data_ring(void)
{
	const struct core_options options = {.shards = 1,
					     .chunks = 8,
					     .chunk_bytes = CHUNK_BYTES,
					     .flush_ns = RIG_NEVER_NS,
					     .floor_bytes = 8192};
	struct fake_ring fake;
	struct ring *names;
	uint8_t record[128] = {0};

	begin(&options, &(struct aux_ring_options){0}, false);
	fake_ring__init(&fake, 4);
	CHECK_EQ(rig__add_ring(core, 0, stream, &fake.map, fake.wakeup_fd, &records__layout,
			       &(struct walk_ids){0}, true, false, &names),
		 0);
	prepare(RIG_LIMIT);
	CHECK_EQ(core__start(core), 0);
	for (uint64_t i = 1; i <= RING_FAULTS_MAX; i++) {
		fake_ring__set_head(&cpus[0].fake.ring, 64 * i); /* zeros */
		await_written(writer__issue(&core->writer), RIG_LIMIT);
	}
	CHECK_EQ(cpus[0].data->fault, WALK_BAD_SIZE);
	CHECK(fake_ring__write(&fake, record, record__comm(record, 77, 77, "x", 0, 1)));
	fake_aux__set_head(&cpus[0].fake, 100);
	fake_ring__wake(&cpus[0].fake.ring);
	while (counter__read(&cpus[0].aux->bytes) == 0)
		sched_yield();
	CHECK_EQ(counter__read(&names->records), 1);
	end();
	fake_ring__deinit(&fake);
}

static void what_cannot_be_paired_is_refused(void)
{
	const struct core_options options = fast(1, 8);
	const struct walk_layout other = {.time_offset = 16, .time_trailer = 16};
	struct aux_ring_options given = {0};
	struct fake_aux fake;
	struct ring *data, *held, *sideband, *elsewhere, *aux = NULL;
	uint32_t rings;

	begin(&options, &given, false);
	fake_aux__init(&fake, 16, AUX_PAGES, false);
	given.map = &fake.map;
	CHECK_EQ(-rig__add_aux_ring(core, cpus[0].data, &given, &aux), EEXIST);
	CHECK_EQ(-rig__tell(cpus[0].data, COMMAND_HOLD), EINVAL);
	CHECK_EQ(rig__add_ring(core, 0, stream, &fake.ring.map, fake.ring.wakeup_fd,
			       &records__layout, &(struct walk_ids){0}, false, true, &held),
		 0);
	CHECK_EQ(-rig__add_aux_ring(core, held, &given, &aux), EINVAL);
	CHECK_EQ(rig__tell(held, COMMAND_REMOVE), 0);
	CHECK_EQ(rig__add_ring(core, 0, stream, &fake.ring.map, fake.ring.wakeup_fd,
			       &records__layout, &(struct walk_ids){0}, true, false, &sideband),
		 0);
	CHECK_EQ(-rig__add_aux_ring(core, sideband, &given, &aux), EINVAL);
	CHECK_EQ(rig__tell(sideband, COMMAND_REMOVE), 0);
	CHECK_EQ(rig__add_ring(core, 0, stream, &fake.ring.map, fake.ring.wakeup_fd, &other,
			       &(struct walk_ids){0}, false, false, &elsewhere),
		 0);
	CHECK_EQ(-rig__add_aux_ring(core, elsewhere, &given, &aux), EINVAL);
	CHECK_EQ(rig__tell(elsewhere, COMMAND_REMOVE), 0);
	CHECK(aux == NULL);
	/* Nor does a ring come whose sideband is not where the others have it. */
	CHECK_EQ(-rig__add_ring(core, 0, stream, &fake.ring.map, fake.ring.wakeup_fd, &other,
				&(struct walk_ids){0}, true, false, &sideband),
		 EINVAL);
	CHECK_EQ(stream->sideband.layout.time_trailer, records__layout.time_trailer);
	CHECK_EQ(rig__add_ring(core, 0, stream, &fake.ring.map, fake.ring.wakeup_fd,
			       &records__layout, &(struct walk_ids){0}, false, false, &data),
		 0);
	/* Nothing of what was refused stays. */
	fake.map.overwrite = true;
	given.whole_records = true;
	given.framing = AUX_HIDDEN;
	rings = stream->ring_count;
	CHECK_EQ(-rig__add_aux_ring(core, data, &given, &aux), EINVAL);
	CHECK(!stream->holds_back);
	fake.map.overwrite = given.whole_records = false;
	CHECK_EQ(-rig__add_aux_ring(core, cpus[0].data, &given, &aux), EEXIST);
	CHECK_EQ(stream->ring_count, rings);
	CHECK_EQ(rig__add_aux_ring(core, data, &given, &aux), 0);
	end();
	fake_aux__deinit(&fake);
}

/* Another segment begins with the state that the records of the first one made. */
static void state_from_data_rings_is_replayed(void)
{
	const struct core_options options = {
		.shards = 1, .chunks = 8, .chunk_bytes = CHUNK_BYTES, .flush_ns = RIG_NEVER_NS};
	struct output output;
	uint8_t record[64];
	uint16_t size;

	begin(&options, &(struct aux_ring_options){0}, false);
	stream->sideband.layout = records__context_layout;
	prepare(RIG_LIMIT);
	CHECK_EQ(core__start(core), 0);
	size = record__context(record, PERF_RECORD_ITRACE_START, 0, 77, 1, 0, 5);
	CHECK(fake_ring__write(&cpus[0].fake.ring, record, size));
	CHECK_EQ(fake_aux__run(&cpus[0].fake, 1), 1);
	await_written(writer__issue(&core->writer), RIG_LIMIT);
	core__request(core, stream, ROTATE);
	serve(RIG_LIMIT);
	CHECK_EQ(fake_aux__run(&cpus[0].fake, 1), 1);
	await_written(writer__issue(&core->writer), RIG_LIMIT);
	finish(RIG_LIMIT);
	CHECK_EQ(closed_count, 2);
	output__read(&output, segments[1].fd, 0, segments[1].end, NULL);
	CHECK_EQ(output__count(&output, PERF_RECORD_ITRACE_START, 77), 1);
	CHECK(memcmp(output.data, record, size) == 0);
	output__free(&output);
	end();
}

int main(void)
{
	RUN(every_byte_is_stored_once_in_order);
	RUN(likewise_hidden_and_with_fewer_chunks_than_rings);
	RUN(likewise_in_whole_records);
	RUN(snapshots_of_heads_that_count_hold_the_newest);
	RUN(snapshots_of_heads_that_are_places_hold_the_newest);
	RUN(a_held_data_ring_keeps_room_for_what_comes);
	RUN(a_full_disk_is_counted_in_bytes);
	RUN(a_ring_that_leaves_takes_its_area_along);
	RUN(events_are_enabled_after_their_bytes_were_taken);
	RUN(letting_go_twice_takes_two_windows);
	RUN(an_area_that_is_left_is_counted);
	RUN(a_starved_generation_is_counted_once);
	RUN(a_window_keeps_its_names_over_a_rotation);
	RUN(names_come_first_without_a_data_ring);
	RUN(what_cannot_be_paired_is_refused);
	RUN(state_from_data_rings_is_replayed);
	return 0;
}
