/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "records.h"
#include "sideband_table.h"

#define UNREGISTER 1 /* PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER */

/* What a replay said, as a reader that sorts by time would see it. */
struct replay {
	uint8_t bytes[1 << 16];
	size_t used;
	uint32_t records;
	uint32_t stop_after; /* 0: never */
};

static int keep(void *context, const uint8_t *record, uint16_t size)
{
	struct replay *replay = context;

	CHECK(size >= 8 && size % 8 == 0);
	CHECK_EQ(walk__size(walk__load(record)), size);
	CHECK(replay->used + size <= sizeof(replay->bytes));
	memcpy(replay->bytes + replay->used, record, size);
	replay->used += size;
	replay->records++;
	return replay->records == replay->stop_after ? -EIO : 0;
}

static const struct replay *replay_as(struct sideband *sideband, bool stored)
{
	static struct replay replay;

	memset(&replay, 0, sizeof(replay));
	CHECK_EQ(sideband__replay(sideband, stored, keep, &replay), 0);
	return &replay;
}

static const struct replay *replay_of(struct sideband *sideband)
{
	return replay_as(sideband, false);
}

static uint32_t word(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/* The only record of this type and pid (and, for mappings, start), or NULL. */
static const uint8_t *find(const struct replay *replay, uint32_t type, uint32_t pid, uint64_t start)
{
	const uint8_t *found = NULL;
	uint16_t size;

	for (size_t at = 0; at < replay->used; at += size) {
		const uint8_t *const record = replay->bytes + at;

		size = walk__size(walk__load(record));
		if (walk__type(walk__load(record)) != type || word(record + 8) != pid)
			continue;
		if (start != 0 && walk__load(record + 16) != start)
			continue;
		CHECK(found == NULL);
		found = record;
	}
	return found;
}

/* How many records of this type and pid have, or lack, the bit of an exec or a synthetic fork. */
static uint32_t count_of(const struct replay *replay, uint32_t type, uint32_t pid, bool flagged)
{
	uint32_t count = 0;
	uint64_t header;

	for (size_t at = 0; at < replay->used; at += walk__size(header)) {
		header = walk__load(replay->bytes + at);
		count += walk__type(header) == type && word(replay->bytes + at + 8) == pid &&
			 ((walk__misc(header) & PERF_RECORD_MISC_FORK_EXEC) != 0) == flagged;
	}
	return count;
}

static uint64_t time_of(const uint8_t *record)
{
	return walk__trailer_time(record, &records__layout);
}

static void begin(struct sideband *sideband, size_t bytes)
{
	CHECK_EQ(sideband__init(sideband, bytes), 0);
	CHECK_EQ(sideband__join_layout(sideband, &records__layout), 0);
}

static uint8_t record[65536];

static void add(struct sideband *sideband, uint16_t size)
{
	sideband__append(sideband, record, size);
}

struct counts {
	uint64_t tasks, maps, bytes, dropped;
};

static struct counts counters_of(const struct sideband *sideband)
{
	const struct sideband_table *const table = sideband->table;

	return (struct counts){table->task_count, table->map_count, table->bytes,
			       table->dropped + sideband->log_dropped};
}

static void a_forked_child_has_its_parents_name_and_mappings(void)
{
	struct sideband sideband;
	const struct replay *replay;
	const uint8_t *map, *fork;

	begin(&sideband, 1 << 20);
	add(&sideband, record__comm(record, 10, 10, "parent", 1, 100));
	add(&sideband, record__mmap2(record, 10, 0x1000, 0x1000, "/bin/parent", 110));
	add(&sideband, record__fork(record, 20, 10, 20, 10, 200));
	sideband__settle(&sideband, 1000);
	replay = replay_of(&sideband);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_COMM, 10, 0)), 100);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_MMAP2, 10, 0x1000)), 110);
	CHECK(strcmp((const char *)find(replay, PERF_RECORD_COMM, 20, 0) + 16, "parent") == 0);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_COMM, 20, 0)), 200);
	CHECK(find(replay, PERF_RECORD_FORK, 10, 0) == NULL);
	fork = find(replay, PERF_RECORD_FORK, 20, 0);
	CHECK_EQ(word(fork + 12), 10);
	CHECK_EQ(time_of(fork), 200);
	CHECK(walk__misc(walk__load(fork)) & PERF_RECORD_MISC_FORK_EXEC);
	map = find(replay, PERF_RECORD_MMAP2, 20, 0x1000);
	CHECK(fork < find(replay, PERF_RECORD_COMM, 20, 0) && fork < map);
	CHECK_EQ(time_of(map), 200);
	CHECK_EQ(word(map + 12), 20);
	CHECK(strcmp((const char *)map + 72, "/bin/parent") == 0);
	CHECK_EQ(counters_of(&sideband).tasks, 2);
	CHECK_EQ(counters_of(&sideband).maps, 2);
	sideband__deinit(&sideband);
}

