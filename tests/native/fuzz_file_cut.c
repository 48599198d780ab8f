/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "columns/cut.h"
#include "walk.h"

#define PAGE_BYTES 4096u
#define BYTES_MAX (3 * PAGE_BYTES)
#define MADE_MAX (2 * BYTES_MAX)
#define HEAD_BYTES 32u
#define EVENT 7u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int in_fd = -1, out_fd = -1;
static uint8_t made[MADE_MAX];

/* The beginning of an input. */
struct told {
	uint64_t since_ns, until_ns;
	uint32_t sample_type[2];
	uint8_t read_format[2];
	uint8_t flags;
};

#define HAS_TRAILER 1u
#define ADDS_ID 2u
#define RENAMES 4u
#define KEEPS_ROUNDS 8u

static struct scan *scan_of(const char *kind, int fd, size_t bytes, const struct told *told)
{
	struct scan *const scan = scan__new(WANT_ALL);
	struct source *source;

	CHECK(scan != NULL);
	CHECK_EQ(scan__add_source(scan, kind, fd, &source), 0);
	CHECK_EQ(scan__add_span(scan, 0, 0, bytes), 0);
	source->page_bytes = PAGE_BYTES;
	source->since_ns = told->since_ns;
	source->until_ns = told->until_ns;
	for (uint64_t i = 0; i < 2; i++) {
		const struct perf_event event = {
			.sample_type = told->sample_type[i] & 0x1ffffff,
			.read_format = told->read_format[i],
			.has_trailer = (told->flags & HAS_TRAILER) != 0,
			.label = (int32_t)i,
		};

		CHECK_EQ(perf_events__add(&source->perf, &event), 0);
		CHECK_EQ(perf_events__add_id(&source->perf, EVENT + i), 0);
	}
	return scan;
}

/* Cut a file into the other one, and read that back. Returns its bytes. */
static size_t cut_of(const char *kind, size_t bytes, const struct told *told, struct cut *cut)
{
	struct scan *const scan = scan_of(kind, in_fd, bytes, told);

	CHECK_EQ(ftruncate(out_fd, 0), 0);
	cut->out = out_fd;
	CHECK_EQ(cut__run(cut, scan), 0);
	CHECK(cut->at <= MADE_MAX);
	CHECK_EQ(pread(out_fd, made, MADE_MAX, 0), cut->at);
	scan__drop(scan);
	if (cut->records > 0 && cut->first_ns != 0)
		CHECK(cut->first_ns >= told->since_ns && cut->last_ns <= told->until_ns);
	return (size_t)cut->at;
}

static void fill(const uint8_t *data, size_t bytes)
{
	CHECK_EQ(ftruncate(in_fd, 0), 0);
	CHECK_EQ(pwrite(in_fd, data, bytes, 0), bytes);
}

/* The new pages are sound, and have the events that were counted. */
static void cut_pages(size_t bytes, const struct told *told)
{
	struct cut cut = {0};
	const size_t end = cut_of("ftrace", bytes, told, &cut);
	struct subbuf_tally tally = {0};
	struct subbuf_walk walk;

	CHECK(end <= bytes);
	for (size_t at = 0; at < end; at += PAGE_BYTES)
		CHECK_EQ(subbuf__page(made + at, PAGE_BYTES, &walk, &tally), FAULT_NONE);
	CHECK_EQ(tally.events, cut.records);
	cut__deinit(&cut);
}

/* The new records are sound, and a cut of them is the same again. */
static void cut_records(size_t bytes, const struct told *told)
{
	static uint8_t first[MADE_MAX];
	const struct walk_layout layout = {0};
	struct cut cut = {.keeps_rounds = (told->flags & KEEPS_ROUNDS) != 0}, again;
	struct walk_tally tally = {0};
	const uint64_t identifier = UINT64_C(1) << 16;
	enum fault fault;
	size_t end, last;

	again = cut;
	if ((told->flags & RENAMES) != 0) {
		cut.ids.id = malloc(sizeof(*cut.ids.id));
		CHECK(cut.ids.id != NULL);
		*cut.ids.id = (struct cut_id){EVENT, EVENT + 1};
		cut.ids.count = 1;
	}
	cut.ids.adds = (told->flags & ADDS_ID) != 0 &&
		       ((told->sample_type[0] | told->sample_type[1]) & identifier) == 0;
	end = cut_of("perf", bytes, told, &cut);
	CHECK_EQ(walk__file(made, end, &layout, &tally, &fault, &last), end);
	CHECK_EQ(tally.samples, cut.records);
	CHECK(end <= bytes + 8 * tally.records);
	if (cut.ids.count == 0 && !cut.ids.adds) {
		memcpy(first, made, end);
		fill(first, end);
		CHECK_EQ(cut_of("perf", end, told, &again), end);
		CHECK(memcmp(first, made, end) == 0);
		CHECK_EQ(again.counts.damaged, 0);
		cut__deinit(&again);
	}
	cut__deinit(&cut);
}

/* {u64 since, until; u32 sample_type of two events; u8 read_format of both; u8 flags}, and from
 * HEAD_BYTES on pages, or records. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct told told;
	size_t bytes;

	if (in_fd < 0) {
		in_fd = memfd_create("file", MFD_CLOEXEC);
		out_fd = memfd_create("new", MFD_CLOEXEC);
	}
	if (size < HEAD_BYTES)
		return 0;
	memcpy(&told, data, sizeof(told));
	bytes = size - HEAD_BYTES < BYTES_MAX ? size - HEAD_BYTES : BYTES_MAX;
	fill(data + HEAD_BYTES, bytes);
	cut_pages(bytes, &told);
	cut_records(bytes, &told);
	return 0;
}
