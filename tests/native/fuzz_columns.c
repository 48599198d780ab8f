/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "columns/scan.h"
#include "parquet/tables.h"
#include "walk.h"

#define PAGE_BYTES 4096u
#define BYTES_MAX (4 * PAGE_BYTES)
#define EVENT 7u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Read all of a scan, and all that its columns point to. Returns the rows. */
static uint64_t read_all(struct scan *scan)
{
	struct ArrowArrayStream stream;
	uint64_t rows = 0, sum = 0;

	CHECK_EQ(scan__stream(scan, &stream), 0);
	for (;;) {
		struct ArrowArray batch;

		CHECK_EQ(stream.get_next(&stream, &batch), 0);
		if (batch.release == NULL)
			break;
		rows += (uint64_t)batch.length;
		for (int64_t i = 0; i < batch.n_children; i++) {
			const struct ArrowArray *const column = batch.children[i];

			CHECK_EQ(column->length, batch.length);
			if (column->n_buffers == 3) {
				const int32_t *const ends = column->buffers[1];
				const uint8_t *const text = column->buffers[2];

				for (int32_t at = 0; at < ends[column->length]; at++)
					sum += text[at];
			}
		}
		batch.release(&batch);
	}
	stream.release(&stream);
	return rows + (sum & 0);
}

#define COLUMNS 6u
#define FIELD_BYTES 4u
#define ATTR_BYTES 5u

/* Lay out all rows of a table as columns of Parquet, and read what is laid out. `whole`: of the file, which is
 * dropped. Returns the rows. */
static uint64_t lay_out(struct scan *whole, struct scan *scan)
{
	struct tables *const tables = tables__new(whole);
	uint64_t all = 0, sum = 0;
	size_t number, rows;

	CHECK(tables != NULL);
	CHECK_EQ(tables__add(tables, scan), 0);
	while (tables__next(tables, &number, &rows) > 0) {
		CHECK_EQ(number, 0);
		all += rows;
		for (size_t i = 0; i < scan->column_count; i++) {
			const struct chunk *const chunk = &tables->chunk[i];

			CHECK(chunk->values >= rows && chunk->nulls <= rows);
			CHECK((chunk->entries > 0) == (chunk->encoding == ENCODING_DICTIONARY));
			for (size_t at = 0; at < chunk->data.bytes; at++)
				sum += chunk->data.data[at];
			for (size_t at = 0; at < chunk->dictionary.bytes; at++)
				sum += chunk->dictionary.data[at];
		}
	}
	tables__free(tables);
	scan__drop(whole);
	return all + (sum & 0);
}

/* Returns a scan of all that a file has. */
static struct scan *whole_of(const char *kind, int fd, size_t bytes, struct source **source)
{
	struct scan *const scan = scan__new(WANT_ALL);

	CHECK(scan != NULL);
	CHECK_EQ(scan__add_source(scan, kind, fd, source), 0);
	CHECK_EQ(scan__add_span(scan, 0, 0, bytes), 0);
	return scan;
}

/* Make a scan of a file, with the fields that the input says. */
static struct scan *scan_of(enum wanted wanted, const char *kind, int fd, size_t bytes,
			    const uint8_t *fields, struct source **source)
{
	static const char *const kinds[COLUMNS] = {"text", "bytes", "list_u64",
						   "u16",  "i64",   "time"};
	struct scan *const scan = scan__new(wanted);

	CHECK(scan != NULL);
	for (size_t i = 0; i < COLUMNS; i++)
		CHECK_EQ(scan__add_column(scan, kinds[i], "x"), 0);
	CHECK_EQ(scan__add_source(scan, kind, fd, source), 0);
	for (size_t i = 0; i < COLUMNS; i++)
		(*source)->fields[i] = (struct field){
			.place = fields[4 * i] % (FIELD_TAIL + 1),
			.offset = fields[4 * i + 1],
			.bytes = fields[4 * i + 2],
			.element = fields[4 * i + 3],
		};
	CHECK_EQ(scan__add_span(scan, 0, 0, bytes), 0);
	return scan;
}

static void read_pages(enum wanted wanted, int fd, const uint8_t *fields, const uint8_t *pages,
		       size_t bytes)
{
	struct subbuf_tally tally = {0};
	struct source *source, *all;
	struct scan *const scan = scan_of(wanted, "ftrace", fd, bytes, fields, &source);
	struct scan *const whole = whole_of("ftrace", fd, bytes, &all);
	uint64_t rows;

	source->page_bytes = PAGE_BYTES;
	source->event = EVENT;
	source->tid_offset = all->tid_offset = 4;
	all->page_bytes = PAGE_BYTES;
	rows = read_all(scan);
	if (wanted == WANT_EVENTS)
		CHECK_EQ(lay_out(whole, scan), rows);
	else
		scan__drop(whole);
	for (size_t at = 0; at < bytes; at += PAGE_BYTES) {
		const size_t rest = bytes - at < PAGE_BYTES ? bytes - at : PAGE_BYTES;
		struct subbuf_walk walk;

		(void)subbuf__page(pages + at, rest, &walk, &tally);
	}
	if (wanted == WANT_EVENTS)
		CHECK(rows <= tally.events);
	if (wanted == WANT_LOSSES)
		CHECK(source__counts(source).lost == tally.lost &&
		      source__counts(source).lost_untold == tally.lost_unknown);
	scan__drop(scan);
}

