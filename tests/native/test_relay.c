/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blk_records.h"
#include "check.h"
#include "core.h"
#include "guarded.h"
#include "output.h"
#include "relay_ring.h"
#include "rig.h"

#define CHUNK_BYTES (72u << 10)
#define CAPACITY_BYTES (UINT64_C(1) << 20)

static struct ring *ring;
static struct relay_ring *relay;
static struct chunk chunk;
static struct guarded memory;
static int source, sink;
static uint8_t bytes[1u << 20];

static void begin(enum relay_contents contents, int fd)
{
	const struct relay_ring_options options = {
		.contents = contents,
		.fd = fd,
		.capacity = CAPACITY_BYTES,
	};

	CHECK_EQ(relay_ring__new(&options, &ring), 0);
	relay = relay_ring__of(ring);
	guarded__init(&memory, CHUNK_BYTES, -1);
	chunk = (struct chunk){.data = memory.data};
}

/* What is written to `sink` is what the next read gives; the size tells nothing. */
static void begin_pipe(enum relay_contents contents)
{
	int fds[2];

	CHECK_EQ(pipe2(fds, O_NONBLOCK), 0);
	source = fds[0];
	sink = fds[1];
	CHECK(fcntl(sink, F_SETPIPE_SZ, 1 << 20) > 0);
	begin(contents, source);
}

static void end(void)
{
	ring->ops->free(ring);
	guarded__deinit(&memory);
	close(source);
	if (sink >= 0)
		close(sink);
}

static void give(const uint8_t *data, size_t size)
{
	CHECK_EQ(write(sink, data, size), size);
}

static enum ring_take take_again(bool full, bool first)
{
	ring->swept = full;
	ring->first = first;
	ring->ops->begin(ring);
	return ring->ops->take(ring, &chunk, CHUNK_BYTES);
}

static enum ring_take take(bool full)
{
	return take_again(full, full);
}

static void a_walk_counts_numbers_and_notes(void)
{
	struct blk_state state = {0};
	struct blk_tally tally = {0};
	enum fault fault;
	uint32_t size = 0;

	size += blk_record__put(bytes + size, 0, 5, 16);
	size += blk_record__put(bytes + size, 7, 20, 0);
	size += blk_record__put(bytes + size, 8, 10, 9);
	size += blk_record__put(bytes + size, 11, 30, 0);
	CHECK_EQ(blk__run(bytes, size, 0, &state, &tally, &fault), size);
	CHECK_EQ(fault, FAULT_NONE);
	CHECK_EQ(tally.events, 3);
	CHECK_EQ(tally.notes, 1);
	CHECK_EQ(tally.numbered, 5);
	CHECK_EQ(tally.missing, 2);
	CHECK_EQ(tally.first_ns, 10);
	CHECK_EQ(tally.last_ns, 30);
}

static void a_walk_ends_before_a_record_that_is_cut(void)
{
	const uint32_t whole = blk_record__put(bytes, 1, 1, 3);
	const uint32_t size = whole + blk_record__put(bytes + whole, 2, 2, 5);

	for (uint32_t cut = whole; cut < size; cut++) {
		struct blk_state state = {0};
		struct blk_tally tally = {0};
		enum fault fault;

		CHECK_EQ(blk__run(bytes, cut, 0, &state, &tally, &fault), whole);
		CHECK_EQ(fault, FAULT_NONE);
		CHECK_EQ(tally.events, 1);
	}
}

static void a_walk_goes_over_the_end_of_the_numbers(void)
{
	struct blk_state state = {0};
	struct blk_tally tally = {0};
	enum fault fault;
	uint32_t size = 0;

	size += blk_record__put(bytes + size, UINT32_MAX, 1, 0);
	memset(bytes + size, 0, BLK_HEADER_BYTES);
	size += blk_record__put(bytes + size, 1, 2, 0);
	CHECK_EQ(blk__run(bytes, size, 0, &state, &tally, &fault), size);
	CHECK_EQ(tally.numbered, 3);
	CHECK_EQ(tally.missing, 1); /* number 0 */
}

