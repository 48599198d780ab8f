/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blk_records.h"
#include "check.h"
#include "columns/scan.h"
#include "pages.h"
#include "walk.h"

#define PAGE 4096u
#define EVENT 7u

/* A file of some pages, to be read by a scan. */
static int file_of(const uint8_t *data, size_t bytes)
{
	const int fd = memfd_create("pages", MFD_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_EQ(write(fd, data, bytes), bytes);
	return fd;
}

/* Append an event: {common_type, flags, common_pid, text[8], number}. */
static void add_event(uint8_t *page, uint16_t type, int32_t tid, const char *text, int16_t number)
{
	uint32_t words[6] = {5u | 10u << 5};

	words[1] = type;
	words[2] = (uint32_t)tid;
	memcpy(&words[3], text, strlen(text));
	words[5] = (uint16_t)number;
	page__words(page, words, 6);
}

static struct scan *scan_of(enum wanted wanted, const char *const columns[][2], size_t count)
{
	struct scan *const scan = scan__new(wanted);

	CHECK(scan != NULL);
	for (size_t i = 0; i < count; i++)
		CHECK_EQ(scan__add_column(scan, columns[i][0], columns[i][1]), 0);
	return scan;
}

static struct source *source_of(struct scan *scan, int fd, uint64_t bytes)
{
	struct source *source;

	CHECK_EQ(scan__add_source(scan, "ftrace", fd, &source), 0);
	source->page_bytes = PAGE;
	source->event = EVENT;
	source->tid_offset = 4;
	CHECK_EQ(scan__add_span(scan, 3, 0, bytes), 0);
	CHECK_EQ(close(fd), 0);
	return source;
}

static struct ArrowArray next_of(struct ArrowArrayStream *stream)
{
	struct ArrowArray array;

	CHECK_EQ(stream->get_next(stream, &array), 0);
	return array;
}

static bool is_valid(const struct ArrowArray *array, size_t at)
{
	const uint8_t *const bits = array->buffers[0];

	return bits == NULL || (bits[at / 8] >> at % 8 & 1) != 0;
}

static void records_become_columns_of_their_kinds(void)
{
	static const char *const columns[][2] = {{"u64", "stamp"}, {"i32", "cpu"},
						 {"i32", "tid"},   {"text", "comm"},
						 {"text", "word"}, {"i16", "number"},
						 {"i64", "wide"},  {"list_u16", "list"},
						 {"u32", "behind"}};
	static const struct field fields[] = {
		{.place = FIELD_STAMP},
		{.place = FIELD_CPU},
		{.place = FIELD_TID},
		{.place = FIELD_COMM},
		{.place = FIELD_INLINE, .offset = 8, .bytes = 8, .element = 1},
		{.place = FIELD_INLINE, .offset = 16, .bytes = 2, .element = 2, .is_signed = true},
		{.place = FIELD_INLINE, .offset = 16, .bytes = 2, .element = 2, .is_signed = true},
		{.place = FIELD_INLINE, .offset = 8, .bytes = 4, .element = 2},
		{.place = FIELD_INLINE, .offset = 20, .bytes = 4, .element = 4},
	};
	static uint8_t page[PAGE];
	struct ArrowArrayStream stream;
	struct ArrowArray batch;
	struct source *source;
	struct scan *scan;
	const int32_t *offsets;

	page__start(page, PAGE, 1000);
	add_event(page, EVENT, 42, "ab\xff", -2);
	add_event(page, EVENT + 1, 42, "other", 1);
	add_event(page, EVENT, 43, "12345678", 3);
	scan = scan_of(WANT_EVENTS, columns, 9);
	source = source_of(scan, file_of(page, PAGE), PAGE);
	memcpy(source->fields, fields, sizeof(fields));
	CHECK_EQ(names__add(&source->names, 42, 0, "init", 4), 0);
	CHECK_EQ(names__settle(&source->names), 0);
	CHECK_EQ(scan__stream(scan, &stream), 0);
	batch = next_of(&stream);
	CHECK_EQ(batch.length, 2);
	CHECK_EQ(batch.n_children, 9);
	CHECK_EQ(((const uint64_t *)batch.children[0]->buffers[1])[0], 1010);
	CHECK_EQ(((const uint64_t *)batch.children[0]->buffers[1])[1], 1030);
	CHECK_EQ(((const int32_t *)batch.children[1]->buffers[1])[1], 3);
	CHECK_EQ(((const int32_t *)batch.children[2]->buffers[1])[1], 43);
	CHECK(is_valid(batch.children[3], 0) && !is_valid(batch.children[3], 1));
	CHECK(memcmp(batch.children[3]->buffers[2], "init", 4) == 0);
	offsets = batch.children[4]->buffers[1];
	CHECK(offsets[0] == 0 && offsets[1] == 6 && offsets[2] == 14);
	CHECK(memcmp(batch.children[4]->buffers[2], "ab\\xff12345678", 14) == 0);
	CHECK(((const int16_t *)batch.children[5]->buffers[1])[0] == -2);
	CHECK(((const int64_t *)batch.children[6]->buffers[1])[0] == -2);
	offsets = batch.children[7]->buffers[1];
	CHECK(offsets[1] == 2 && offsets[2] == 4);
	CHECK_EQ(((const uint16_t *)batch.children[7]->children[0]->buffers[1])[0], 'a' | 'b' << 8);
	CHECK_EQ(batch.children[8]->null_count, 2);
	CHECK(!is_valid(batch.children[8], 0) && !is_valid(batch.children[8], 1));
	batch.release(&batch);
	batch = next_of(&stream);
	CHECK(batch.release == NULL);
	stream.release(&stream);
	CHECK_EQ(source__counts(source).rows, 2);
	scan__drop(scan);
}

static void a_stream_outlives_its_scan_and_batches_are_bounded(void)
{
	static const char *const columns[][2] = {{"u64", "stamp"}};
	const size_t pages = 400;
	uint8_t *const data = calloc(pages, PAGE);
	struct ArrowArrayStream stream;
	struct ArrowArray batch;
	struct scan *const scan = scan_of(WANT_EVENTS, columns, 1);
	uint64_t rows = 0, batches = 0;
	struct source *source;

	CHECK(data != NULL);
	for (size_t i = 0; i < pages; i++) {
		page__start(data + i * PAGE, PAGE, 1000 * (i + 1));
		for (size_t j = 0; j < 100; j++)
			add_event(data + i * PAGE, EVENT, 1, "", 0);
	}
	source = source_of(scan, file_of(data, pages * PAGE), pages * PAGE);
	source->fields[0].place = FIELD_STAMP;
	CHECK_EQ(scan__stream(scan, &stream), 0);
	scan__drop(scan);
	for (batch = next_of(&stream); batch.release != NULL; batch = next_of(&stream)) {
		CHECK(batch.length < 16384);
		rows += (uint64_t)batch.length;
		batches++;
		batch.release(&batch);
	}
	CHECK_EQ(rows, 100 * pages);
	CHECK(batches > 2);
	stream.release(&stream);
	free(data);
}

static void losses_and_damage_are_rows_and_end_nothing(void)
{
	static const char *const losses[][2] = {{"u64", "stamp"}, {"u64", "events"}};
	static const char *const damage[][2] = {{"u64", "byte"}, {"text", "reason"}};
	static uint8_t pages[4 * PAGE];
	struct ArrowArrayStream stream;
	struct ArrowArray batch;
	struct source *source;
	struct scan *scan;

	for (uint32_t i = 0; i < 4; i++) {
		page__start(pages + i * PAGE, PAGE, 1000 * (i + 1));
		add_event(pages + i * PAGE, EVENT, 1, "", 0);
	}
	page__lost(pages + PAGE, 5, true);
	page__lost(pages + 2 * PAGE, 0, false);
	walk__store(pages + 3 * PAGE + 8, PAGE); /* more than a page can hold */
	scan = scan_of(WANT_LOSSES, losses, 2);
	source = source_of(scan, file_of(pages, sizeof(pages)), sizeof(pages));
	source->fields[0].place = FIELD_STAMP;
	source->fields[1] =
		(struct field){.place = FIELD_INLINE, .offset = 8, .bytes = 8, .element = 8};
	CHECK_EQ(scan__stream(scan, &stream), 0);
	batch = next_of(&stream);
	CHECK_EQ(batch.length, 2);
	CHECK_EQ(((const uint64_t *)batch.children[0]->buffers[1])[1], 3000);
	CHECK_EQ(((const uint64_t *)batch.children[1]->buffers[1])[0], 5);
	CHECK(!is_valid(batch.children[1], 1));
	batch.release(&batch);
	stream.release(&stream);
	CHECK_EQ(source__counts(source).lost, 5);
	CHECK_EQ(source__counts(source).lost_untold, 1);
	CHECK_EQ(source__counts(source).damaged, 1);
	scan__drop(scan);

	/* The span claims a page more than the file has. */
	scan = scan_of(WANT_DAMAGE, damage, 2);
	source = source_of(scan, file_of(pages, sizeof(pages)), sizeof(pages) + PAGE);
	source->fields[0] = (struct field){.place = FIELD_INLINE, .bytes = 8, .element = 8};
	source->fields[1] =
		(struct field){.place = FIELD_INLINE, .offset = 8, .bytes = 24, .element = 1};
	CHECK_EQ(scan__stream(scan, &stream), 0);
	batch = next_of(&stream);
	CHECK_EQ(batch.length, 2);
	CHECK_EQ(((const uint64_t *)batch.children[0]->buffers[1])[0], 3 * PAGE + 16);
	CHECK_EQ(((const uint64_t *)batch.children[0]->buffers[1])[1], 4 * PAGE);
	CHECK(memcmp(batch.children[1]->buffers[2], "data_beyond_pagefile_ends", 25) == 0);
	batch.release(&batch);
	stream.release(&stream);
	scan__drop(scan);
}

/* A double has no single nanoseconds of it. */
#define TODAY_NS INT64_C(1800000000000000000)

static void only_the_time_that_is_asked_for_is_read(void)
{
	static const char *const columns[][2] = {{"time", "utc"}};
	static uint8_t pages[3 * PAGE];
	static const struct clock_reading readings[] = {{1000, TODAY_NS + 500000},
							{2000, TODAY_NS + 501100}};
	struct ArrowArrayStream stream;
	struct ArrowArray batch;
	struct source *source;
	struct scan *const scan = scan_of(WANT_EVENTS, columns, 1);

	for (uint32_t i = 0; i < 3; i++) {
		page__start(pages + i * PAGE, PAGE, 1000 * (i + 1));
		for (uint32_t j = 0; j < 10; j++)
			add_event(pages + i * PAGE, EVENT, 1, "", 0);
	}
	source = source_of(scan, file_of(pages, sizeof(pages)), sizeof(pages));
	source->fields[0].place = FIELD_UTC;
	source->since_ns = 1100;
	source->until_ns = 2010;
	CHECK_EQ(source__set_readings(source, readings, 2), 0);
	CHECK_EQ(scan__stream(scan, &stream), 0);
	batch = next_of(&stream);
	CHECK_EQ(batch.length, 2);
	/* Between the readings the wall clock gains a tenth; behind them it keeps its distance. */
	CHECK_EQ(((const int64_t *)batch.children[0]->buffers[1])[0], TODAY_NS + 500110);
	CHECK_EQ(((const int64_t *)batch.children[0]->buffers[1])[1], TODAY_NS + 501110);
	batch.release(&batch);
	stream.release(&stream);
	scan__drop(scan);
}

/* Append a sample {id, u64 tid, u64 time} with the call chain {1, 2}; returns its bytes. */
static size_t add_sample(uint8_t *to, uint64_t id, int32_t tid, uint64_t time_ns)
{
	const uint64_t words[] = {walk__header(PERF_RECORD_SAMPLE, 0, 56),
				  id,
				  (uint64_t)(uint32_t)tid << 32,
				  time_ns,
				  2,
				  1,
				  2};

	memcpy(to, words, sizeof(words));
	return sizeof(words);
}

static void samples_are_found_behind_the_payload_of_aux_data(void)
{
	static const char *const columns[][2] = {{"i32", "tid"},     {"text", "comm"},
						 {"text", "event"},  {"list_u64", "chain"},
						 {"text", "of_tid"}, {"text", "of_none"}};
	/* Names are of the row's thread, of one in the payload, and of one beyond its end. */
	static const struct field fields[] = {{.place = FIELD_TID},
					      {.place = FIELD_COMM},
					      {.place = FIELD_LABEL},
					      {.place = FIELD_CHAIN, .element = 8},
					      {.place = FIELD_COMM_OF, .offset = 20},
					      {.place = FIELD_COMM_OF, .offset = 53}};
	static uint8_t data[512u << 10];
	const uint64_t type =
		PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CALLCHAIN;
	const uint64_t comm[] = {walk__header(PERF_RECORD_COMM, 0, 48),
				 UINT64_C(42) << 32,
				 'c',
				 UINT64_C(42) << 32,
				 900,
				 5};
	const struct aux_piece aux = {.bytes = 300000};
	struct ArrowArrayStream stream;
	struct ArrowArray batch;
	struct source *source;
	struct scan *const scan = scan_of(WANT_EVENTS, columns, 6);
	size_t bytes = add_sample(data, 5, 42, 1000);
	const uint64_t *chain;

	bytes += aux_piece__write(data + bytes, AUX_AUXTRACE, &aux);
	bytes += add_sample(data + bytes, 6, 42, 800);
	bytes += add_sample(data + bytes, 7, 42, 1000); /* of nobody */
	memcpy(data + bytes, comm, sizeof(comm));
	bytes += sizeof(comm);
	CHECK_EQ(scan__add_source(scan, "perf", file_of(data, bytes), &source), 0);
	CHECK_EQ(scan__add_span(scan, ROW_NONE, 0, bytes), 0);
	memcpy(source->fields, fields, sizeof(fields));
	source->perf_rows = PERF_ROWS_SAMPLES;
	for (int32_t i = 0; i < 2; i++) {
		const struct perf_event event = {
			.sample_type = type, .has_trailer = true, .is_wanted = true, .label = i};

		CHECK_EQ(perf_events__add(&source->perf, &event), 0);
		CHECK_EQ(perf_events__add_id(&source->perf, 5 + (uint64_t)i), 0);
		CHECK_EQ(source__add_label(source, i == 0 ? "first" : "second", 5), 0);
	}
	CHECK_EQ(scan__stream(scan, &stream), 0);
	batch = next_of(&stream);
	CHECK_EQ(batch.length, 2);
	CHECK_EQ(((const int32_t *)batch.children[0]->buffers[1])[1], 42);
	/* The thread has its name from 900 on. */
	CHECK(is_valid(batch.children[1], 0) && !is_valid(batch.children[1], 1));
	CHECK(is_valid(batch.children[4], 0) && !is_valid(batch.children[4], 1));
	CHECK(memcmp(batch.children[4]->buffers[2], "c", 1) == 0);
	CHECK(!is_valid(batch.children[5], 0) && !is_valid(batch.children[5], 1));
	CHECK(memcmp(batch.children[2]->buffers[2], "firstsecon", 10) == 0);
	chain = batch.children[3]->children[0]->buffers[1];
	CHECK(chain[0] == 1 && chain[3] == 2);
	batch.release(&batch);
	stream.release(&stream);
	CHECK_EQ(source__counts(source).damaged, 1);
	scan__drop(scan);
}

/* Put a sample of {IDENTIFIER, TIME, RAW, CGROUP, CODE_PAGE_SIZE}, or one of a task without RAW. */
static size_t add_placed(uint8_t *to, uint64_t id, uint64_t cgroup)
{
	const uint64_t words[] = {walk__header(PERF_RECORD_SAMPLE, 0, 56),
				  id,
				  1000,
				  UINT64_C(9) << 32 | 12,
				  UINT64_C(8) << 32 | 7,
				  cgroup,
				  4096};

	memcpy(to, words, sizeof(words));
	return sizeof(words);
}

static size_t add_cgroup(uint8_t *to, uint64_t cgroup, const char *path)
{
	uint64_t words[5] = {walk__header(PERF_RECORD_CGROUP, 0, 40), cgroup, 0, 900, 5};

	(void)strncpy((char *)&words[2], path, sizeof(words[2]) - 1);
	memcpy(to, words, sizeof(words));
	return sizeof(words);
}

/* The file tells them behind the samples; of two paths the first one counts. */
static void samples_have_the_paths_of_their_cgroups(void)
{
	static const char *const columns[][2] = {{"text", "cgroup"}, {"u32", "first"}};
	static const uint64_t ids[] = {70, 70, 99, 71, 0};
	static uint8_t data[4096];
	const uint64_t type = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TIME | PERF_SAMPLE_RAW |
			      PERF_SAMPLE_CGROUP | PERF_SAMPLE_CODE_PAGE_SIZE;
	size_t bytes = 0, damaged;

	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
		bytes += add_placed(data + bytes, 5, ids[i]);
	damaged = bytes;
	bytes += add_placed(data + bytes, 5, 70);
	walk__store(data + damaged, walk__header(PERF_RECORD_SAMPLE, 0, 48)); /* a word is missing */
	bytes -= 8;
	bytes += add_cgroup(data + bytes, 70, "/a\xff");
	bytes += add_cgroup(data + bytes, 71, "/b");
	bytes += add_cgroup(data + bytes, 70, "/c");
	for (enum perf_rows rows = PERF_ROWS_RAW; rows <= PERF_ROWS_SAMPLES; rows++) {
		const struct field fields[] = {
			{.place = FIELD_CGROUP, .offset = rows == PERF_ROWS_RAW ? 0 : 16},
			{.place = FIELD_INLINE, .offset = 0, .bytes = 4, .element = 4},
		};
		const struct perf_event event = {
			.sample_type = type, .has_trailer = true, .is_wanted = true};
		struct scan *const scan = scan_of(WANT_EVENTS, columns, 2);
		struct ArrowArrayStream stream;
		struct ArrowArray batch;
		struct source *source;

		CHECK_EQ(scan__add_source(scan, "perf", file_of(data, bytes), &source), 0);
		CHECK_EQ(scan__add_span(scan, ROW_NONE, 0, bytes), 0);
		memcpy(source->fields, fields, sizeof(fields));
		source->perf_rows = rows;
		CHECK_EQ(perf_events__add(&source->perf, &event), 0);
		CHECK_EQ(perf_events__add_id(&source->perf, 5), 0);
		CHECK_EQ(scan__stream(scan, &stream), 0);
		batch = next_of(&stream);
		CHECK_EQ(batch.length, 5);
		CHECK_EQ(batch.children[0]->null_count, 2);
		CHECK(!is_valid(batch.children[0], 2) && !is_valid(batch.children[0], 4));
		CHECK(memcmp(batch.children[0]->buffers[2], "/a\\xff/a\\xff/b", 14) == 0);
		CHECK_EQ(((const uint32_t *)batch.children[1]->buffers[1])[0],
			 rows == PERF_ROWS_RAW ? 9 : PERF_RECORD_SAMPLE);
		batch.release(&batch);
		stream.release(&stream);
		CHECK_EQ(source__counts(source).damaged, 1);
		scan__drop(scan);
	}
}

/* Across pieces, with the data that belong to them; a gap in the numbers is a loss. */
static void requests_follow_each_other_with_their_data(void)
{
	static const char *const columns[][2] = {
		{"u32", "sequence"}, {"text", "rwbs"}, {"text", "device"}, {"bytes", "payload"}};
	static const struct field fields[] = {
		{.place = FIELD_INLINE, .offset = 4, .bytes = 4, .element = 4},
		{.place = FIELD_RWBS},
		{.place = FIELD_DEVICE, .offset = 36},
		{.place = FIELD_TAIL, .element = 1},
	};
	static uint8_t data[600u << 10];
	struct ArrowArrayStream stream;
	struct ArrowArray batch;
	struct source *source;
	struct scan *const scan = scan_of(WANT_EVENTS, columns, 4);
	uint64_t rows = 0, numbers = 0;
	size_t bytes = 0;
	uint32_t sequence;

	for (sequence = 1; bytes < 500000; sequence += 2) {
		bytes += blk_record__put(data + bytes, 0, 1, 8); /* a note */
		bytes += blk_record__put(data + bytes, sequence, sequence,
					 (uint16_t)(sequence % 99));
		if (sequence == 1001)
			bytes += 70; /* of nothing */
	}
	bytes += blk_record__put(data + bytes, sequence, sequence, 9) - 1; /* not whole */
	CHECK_EQ(scan__add_source(scan, "blktrace", file_of(data, bytes), &source), 0);
	CHECK_EQ(scan__add_span(scan, 3, 0, bytes), 0);
	memcpy(source->fields, fields, sizeof(fields));
	source->page_bytes = 128u << 10;
	CHECK_EQ(scan__stream(scan, &stream), 0);
	for (batch = next_of(&stream); batch.release != NULL; batch = next_of(&stream)) {
		const int32_t *const ends = batch.children[3]->buffers[1];

		for (int64_t i = 0; i < batch.length; i++) {
			const uint32_t number = ((const uint32_t *)batch.children[0]->buffers[1])[i];

			CHECK_EQ(number, 2 * rows++ + 1);
			CHECK_EQ(ends[i + 1] - ends[i], number % 99);
			numbers += number;
		}
		CHECK(memcmp(batch.children[1]->buffers[2], "RR", 2) == 0);
		CHECK(memcmp(batch.children[2]->buffers[2], "1445:678490", 11) == 0);
		batch.release(&batch);
	}
	stream.release(&stream);
	CHECK_EQ(2 * rows + 1, sequence);
	CHECK_EQ(numbers, rows * rows);
	CHECK_EQ(source__counts(source).lost, rows - 1);
	CHECK_EQ(source__counts(source).damaged, 1);
	scan__drop(scan);
}

static void losses_name_their_cpus(void)
{
	static const struct {
		int32_t cpu;
		uint32_t lost;
		uint64_t word[CPU_WORDS];
		bool has_unknown;
	} cases[] = {
		{.cpu = 0, .lost = 5, .word = {1}},
		{.cpu = 65, .lost = 5, .word = {0, 2}},
		{.cpu = CPU_WORDS * CPU_WORD_BITS - 1,
		 .lost = 5,
		 .word = {[CPU_WORDS - 1] = UINT64_C(1) << 63}},
		{.cpu = CPU_WORDS * CPU_WORD_BITS, .lost = 5, .has_unknown = true},
		{.cpu = -1, .lost = 5, .has_unknown = true},
		{.cpu = INT32_MIN, .lost = 5, .has_unknown = true},
		{.cpu = 3, .lost = 0},
	};
	static const char *const losses[][2] = {{"u64", "stamp"}};
	static uint8_t page[PAGE];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ArrowArrayStream stream;
		struct source *source;
		struct scan *const scan = scan_of(WANT_LOSSES, losses, 1);
		struct ArrowArray batch;
		struct counts counts;
		int fd;

		page__start(page, PAGE, 1000);
		add_event(page, EVENT, 1, "", 0);
		page__lost(page, cases[i].lost, true);
		fd = file_of(page, PAGE);
		CHECK_EQ(scan__add_source(scan, "ftrace", fd, &source), 0);
		CHECK_EQ(close(fd), 0);
		CHECK_EQ(scan__add_span(scan, cases[i].cpu, 0, PAGE), 0);
		source->page_bytes = PAGE;
		source->fields[0].place = FIELD_STAMP;
		CHECK_EQ(scan__stream(scan, &stream), 0);
		batch = next_of(&stream);
		batch.release(&batch);
		stream.release(&stream);
		counts = source__counts(source);
		CHECK_EQ(counts.lost, cases[i].lost);
		CHECK(memcmp(counts.cpus.word, cases[i].word, sizeof(counts.cpus.word)) == 0);
		CHECK_EQ(counts.cpus.has_unknown, cases[i].has_unknown);
		for (size_t j = 0; j < CPU_WORDS; j++)
			CHECK_EQ(counts.cpus_in_all.word[j], 0);
		scan__drop(scan);
	}
}

int main(void)
{
	RUN(records_become_columns_of_their_kinds);
	RUN(a_stream_outlives_its_scan_and_batches_are_bounded);
	RUN(losses_and_damage_are_rows_and_end_nothing);
	RUN(only_the_time_that_is_asked_for_is_read);
	RUN(samples_are_found_behind_the_payload_of_aux_data);
	RUN(samples_have_the_paths_of_their_cgroups);
	RUN(losses_name_their_cpus);
	RUN(requests_follow_each_other_with_their_data);
	return 0;
}
