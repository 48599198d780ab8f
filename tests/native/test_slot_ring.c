/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "fake_slots.h"
#include "fake_ring.h"
#include "guarded.h"
#include "records.h"

#define CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)
#define CPU 1u
#define KINDS 3u
#define TIME_OFFSET 32u

/* Of data that fills a slot, that fills two in part, and of the longest. */
static const uint16_t kind_bytes[KINDS + 1] = {0, SLOT_FIRST_BYTES, 28, SLOT_DATA_MAX};

static struct fake_slots fake;
static struct ring *ring;
static struct guarded staging;
static struct chunk chunk;
static uint64_t number;	  /* of the last record that was written */
static uint64_t produced; /* and all that were begun */

static uint32_t kind_of(uint64_t of)
{
	return of % 11 == 0 ? 3 : of % 3 == 0 ? 2 : 1;
}

/* Data that follow from the number: the thread, and then bytes. */
static void fill(uint8_t *data, uint64_t of)
{
	const uint32_t task = (uint32_t)of + 7;

	memset(data, (int)(of % 251), SLOT_DATA_MAX);
	memcpy(data, &of, sizeof(of));
	memcpy(data + 8, &task, sizeof(task));
}

static void open_ring(uint32_t slots)
{
	struct slot_kind kinds[KINDS];
	const struct slot_ring_options options = {
		.map = &fake.map,
		.cpu = CPU,
		.layout = {.time_offset = TIME_OFFSET},
		.kinds = kinds,
		.kind_count = KINDS,
	};

	fake_slots__init(&fake, 2, slots);
	for (uint32_t i = 0; i < KINDS; i++)
		kinds[i] = (struct slot_kind){100 + i, kind_bytes[i + 1], 8};
	kinds[2].task_at = SLOT_NO_TASK;
	CHECK_EQ(slot_ring__new(&options, &ring), 0);
	number = produced = 0;
}

static void close_ring(void)
{
	ring->ops->free(ring);
	fake_slots__deinit(&fake);
}

static struct fake_record reserve(void)
{
	struct fake_record record;

	CHECK(fake_slots__reserve(&fake, CPU, kind_of(produced + 1),
				  kind_bytes[kind_of(produced + 1)], &record));
	CHECK_EQ(record.number, ++produced);
	return record;
}

static void finish(const struct fake_record *record)
{
	uint8_t data[SLOT_DATA_MAX];

	fill(data, record->number);
	fake_record__write(record, 1000 + record->number, data);
	number = record->number;
}

static void put(void)
{
	const struct fake_record record = reserve();

	finish(&record);
}

/* Check a sample; returns its number. */
static uint64_t check_sample(const uint8_t *sample)
{
	uint8_t data[SLOT_DATA_MAX];
	uint32_t words[8], raw;
	uint64_t of, time_ns;
	uint32_t kind;

	memcpy(&of, sample + 52, sizeof(of));
	kind = kind_of(of);
	fill(data, of);
	CHECK_EQ(walk__load(sample),
		 walk__header(PERF_RECORD_SAMPLE, 0, (uint16_t)((52 + kind_bytes[kind] + 7) & ~7)));
	CHECK_EQ(walk__load(sample + 8), 99 + kind);
	memcpy(words, sample + 16, sizeof(words));
	memcpy(&time_ns, sample + TIME_OFFSET, sizeof(time_ns));
	CHECK_EQ(words[2], UINT32_MAX);
	CHECK_EQ(words[3], kind == 3 ? UINT32_MAX : (uint32_t)of + 7);
	CHECK_EQ(words[6], CPU);
	CHECK_EQ(time_ns, 1000 + of);
	memcpy(&raw, sample + 48, sizeof(raw));
	CHECK_EQ(raw, walk__size(walk__load(sample)) - 52u);
	CHECK_EQ(memcmp(sample + 52, data, kind_bytes[kind]), 0);
	return of;
}

/* Take a window, all of it; returns how many records. Their numbers rise. */
static uint64_t take_all(uint64_t *first, uint64_t *last)
{
	uint64_t found = 0;
	enum ring_take took;

	*first = *last = 0;
	ring->ops->hold(ring, false);
	do {
		records__chunk(&chunk, staging.data);
		do
			took = ring->ops->take(ring, &chunk, CHUNK_BYTES);
		while (took == RING_MORE);
		for (uint32_t at = 0; at < chunk.used;
		     at += walk__size(walk__load(chunk.data + at))) {
			const uint64_t of = check_sample(chunk.data + at);

			CHECK(of > *last);
			*first = found == 0 ? of : *first;
			*last = of;
			found++;
		}
	} while (took == RING_CHUNK_FULL);
	CHECK_EQ(took, RING_EMPTY);
	CHECK_EQ(ring->head, ring->position);
	return found;
}

