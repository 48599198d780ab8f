/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/perf_event.h>
#include <string.h>

#include "check.h"
#include "guarded.h"
#include "records.h"
#include "walk.h"

static struct guarded memory;

/* The last `bytes` bytes before the guard page. */
static uint8_t *at_end(size_t bytes)
{
	return memory.data + memory.bytes - bytes;
}

static size_t run(uint8_t *data, size_t bytes, struct walk_tally *tally, enum fault *fault)
{
	memset(tally, 0, sizeof(*tally));
	return walk__run(data, bytes, &records__layout, tally, fault);
}

static void whole_records_are_counted_by_type(void)
{
	uint8_t *const data = memory.data;
	struct walk_tally tally;
	enum fault fault;
	size_t bytes = 0;

	bytes += record__sample(data + bytes, 24, 1, 500);
	bytes += record__sample(data + bytes, 4096, 2, 300);
	bytes += record__lost(data + bytes, 7, 1);
	bytes += record__lost(data + bytes, 5, 1);
	bytes += record__lost_samples(data + bytes, 3, 1);
	bytes += record__plain(data + bytes, PERF_RECORD_THROTTLE, 32);
	bytes += record__plain(data + bytes, PERF_RECORD_UNTHROTTLE, 32);
	bytes += record__comm(data + bytes, 1, 1, "init", 0, 9);
	CHECK_EQ(run(data, bytes, &tally, &fault), bytes);
	CHECK_EQ(fault, FAULT_NONE);
	CHECK_EQ(tally.records, 8);
	CHECK_EQ(tally.samples, 2);
	CHECK_EQ(tally.lost_records, 12);
	CHECK_EQ(tally.lost_samples, 3);
	CHECK_EQ(tally.throttles, 1);
	CHECK_EQ(tally.neutralised, 0);
	CHECK_EQ(tally.first_ns, 300);
	CHECK_EQ(tally.last_ns, 500);
}

static void the_largest_record_is_taken(void)
{
	struct walk_tally tally;
	enum fault fault;
	uint8_t *const data = at_end(65528);

	record__sample(data, 65528, 1, 1);
	CHECK_EQ(run(data, 65528, &tally, &fault), 65528);
	CHECK_EQ(tally.samples, 1);
}

static void a_record_cut_anywhere_is_left_and_is_no_fault(void)
{
	for (size_t bytes = 0; bytes < 64; bytes++) {
		uint8_t *const data = at_end(bytes);
		uint8_t record[64];
		struct walk_tally tally;
		enum fault fault;

		record__sample(record, 64, 1, 1);
		memcpy(data, record, bytes);
		CHECK_EQ(run(data, bytes, &tally, &fault), 0);
		CHECK_EQ(fault, FAULT_NONE);
		CHECK_EQ(tally.records, 0);
	}
}

static void faults_end_the_walk_behind_the_last_good_record(void)
{
	static const struct {
		uint64_t header;
		enum fault fault;
	} bad[] = {
		{0, WALK_BAD_SIZE}, /* zeroes: what an unwritten ring holds */
		{UINT64_C(0x0000000000000009), WALK_BAD_SIZE},
		{UINT64_C(0x0004000000000009), WALK_BAD_SIZE},
		{UINT64_C(0x0007000000000009), WALK_BAD_SIZE},
		{UINT64_C(0x0009000000000009), WALK_BAD_SIZE},
		{UINT64_C(0xffff000000000009), WALK_BAD_SIZE},
		{UINT64_C(0x0010000000000000), WALK_BAD_TYPE},
		{UINT64_C(0x0010000000000040), WALK_BAD_TYPE}, /* 64: the first user type */
		{UINT64_C(0x0008000000000044), WALK_BAD_TYPE}, /* 68: a round is the sink's */
		{UINT64_C(0x0010000080000009), WALK_BAD_TYPE},
		{UINT64_MAX, WALK_BAD_SIZE},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint8_t *const data = at_end(40);
		struct walk_tally tally;
		enum fault fault;

		record__sample(data, 24, 1, 1);
		walk__store(data + 24, bad[i].header);
		walk__store(data + 32, 0);
		CHECK_EQ(run(data, 40, &tally, &fault), 24);
		CHECK_EQ(fault, bad[i].fault);
		CHECK_EQ(tally.samples, 1);
	}
}