/* A thread that a reader knows before its leader would have mappings of its own. */
static void leaders_come_ahead_of_threads(void)
{
	struct sideband sideband;
	const struct replay *replay;
	const uint8_t *at;
	bool threads = false;
	uint32_t told = 0;

	begin(&sideband, 1 << 20);
	for (uint32_t pid = 10; pid < 50; pid += 10) {
		add(&sideband, record__fork(record, pid, pid - 10, pid, pid - 10, 100));
		for (uint32_t tid = pid + 1; tid < pid + 5; tid++)
			add(&sideband, record__fork(record, pid, pid, tid, pid, 100));
	}
	sideband__settle(&sideband, 1000);
	replay = replay_of(&sideband);
	for (at = replay->bytes; told < replay->records; told++) {
		threads |= word(at + 8) != word(at + 16);
		CHECK(threads == (word(at + 8) != word(at + 16)));
		at += walk__size(walk__load(at));
	}
	CHECK(threads);
	CHECK_EQ(told, 20);
	sideband__deinit(&sideband);
}

static void a_thread_shares_its_process_mappings(void)
{
	struct sideband sideband;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	add(&sideband, record__comm(record, 10, 10, "main", 1, 100));
	add(&sideband, record__mmap2(record, 10, 0x1000, 0x1000, "/a", 110));
	add(&sideband, record__fork(record, 10, 10, 11, 10, 200));
	add(&sideband, record__exit(record, 10, 10, 300)); /* the leader goes first */
	sideband__settle(&sideband, 1000);
	replay = replay_of(&sideband);
	CHECK_EQ(word(find(replay, PERF_RECORD_COMM, 10, 0) + 12), 11);
	CHECK(find(replay, PERF_RECORD_MMAP2, 10, 0x1000) != NULL);
	add(&sideband, record__exit(record, 10, 11, 400));
	sideband__settle(&sideband, 1000);
	CHECK_EQ(replay_of(&sideband)->records, 0);
	CHECK_EQ(counters_of(&sideband).bytes, 0);
	sideband__deinit(&sideband);
}

static void exec_drops_what_was_mapped(void)
{
	struct sideband sideband;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	add(&sideband, record__comm(record, 10, 10, "old", 1, 100));
	add(&sideband, record__mmap2(record, 10, 0x1000, 0x1000, "/old", 110));
	add(&sideband, record__comm(record, 10, 10, "renamed", 0, 120));
	sideband__settle(&sideband, 130);
	CHECK(find(replay_of(&sideband), PERF_RECORD_MMAP2, 10, 0x1000) != NULL);
	add(&sideband, record__comm(record, 10, 10, "new", 1, 140));
	add(&sideband, record__mmap2(record, 10, 0x5000, 0x1000, "/new", 150));
	sideband__settle(&sideband, 1000);
	replay = replay_of(&sideband);
	CHECK(find(replay, PERF_RECORD_MMAP2, 10, 0x1000) == NULL);
	CHECK(find(replay, PERF_RECORD_MMAP2, 10, 0x5000) != NULL);
	CHECK(strcmp((const char *)find(replay, PERF_RECORD_COMM, 10, 0) + 16, "new") == 0);
	sideband__deinit(&sideband);
}

static void a_new_mapping_replaces_what_it_covers(void)
{
	struct sideband sideband;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	for (uint64_t i = 0; i < 100; i++) /* the same library, mapped again and again */
		add(&sideband, record__mmap2(record, 10, 0x1000, 0x1000, "/lib", 100 + i));
	add(&sideband, record__mmap2(record, 10, 0x2000, 0x1000, "/above", 300));
	add(&sideband, record__mmap2(record, 10, 0x800, 0x800, "/below", 300));
	add(&sideband, record__mmap2(record, 10, 0x2800, 0x1000, "/across", 310));
	/* One that ends with the address space. */
	add(&sideband, record__mmap2(record, UINT32_MAX, UINT64_MAX - 0xfff, 0x1000, "[k]", 1));
	add(&sideband, record__mmap2(record, UINT32_MAX, UINT64_MAX - 0xfff, 0x1000, "[k]", 2));
	sideband__settle(&sideband, 1000);
	replay = replay_of(&sideband);
	CHECK_EQ(replay->records, 5);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_MMAP2, 10, 0x1000)), 199);
	CHECK(find(replay, PERF_RECORD_MMAP2, 10, 0x2800) != NULL);
	CHECK(find(replay, PERF_RECORD_MMAP2, 10, 0x800) != NULL);
	CHECK(find(replay, PERF_RECORD_MMAP2, 10, 0x2000) != NULL);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_MMAP2, UINT32_MAX, 0)), 2);
	sideband__deinit(&sideband);
}