static void a_walk_refuses_what_is_no_record(void)
{
	const uint32_t swapped = __builtin_bswap32(BLK_MAGIC), other = BLK_MAGIC + 1;
	const uint32_t whole = blk_record__put(bytes, 5, 1, 0);
	struct {
		const uint32_t magic;
		const enum fault fault;
	} const cases[] = {{0, BLK_NO_MAGIC}, {swapped, BLK_OLD_MAGIC}, {other, BLK_OLD_MAGIC}};
	struct blk_state state = {0};
	struct blk_tally tally = {0};
	enum fault fault;

	for (size_t i = 0; i < 3; i++) {
		state = (struct blk_state){0};
		blk_record__put(bytes + whole, 6, 1, 0);
		memcpy(bytes + whole, &cases[i].magic, 4);
		CHECK_EQ(blk__run(bytes, 2 * whole, 0, &state, &tally, &fault), whole);
		CHECK_EQ(fault, cases[i].fault);
	}
	blk_record__put(bytes + whole, 5, 1, 0);
	state = (struct blk_state){0};
	CHECK_EQ(blk__run(bytes, 2 * whole, 0, &state, &tally, &fault), whole);
	CHECK_EQ(fault, BLK_STALE);
	blk_record__put(bytes + whole, 6, 1, 200);
	state = (struct blk_state){0};
	CHECK_EQ(blk__run(bytes, 2 * whole + 200, 100, &state, &tally, &fault), whole);
	CHECK_EQ(fault, BLK_NO_MAGIC);
}

static void a_record_that_a_read_cut_is_put_together(void)
{
	const uint32_t size = blk_record__put(bytes, 1, 1, 40);

	begin_pipe(RELAY_BLKTRACE);
	for (uint32_t at = 0; at < size; at += 7) {
		CHECK_EQ(chunk.used, 0);
		give(bytes + at, size - at < 7 ? size - at : 7);
		CHECK_EQ(take(true), RING_EMPTY);
	}
	CHECK_EQ(chunk.used, size);
	CHECK_EQ(memcmp(chunk.data, bytes, size), 0);
	CHECK_EQ(counter__read(&ring->samples), 1);
	CHECK_EQ(counter__read(&ring->in_flight), 1);
	end();
}

static void the_first_number_is_one(void)
{
	begin_pipe(RELAY_BLKTRACE);
	give(bytes, blk_record__put(bytes, 4, 1, 0));
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(counter__read(&relay->numbered), 4);
	CHECK_EQ(counter__read(&relay->missing), 3);
	end();
}

static void a_torn_record_is_skipped_and_missed(void)
{
	uint32_t size = 0, torn;

	begin_pipe(RELAY_BLKTRACE);
	size += blk_record__put(bytes + size, 1, 1, 0);
	torn = size;
	size += blk_record__put(bytes + size, 2, 2, 16);
	size += blk_record__put(bytes + size, 3, 3, 0);
	memset(bytes + torn, 0, 48);
	give(bytes, size);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(counter__read(&ring->samples), 2);
	CHECK_EQ(counter__read(&relay->missing), 1);
	CHECK_EQ(counter__read(&relay->torn_bytes), 64);
	CHECK_EQ(chunk.used, 96);
	end();
}

static void what_never_becomes_a_record_is_passed_over(void)
{
	begin_pipe(RELAY_BLKTRACE);
	memset(bytes, 0x11, sizeof(bytes));
	for (int i = 0; i < 3 && counter__read(&ring->faults) == 0; i++) {
		give(bytes, 40000);
		(void)take(true);
	}
	CHECK_EQ(atomic_load(&ring->last_fault), BLK_NO_MAGIC);
	CHECK_EQ(atomic_load(&ring->fault), 0);
	CHECK_EQ(chunk.used, 0);
	/* Of what comes behind, too much has to be none again. */
	give(bytes, 100);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(counter__read(&ring->faults), 1);
	give(bytes, blk_record__put(bytes, 1, 1, 0));
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(counter__read(&ring->samples), 1);
	end();
}

static void records_of_another_version_end_in_quarantine(void)
{
	const uint32_t magic = BLK_MAGIC + 1;

	begin_pipe(RELAY_BLKTRACE);
	blk_record__put(bytes, 1, 1, 0);
	memcpy(bytes, &magic, sizeof(magic));
	for (uint32_t i = 0; i < RING_FAULTS_MAX; i++) {
		CHECK_EQ(atomic_load(&ring->fault), 0);
		give(bytes, 48);
		CHECK_EQ(take(true), RING_FAULTY);
	}
	CHECK_EQ(atomic_load(&ring->fault), BLK_OLD_MAGIC);
	end();
}

