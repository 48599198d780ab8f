/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/perf_event.h>
#include <string.h>

#include "check.h"
#include "chunk.h"
#include "fake_ring.h"
#include "records.h"
#include "ring.h"

#define CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)
#define GARBAGE_RINGS 3000

static struct guarded staging;
static struct chunk chunk;

static void empty_chunk(void)
{
	records__chunk(&chunk, staging.data);
}

static uint8_t record[65536];

static void write_sample(struct fake_ring *ring, uint16_t size, uint64_t serial)
{
	CHECK(fake_ring__write(ring, record, record__sample(record, size, serial, 1000 + serial)));
}

static void an_empty_ring_gives_nothing(void)
{
	struct fake_ring fake;
	struct ring *ring;

	fake_ring__init(&fake, 1);
	ring = fake_ring__open(&fake);
	empty_chunk();
	CHECK_EQ(ring__begin(ring), 0);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_EMPTY);
	CHECK_EQ(chunk.used, 0);
	CHECK_EQ(chunk.span_count, 0);
	fake_ring__deinit(&fake);
}

static void records_come_out_in_order_across_every_wrap(void)
{
	struct fake_ring fake;
	struct ring *ring;
	uint64_t serial = 0;

	fake_ring__init(&fake, 1);
	fake_ring__start_at(&fake, UINT64_MAX - 8191); /* positions wrap in the second round */
	ring = fake_ring__open(&fake);
	for (int pass = 0; pass < 600; pass++) {
		uint64_t taken = serial;

		empty_chunk();
		for (int i = 0; i < 3; i++)
			write_sample(&fake, (uint16_t)(24 + 8 * ((pass + i) % 90)), serial++);
		CHECK(ring__begin(ring) > 0);
		CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_EMPTY);
		for (uint32_t at = 0; at < chunk.used; at += walk__size(walk__load(chunk.data + at)))
			CHECK_EQ(record__check_sample(chunk.data + at), taken++);
		CHECK_EQ(taken, serial);
		CHECK_EQ(ring_map__tail(&fake.map), fake.head);
	}
	CHECK_EQ(counter__read(&ring->samples), serial);
	CHECK_EQ(ring->in_flight, serial);
	CHECK_EQ(counter__read(&ring->last_sample_ns), 999 + serial);
	fake_ring__deinit(&fake);
}

static void only_what_the_pass_saw_is_read(void)
{
	struct fake_ring fake;
	struct ring *ring;

	fake_ring__init(&fake, 1);
	ring = fake_ring__open(&fake);
	empty_chunk();
	write_sample(&fake, 24, 1);
	CHECK_EQ(ring__begin(ring), 24);
	write_sample(&fake, 24, 2);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_EMPTY);
	CHECK_EQ(chunk.used, 24);
	fake_ring__deinit(&fake);
}

/* A record that the chunk's end cuts goes whole to the next chunk, whatever is left of room. */
static void a_record_cut_by_the_chunks_end_moves_on(void)
{
	const uint32_t room_max = 512;

	for (uint32_t room = 0; room <= room_max; room += 8) {
		struct fake_ring fake;
		struct ring *ring;
		uint64_t serial = 0;

		fake_ring__init(&fake, 1);
		ring = fake_ring__open(&fake);
		for (int i = 0; i < 4; i++)
			write_sample(&fake, 128, (uint64_t)i);
		empty_chunk();
		chunk.used = CHUNK_BYTES - CHUNK_MARKER_BYTES - room;
		ring__begin(ring);
		CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES),
			 room >= 512 ? RING_EMPTY : RING_CHUNK_FULL);
		CHECK_EQ(chunk.used, CHUNK_BYTES - CHUNK_MARKER_BYTES - room + room / 128 * 128);
		CHECK_EQ(ring_map__tail(&fake.map), room / 128 * 128);
		serial = room / 128;
		empty_chunk();
		CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_EMPTY);
		for (uint32_t at = 0; at < chunk.used; at += 128)
			CHECK_EQ(record__check_sample(chunk.data + at), serial++);
		CHECK_EQ(serial, 4);
		CHECK_EQ(ring->fault, FAULT_NONE);
		CHECK_EQ(counter__read(&ring->samples), 4);
		fake_ring__deinit(&fake);
	}
}

