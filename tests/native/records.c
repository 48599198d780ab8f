/* SPDX-License-Identifier: Apache-2.0 */
#include "records.h"

#include <linux/perf_event.h>
#include <string.h>

#include "check.h"

const struct walk_layout records__layout = {.time_offset = 16, .time_trailer = 8};
const struct walk_layout records__context_layout = {
	.time_offset = 16, .time_trailer = 24, .cpu_trailer = 16};

static void put32(uint8_t *to, uint32_t value)
{
	memcpy(to, &value, sizeof(value));
}

static void put16(uint8_t *to, uint16_t value)
{
	memcpy(to, &value, sizeof(value));
}

static uint8_t filler(uint64_t serial, uint16_t at)
{
	return (uint8_t)(serial * 31 + at);
}

uint16_t record__sample(uint8_t *to, uint16_t size, uint64_t serial, uint64_t time_ns)
{
	CHECK(size >= SAMPLE_MIN_BYTES && size % 8 == 0);
	walk__store(to, walk__header(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER, size));
	walk__store(to + 8, serial);
	walk__store(to + 16, time_ns);
	for (uint16_t at = SAMPLE_MIN_BYTES; at < size; at++)
		to[at] = filler(serial, at);
	return size;
}

uint64_t record__check_sample(const uint8_t *record)
{
	const uint64_t header = walk__load(record);
	const uint64_t serial = walk__load(record + 8);

	CHECK_EQ(walk__type(header), PERF_RECORD_SAMPLE);
	CHECK_EQ(walk__misc(header), PERF_RECORD_MISC_USER);
	for (uint16_t at = SAMPLE_MIN_BYTES; at < walk__size(header); at++)
		CHECK_EQ(record[at], filler(serial, at));
	return serial;
}

uint64_t record__sample_time(const uint8_t *record)
{
	return walk__load(record + 16);
}

uint16_t record__plain(uint8_t *to, uint32_t type, uint16_t size)
{
	memset(to, 0, size);
	walk__store(to, walk__header(type, 0, size));
	return size;
}

/* Header, a zeroed body of `body` bytes, the time. */
static uint16_t timed(uint8_t *to, uint32_t type, uint16_t misc, uint16_t body, uint64_t time_ns)
{
	const uint16_t size = (uint16_t)(8 + ((body + 7) & ~7) + 8);

	record__plain(to, type, size);
	walk__store(to, walk__header(type, misc, size));
	walk__store(to + size - 8, time_ns);
	return size;
}

uint16_t record__lost(uint8_t *to, uint64_t lost, uint64_t time_ns)
{
	const uint16_t size = timed(to, PERF_RECORD_LOST, 0, 16, time_ns);

	walk__store(to + 16, lost);
	return size;
}

uint16_t record__lost_samples(uint8_t *to, uint64_t lost, uint64_t time_ns)
{
	const uint16_t size = timed(to, PERF_RECORD_LOST_SAMPLES, 0, 8, time_ns);

	walk__store(to + 8, lost);
	return size;
}

uint16_t record__comm(uint8_t *to, uint32_t pid, uint32_t tid, const char *name, int exec,
		      uint64_t time_ns)
{
	const size_t length = strlen(name) + 1;
	const uint16_t size = timed(to, PERF_RECORD_COMM, exec != 0 ? PERF_RECORD_MISC_COMM_EXEC : 0,
				    (uint16_t)(8 + length), time_ns);

	put32(to + 8, pid);
	put32(to + 12, tid);
	memcpy(to + 16, name, length);
	return size;
}

uint16_t record__mmap2(uint8_t *to, uint32_t pid, uint64_t start, uint64_t length, const char *file,
		       uint64_t time_ns)
{
	const size_t name = strlen(file) + 1;
	const uint16_t size =
		timed(to, PERF_RECORD_MMAP2, PERF_RECORD_MISC_USER, (uint16_t)(64 + name), time_ns);

	put32(to + 8, pid);
	put32(to + 12, pid);
	walk__store(to + 16, start);
	walk__store(to + 24, length);
	memcpy(to + 72, file, name);
	return size;
}

static uint16_t task(uint8_t *to, uint32_t type, uint32_t pid, uint32_t ppid, uint32_t tid,
		     uint32_t ptid, uint64_t time_ns)
{
	const uint16_t size = timed(to, type, 0, 24, time_ns);

	put32(to + 8, pid);
	put32(to + 12, ppid);
	put32(to + 16, tid);
	put32(to + 20, ptid);
	walk__store(to + 24, time_ns);
	return size;
}

uint16_t record__fork(uint8_t *to, uint32_t pid, uint32_t ppid, uint32_t tid, uint32_t ptid,
		      uint64_t time_ns)
{
	return task(to, PERF_RECORD_FORK, pid, ppid, tid, ptid, time_ns);
}

uint16_t record__exit(uint8_t *to, uint32_t pid, uint32_t tid, uint64_t time_ns)
{
	return task(to, PERF_RECORD_EXIT, pid, 1, tid, 1, time_ns);
}

uint16_t record__ksymbol(uint8_t *to, uint64_t start, uint16_t flags, uint64_t time_ns)
{
	const uint16_t size = timed(to, PERF_RECORD_KSYMBOL, 0, 24, time_ns);

	walk__store(to + 8, start);
	put32(to + 16, 4096);
	put16(to + 22, flags);
	memcpy(to + 24, "bpf_pro", 8);
	return size;
}

uint16_t record__cgroup(uint8_t *to, uint64_t id, const char *path, uint64_t time_ns)
{
	const size_t bytes = strlen(path) + 1;
	const uint16_t size = timed(to, PERF_RECORD_CGROUP, 0, (uint16_t)(8 + bytes), time_ns);

	walk__store(to + 8, id);
	memcpy(to + 16, path, bytes);
	return size;
}

uint16_t record__bpf_event(uint8_t *to, uint16_t type, uint32_t id, uint64_t time_ns)
{
	const uint16_t size = timed(to, PERF_RECORD_BPF_EVENT, 0, 16, time_ns);

	put16(to + 8, type);
	put32(to + 12, id);
	return size;
}

uint16_t record__context(uint8_t *to, uint32_t type, uint16_t misc, uint32_t pid, uint64_t id,
			 uint32_t cpu, uint64_t time_ns)
{
	const uint16_t size = timed(to, type, misc, 24, id);

	put32(to + 8, pid);
	walk__store(to + 16, time_ns);
	put32(to + 24, cpu);
	return size;
}

void records__chunk(struct chunk *chunk, uint8_t *data)
{
	static XXH3_state_t *hash;
	static struct chunk_note note;

	if (hash == NULL)
		hash = XXH3_createState();
	CHECK(hash != NULL);
	memset(chunk, 0, sizeof(*chunk));
	chunk->data = data;
	chunk->note = &note;
	chunk->hash = hash;
	chunk__begin(chunk);
}