static void unknown_bytes_are_counted_as_they_are(void)
{
	begin_pipe(RELAY_BYTES);
	memset(bytes, 0x7f, 5000);
	give(bytes, 5000);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 5000);
	CHECK_EQ(counter__read(&ring->samples), 5000);
	CHECK_EQ(counter__read(&relay->numbered), 0);
	end();
}

static void a_pass_stays_within_what_completed_sub_buffers_hold(void)
{
	source = memfd_create("relay", MFD_CLOEXEC);
	sink = -1;
	memset(bytes, 1, 3000);
	CHECK_EQ(write(source, bytes, 3000), 3000);
	CHECK_EQ(lseek(source, 0, SEEK_SET), 0);
	begin(RELAY_BYTES, source);
	CHECK_EQ(take(false), RING_EMPTY);
	CHECK_EQ(chunk.used, 3000);
	/* Of a file that has more than its size says nothing is read, but by a quiet full pass. */
	relay->position = 4000;
	CHECK_EQ(pwrite(source, bytes, 500, 3000), 500);
	CHECK_EQ(take(false), RING_EMPTY);
	CHECK_EQ(chunk.used, 3000);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 3000);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 3500);
	end();
}

/* How often a pass of a generation has to begin again says nothing about the time between. */
static void a_part_is_read_a_generation_later(void)
{
	source = memfd_create("relay", MFD_CLOEXEC);
	sink = -1;
	memset(bytes, 1, 3000);
	CHECK_EQ(write(source, bytes, 3000), 3000);
	CHECK_EQ(lseek(source, 0, SEEK_SET), 0);
	begin(RELAY_BYTES, source);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 3000);
	relay->position = 4000;
	CHECK_EQ(pwrite(source, bytes, 500, 3000), 500);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(take_again(true, false), RING_EMPTY);
	CHECK_EQ(take_again(true, false), RING_EMPTY);
	CHECK_EQ(chunk.used, 3000);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 3500);
	end();
}

static void what_no_read_gave_is_skipped(void)
{
	source = memfd_create("relay", MFD_CLOEXEC);
	sink = -1;
	memset(bytes, 1, 3000);
	CHECK_EQ(write(source, bytes, 3000), 3000);
	CHECK_EQ(lseek(source, 1000, SEEK_SET), 1000);
	begin(RELAY_BYTES, source);
	CHECK_EQ(take(false), RING_EMPTY); /* others may have read before */
	CHECK_EQ(counter__read(&relay->skipped_bytes), 0);
	CHECK_EQ(chunk.used, 2000);
	CHECK_EQ(pwrite(source, bytes, 3000, 3000), 3000);
	CHECK_EQ(lseek(source, 4000, SEEK_SET), 4000);
	CHECK_EQ(take(false), RING_EMPTY);
	CHECK_EQ(counter__read(&relay->skipped_bytes), 1000);
	CHECK_EQ(chunk.used, 4000);
	end();
}

static void a_channel_that_ends_is_read_to_its_end(void)
{
	const uint32_t size = blk_record__put(bytes, 1, 1, 0);

	begin_pipe(RELAY_BLKTRACE);
	blk_record__put(bytes + size, 2, 2, 0);
	give(bytes, size + 20);
	close(sink);
	sink = -1;
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK(relay->ended && atomic_load(&ring->hung_up));
	CHECK_EQ(counter__read(&ring->samples), 1);
	CHECK_EQ(counter__read(&relay->torn_bytes), 20);
	end();
}

static void a_chunk_ends_before_a_record_that_may_not_fit(void)
{
	uint32_t size = 0;

	begin_pipe(RELAY_BLKTRACE);
	for (uint32_t n = 1; n <= 400; n++)
		size += blk_record__put(bytes + size, n, n, 0);
	give(bytes, size);
	chunk.used = CHUNK_BYTES - BLK_RECORD_BYTES_MAX + 1;
	CHECK_EQ(take(true), RING_CHUNK_FULL);
	chunk.used = 0;
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, size);
	end();
}

/* The whole way: two files, segments that end by their limit, and what each file has. */

#define RECORDS 20000u
#define SEGMENTS_MAX 64u

static int files[SEGMENTS_MAX][2];
static uint32_t file_count;