/* Of data, files are kept; memory is not, but what was there before is gone. */
static void data_of_files_is_kept(void)
{
	struct sideband sideband;
	const struct replay *replay;
	const char *const names[] = {"/lib", "/lib", "//anon", "[heap]", "//anon"};
	uint16_t size;

	begin(&sideband, 1 << 20);
	for (uint32_t i = 0; i < 5; i++) {
		const uint64_t start = i < 4 ? (i + 1) * 0x1000 : 0x2000;

		size = record__mmap2(record, 10, start, 0x1000, names[i], 10 + i);
		if (i != 1)
			walk__store(record, walk__header(PERF_RECORD_MMAP2,
							 PERF_RECORD_MISC_MMAP_DATA, size));
		add(&sideband, size);
	}
	sideband__settle(&sideband, 1000);
	replay = replay_of(&sideband);
	CHECK_EQ(replay->records, 1);
	CHECK(find(replay, PERF_RECORD_MMAP2, 10, 0x1000) != NULL);
	CHECK(walk__misc(walk__load(replay->bytes)) & PERF_RECORD_MISC_MMAP_DATA);
	sideband__deinit(&sideband);
}

static void exit_takes_effect_only_when_it_is_settled(void)
{
	struct sideband sideband;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	add(&sideband, record__comm(record, 10, 10, "brief", 1, 100));
	add(&sideband, record__mmap2(record, 10, 0x1000, 0x1000, "/brief", 110));
	add(&sideband, record__exit(record, 10, 10, 500));
	sideband__settle(&sideband, 500); /* rings are written up to here: 500 itself is not */
	replay = replay_of(&sideband);
	CHECK(find(replay, PERF_RECORD_COMM, 10, 0) != NULL);
	CHECK(find(replay, PERF_RECORD_MMAP2, 10, 0x1000) != NULL);
	CHECK(find(replay, PERF_RECORD_EXIT, 10, 0) != NULL); /* it follows, with its own time */
	sideband__settle(&sideband, 501);
	CHECK_EQ(replay_of(&sideband)->records, 0);
	sideband__deinit(&sideband);
}

static void two_rings_settle_in_the_order_of_time(void)
{
	struct sideband sideband;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	/* One CPU's ring is read first and has the exec; the other's has the fork before it. */
	add(&sideband, record__comm(record, 20, 20, "child", 1, 300));
	add(&sideband, record__mmap2(record, 20, 0x5000, 0x1000, "/child", 310));
	add(&sideband, record__comm(record, 10, 10, "parent", 1, 100));
	add(&sideband, record__mmap2(record, 10, 0x1000, 0x1000, "/parent", 110));
	add(&sideband, record__fork(record, 20, 10, 20, 10, 200));
	sideband__settle(&sideband, 1000);
	replay = replay_of(&sideband);
	CHECK(find(replay, PERF_RECORD_MMAP2, 20, 0x1000) == NULL);
	CHECK(find(replay, PERF_RECORD_MMAP2, 20, 0x5000) != NULL);
	CHECK(strcmp((const char *)find(replay, PERF_RECORD_COMM, 20, 0) + 16, "child") == 0);
	sideband__deinit(&sideband);
}

static void what_is_not_settled_follows_as_it_came(void)
{
	struct sideband sideband;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	add(&sideband, record__comm(record, 10, 10, "a", 1, 100));
	add(&sideband, record__comm(record, 10, 10, "b", 1, 700));
	sideband__settle(&sideband, 500);
	replay = replay_of(&sideband);
	CHECK_EQ(replay->records, 2);
	CHECK_EQ(time_of(replay->bytes), 100);
	CHECK_EQ(time_of(replay->bytes + walk__size(walk__load(replay->bytes))), 700);
	CHECK_EQ(replay_of(&sideband)->records, 2); /* a replay takes nothing away */
	sideband__deinit(&sideband);
}