/* Two events: {u32 sample_type, u8 read_format} of each. */
static void read_records(enum wanted wanted, enum perf_rows rows_of, int fd, const uint8_t *fields,
			 const uint8_t *attrs, const uint8_t *records, size_t bytes)
{
	const struct walk_layout layout = {0};
	struct walk_tally tally = {0};
	struct source *source, *all;
	struct scan *const scan = scan_of(wanted, "perf", fd, bytes, fields, &source);
	struct scan *const whole = whole_of("perf", fd, bytes, &all);
	enum fault fault;
	uint64_t rows;
	size_t last;
	bool is_sound;

	source->perf_rows = rows_of;
	for (uint64_t i = 0; i < 2; i++) {
		const struct perf_event event = {
			.sample_type = load32(attrs + ATTR_BYTES * i) & 0x1ffffff,
			.read_format = attrs[ATTR_BYTES * i + 4],
			.has_trailer = attrs[4] >> 7,
			.is_wanted = true,
		};

		CHECK_EQ(perf_events__add(&source->perf, &event), 0);
		CHECK_EQ(perf_events__add_id(&source->perf, EVENT + i), 0);
		CHECK_EQ(perf_events__add(&all->perf, &event), 0);
		CHECK_EQ(perf_events__add_id(&all->perf, EVENT + i), 0);
	}
	rows = read_all(scan);
	is_sound = walk__file(records, bytes, &layout, &tally, &fault, &last) == bytes;
	if (wanted == WANT_EVENTS && rows_of == PERF_ROWS_RAW && is_sound)
		CHECK_EQ(lay_out(whole, scan), rows);
	else
		scan__drop(whole);
	if (wanted == WANT_EVENTS && rows_of <= PERF_ROWS_SAMPLES && is_sound)
		CHECK(rows <= tally.samples);
	if (wanted == WANT_EVENTS && rows_of > PERF_ROWS_SAMPLES && is_sound)
		CHECK(rows <= tally.records - tally.samples);
	scan__drop(scan);
}

static void read_requests(enum wanted wanted, enum blk_rows rows_of, int fd, const uint8_t *fields,
			  const uint8_t *records, size_t bytes)
{
	struct blk_state state = {0};
	struct blk_tally tally = {0};
	struct source *source;
	struct scan *const scan = scan_of(wanted, "blktrace", fd, bytes, fields, &source);
	enum fault fault;
	uint64_t rows;

	source->blk_rows = rows_of;
	rows = read_all(scan);
	/* What the recorder finds sound is found here, too, and no more losses in it. */
	if (blk__run(records, bytes, 0, &state, &tally, &fault) == bytes) {
		if (wanted == WANT_EVENTS)
			CHECK_EQ(rows, rows_of == BLK_ROWS_NOTES ? tally.notes : tally.events);
		if (wanted == WANT_LOSSES)
			CHECK_EQ(source__counts(source).lost, tally.missing);
		if (wanted == WANT_DAMAGE)
			CHECK_EQ(rows, 0);
	}
	CHECK(rows <= bytes / sizeof(uint32_t));
	scan__drop(scan);
}

/* {u8 of each of six fields: place, offset, bytes, element}, two events, pages or records. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *const attrs = data + COLUMNS * FIELD_BYTES;
	const uint8_t *const contents = attrs + 2 * ATTR_BYTES;
	static int fd = -1;
	size_t bytes;

	if (fd < 0)
		fd = memfd_create("pages", MFD_CLOEXEC);
	if (size < (size_t)(contents - data))
		return 0;
	bytes = size - (size_t)(contents - data);
	if (bytes > BYTES_MAX)
		bytes = BYTES_MAX;
	CHECK_EQ(ftruncate(fd, 0), 0);
	CHECK_EQ(pwrite(fd, contents, bytes, 0), bytes);
	for (enum wanted wanted = WANT_EVENTS; wanted <= WANT_DAMAGE; wanted++)
		read_pages(wanted, fd, data, contents, bytes);
	for (enum wanted wanted = WANT_EVENTS; wanted <= WANT_DAMAGE; wanted++)
		read_records(wanted, attrs[9] % (PERF_ROWS_AUX + 1), fd, data, attrs, contents,
			     bytes);
	for (enum wanted wanted = WANT_EVENTS; wanted <= WANT_DAMAGE; wanted++)
		read_requests(wanted, attrs[9] % (BLK_ROWS_NOTES + 1), fd, data, contents, bytes);
	return 0;
}
