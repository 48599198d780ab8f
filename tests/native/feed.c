/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "core.h"
#include "fake_ring.h"
#include "output.h"
#include "records.h"
#include "rig.h"

/*
 * feed FILE BYTES: a core with one shard drains rings that are always full into one file, until so
 * many bytes are written, and a line of JSON says what that took. Of /dev/null that is the core alone.
 *
 * The records are in the rings from the beginning, and what feeds them moves their heads only.
 */
#define RINGS 4u
#define RING_PAGES 512u
#define RECORD_BYTES 128u
#define CHUNKS 64u
#define CHUNK_BYTES (1u << 20)
#define STEP_BYTES (16u << 20) /* as segments of perf.data have it */
#define FLUSH_NS 1000000000u
#define FLOOR_BYTES 65536u
#define FEED_PAUSE_NS 50000u
#define NS_PER_S 1e9

static struct fake_ring fakes[RINGS];
static _Atomic bool ending;

static void fill(struct fake_ring *fake)
{
	uint8_t record[RECORD_BYTES];

	for (uint64_t at = 0; at < fake->map.data_bytes; at += RECORD_BYTES)
		fake_ring__poke(fake, at, record, record__sample(record, RECORD_BYTES, at, 1 + at));
}

static void *keep_full(void *context)
{
	const struct timespec pause = {.tv_nsec = FEED_PAUSE_NS};

	while (!atomic_load(&ending)) {
		for (uint32_t i = 0; i < RINGS; i++) {
			struct fake_ring *const fake = &fakes[i];
			/* One record short of full: equal positions are an empty ring. */
			const uint64_t head =
				ring_map__tail(&fake->map) + fake->map.data_bytes - RECORD_BYTES;

			if (head - fake->head < fake->map.data_bytes / 4)
				continue;
			fake_ring__set_head(fake, head);
			fake_ring__wake(fake);
		}
		nanosleep(&pause, NULL);
	}
	return context;
}

static double clock_seconds(clockid_t clock)
{
	struct timespec now;

	CHECK_EQ(clock_gettime(clock, &now), 0);
	return (double)now.tv_sec + (double)now.tv_nsec / NS_PER_S;
}

/* CPU time of the core's threads of this name. */
static double cpu_seconds(const char *name)
{
	DIR *const tasks = opendir("/proc/self/task");
	struct dirent *task;
	double sum = 0;

	CHECK(tasks != NULL);
	while ((task = readdir(tasks)) != NULL) {
		char path[300], found[32] = "";
		FILE *comm;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		comm = fopen(path, "re");
		if (comm == NULL)
			continue;
		if (fscanf(comm, "%31s", found) == 1 && strcmp(found, name) == 0)
			/* As clock_getcpuclockid() makes it: per thread, and what the scheduler counts. */
			sum += clock_seconds((clockid_t)(~(unsigned)atoi(task->d_name) << 3 | 6));
		fclose(comm);
	}
	closedir(tasks);
	CHECK(sum > 0);
	return sum;
}

int main(int argc, char **argv)
{
	static const struct core_options options = {.shards = 1,
						    .chunks = CHUNKS,
						    .chunk_bytes = CHUNK_BYTES,
						    .flush_ns = FLUSH_NS,
						    .floor_bytes = FLOOR_BYTES};
	struct core_counters counters = {0};
	struct core *core;
	struct stream *stream;
	pthread_t feeder;
	uint64_t bytes;
	double begun;
	int fd;

	CHECK_EQ(argc, 3);
	bytes = strtoull(argv[2], NULL, 10);
	fd = open(argv[1], O_WRONLY | O_CREAT | O_CLOEXEC | O_DIRECT, 0600);
	if (fd < 0) /* a device without it */
		fd = open(argv[1], O_WRONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_stream(core, 1 << 20, 0, false, &stream), 0);
	for (uint32_t i = 0; i < RINGS; i++) {
		struct ring *ring;

		fake_ring__init(&fakes[i], RING_PAGES);
		fill(&fakes[i]);
		CHECK_EQ(rig__add_ring(core, 0, stream, &fakes[i].map, fakes[i].wakeup_fd,
				       &records__layout, &(struct walk_ids){0}, false, false, &ring),
			 0);
	}
	check_prepared(rig__prepare_records(core, stream, 0, fd, 0, RIG_LIMIT, STEP_BYTES));
	CHECK_EQ(core__start(core), 0);
	begun = clock_seconds(CLOCK_MONOTONIC);
	CHECK_EQ(pthread_create(&feeder, NULL, keep_full, NULL), 0);
	while (counters.written_bytes < bytes) {
		const struct timespec pause = {.tv_nsec = 1000000};
		struct event *event;

		nanosleep(&pause, NULL);
		while ((event = core__event(core)) != NULL)
			event__free(event); /* another segment is not made */
		core__read_counters(core, &counters);
		CHECK_EQ(counters.write_errors, 0);
	}
	printf("{\"bytes\":%llu,\"seconds\":%.6f,\"drain_cpu_seconds\":%.6f,"
	       "\"writer_cpu_seconds\":%.6f}\n",
	       (unsigned long long)counters.written_bytes, clock_seconds(CLOCK_MONOTONIC) - begun,
	       cpu_seconds("drain/0"), cpu_seconds("writer"));
	atomic_store(&ending, true);
	pthread_join(feeder, NULL);
	core__stop(core);
	core__free(core);
	for (uint32_t i = 0; i < RINGS; i++)
		fake_ring__deinit(&fakes[i]);
	close(fd);
	return 0;
}