static void types_that_readers_do_not_know_become_padding(void)
{
	for (uint32_t type = 1; type < WALK_USER_TYPE_MIN; type++) {
		uint8_t *const data = at_end(16);
		struct walk_tally tally;
		enum fault fault;
		const int known = type <= WALK_KERNEL_TYPE_MAX;

		walk__store(data, walk__header(type, 0x0321, 16));
		walk__store(data + 8, 0);
		CHECK_EQ(run(data, 16, &tally, &fault), 16);
		CHECK_EQ(tally.records, 1);
		CHECK_EQ(tally.neutralised, known ? 0 : 1);
		CHECK_EQ(walk__load(data), known ? walk__header(type, 0x0321, 16)
						 : walk__header(WALK_FINISHED_INIT, 0, 16));
	}
}

/* Another listener asked for build-ids: the kernel leaves its bit in our header, not its bytes. */
static void a_mapping_has_no_build_id_that_was_not_asked_for(void)
{
	const uint64_t stray = (uint64_t)PERF_RECORD_MISC_MMAP_BUILD_ID << 32;
	uint8_t *const data = memory.data;
	uint8_t expected[256];
	struct walk_tally tally;
	enum fault fault;
	const uint16_t size = record__mmap2(data, 1, 0x1000, 0x1000, "/bin/true", 9);

	walk__store(data + 40, (uint64_t)3 << 32 | 8); /* minor, major */
	memcpy(expected, data, size);
	walk__store(data, walk__load(data) | stray);
	CHECK_EQ(run(data, size, &tally, &fault), size);
	CHECK_EQ(memcmp(data, expected, size), 0);
	CHECK_EQ(tally.neutralised, 0);
}

static void foreign_ids_become_the_lowest_own_one(void)
{
	static const struct walk_id own[] = {{5, 5}, {7, 7}, {9, 9}};
	static const uint64_t carried[] = {7, 7, 6, 6, 9, 10, 5, 1, 7};
	static const uint64_t expected[] = {7, 7, 5, 5, 9, 5, 5, 5, 7};
	const struct walk_ids ids = {own, 3, false};
	const struct walk_layout layout = {.ids = &ids};
	struct walk_tally tally = {0};
	enum fault fault;
	uint8_t data[16 * 9];

	for (uint32_t i = 0; i < 9; i++) {
		walk__store(data + 16 * i, walk__header(PERF_RECORD_SAMPLE, 0, 16));
		walk__store(data + 16 * i + WALK_ID_AT, carried[i]);
	}
	CHECK_EQ(walk__run(data, sizeof(data), &layout, &tally, &fault), sizeof(data));
	for (uint32_t i = 0; i < 9; i++)
		CHECK_EQ(walk__load(data + 16 * i + WALK_ID_AT), expected[i]);
	CHECK_EQ(tally.relabelled, 4);
	CHECK_EQ(tally.samples, 9);

	/* A sample without room for an id, and a ring without ids, are left as they are. */
	tally = (struct walk_tally){0};
	walk__store(data, walk__header(PERF_RECORD_SAMPLE, 0, 8));
	CHECK_EQ(walk__run(data, 8, &layout, &tally, &fault), 8);
	CHECK_EQ(tally.relabelled, 0);
}