/* A shell and what it forks, of which an earlier segment holds everything from 600 on. */
static void what_a_segment_holds_already_is_told_as_changes(void)
{
	struct sideband sideband;
	struct counts before;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	add(&sideband, record__comm(record, 10, 10, "shell", 1, 100));
	add(&sideband, record__mmap2(record, 10, 0x1000, 0x1000, "/bin/shell", 110));
	sideband__settle(&sideband, 500);
	before = counters_of(&sideband);
	/* Not in the order of time, as CPUs' rings are read. */
	add(&sideband, record__comm(record, 20, 20, "true", 1, 700));
	add(&sideband, record__mmap2(record, 20, 0x5000, 0x1000, "/bin/true", 710));
	add(&sideband, record__exit(record, 20, 20, 720));
	add(&sideband, record__fork(record, 20, 10, 20, 10, 600));
	add(&sideband, record__mmap2(record, 10, 0x2000, 0x1000, "/lib/more", 610));
	add(&sideband, record__fork(record, 30, 10, 30, 10, 620));
	add(&sideband, record__fork(record, 40, 30, 40, 30, 630));
	add(&sideband, record__fork(record, 40, 40, 41, 40, 640));
	replay = replay_as(&sideband, true);
	for (uint32_t pid = 10; pid <= 40; pid += 10) {
		CHECK_EQ(count_of(replay, PERF_RECORD_FORK, pid, false), 0);
		CHECK_EQ(count_of(replay, PERF_RECORD_COMM, pid, true), 0); /* no exec */
		CHECK(find(replay, PERF_RECORD_EXIT, pid, 0) == NULL);
	}
	CHECK_EQ(count_of(replay, PERF_RECORD_COMM, 10, false), 1);
	/* The first child: its parent's name and map when it was forked, then its own. */
	CHECK_EQ(time_of(find(replay, PERF_RECORD_FORK, 20, 0)), 600);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_MMAP2, 20, 0x1000)), 600);
	CHECK(find(replay, PERF_RECORD_MMAP2, 20, 0x2000) == NULL);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_MMAP2, 20, 0x5000)), 710);
	CHECK_EQ(count_of(replay, PERF_RECORD_COMM, 20, false), 2);
	/* Those that came later have what was mapped meanwhile, by way of one another too. */
	CHECK_EQ(time_of(find(replay, PERF_RECORD_MMAP2, 30, 0x2000)), 620);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_MMAP2, 40, 0x2000)), 630);
	CHECK_EQ(count_of(replay, PERF_RECORD_COMM, 30, false), 1);
	CHECK_EQ(count_of(replay, PERF_RECORD_FORK, 40, true), 2); /* of its thread too */
	/* It takes nothing away, and leaves nothing behind. */
	CHECK_EQ(replay_as(&sideband, true)->records, replay->records);
	CHECK_EQ(counters_of(&sideband).bytes, before.bytes);
	CHECK_EQ(counters_of(&sideband).tasks, 1);
	/* What no segment holds is told as it is. */
	replay = replay_of(&sideband);
	CHECK_EQ(count_of(replay, PERF_RECORD_FORK, 20, false), 1);
	CHECK_EQ(count_of(replay, PERF_RECORD_COMM, 20, true), 1);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_EXIT, 20, 0)), 720);
	sideband__deinit(&sideband);
}

static void a_tid_used_again_belongs_to_its_new_process(void)
{
	struct sideband sideband;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	add(&sideband, record__comm(record, 10, 10, "first", 1, 100));
	add(&sideband, record__mmap2(record, 10, 0x1000, 0x1000, "/first", 110));
	/* The exit was lost. */
	add(&sideband, record__comm(record, 1, 1, "init", 1, 10));
	add(&sideband, record__fork(record, 10, 1, 10, 1, 200));
	sideband__settle(&sideband, 1000);
	replay = replay_of(&sideband);
	CHECK(strcmp((const char *)find(replay, PERF_RECORD_COMM, 10, 0) + 16, "init") == 0);
	CHECK(find(replay, PERF_RECORD_MMAP2, 10, 0x1000) == NULL);
	add(&sideband, record__comm(record, 30, 10, "thread", 0, 300)); /* now a thread of 30 */
	sideband__settle(&sideband, 1000);
	replay = replay_of(&sideband);
	CHECK(find(replay, PERF_RECORD_COMM, 10, 0) == NULL);
	CHECK_EQ(word(find(replay, PERF_RECORD_COMM, 30, 0) + 12), 10);
	CHECK_EQ(counters_of(&sideband).tasks, 2);
	sideband__deinit(&sideband);
}

