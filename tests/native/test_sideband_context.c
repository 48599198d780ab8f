/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>

#include "check.h"
#include "records.h"
#include "sideband_table.h"

/* What a replay said: how many records of each {type, pid}, and the last one's CPU and time. */
struct seen {
	uint32_t type, pid;
	uint32_t count, cpu;
	uint64_t time_ns;
};

struct replay {
	struct seen all[64];
	uint32_t count, records;
};

static struct sideband sideband;
static uint8_t record[128];

static void begin(size_t bytes)
{
	CHECK_EQ(sideband__init(&sideband, bytes), 0);
	CHECK_EQ(sideband__join_layout(&sideband, &records__context_layout), 0);
}

static void add(uint32_t type, uint32_t pid, uint64_t id, uint32_t cpu, uint64_t time_ns)
{
	sideband__append(&sideband, record, record__context(record, type, 0, pid, id, cpu, time_ns));
}

static int see(void *context, const uint8_t *told, uint16_t size)
{
	struct replay *const replay = context;
	struct seen *seen = replay->all;
	uint32_t pid;

	memcpy(&pid, told + 8, sizeof(pid));
	CHECK_EQ(size, 40);
	while (seen < &replay->all[replay->count] &&
	       (seen->type != walk__type(walk__load(told)) || seen->pid != pid))
		seen++;
	if (seen == &replay->all[replay->count])
		replay->count++;
	CHECK(replay->count <= 64);
	seen->type = walk__type(walk__load(told));
	seen->pid = pid;
	seen->count++;
	seen->time_ns = walk__load(told + 16);
	CHECK(walk__trailer_cpu(told, &records__context_layout, &seen->cpu));
	replay->records++;
	return 0;
}

static struct replay replay_of(void)
{
	struct replay replay = {0};

	CHECK_EQ(sideband__replay(&sideband, false, see, &replay), 0);
	return replay;
}

static const struct seen *find(const struct replay *replay, uint32_t type, uint32_t pid)
{
	for (uint32_t i = 0; i < replay->count; i++)
		if (replay->all[i].type == type && replay->all[i].pid == pid)
			return &replay->all[i];
	return NULL;
}

static void the_last_switch_of_each_cpu_is_told(void)
{
	struct replay replay;

	begin(1 << 20);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 10, 1, 0, 100);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 11, 1, 1, 300);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 12, 2, 1, 200); /* came later, was earlier */
	add(PERF_RECORD_SWITCH_CPU_WIDE, 13, 1, 0, 400);
	add(PERF_RECORD_SWITCH, 14, 1, 2, 500);
	sideband__settle(&sideband, 1000);
	replay = replay_of();
	CHECK_EQ(replay.records, 3);
	CHECK_EQ(find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 11)->time_ns, 300);
	CHECK_EQ(find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 11)->cpu, 1);
	CHECK_EQ(find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 13)->time_ns, 400);
	CHECK_EQ(find(&replay, PERF_RECORD_SWITCH, 14)->time_ns, 500);
	sideband__deinit(&sideband);
}

static void starts_and_hardware_ids_are_told_of_each_event_on_each_cpu(void)
{
	static const uint32_t types[] = {PERF_RECORD_ITRACE_START, PERF_RECORD_AUX_OUTPUT_HW_ID};

	for (uint32_t i = 0; i < 2; i++) {
		struct replay replay;

		begin(1 << 20);
		add(types[i], 10, 1, 0, 100);
		add(types[i], 11, 1, 1, 100);
		add(types[i], 12, 2, 0, 100);
		add(types[i], 13, 2, 0, 200);
		add(types[i], 14, UINT64_C(1) << 40, 0, 100);
		sideband__settle(&sideband, 1000);
		replay = replay_of();
		CHECK_EQ(replay.records, 4);
		CHECK(find(&replay, types[i], 10) != NULL);
		CHECK(find(&replay, types[i], 11) != NULL);
		CHECK_EQ(find(&replay, types[i], 13)->time_ns, 200);
		CHECK(find(&replay, types[i], 14) != NULL);
		sideband__deinit(&sideband);
	}
}