/* Events that were opened anew keep the ids that the file names. The time precedes the id. */
static void samples_get_the_ids_that_files_know(void)
{
	/* The second one was not opened anew. An id of the kernel may be that of a file elsewhere. */
	static const struct walk_id own[] = {{21, 5}, {22, 22}, {40, 21}};
	static const uint64_t carried[] = {21, 22, 40, 21, 22, 40, 39, 5};
	static const uint64_t expected[] = {5, 22, 21, 5, 22, 21, 5, 5};
	const struct walk_ids ids = {own, 3, true};
	const struct walk_layout layout = {.time_offset = 16, .time_trailer = 16, .ids = &ids};
	struct walk_tally tally = {0};
	enum fault fault;
	uint8_t data[24 * 8];

	for (uint32_t i = 0; i < 8; i++)
		record__sample(data + 24 * i, 24, carried[i], 100 + i);
	CHECK_EQ(walk__run(data, sizeof(data), &layout, &tally, &fault), sizeof(data));
	for (uint32_t i = 0; i < 8; i++) {
		CHECK_EQ(walk__load(data + 24 * i + WALK_ID_AT), expected[i]);
		CHECK_EQ(record__sample_time(data + 24 * i), 100 + i);
	}
	CHECK_EQ(tally.samples, 8);
	CHECK_EQ(tally.relabelled, 2);
	CHECK_EQ(tally.first_ns, 100);
	CHECK_EQ(tally.last_ns, 107);
}

static void other_records_get_the_ids_that_files_know(void)
{
	static const struct walk_id own[] = {{21, 5}, {22, 6}};
	static const struct {
		uint32_t type;
		uint16_t ids; /* how many there are in the body */
		uint16_t at;  /* of the first */
	} kinds[] = {
		{PERF_RECORD_LOST, 1, 8},	 {PERF_RECORD_THROTTLE, 2, 16},
		{PERF_RECORD_UNTHROTTLE, 2, 16}, {PERF_RECORD_COMM, 0, 0},
		{PERF_RECORD_AUX, 0, 0},
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		for (uint64_t place = 0; place < 3; place++) {
			const struct walk_ids ids = {own, 2, place != 2};
			/* {u64 time, u64 cpu, u64 id} */
			const struct walk_layout layout = {.time_trailer = 24, .ids = &ids};
			/* All other words are equal to an own id, and stay. */
			const uint64_t carried = place == 2 ? 21 : 21 + place;
			const uint64_t expected = place == 2 ? 21 : 5 + place;
			struct walk_tally tally = {0};
			uint8_t data[64], before[64];
			enum fault fault;

			record__plain(data, kinds[i].type, sizeof(data));
			for (size_t at = 8; at < sizeof(data); at += 8)
				walk__store(data + at, 21);
			for (uint16_t id = 0; id < kinds[i].ids; id++)
				walk__store(data + kinds[i].at + 8 * id, carried);
			walk__store(data + sizeof(data) - 8, carried);
			memcpy(before, data, sizeof(data));
			for (uint16_t id = 0; id < kinds[i].ids; id++)
				walk__store(before + kinds[i].at + 8 * id, expected);
			walk__store(before + sizeof(before) - 8, expected);
			CHECK_EQ(walk__run(data, sizeof(data), &layout, &tally, &fault),
				 sizeof(data));
			CHECK_EQ(memcmp(data, before, sizeof(data)), 0);
			CHECK_EQ(tally.records, 1);
		}
	}
}

/* A body that ends before an id, and a record without a trailer, have none to be set. */
static void ids_outside_of_a_record_are_not_set(void)
{
	static const struct walk_id own[] = {{21, 5}};
	static const struct walk_ids ids = {own, 1, true};
	static const uint32_t types[] = {PERF_RECORD_LOST, PERF_RECORD_THROTTLE,
					 PERF_RECORD_UNTHROTTLE, PERF_RECORD_COMM};
	const struct walk_layout timed = {.time_trailer = 24, .ids = &ids};
	const struct walk_layout untimed = {.ids = &ids};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		for (uint16_t size = 8; size <= 24; size += 8) {
			uint8_t *const data = at_end(size);
			struct walk_tally tally = {0};
			enum fault fault;

			record__plain(data, types[i], size);
			for (uint16_t at = 8; at < size; at += 8)
				walk__store(data + at, 21);
			CHECK_EQ(walk__run(data, size, &timed, &tally, &fault), size);
			for (uint16_t at = 8; at < size; at += 8) {
				const bool whole = types[i] == PERF_RECORD_LOST && size == 24;

				CHECK_EQ(walk__load(data + at), whole && at == 8 ? 5 : 21);
			}
		}
	}
	{
		uint8_t *const data = at_end(40);
		struct walk_tally tally = {0};
		enum fault fault;

		record__plain(data, PERF_RECORD_COMM, 40);
		walk__store(data + 32, 21);
		CHECK_EQ(walk__run(data, 40, &untimed, &tally, &fault), 40);
		CHECK_EQ(walk__load(data + 32), 21);
	}
}