static void symbols_and_programs_live_until_they_are_unregistered(void)
{
	struct sideband sideband;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	add(&sideband, record__ksymbol(record, 0xffff0000, 0, 100));
	add(&sideband, record__ksymbol(record, 0xffff0000, 0, 101));
	add(&sideband, record__ksymbol(record, 0xffff8000, 0, 102));
	add(&sideband, record__bpf_event(record, PERF_BPF_EVENT_PROG_LOAD, 5, 103));
	sideband__settle(&sideband, 1000);
	CHECK_EQ(replay_of(&sideband)->records, 3);
	add(&sideband, record__ksymbol(record, 0xffff8000, UNREGISTER, 200));
	add(&sideband, record__bpf_event(record, PERF_BPF_EVENT_PROG_UNLOAD, 5, 201));
	sideband__settle(&sideband, 1000);
	replay = replay_of(&sideband);
	CHECK_EQ(replay->records, 1);
	CHECK_EQ(time_of(replay->bytes), 101);
	sideband__deinit(&sideband);
}

/* No record tells that a cgroup is gone; two that live have different paths. */
static void a_cgroup_is_named_until_another_one_has_its_path(void)
{
	struct sideband sideband;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	add(&sideband, record__cgroup(record, 1, "/", 0));
	add(&sideband, record__cgroup(record, 71, "/system.slice/job.service", 100));
	add(&sideband, record__cgroup(record, 72, "/system.slice/jobs.service", 101));
	add(&sideband, record__cgroup(record, 80, "/system.slice/job.service", 300));
	sideband__settle(&sideband, 300);
	/* Samples of 71 may be unwritten up to 300. */
	replay = replay_as(&sideband, true);
	CHECK_EQ(replay->records, 4);
	CHECK(strcmp((const char *)find(replay, PERF_RECORD_CGROUP, 71, 0) + 16,
		     "/system.slice/job.service") == 0);
	sideband__settle(&sideband, 301);
	replay = replay_of(&sideband);
	CHECK_EQ(replay->records, 3);
	CHECK(find(replay, PERF_RECORD_CGROUP, 71, 0) == NULL);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_CGROUP, 80, 0)), 300);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_CGROUP, 72, 0)), 101);
	CHECK(find(replay, PERF_RECORD_CGROUP, 1, 0) != NULL);
	sideband__deinit(&sideband);
}

static int count_cgroups(void *context, const uint8_t *bytes, uint16_t size)
{
	uint64_t *const seen = context; /* number, first, sum of ids */
	const uint64_t id = walk__load(bytes + 8);

	(void)size;
	seen[0]++;
	if (id >= 2 && id < seen[1])
		seen[1] = id;
	seen[2] += id;
	return 0;
}

static void of_too_many_cgroups_the_oldest_new_ones_go(void)
{
	struct sideband sideband;
	uint64_t seen[] = {0, UINT64_MAX, 0};
	const uint64_t max = SIDEBAND_CGROUPS_MAX;
	char path[32];

	begin(&sideband, 64 << 20);
	add(&sideband, record__cgroup(record, 1, "/", 0));
	for (uint64_t id = 2; id <= max + 10; id++) {
		(void)snprintf(path, sizeof(path), "/run-%u.scope", (unsigned)id);
		add(&sideband, record__cgroup(record, id, path, id));
	}
	sideband__settle(&sideband, UINT64_MAX);
	CHECK_EQ(sideband__replay(&sideband, true, count_cgroups, seen), 0);
	CHECK_EQ(seen[0], max);
	CHECK_EQ(seen[1], 12);
	CHECK_EQ(seen[2], 1 + (12 + max + 10) * (max - 1) / 2);
	CHECK_EQ(counters_of(&sideband).dropped, 0);
	sideband__deinit(&sideband);
}

static void other_records_are_passed_over(void)
{
	struct sideband sideband;

	begin(&sideband, 1 << 20);
	add(&sideband, record__sample(record, 64, 1, 1));
	add(&sideband, record__lost(record, 1, 1));
	for (uint32_t type = 1; type <= WALK_KERNEL_TYPE_MAX; type++) {
		add(&sideband, record__plain(record, type, 8)); /* no body at all */
		add(&sideband, record__plain(record, type, 16));
	}
	CHECK(replay_of(&sideband)->records > 0);
	sideband__settle(&sideband, 1000);
	CHECK(replay_of(&sideband)->records <= 2);
	CHECK_EQ(counters_of(&sideband).maps, 0);
	sideband__deinit(&sideband);
}