static void largest_records_fill_one_chunk_each(void)
{
	struct fake_ring fake;
	struct ring *ring;
	uint64_t serial = 0;
	enum ring_take took;

	fake_ring__init(&fake, 64);
	ring = fake_ring__open(&fake);
	for (uint64_t i = 0; i < 3; i++)
		write_sample(&fake, 65528, i);
	ring__begin(ring);
	do {
		empty_chunk();
		took = ring->ops->take(ring, &chunk, CHUNK_BYTES);
		CHECK_EQ(chunk.used, 65528);
		CHECK_EQ(record__check_sample(chunk.data), serial++);
	} while (took == RING_CHUNK_FULL);
	CHECK_EQ(took, RING_EMPTY);
	CHECK_EQ(serial, 3);
	fake_ring__deinit(&fake);
}

/* Good samples, then `bytes` as they are. Whatever the fault, the good ones are kept, and those that
 * come behind. */
static enum fault fault_behind_two_samples(const void *bytes, size_t count)
{
	struct fake_ring fake;
	struct ring *ring;
	enum fault fault;

	fake_ring__init(&fake, 1);
	ring = fake_ring__open(&fake);
	write_sample(&fake, 24, 1);
	write_sample(&fake, 24, 2);
	fake_ring__poke(&fake, 48, bytes, count);
	fake_ring__set_head(&fake, 48 + count);
	empty_chunk();
	ring__begin(ring);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_FAULTY);
	fault = (enum fault)ring->last_fault;
	CHECK_EQ(counter__read(&ring->samples), 2);
	CHECK_EQ(chunk.used, 48);
	CHECK_EQ(ring_map__tail(&fake.map), 48 + count);
	CHECK_EQ(counter__read(&ring->faults), 1);
	CHECK_EQ(counter__read(&ring->quarantined_bytes), count);
	CHECK_EQ(ring->fault, FAULT_NONE);
	write_sample(&fake, 24, 3);
	CHECK_EQ(ring__begin(ring), 24);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_EMPTY);
	CHECK_EQ(record__check_sample(chunk.data + 48), 3);
	fake_ring__deinit(&fake);
	return fault;
}

static void behind_each_fault_the_ring_goes_on(void)
{
	const uint64_t bad_size[] = {UINT64_C(0x0007000000000009), 0};
	const uint64_t bad_type[] = {UINT64_C(0x0010000000000000), 0};
	const uint64_t past_head[] = {UINT64_C(0x0018000000000009), 0};

	CHECK_EQ(fault_behind_two_samples(bad_size, 16), WALK_BAD_SIZE);
	CHECK_EQ(fault_behind_two_samples(bad_type, 16), WALK_BAD_TYPE);
	CHECK_EQ(fault_behind_two_samples(past_head, 16), WALK_PAST_HEAD);
}

/* Garbage, and `ns` before the next. */
static void fault_once(struct fake_ring *fake, struct ring *ring, uint64_t ns)
{
	const uint64_t zero = 0;

	fake_ring__poke(fake, fake->head, &zero, 8);
	fake_ring__set_head(fake, fake->head + 8);
	empty_chunk();
	CHECK_EQ(ring__begin(ring), 8);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_FAULTY);
	ring->faults_since_ns -= ns;
}