static void what_is_not_settled_is_told_as_it_came(void)
{
	struct replay replay;

	begin(1 << 20);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 10, 1, 0, 100);
	sideband__settle(&sideband, 150);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 11, 1, 0, 200);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 12, 1, 0, 300);
	replay = replay_of();
	CHECK_EQ(replay.records, 3);
	sideband__settle(&sideband, 250);
	replay = replay_of();
	CHECK_EQ(replay.records, 2);
	CHECK(find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 10) == NULL);
	sideband__deinit(&sideband);
}

static void without_a_cpu_in_the_records_they_are_passed_over(void)
{
	const struct walk_layout layout = {.time_offset = 16, .time_trailer = 24};

	CHECK_EQ(sideband__init(&sideband, 1 << 20), 0);
	CHECK_EQ(sideband__join_layout(&sideband, &layout), 0);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 10, 1, 0, 100);
	add(PERF_RECORD_ITRACE_START, 10, 1, 0, 100);
	CHECK_EQ(replay_of().records, 0);
	sideband__deinit(&sideband);
}

/* Of 64 KiB the log has 16: 409 of these records, half of that before switches are merged. */
static void switches_leave_half_of_the_log_to_others(void)
{
	struct replay replay;

	begin(64 << 10);
	for (uint32_t i = 0; i < 100000; i++)
		add(PERF_RECORD_SWITCH_CPU_WIDE, 1 + i % 4 * 2 + i % 8 / 4, 1, i % 4, 1 + i);
	for (uint32_t i = 0; i < 150; i++)
		add(PERF_RECORD_AUX_OUTPUT_HW_ID, 9, 1 + i, 0, 100001);
	sideband__settle(&sideband, 1000000);
	CHECK_EQ(sideband.table->dropped + sideband.log_dropped, 0);
	replay = replay_of();
	CHECK_EQ(find(&replay, PERF_RECORD_AUX_OUTPUT_HW_ID, 9)->count, 150);
	/* The last of each CPU: i from 99996 on, i % 8 / 4 is 1. */
	for (uint32_t cpu = 0; cpu < 4; cpu++) {
		const struct seen *seen =
			find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 1 + cpu * 2 + 1);

		CHECK(find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 1 + cpu * 2) == NULL);
		CHECK_EQ(seen->time_ns, 99997 + cpu);
		CHECK_EQ(seen->cpu, cpu);
	}
	/* And again, from a log of which part was cut. */
	for (uint32_t i = 0; i < 1000; i++)
		add(PERF_RECORD_SWITCH_CPU_WIDE, 50 + i % 2, 1, i % 2, 200000 + i);
	sideband__settle(&sideband, 200100);
	for (uint32_t i = 1000; i < 2000; i++)
		add(PERF_RECORD_SWITCH_CPU_WIDE, 50 + i % 2, 1, i % 2, 200000 + i);
	sideband__settle(&sideband, 1000000);
	replay = replay_of();
	CHECK_EQ(find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 50)->time_ns, 201998);
	CHECK_EQ(find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 51)->time_ns, 201999);
	CHECK_EQ(sideband.table->dropped + sideband.log_dropped, 0);
	sideband__deinit(&sideband);
}

/* The place of a CPU's last switch is where it is after what came before it was cut. */
static void a_switch_that_moved_in_the_log_is_merged_where_it_is(void)
{
	struct replay replay;

	begin(64 << 10);
	for (uint32_t i = 0; i < 10; i++)
		add(PERF_RECORD_AUX_OUTPUT_HW_ID, 8, 1 + i, 0, 1);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 50, 1, 3, 300000);
	sideband__settle(&sideband, 200000);
	for (uint32_t i = 0; i < 300; i++)
		add(PERF_RECORD_AUX_OUTPUT_HW_ID, 9, 100 + i, 0, 300000);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 51, 1, 3, 400000);
	replay = replay_of();
	CHECK_EQ(replay.records, 311);
	CHECK_EQ(find(&replay, PERF_RECORD_AUX_OUTPUT_HW_ID, 9)->count, 300);
	CHECK(find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 50) == NULL);
	CHECK_EQ(find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 51)->count, 1);
	/* Nothing of what was cut is remembered. */
	sideband__settle(&sideband, 500000);
	for (uint32_t i = 0; i < 300; i++)
		add(PERF_RECORD_AUX_OUTPUT_HW_ID, 10, 500 + i, 0, 600000);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 52, 1, 3, 600000);
	sideband__settle(&sideband, 700000);
	replay = replay_of();
	CHECK_EQ(find(&replay, PERF_RECORD_AUX_OUTPUT_HW_ID, 10)->count, 300);
	CHECK_EQ(find(&replay, PERF_RECORD_SWITCH_CPU_WIDE, 52)->time_ns, 600000);
	sideband__deinit(&sideband);
}