static void loaded_records_are_the_state_at_once(void)
{
	struct sideband sideband;
	uint8_t records[256];
	size_t bytes = 0;

	begin(&sideband, 1 << 20);
	bytes += record__comm(records + bytes, 10, 10, "old", 0, 0);
	bytes += record__mmap2(records + bytes, 10, 0x1000, 0x1000, "/old", 0);
	CHECK_EQ(sideband__load(&sideband, records, bytes, UINT64_MAX), 0);
	CHECK_EQ(counters_of(&sideband).tasks, 1);
	CHECK_EQ(replay_of(&sideband)->records, 2);
	CHECK_EQ(-sideband__load(&sideband, records, bytes - 8, UINT64_MAX), EINVAL);
	CHECK_EQ(-sideband__load(&sideband, records, 4, UINT64_MAX), EINVAL);
	CHECK_EQ(sideband__load(&sideband, records, 0, UINT64_MAX), 0);
	sideband__deinit(&sideband);
}

/* The sideband of a killed process was read ahead of the data, so the segment has an exit of which
 * older samples are unread. */
static void a_task_that_ended_in_a_loaded_segment_is_named_until_older_data_are_written(void)
{
	struct sideband sideband;
	const struct replay *replay;
	uint8_t records[512];
	size_t bytes = 0;

	begin(&sideband, 1 << 20);
	bytes += record__comm(records + bytes, 10, 10, "ended", 1, 100);
	bytes += record__mmap2(records + bytes, 10, 0x1000, 0x1000, "/ended", 110);
	bytes += record__comm(records + bytes, 20, 20, "before", 1, 100);
	bytes += record__exit(records + bytes, 20, 20, 490);
	bytes += record__exit(records + bytes, 10, 10, 500);
	CHECK_EQ(sideband__load(&sideband, records, bytes, 495), 0);
	replay = replay_as(&sideband, true);
	CHECK_EQ(time_of(find(replay, PERF_RECORD_COMM, 10, 0)), 100);
	CHECK(find(replay, PERF_RECORD_MMAP2, 10, 0x1000) != NULL);
	CHECK(find(replay, PERF_RECORD_COMM, 20, 0) == NULL);
	CHECK(find(replay, PERF_RECORD_EXIT, 10, 0) == NULL); /* it is in that segment */
	sideband__settle(&sideband, 500);
	CHECK(find(replay_as(&sideband, true), PERF_RECORD_COMM, 10, 0) != NULL);
	sideband__settle(&sideband, 501);
	CHECK_EQ(replay_as(&sideband, true)->records, 0);
	CHECK_EQ(counters_of(&sideband).dropped, 0);
	sideband__deinit(&sideband);
}

/* Each CPU's records are in chunks of their own. */
static void a_segment_is_loaded_in_the_order_of_time(void)
{
	struct sideband sideband;
	const struct replay *replay;
	uint8_t records[512];
	size_t bytes = 0;

	begin(&sideband, 1 << 20);
	bytes += record__comm(records + bytes, 20, 20, "child", 1, 300);
	bytes += record__exit(records + bytes, 30, 30, 400);
	bytes += record__comm(records + bytes, 10, 10, "parent", 1, 100);
	bytes += record__fork(records + bytes, 20, 10, 20, 10, 200);
	bytes += record__fork(records + bytes, 30, 10, 30, 10, 310);
	CHECK_EQ(sideband__load(&sideband, records, bytes, UINT64_MAX), 0);
	replay = replay_of(&sideband);
	CHECK(strcmp((const char *)find(replay, PERF_RECORD_COMM, 20, 0) + 16, "child") == 0);
	CHECK(find(replay, PERF_RECORD_COMM, 30, 0) == NULL);
	CHECK_EQ(counters_of(&sideband).tasks, 2);
	sideband__deinit(&sideband);
}