static void prepare(struct core *core, struct stream *stream)
{
	CHECK(file_count < SEGMENTS_MAX);
	files[file_count][0] = output__file();
	files[file_count][1] = output__file();
	check_prepared(
		rig__prepare_files(core, stream, file_count + 1, files[file_count], 2, 100000));
	file_count++;
}

static void check_closed(const struct event *event, uint64_t *events)
{
	struct blk_tally tally = {0};

	for (uint32_t i = 0; i < 2; i++) {
		const int fd = files[event->segment.token - 1][event->rings[i].id];
		const ssize_t size = pread(fd, bytes, sizeof(bytes), 0);
		struct blk_state state = {0};
		enum fault fault;

		tally = (struct blk_tally){0};
		CHECK_EQ(size, event->rings[i].bytes);
		CHECK_EQ(blk__run(bytes, (size_t)size, 0, &state, &tally, &fault), size);
		CHECK_EQ(tally.events, event->rings[i].samples);
		output__check_sums(bytes, (size_t)size, event->rings[i].sums,
				   event->rings[i].sum_count);
		events[event->rings[i].id] += tally.events;
	}
}

static bool look(struct core *core, struct stream *stream, uint64_t *events)
{
	struct event *event;
	bool final = false;

	while ((event = core__event(core)) != NULL) {
		if (event->kind == EVENT_SEGMENT_WANTED)
			prepare(core, stream);
		else if (event->kind == EVENT_SEGMENT_CLOSED) {
			check_closed(event, events);
			final = event->final;
		}
		event__free(event);
	}
	return final;
}

static void every_record_is_in_a_file_once(void)
{
	const struct core_options options = {1, 8, 128u << 10, 20000000, 0};
	struct stream *stream;
	struct ring *rings[2];
	uint64_t events[2] = {0};
	struct core *core;
	int fds[2][2];

	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_relay_stream(core, &stream), 0);
	for (int i = 0; i < 2; i++) {
		struct relay_ring_options relay_options = {
			.contents = RELAY_BLKTRACE,
			.capacity = CAPACITY_BYTES,
		};

		CHECK_EQ(pipe2(fds[i], O_CLOEXEC), 0);
		CHECK_EQ(fcntl(fds[i][0], F_SETFL, O_NONBLOCK), 0);
		relay_options.fd = fds[i][0];
		CHECK_EQ(rig__add_relay_ring(core, 0, stream, &relay_options, &rings[i]), 0);
		rig__tell(rings[i], COMMAND_HOLD);
	}
	prepare(core, stream);
	CHECK_EQ(core__start(core), 0);
	for (int i = 0; i < 2; i++)
		rig__tell(rings[i], COMMAND_LET_GO);
	for (uint32_t n = 1; n <= RECORDS; n++)
		for (int i = 0; i < 2; i++) {
			const uint32_t size = blk_record__put(bytes, n, n, (uint16_t)(n % 50));

			CHECK_EQ(write(fds[i][1], bytes, size), size); /* waits for the drain */
			(void)look(core, stream, events);
		}
	const uint64_t generation = writer__issue(&core->writer);
	while (stream__written(stream, core->writer.generation) < generation) {
		await_notice(core->events.fd);
		(void)look(core, stream, events);
	}
	core__request(core, stream, FINISH);
	while (!look(core, stream, events))
		await_notice(core->events.fd);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(events[i], RECORDS);
		CHECK_EQ(counter__read(&rings[i]->stored), RECORDS);
		CHECK_EQ(counter__read(&relay_ring__of(rings[i])->numbered), RECORDS);
		CHECK_EQ(atomic_load(&rings[i]->in_flight), 0);
	}
	CHECK(file_count > 5);
	core__free(core);
	for (uint32_t i = 0; i < file_count; i++) {
		close(files[i][0]);
		close(files[i][1]);
	}
	for (int i = 0; i < 2; i++) {
		close(fds[i][0]);
		close(fds[i][1]);
	}
}