/* Whatever comes between them, and wherever the copy ends: own ids in any number and order. */
static void samples_of_many_events_are_counted_and_relabelled(void)
{
	/* Those that leave the same rest by any small number come after each other. */
	static const struct walk_id own[] = {{1, 1},	   {2, 2},
					     {17, 17},	   {33, 33},
					     {49, 49},	   {50, 50},
					     {1025, 1025}, {UINT64_MAX, UINT64_MAX}};
	static const struct walk_id anew[] = {{1, 1},	{2, 10},  {17, 17},	{33, 1},
					      {49, 11}, {50, 12}, {1025, 1025}, {UINT64_MAX, 13}};
	static uint8_t copy[65536 + 256], before[sizeof(copy)];
	uint64_t state = 5;

	for (uint32_t round = 0; round < 200; round++) {
		const bool renamed = round / 2 % 2 != 0;
		const struct walk_ids ids = {renamed ? anew : own, 8, renamed};
		const struct walk_layout layout = {.time_offset = 16, .ids = &ids};
		struct walk_tally tally = {0}, expected = {0};
		size_t bytes = 0, at = 0, cut;
		enum fault fault;

		expected.first_ns = UINT64_MAX;
		while (bytes < 65536 - 256) {
			const uint64_t random = random__next(&state);
			const uint64_t id = random % 9 < 8 ? own[random % 9].own : random / 9 % 60;
			const uint64_t time_ns = 1 + random / 600 % 100000;
			const uint16_t size = (uint16_t)(24 + random / 600 % 20 * 8);

			if (random % 50 == 49) {
				bytes += record__lost(copy + bytes, 1, 1);
				expected.lost_records++;
				continue;
			}
			bytes += record__sample(copy + bytes, size, id, time_ns);
			expected.samples++;
			expected.relabelled += id != 1 && id != 2 && id != 17 && id != 33 &&
					       id != 49 && id != 50 && id != 1025 &&
					       id != UINT64_MAX;
			if (time_ns < expected.first_ns)
				expected.first_ns = time_ns;
			if (time_ns > expected.last_ns)
				expected.last_ns = time_ns;
		}
		/* A record that is cut, or none. */
		record__sample(copy + bytes, 200, 1, 1);
		cut = random__next(&state) % 200;
		if (round % 2 == 0)
			copy[bytes + 6] = 12; /* its size */
		memcpy(before, copy, bytes);
		CHECK_EQ(walk__run(copy, bytes + cut, &layout, &tally, &fault), bytes);
		CHECK_EQ(fault, round % 2 == 0 && cut >= 8 ? WALK_BAD_SIZE : FAULT_NONE);
		CHECK_EQ(tally.samples, expected.samples);
		CHECK_EQ(tally.records, expected.samples + expected.lost_records);
		CHECK_EQ(tally.lost_records, expected.lost_records);
		CHECK_EQ(tally.relabelled, expected.relabelled);
		CHECK_EQ(tally.first_ns, expected.first_ns);
		CHECK_EQ(tally.last_ns, expected.last_ns);
		for (; at < bytes; at += walk__size(walk__load(copy + at))) {
			uint64_t filed = ids.all[0].filed;

			if (walk__type(walk__load(copy + at)) != PERF_RECORD_SAMPLE)
				continue;
			for (uint32_t i = 0; i < ids.count; i++)
				if (walk__load(before + at + WALK_ID_AT) == ids.all[i].own)
					filed = ids.all[i].filed;
			CHECK_EQ(walk__load(copy + at + WALK_ID_AT), filed);
		}
	}
}

static void short_bodies_are_not_read(void)
{
	static const uint32_t types[] = {PERF_RECORD_LOST, PERF_RECORD_LOST_SAMPLES,
					 PERF_RECORD_SAMPLE, PERF_RECORD_COMM};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		uint8_t *const data = at_end(8);
		struct walk_tally tally;
		enum fault fault;

		walk__store(data, walk__header(types[i], 0, 8));
		CHECK_EQ(run(data, 8, &tally, &fault), 8);
		CHECK_EQ(tally.lost_records + tally.lost_samples + tally.last_ns, 0);
		CHECK_EQ(walk__trailer_time(data, &records__layout), 0);
	}
}