/* An exec of the child, which a replay tells as a name alone, has unmapped what it inherited. */
static void a_loaded_replay_gives_each_task_its_own_mappings(void)
{
	struct sideband sideband;
	static struct replay before;
	const struct replay *replay;

	begin(&sideband, 1 << 20);
	add(&sideband, record__comm(record, 10, 10, "parent", 1, 100));
	add(&sideband, record__mmap2(record, 10, 0x1000, 0x1000, "/parent", 110));
	add(&sideband, record__fork(record, 20, 10, 20, 10, 200));
	add(&sideband, record__comm(record, 20, 20, "child", 1, 300));
	add(&sideband, record__mmap2(record, 20, 0x5000, 0x1000, "/child", 310));
	sideband__settle(&sideband, 1000);
	before = *replay_of(&sideband);
	sideband__deinit(&sideband);
	begin(&sideband, 1 << 20);
	CHECK_EQ(sideband__load(&sideband, before.bytes, before.used, UINT64_MAX), 0);
	replay = replay_of(&sideband);
	CHECK_EQ(replay->records, before.records);
	CHECK(find(replay, PERF_RECORD_MMAP2, 20, 0x1000) == NULL);
	CHECK(find(replay, PERF_RECORD_MMAP2, 20, 0x5000) != NULL);
	sideband__deinit(&sideband);
}

static void more_than_half_of_the_log_is_not_kept_back(void)
{
	static uint8_t records[1 << 16];
	struct sideband sideband;
	size_t bytes = 0;

	begin(&sideband, 1 << 16);
	for (uint32_t pid = 1; pid <= 1000; pid++)
		bytes += record__exit(records + bytes, pid, pid, pid);
	CHECK_EQ(sideband__load(&sideband, records, bytes, 0), 0);
	CHECK_EQ(counters_of(&sideband).dropped, 0);
	CHECK(sideband.log_used > 0 && sideband.log_used <= sideband.log_bytes / 2);
	CHECK(!sideband__is_crowded(&sideband));
	/* The last of them. */
	CHECK_EQ(time_of(sideband.log), 1001 - sideband.log_used / (bytes / 1000));
	sideband__deinit(&sideband);
}

static void an_error_of_the_taker_ends_the_replay(void)
{
	static struct replay replay;
	struct sideband sideband;

	begin(&sideband, 1 << 20);
	for (uint32_t pid = 1; pid <= 4; pid++)
		add(&sideband, record__comm(record, pid, pid, "x", 1, pid * 10));
	sideband__settle(&sideband, 25);
	for (uint32_t stop = 1; stop <= 4; stop++) {
		memset(&replay, 0, sizeof(replay));
		replay.stop_after = stop;
		CHECK_EQ(-sideband__replay(&sideband, false, keep, &replay), EIO);
		CHECK_EQ(replay.records, stop);
	}
	sideband__deinit(&sideband);
}

static void memory_is_bounded_and_what_does_not_fit_is_counted(void)
{
	struct sideband sideband;
	struct counts counters;
	const size_t bytes = 64 * 1024;
	uint64_t before;

	begin(&sideband, bytes);
	/* The log: a quarter. */
	for (uint32_t pid = 1; pid <= 1000; pid++)
		add(&sideband, record__comm(record, pid, pid, "task", 1, 100));
	counters = counters_of(&sideband);
	CHECK_EQ(counters.dropped, 1000 - bytes / 4 / 32);
	/* The table: the rest. Each of these has a name and a mapping of its own. */
	for (uint32_t pid = 1; pid <= 5000; pid++) {
		sideband__settle(&sideband, 1000);
		add(&sideband, record__comm(record, pid, pid, "task", 1, 100));
		add(&sideband, record__mmap2(record, pid, 0x1000, 0x1000, "/some/file", 100));
	}
	sideband__settle(&sideband, 1000);
	counters = counters_of(&sideband);
	CHECK(counters.bytes <= bytes - bytes / 4);
	CHECK(counters.bytes > bytes / 4);
	CHECK(counters.tasks > 100);
	before = counters.dropped;
	CHECK(before > 4000);
	/* Exits give it all back. */
	for (uint32_t pid = 1; pid <= 5000; pid++) {
		add(&sideband, record__exit(record, pid, pid, 200));
		sideband__settle(&sideband, 1000);
	}
	counters = counters_of(&sideband);
	CHECK_EQ(counters.dropped, before);
	CHECK_EQ(counters.tasks, 0);
	CHECK_EQ(counters.maps, 0);
	CHECK_EQ(counters.bytes, 0);
	sideband__deinit(&sideband);
}