/* Whoever comes after a process that was killed with the start of a record reads on behind it. */
static void a_successor_reads_on_where_the_note_says(void)
{
	static _Alignas(64) struct relay_note note;
	static uint8_t slots[2 * RELAY_SLOT_BYTES];
	static struct chunk_note chunk_note;
	struct relay_ring_options options = {
		.contents = RELAY_BLKTRACE,
		.capacity = CAPACITY_BYTES,
		.note = &note,
		.slots = slots,
	};
	uint64_t events = 0, missing = 0, cut = 0;
	uint32_t size = 0, number = 0;
	int fds[2];

	while (size < 3 * CHUNK_BYTES) {
		number++;
		size += blk_record__put(bytes + size, number, number, (uint16_t)(number % 77));
	}
	CHECK_EQ(pipe2(fds, O_NONBLOCK), 0);
	CHECK(fcntl(fds[1], F_SETPIPE_SZ, 1 << 20) > 0);
	CHECK_EQ(write(fds[1], bytes, size), size);
	options.fd = fds[0];
	guarded__init(&memory, CHUNK_BYTES, -1);
	for (uint32_t life = 1; events < number; life++) {
		CHECK_EQ(relay_ring__new(&options, &ring), 0);
		relay = relay_ring__of(ring);
		CHECK_EQ(note.at[note.turn & 1].samples, events);
		chunk = (struct chunk){.data = memory.data, .note = &chunk_note};
		store_relaxed(&chunk_note.serial, life);
		(void)take(true);
		CHECK_EQ(load_relaxed(&chunk_note.used), chunk.used);
		CHECK_EQ(load_relaxed(&note.serial), 0);
		events += counter__read(&ring->samples);
		missing += counter__read(&relay->missing) + counter__read(&relay->torn_bytes);
		ring->ops->leave(ring, false); /* leaves the start of a record to the next one */
		missing += counter__read(&relay->torn_bytes);
		CHECK_EQ((uint32_t)note.at[note.turn & 1].position, (uint32_t)events);
		cut += note.at[note.turn & 1].position >> 32;
		CHECK_EQ(walk__load(slots + (note.turn & 1) * RELAY_SLOT_BYTES + RELAY_SLOT_BYTES -
				    8),
			 relay->position);
		CHECK(life < 6);
		ring->ops->free(ring);
	}
	CHECK_EQ(missing, 0);
	CHECK_EQ(note.at[note.turn & 1].samples, number);
	CHECK(cut > 0);
	guarded__deinit(&memory);
	close(fds[0]);
	close(fds[1]);
}

/* A read is announced before it takes anything out of the kernel, and its room's end is zeroed. */
static void a_read_is_announced(void)
{
	static _Alignas(64) struct relay_note note;
	static uint8_t slots[2 * RELAY_SLOT_BYTES];
	static struct chunk_note chunk_note;
	const struct relay_ring_options options = {
		.contents = RELAY_BLKTRACE,
		.fd = -1, /* the read fails */
		.capacity = CAPACITY_BYTES,
		.note = &note,
		.slots = slots,
	};

	CHECK_EQ(relay_ring__new(&options, &ring), 0);
	guarded__init(&memory, CHUNK_BYTES, -1);
	memset(memory.data, 0xff, CHUNK_BYTES);
	chunk = (struct chunk){.data = memory.data, .note = &chunk_note};
	store_relaxed(&chunk_note.serial, 7);
	(void)take(true);
	CHECK_EQ(note.span, CHUNK_BYTES);
	CHECK_EQ(load_relaxed(&note.serial), 0);
	CHECK_EQ(memory.data[CHUNK_BYTES - RELAY_EDGE_BYTES - 1], 0xff);
	for (uint32_t i = 1; i <= RELAY_EDGE_BYTES; i++)
		CHECK_EQ(memory.data[CHUNK_BYTES - i], 0);
	ring->ops->free(ring);
	guarded__deinit(&memory);
}

static void a_stream_takes_only_its_kind(void)
{
	const struct core_options options = {1, 4, 128u << 10, RIG_NEVER_NS, 0};
	const struct relay_ring_options relay_options = {.fd = 0, .capacity = 1};
	struct stream *stream, *other;
	struct core *core;
	struct ring *none;
	const int fd = 0;

	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_relay_stream(core, &stream), 0);
	CHECK_EQ(rig__add_stream(core, 1u << 20, 0, false, &other), 0);
	CHECK_EQ(rig__add_relay_ring(core, 0, other, &relay_options, &none), -EINVAL);
	CHECK_EQ(rig__prepare_records(core, stream, 1, 0, 0, 1, 0), -EINVAL);
	CHECK_EQ(rig__prepare_files(core, other, 1, &fd, 1, 1), -EINVAL);
	core__free(core);
}