static void cpus_beyond_the_table_are_state_too(void)
{
	struct replay replay;

	begin(1 << 20);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 10, 1, SIDEBAND_CPUS, 100);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 11, 1, UINT32_MAX, 100);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 12, 1, UINT32_MAX, 200);
	sideband__settle(&sideband, 1000);
	replay = replay_of();
	CHECK_EQ(replay.records, 2);
	sideband__deinit(&sideband);
}

/* A clock that is 5 s behind, and one that is 5 s ahead. */
static void another_clock_is_followed(int64_t behind_ns)
{
	const uint64_t second_ns = 1000000000;
	uint64_t now_ns;

	begin(1 << 20);
	sideband.foreign_clock = true;
	/* Nothing was read yet: nothing is known. */
	sideband__settle(&sideband, UINT64_MAX);
	now_ns = clock__now_ns();
	add(PERF_RECORD_SWITCH_CPU_WIDE, 10, 1, 0, now_ns - (uint64_t)behind_ns);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 11, 1, 0, now_ns - (uint64_t)behind_ns - second_ns);
	/* Only the older one is older than half a second ago. */
	sideband__settle(&sideband, now_ns - second_ns / 2);
	add(PERF_RECORD_SWITCH_CPU_WIDE, 12, 1, 0, now_ns - (uint64_t)behind_ns - second_ns + 1);
	CHECK_EQ(replay_of().records, 3);
	/* That one came late; how far the clock is behind was known before. */
	sideband__settle(&sideband, now_ns - second_ns / 2);
	CHECK_EQ(replay_of().records, 2);
	/* Later than all three were read. */
	sideband__settle(&sideband, clock__now_ns() + 2 * second_ns);
	CHECK_EQ(replay_of().records, 1);
	sideband__deinit(&sideband);
}

static void a_clock_that_is_behind_is_followed(void)
{
	another_clock_is_followed(5000000000);
}

static void a_clock_that_is_ahead_is_followed(void)
{
	another_clock_is_followed(-5000000000);
}

static void a_ring_of_another_layout_is_refused(void)
{
	struct walk_layout layout = records__context_layout;

	CHECK_EQ(sideband__init(&sideband, 1 << 20), 0);
	CHECK_EQ(sideband__join_layout(&sideband, &layout), 0);
	layout.time_offset = 99; /* of samples, which are no sideband */
	CHECK_EQ(sideband__join_layout(&sideband, &layout), 0);
	layout.time_trailer = 32;
	CHECK_EQ(-sideband__join_layout(&sideband, &layout), EINVAL);
	layout = records__context_layout;
	layout.cpu_trailer = 8;
	CHECK_EQ(-sideband__join_layout(&sideband, &layout), EINVAL);
	sideband__deinit(&sideband);
}

static void pieces_are_no_state_to_load(void)
{
	uint8_t piece[48] = {0};

	begin(1 << 20);
	walk__store(piece, walk__header(WALK_AUXTRACE, 0, 48));
	CHECK_EQ(-sideband__load(&sideband, piece, 48, UINT64_MAX), EINVAL);
	sideband__deinit(&sideband);
}

int main(void)
{
	RUN(the_last_switch_of_each_cpu_is_told);
	RUN(starts_and_hardware_ids_are_told_of_each_event_on_each_cpu);
	RUN(what_is_not_settled_is_told_as_it_came);
	RUN(without_a_cpu_in_the_records_they_are_passed_over);
	RUN(switches_leave_half_of_the_log_to_others);
	RUN(a_switch_that_moved_in_the_log_is_merged_where_it_is);
	RUN(cpus_beyond_the_table_are_state_too);
	RUN(a_clock_that_is_behind_is_followed);
	RUN(a_clock_that_is_ahead_is_followed);
	RUN(a_ring_of_another_layout_is_refused);
	RUN(pieces_are_no_state_to_load);
	return 0;
}