static void records_without_time_have_none(void)
{
	const struct walk_layout no_times = {0};
	struct walk_tally tally = {0};
	enum fault fault;
	uint8_t data[64];

	record__sample(data, 24, 1, 77);
	CHECK_EQ(walk__run(data, 24, &no_times, &tally, &fault), 24);
	CHECK_EQ(tally.samples, 1);
	CHECK_EQ(tally.first_ns, 0);
	CHECK_EQ(tally.last_ns, 0);
	record__comm(data, 1, 1, "x", 0, 77);
	CHECK_EQ(walk__trailer_time(data, &no_times), 0);
	CHECK_EQ(walk__trailer_time(data, &records__layout), 77);
}

static void a_file_may_hold_user_types_and_is_not_changed(void)
{
	uint8_t data[64], before[64];
	struct walk_tally tally = {0};
	enum fault fault;
	size_t last;

	record__sample(data, 24, 1, 5);
	walk__store(data + 24, walk__header(WALK_FINISHED_ROUND, 0, 8));
	record__plain(data + 32, WALK_FINISHED_INIT, 32);
	memcpy(before, data, sizeof(data));
	CHECK_EQ(walk__file(data, 64, &records__layout, &tally, &fault, &last), 64);
	CHECK_EQ(fault, FAULT_NONE);
	CHECK_EQ(last, 32);
	CHECK_EQ(tally.records, 3);
	CHECK_EQ(tally.samples, 1);
	CHECK(memcmp(before, data, sizeof(data)) == 0);
}

static void a_file_ends_at_the_first_record_that_is_none(void)
{
	static const struct {
		uint64_t header;
		enum fault fault;
	} bad[] = {
		{0, WALK_BAD_SIZE},
		{UINT64_C(0x0010000000000000), WALK_BAD_TYPE},
		{UINT64_C(0x0010000000000016), WALK_BAD_TYPE}, /* 22: unknown to perf 6.1 */
		{UINT64_C(0x0010000000000053), WALK_BAD_TYPE}, /* 83: likewise */
		{UINT64_C(0x0018000000000009), WALK_PAST_HEAD},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint8_t *const data = at_end(40);
		struct walk_tally tally = {0};
		enum fault fault;
		size_t last;

		record__sample(data, 24, 1, 1);
		walk__store(data + 24, bad[i].header);
		walk__store(data + 32, 0);
		CHECK_EQ(walk__file(data, 40, &records__layout, &tally, &fault, &last), 24);
		CHECK_EQ(fault, bad[i].fault);
		CHECK_EQ(last, 0);
		CHECK_EQ(tally.records, 1);
	}
}

static void every_fault_has_a_name(void)
{
	for (int fault = 0; fault < FAULTS; fault++)
		CHECK(fault_names[fault] != NULL);
}

int main(void)
{
	guarded__init(&memory, 65536, -1);
	RUN(whole_records_are_counted_by_type);
	RUN(the_largest_record_is_taken);
	RUN(a_record_cut_anywhere_is_left_and_is_no_fault);
	RUN(faults_end_the_walk_behind_the_last_good_record);
	RUN(types_that_readers_do_not_know_become_padding);
	RUN(a_mapping_has_no_build_id_that_was_not_asked_for);
	RUN(foreign_ids_become_the_lowest_own_one);
	RUN(samples_get_the_ids_that_files_know);
	RUN(other_records_get_the_ids_that_files_know);
	RUN(ids_outside_of_a_record_are_not_set);
	RUN(samples_of_many_events_are_counted_and_relabelled);
	RUN(short_bodies_are_not_read);
	RUN(records_without_time_have_none);
	RUN(a_file_may_hold_user_types_and_is_not_changed);
	RUN(a_file_ends_at_the_first_record_that_is_none);
	RUN(every_fault_has_a_name);
	guarded__deinit(&memory);
	return 0;
}