static void add_pipe(struct core *core, struct stream *stream, int fds[2], struct ring **added)
{
	struct relay_ring_options options = {.contents = RELAY_BLKTRACE, .capacity = CAPACITY_BYTES};

	CHECK_EQ(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
	options.fd = fds[0];
	CHECK_EQ(rig__add_relay_ring(core, 0, stream, &options, added), 0);
}

static void give_record(int fd, uint32_t number)
{
	const uint32_t size = blk_record__put(bytes, number, number, 0);

	CHECK_EQ(write(fd, bytes, size), size);
}

static void flush(struct core *core, const struct stream *stream)
{
	const uint64_t generation = writer__issue(&core->writer);

	while (stream__written(stream, core->writer.generation) < generation)
		await_notice(core->events.fd);
}

/* A record of which only the beginning came is nowhere when its ring goes: it is counted. */
static void a_ring_that_leaves_counts_what_it_began(void)
{
	const struct core_options options = {1, 4, 128u << 10, RIG_NEVER_NS, 0};
	struct stream *stream;
	struct core *core;
	struct ring *added;
	int fds[2];

	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_relay_stream(core, &stream), 0);
	add_pipe(core, stream, fds, &added);
	CHECK_EQ(core__start(core), 0);
	give_record(fds[1], 1);
	blk_record__put(bytes, 2, 2, 0);
	CHECK_EQ(write(fds[1], bytes, 20), 20);
	CHECK_EQ(rig__tell(added, COMMAND_REMOVE), 0);
	CHECK_EQ(counter__read(&added->samples), 1);
	CHECK_EQ(counter__read(&relay_ring__of(added)->torn_bytes), 20);
	core__free(core);
	close(fds[0]);
	close(fds[1]);
}

/* One that came after the segment was prepared has a file in the next one only. */
static void a_ring_without_a_file_goes_on_in_the_next_segment(void)
{
	const struct core_options options = {1, 4, 128u << 10, RIG_NEVER_NS, 0};
	const int set[2][2] = {{output__file(), -1}, {output__file(), output__file()}};
	struct core_counters counters;
	struct stream *stream;
	struct core *core;
	struct ring *added[2];
	struct event *event;
	bool asked = false;
	int fds[2][2];

	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_relay_stream(core, &stream), 0);
	for (int i = 0; i < 2; i++)
		add_pipe(core, stream, fds[i], &added[i]);
	CHECK_EQ(rig__prepare_files(core, stream, 1, set[0], 2, RIG_LIMIT), 0);
	CHECK_EQ(core__start(core), 0);
	give_record(fds[0][1], 1);
	flush(core, stream);
	give_record(fds[1][1], 1);
	writer__issue(&core->writer);
	while (!asked) {
		event = core__event(core);
		asked = event != NULL && event->kind == EVENT_SPACE_WANTED;
		if (asked)
			CHECK_EQ(event->error, EXFULL);
		if (event == NULL)
			await_notice(core->events.fd);
		event__free(event);
	}
	CHECK_EQ(rig__prepare_files(core, stream, 2, set[1], 2, RIG_LIMIT), 0);
	flush(core, stream);
	CHECK_EQ(counter__read(&added[1]->stored), 1);
	CHECK_EQ(pread(set[1][1], bytes, sizeof(bytes), 0), BLK_HEADER_BYTES);
	core__read_counters(core, &counters);
	CHECK_EQ(counters.write_errors, 0);
	while ((event = core__event(core)) != NULL) {
		CHECK(event->kind != EVENT_WRITE_FAILED);
		event__free(event);
	}
	core__free(core);
	for (int i = 0; i < 2; i++) {
		close(fds[i][0]);
		close(fds[i][1]);
		close(set[1][i]);
	}
	close(set[0][0]);
}