static void faults_that_come_again_and_again_are_the_end(void)
{
	struct fake_ring fake;
	struct ring *ring;

	fake_ring__init(&fake, 1);
	ring = fake_ring__open(&fake);
	for (uint32_t i = 0; i < RING_FAULTS_MAX; i++) {
		CHECK_EQ(ring->fault, FAULT_NONE);
		fault_once(&fake, ring, 0);
	}
	CHECK_EQ(ring->fault, WALK_BAD_SIZE);
	CHECK_EQ(counter__read(&ring->faults), RING_FAULTS_MAX);
	/* In quarantine it is not read any more. */
	write_sample(&fake, 24, 1);
	CHECK_EQ(ring__begin(ring), 0);
	CHECK_EQ(ring_map__tail(&fake.map), 8 * RING_FAULTS_MAX);
	fake_ring__deinit(&fake);
}

static void faults_that_are_far_apart_are_not(void)
{
	struct fake_ring fake;
	struct ring *ring;

	fake_ring__init(&fake, 1);
	ring = fake_ring__open(&fake);
	for (uint32_t i = 0; i < 4 * RING_FAULTS_MAX; i++)
		fault_once(&fake, ring, RING_FAULTS_NS / (RING_FAULTS_MAX - 1));
	CHECK_EQ(ring->fault, FAULT_NONE);
	CHECK_EQ(counter__read(&ring->faults), 4 * RING_FAULTS_MAX);
	fake_ring__deinit(&fake);
}

/* The size of the cut record tells that it would end behind the head, not the chunk alone. */
static void past_head_is_seen_at_the_chunks_end_too(void)
{
	struct fake_ring fake;
	struct ring *ring;
	const uint64_t header = UINT64_C(0x1000000000000009);

	fake_ring__init(&fake, 1);
	ring = fake_ring__open(&fake);
	fake_ring__poke(&fake, 0, &header, 8);
	fake_ring__set_head(&fake, 64);
	empty_chunk();
	chunk.used = CHUNK_BYTES - CHUNK_MARKER_BYTES - 16;
	ring__begin(ring);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_FAULTY);
	CHECK_EQ(ring->last_fault, WALK_PAST_HEAD);
	fake_ring__deinit(&fake);
}

static void heads_that_no_kernel_sets_are_seen(void)
{
	static const uint64_t heads[] = {4104, UINT64_MAX - 7, 4, 4095, UINT64_C(1) << 63};

	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
		struct fake_ring fake;
		struct ring *ring;

		fake_ring__init(&fake, 1);
		ring = fake_ring__open(&fake);
		fake_ring__set_head(&fake, heads[i]);
		CHECK_EQ(ring__begin(ring), 0);
		CHECK_EQ(ring->last_fault, WALK_BAD_HEAD);
		CHECK(counter__read(&ring->quarantined_bytes) <= 4096);
		CHECK_EQ(ring_map__tail(&fake.map), heads[i]);
		/* The kernel sets a good one again: what comes from there on is read. */
		fake_ring__set_head(&fake, 0);
		empty_chunk();
		if (ring__begin(ring) > 0) /* it looks like one that went on by eight bytes */
			CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_FAULTY);
		write_sample(&fake, 24, 1);
		CHECK_EQ(ring__begin(ring), 24);
		fake_ring__deinit(&fake);
	}
}

static void a_predecessors_tail_is_where_it_goes_on(void)
{
	struct fake_ring fake;
	struct ring *ring;

	fake_ring__init(&fake, 1);
	write_sample(&fake, 24, 1);
	write_sample(&fake, 24, 2);
	ring_map__publish_tail(&fake.map, 24);
	ring = fake_ring__open(&fake);
	empty_chunk();
	CHECK_EQ(ring__begin(ring), 24);
	CHECK_EQ(ring->ops->take(ring, &chunk, CHUNK_BYTES), RING_EMPTY);
	CHECK_EQ(record__check_sample(chunk.data), 2);
	fake_ring__deinit(&fake);
}