static uint64_t taken(void)
{
	return counter__read(&slot_ring__of(ring)->window.taken);
}

static uint64_t torn(void)
{
	return counter__read(&perf_ring__of(ring)->lost_samples);
}

static uint64_t overwritten(void)
{
	return counter__read(&perf_ring__of(ring)->overwritten_samples);
}

/* What became of each record up to the last one that is known. */
static void check_balance(uint64_t known)
{
	CHECK_EQ(taken() + torn() + overwritten(), known);
}

static void an_empty_ring_has_an_empty_window(void)
{
	uint64_t first, last;

	open_ring(64);
	CHECK_EQ(take_all(&first, &last), 0);
	check_balance(0);
	close_ring();
}

static void records_come_out_as_samples_once(void)
{
	uint64_t first, last, before = 0;

	open_ring(1024);
	for (int window = 0; window < 40; window++) {
		for (int i = 0; i < 100; i++)
			put();
		CHECK_EQ(take_all(&first, &last), 100);
		CHECK_EQ(first, before + 1);
		CHECK_EQ(last, number);
		before = last;
	}
	CHECK_EQ(torn() + overwritten(), 0);
	check_balance(number);
	CHECK_EQ(counter__read(&ring->samples), number);
	close_ring();
}

static void the_oldest_are_overwritten_and_counted(void)
{
	uint64_t first, last;

	open_ring(64);
	for (int window = 0; window < 50; window++) {
		for (int i = 0; i < 20 * window; i++)
			put();
		(void)take_all(&first, &last);
		check_balance(number);
		CHECK_EQ(torn(), 0);
	}
	CHECK(overwritten() > 0 && taken() > 0);
	close_ring();
}

static void numbers_are_known_beyond_their_bits(void)
{
	uint64_t first, last;

	open_ring(64);
	fake.heads[CPU].records = produced = (UINT64_C(5) << SLOT_NUMBER_BITS) - 8;
	for (int i = 0; i < 16; i++)
		put();
	CHECK_EQ(take_all(&first, &last), 16);
	CHECK_EQ(first, (UINT64_C(5) << SLOT_NUMBER_BITS) - 7);
	CHECK_EQ(last, first + 15);
	check_balance(number);
	close_ring();
}

/* Each slot of a record that is in the midst of others may be unmarked, or still be what it was in the
 * turn before. */
static void what_is_written_just_then_is_torn(void)
{
	for (int opened = 0; opened < 2; opened++)
		for (int turns = 0; turns < 3; turns++) {
			uint64_t first, last;
			struct fake_record record;

			open_ring(256);
			for (int i = 0; i < turns * 200; i++)
				put();
			while (kind_of(produced + 1) != 3)
				put();
			record = reserve();
			for (uint32_t part = 0; opened == 1 && part < 3; part++)
				fake_record__open(&record, part);
			put();
			put();
			(void)take_all(&first, &last);
			CHECK_EQ(last, record.number + 2);
			CHECK_EQ(torn(), 1);
			check_balance(number);
			/* Its end comes too late. */
			finish(&record);
			put();
			CHECK_EQ(take_all(&first, &last), 1);
			CHECK_EQ(torn(), 1);
			check_balance(number);
			close_ring();
		}
}

static void what_is_written_last_is_left_to_the_next_window(void)
{
	uint64_t first, last;
	struct fake_record record;

	open_ring(64);
	for (int i = 0; i < 500; i++)
		put();
	record = reserve();
	fake_record__open(&record, 0);
	(void)take_all(&first, &last);
	CHECK_EQ(last, 500);
	check_balance(500);
	finish(&record);
	CHECK_EQ(take_all(&first, &last), 1);
	CHECK_EQ(last, 501);
	CHECK_EQ(torn(), 0);
	check_balance(501);
	close_ring();
}

static void records_are_missed_while_one_takes_its_slots(void)
{
	struct fake_record record;
	uint64_t records, missed;

	open_ring(64);
	put();
	fake.heads[CPU].busy = 1;
	CHECK(!fake_slots__reserve(&fake, CPU, 1, kind_bytes[1], &record));
	fake.heads[CPU].busy = 0;
	slot_map__read(&fake.map, CPU, &records, &missed);
	CHECK_EQ(records, 1);
	CHECK_EQ(missed, 1);
	close_ring();
}