/* The one chunk is not a ring's that has nothing to say. */
static void an_idle_ring_keeps_no_chunk(void)
{
	const struct core_options options = {1, 1, 128u << 10, RIG_NEVER_NS, 0};
	struct stream *idle, *busy;
	struct core *core;
	struct ring *added[2];
	struct core_counters counters;
	const int fd = output__file();
	int fds[2][2];

	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_relay_stream(core, &idle), 0);
	CHECK_EQ(rig__add_relay_stream(core, &busy), 0);
	add_pipe(core, idle, fds[0], &added[0]);
	add_pipe(core, busy, fds[1], &added[1]);
	CHECK_EQ(rig__prepare_files(core, busy, 1, (const int[]){-1, fd}, 2, RIG_LIMIT), 0);
	CHECK_EQ(core__start(core), 0);
	give_record(fds[1][1], 1);
	flush(core, busy);
	CHECK_EQ(counter__read(&added[1]->stored), 1);
	flush(core, idle);
	flush(core, busy);
	core__read_counters(core, &counters);
	CHECK_EQ(counters.chunks_free, 1);
	core__free(core);
	for (int i = 0; i < 2; i++) {
		close(fds[i][0]);
		close(fds[i][1]);
	}
	close(fd);
}

/* The ring's file of the running segment is `fd`. */
static void begin_file(struct stream *stream, int fd)
{
	segment__forget(&stream->current);
	stream->current = (struct segment){.open = true, .limit = RIG_LIMIT};
	CHECK_EQ(segment__set_places(&stream->current, 0, &(uint64_t){(uint64_t)fd}, 1), 0);
	relay_stream__ops.begin_ring(ring, &stream->current);
}

static void a_full_disk_loses_what_it_counts(void)
{
	const int full = output__full(), fd = output__file();
	struct item item = {.chunk = &chunk};
	struct event_ring told;
	struct stream *stream;
	static struct rig rig;
	uint64_t tried;

	rig__init(&rig, 0, 1, 1, RIG_NEVER_NS);
	stream = &rig.streams[0];
	begin_pipe(RELAY_BYTES);
	chunk__append(&chunk, &(struct span){.ring = ring, .samples = 10, .bytes = 10}, false);
	ring->in_flight = 20;
	CHECK_EQ(-relay_stream__ops.write(stream, &item, &tried), EXFULL);
	begin_file(stream, full);
	CHECK_EQ(-relay_stream__ops.write(stream, &item, &tried), ENOSPC);
	CHECK_EQ(counter__read(&relay->file.bytes), 0);
	begin_file(stream, fd);
	CHECK_EQ(relay_stream__ops.write(stream, &item, &tried), 1);
	CHECK_EQ(relay_stream__ops.write(stream, &item, &tried), 0);
	CHECK_EQ(counter__read(&relay->file.bytes), 10);
	stream->work = (struct work){0};
	output__limit(14);
	CHECK_EQ(-relay_stream__ops.write(stream, &item, &tried), EFBIG); /* after 4 bytes */
	output__limit(UINT64_MAX);
	CHECK_EQ(counter__read(&relay->file.bytes), 10);
	CHECK_EQ(counter__read(&ring->stored), 10);
	CHECK_EQ(lseek(fd, 0, SEEK_END), 10);
	relay_stream__ops.tell_ring(ring, &told);
	output__check_sums(chunk.data, 10, told.sums, told.sum_count);
	free(told.sums);
	end();
	rig__deinit(&rig);
	close(full);
	close(fd);
}

int main(void)
{
	RUN(a_walk_counts_numbers_and_notes);
	RUN(a_walk_ends_before_a_record_that_is_cut);
	RUN(a_walk_goes_over_the_end_of_the_numbers);
	RUN(a_walk_refuses_what_is_no_record);
	RUN(a_record_that_a_read_cut_is_put_together);
	RUN(the_first_number_is_one);
	RUN(a_torn_record_is_skipped_and_missed);
	RUN(what_never_becomes_a_record_is_passed_over);
	RUN(records_of_another_version_end_in_quarantine);
	RUN(unknown_bytes_are_counted_as_they_are);
	RUN(a_pass_stays_within_what_completed_sub_buffers_hold);
	RUN(a_part_is_read_a_generation_later);
	RUN(what_no_read_gave_is_skipped);
	RUN(a_channel_that_ends_is_read_to_its_end);
	RUN(a_chunk_ends_before_a_record_that_may_not_fit);
	RUN(every_record_is_in_a_file_once);
	RUN(a_successor_reads_on_where_the_note_says);
	RUN(a_read_is_announced);
	RUN(a_stream_takes_only_its_kind);
	RUN(a_ring_that_leaves_counts_what_it_began);
	RUN(a_ring_without_a_file_goes_on_in_the_next_segment);
	RUN(an_idle_ring_keeps_no_chunk);
	RUN(a_full_disk_loses_what_it_counts);
	return 0;
}
