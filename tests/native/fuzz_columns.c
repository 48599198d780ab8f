/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "columns/scan.h"
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

/* {u8 of each of three fields: place, offset, bytes, element}, pages. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const kinds[] = {"text", "bytes", "list_u32", "u16", "i64", "time"};
	const size_t count = sizeof(kinds) / sizeof(kinds[0]);
	static int fd = -1;

	if (fd < 0)
		fd = memfd_create("pages", MFD_CLOEXEC);
	if (size < 4 * count)
		return 0;
	for (enum wanted wanted = WANT_EVENTS; wanted <= WANT_DAMAGE; wanted++) {
		struct scan *const scan = scan__new(wanted);
		const uint8_t *const pages = data + 4 * count;
		size_t bytes = size - 4 * count;
		struct subbuf_tally tally = {0};
		struct source *source;
		uint64_t rows;

		if (bytes > BYTES_MAX)
			bytes = BYTES_MAX;
		CHECK(scan != NULL);
		CHECK_EQ(ftruncate(fd, 0), 0);
		CHECK_EQ(pwrite(fd, pages, bytes, 0), bytes);
		for (size_t i = 0; i < count; i++)
			CHECK_EQ(scan__add_column(scan, kinds[i], "x"), 0);
		CHECK_EQ(scan__add_source(scan, "ftrace", fd, &source), 0);
		source->page_bytes = PAGE_BYTES;
		source->event = EVENT;
		source->tid_offset = 4;
		for (size_t i = 0; i < count; i++)
			source->fields[i] = (struct field){
				.place = data[4 * i] % (FIELD_REL_LOC + 1),
				.offset = data[4 * i + 1],
				.bytes = data[4 * i + 2],
				.element = data[4 * i + 3],
			};
		CHECK_EQ(scan__add_span(scan, 0, 0, bytes), 0);
		rows = read_all(scan);
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
	return 0;
}