static void a_head_that_went_back_is_refused(void)
{
	uint64_t first, last;

	open_ring(64);
	for (int i = 0; i < 20; i++)
		put();
	(void)take_all(&first, &last);
	fake.heads[CPU].slots = 3;
	CHECK_EQ(take_all(&first, &last), 0);
	CHECK_EQ(counter__read(&ring->faults), 1);
	close_ring();
}

static void a_ring_knows_how_far_back_it_reaches(void)
{
	struct slot_ring *own;
	uint8_t data[SLOT_DATA_MAX] = {0};
	uint64_t now_ns;

	open_ring(64);
	own = slot_ring__of(ring);
	ring->swept = true;
	ring__begin(ring);
	CHECK_EQ(counter__read(&own->window.held_ns), 0);
	CHECK(counter__read(&ring->horizon_ns) > 0);
	now_ns = clock__now_ns();
	for (int i = 0; i < 200; i++) {
		struct fake_record record;

		CHECK(fake_slots__reserve(&fake, CPU, 1, kind_bytes[1], &record));
		fake_record__write(&record, now_ns + (uint64_t)i * 1000, data);
	}
	ring__begin(ring);
	CHECK(counter__read(&ring->horizon_ns) <= now_ns + 136000);
	CHECK_EQ(counter__read(&ring->used_bytes), 64 * sizeof(struct slot));
	close_ring();
}

static void what_is_not_delivered_is_abandoned(void)
{
	open_ring(1024);
	for (int i = 0; i < 50; i++)
		put();
	ring->ops->hold(ring, false);
	ring->ops->leave(ring, false);
	CHECK_EQ(counter__read(&ring->abandoned), 50);
	close_ring();
}

static void invalid_options_are_refused(void)
{
	struct slot_kind kind = {1, SLOT_DATA_MAX + 1, SLOT_NO_TASK};
	struct slot_ring_options options = {.cpu = 2, .kinds = &kind, .kind_count = 1};
	struct slot_map map;

	fake_slots__init(&fake, 2, 64);
	options.map = &fake.map;
	CHECK_EQ(slot_ring__new(&options, &ring), -EINVAL);
	options.cpu = 0;
	CHECK_EQ(slot_ring__new(&options, &ring), -EINVAL);
	kind = (struct slot_kind){1, 12, 9};
	CHECK_EQ(slot_ring__new(&options, &ring), -EINVAL);
	CHECK_EQ(slot_map__init(&map, -1, -1, 2, 63), -EINVAL);
	CHECK_EQ(slot_map__init(&map, -1, -1, 2, 64), -EBADF);
	fake_slots__deinit(&fake);
}

#define RACED 2000000u

static void *race(void *unused)
{
	(void)unused;
	for (uint32_t i = 0; i < RACED; i++)
		put();
	return NULL;
}

/* The writer overwrites what is copied, again and again. */
static void windows_of_a_running_writer_have_whole_records(void)
{
	uint64_t first, last, windows = 0;
	pthread_t thread;

	open_ring(32);
	CHECK_EQ(pthread_create(&thread, NULL, race, NULL), 0);
	do {
		(void)take_all(&first, &last);
		windows++;
		check_balance(slot_ring__of(ring)->known);
	} while (__atomic_load_n(&fake.heads[CPU].records, __ATOMIC_ACQUIRE) < RACED);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	(void)take_all(&first, &last);
	CHECK_EQ(slot_ring__of(ring)->known, RACED);
	check_balance(RACED);
	CHECK(windows > 1);
	close_ring();
}

int main(void)
{
	guarded__init(&staging, CHUNK_BYTES, -1);
	RUN(an_empty_ring_has_an_empty_window);
	RUN(records_come_out_as_samples_once);
	RUN(the_oldest_are_overwritten_and_counted);
	RUN(numbers_are_known_beyond_their_bits);
	RUN(what_is_written_just_then_is_torn);
	RUN(what_is_written_last_is_left_to_the_next_window);
	RUN(records_are_missed_while_one_takes_its_slots);
	RUN(a_head_that_went_back_is_refused);
	RUN(a_ring_knows_how_far_back_it_reaches);
	RUN(what_is_not_delivered_is_abandoned);
	RUN(invalid_options_are_refused);
	RUN(windows_of_a_running_writer_have_whole_records);
	guarded__deinit(&staging);
	return 0;
}