/* Tasks come and go at random, in a table that is too small for them: the books stay right. */
static void a_long_random_life_leaves_nothing_behind(void)
{
	struct sideband sideband;
	uint64_t state = 4711;

	begin(&sideband, 32 * 1024);
	for (uint64_t i = 1; i < 50000; i++) {
		const uint64_t random = random__next(&state);
		const uint32_t pid = (uint32_t)(random >> 8) % 40 + 1;
		const uint32_t tid = pid + (uint32_t)(random >> 16) % 3;
		const uint32_t other = (uint32_t)(random >> 24) % 40 + 1;

		switch (random % 6) {
		case 0:
			add(&sideband, record__comm(record, pid, tid, "name", random % 12 == 0, i));
			break;
		case 1:
		case 2:
			add(&sideband, record__mmap2(record, pid, (random >> 32) % 64 * 4096,
						     ((random >> 40) % 8 + 1) * 4096, "/f", i));
			break;
		case 3:
			add(&sideband, record__fork(record, pid, other, tid, other, i));
			break;
		case 4:
			add(&sideband, record__exit(record, pid, tid, i));
			break;
		default:
			sideband__settle(&sideband, i - random % 50);
			CHECK(counters_of(&sideband).bytes <= 24 * 1024);
		}
		if (random % 1000 == 0)
			replay_as(&sideband, random % 2000 == 0);
	}
	for (uint32_t pid = 1; pid <= 40; pid++) {
		for (uint32_t tid = pid; tid < pid + 3; tid++) {
			sideband__settle(&sideband, UINT64_MAX);
			add(&sideband, record__exit(record, pid, tid, 60000));
		}
	}
	sideband__settle(&sideband, UINT64_MAX);
	CHECK_EQ(counters_of(&sideband).tasks, 0);
	CHECK_EQ(counters_of(&sideband).maps, 0);
	CHECK_EQ(counters_of(&sideband).bytes, 0);
	sideband__deinit(&sideband);
}

static void *append_many(void *context)
{
	uint8_t mine[64];

	for (uint32_t pid = 1; pid <= 2000; pid++)
		sideband__append(context, mine, record__comm(mine, pid, pid, "x", 1, pid));
	return NULL;
}

static void passes_append_while_the_writer_settles_and_replays(void)
{
	struct sideband sideband;
	pthread_t passes[2];

	begin(&sideband, 4 << 20);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&passes[i], NULL, append_many, &sideband) == 0);
	for (uint64_t until = 0; until < 2000; until += 100) {
		sideband__settle(&sideband, until);
		static struct replay replay;

		memset(&replay, 0, sizeof(replay));
		replay.stop_after = 100;
		sideband__replay(&sideband, false, keep, &replay);
		CHECK(counters_of(&sideband).tasks <= 2000);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(passes[i], NULL);
	sideband__settle(&sideband, UINT64_MAX);
	CHECK_EQ(counters_of(&sideband).tasks, 2000);
	CHECK_EQ(counters_of(&sideband).dropped, 0);
	sideband__deinit(&sideband);
}

int main(void)
{
	RUN(a_forked_child_has_its_parents_name_and_mappings);
	RUN(leaders_come_ahead_of_threads);
	RUN(a_thread_shares_its_process_mappings);
	RUN(exec_drops_what_was_mapped);
	RUN(a_new_mapping_replaces_what_it_covers);
	RUN(data_of_files_is_kept);
	RUN(exit_takes_effect_only_when_it_is_settled);
	RUN(two_rings_settle_in_the_order_of_time);
	RUN(what_is_not_settled_follows_as_it_came);
	RUN(what_a_segment_holds_already_is_told_as_changes);
	RUN(a_tid_used_again_belongs_to_its_new_process);
	RUN(symbols_and_programs_live_until_they_are_unregistered);
	RUN(a_cgroup_is_named_until_another_one_has_its_path);
	RUN(of_too_many_cgroups_the_oldest_new_ones_go);
	RUN(other_records_are_passed_over);
	RUN(loaded_records_are_the_state_at_once);
	RUN(a_task_that_ended_in_a_loaded_segment_is_named_until_older_data_are_written);
	RUN(a_segment_is_loaded_in_the_order_of_time);
	RUN(a_loaded_replay_gives_each_task_its_own_mappings);
	RUN(more_than_half_of_the_log_is_not_kept_back);
	RUN(an_error_of_the_taker_ends_the_replay);
	RUN(memory_is_bounded_and_what_does_not_fit_is_counted);
	RUN(a_long_random_life_leaves_nothing_behind);
	RUN(passes_append_while_the_writer_settles_and_replays);
	return 0;
}