static void fill_is_counted_by_upper_bounds(void)
{
	/* Bytes of 4096 and the bucket they belong to: 0.1 .. 0.9, 0.95, 1.0. */
	static const struct {
		uint16_t bytes;
		uint32_t bucket;
	} cases[] = {{24, 0},	{408, 0},  {416, 1},   {3680, 8},
		     {3688, 9}, {3888, 9}, {3896, 10}, {4088, 10}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fake_ring fake;
		struct ring *ring;

		fake_ring__init(&fake, 1);
		ring = fake_ring__open(&fake);
		write_sample(&fake, cases[i].bytes, 1);
		ring__begin(ring);
		for (uint32_t b = 0; b < RING_FILL_BUCKETS; b++)
			CHECK_EQ(counter__read(&ring->fill[b]), b == cases[i].bucket);
		CHECK_EQ(counter__read(&ring->high_watermark_bytes), cases[i].bytes);
		fake_ring__deinit(&fake);
	}
}

/* 16 pages of noise, with a head that is plausible or not: a reason, an end, nothing outside. */
static void garbage_is_passed_over(void)
{
	uint64_t state = 88172645463325252u;
	uint32_t faults[WALK_BAD_HEAD + 1] = {0};
	struct fake_ring fake;

	fake_ring__init(&fake, 16);
	for (int n = 0; n < GARBAGE_RINGS; n++) {
		struct ring *ring;
		uint64_t taken = 0, heads, calls = 0, unread;
		enum ring_take took = RING_EMPTY;

		for (uint64_t at = 0; at < fake.map.data_bytes; at += 8) {
			uint64_t word = random__next(&state);

			/* Two thirds hold headers that look right, so that the walk goes on: to a
			 * type 0 in the one, to the head in the other. */
			if (n % 3 > 0 && at % 64 == 0)
				word = walk__header((uint32_t)(word >> 32) % 25 + (uint32_t)n % 3 - 1,
						    0, (uint16_t)(64 + word % 2 * 64));
			fake_ring__poke(&fake, at, &word, 8);
		}
		heads = n % 8 == 0 ? random__next(&state) : random__next(&state) % 65536 & ~7u;
		fake_ring__start_at(&fake, random__next(&state) & ~7u);
		fake_ring__set_head(&fake, fake.head + heads);
		ring = fake_ring__open(&fake);
		unread = ring__begin(ring);
		while (unread > 0) {
			empty_chunk();
			took = ring->ops->take(ring, &chunk, CHUNK_BYTES);
			taken += chunk.used;
			CHECK(++calls <= 2);
			if (took != RING_CHUNK_FULL)
				break;
		}
		CHECK(ring->last_fault != FAULT_NONE || taken == unread);
		CHECK_EQ(counter__read(&ring->bytes), taken);
		if (unread > 0)
			CHECK_EQ(taken + counter__read(&ring->quarantined_bytes), unread);
		CHECK_EQ(ring_map__tail(&fake.map), fake.head);
		faults[ring->last_fault]++;
	}
	for (int fault = WALK_BAD_SIZE; fault <= WALK_BAD_HEAD; fault++)
		CHECK(faults[fault] > 10);
	fake_ring__deinit(&fake);
}

int main(void)
{
	guarded__init(&staging, CHUNK_BYTES, -1);
	RUN(an_empty_ring_gives_nothing);
	RUN(records_come_out_in_order_across_every_wrap);
	RUN(only_what_the_pass_saw_is_read);
	RUN(a_record_cut_by_the_chunks_end_moves_on);
	RUN(largest_records_fill_one_chunk_each);
	RUN(behind_each_fault_the_ring_goes_on);
	RUN(faults_that_come_again_and_again_are_the_end);
	RUN(faults_that_are_far_apart_are_not);
	RUN(past_head_is_seen_at_the_chunks_end_too);
	RUN(heads_that_no_kernel_sets_are_seen);
	RUN(a_predecessors_tail_is_where_it_goes_on);
	RUN(fill_is_counted_by_upper_bounds);
	RUN(garbage_is_passed_over);
	guarded__deinit(&staging);
	return 0;
}
