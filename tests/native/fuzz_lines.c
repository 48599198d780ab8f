/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "lines/lines.h"

#define PAGE_BYTES 4096u
#define BYTES_MAX (4 * PAGE_BYTES)
#define EVENT 7u
#define OPS_MAX 64u
#define OP_BYTES 6u
#define ATTR_BYTES 5u
#define HEAD_BYTES (2 * ATTR_BYTES + 1)
#define LINE_MAX_BYTES (OPS_MAX * 6 * RECORD_MAX_BYTES)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* {code, a, b, c, d, d's high byte} for each operation; what is no operation is left out. */
static void add_program(struct lines *lines, const uint8_t *bytes, size_t count)
{
	static const char *const texts[] = {"", "x", "a*", "|", "\xff\x1b"};
	const struct entry entries[] = {{1, 1}, {4, 2}, {UINT64_MAX, 3}};
	struct op ops[OPS_MAX];
	struct line line = {.of_raw = (count & 1) != 0, .least = (uint32_t)count % 3};
	struct program program = {0};
	uint32_t number;
	size_t made = 0;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		CHECK_EQ(words__add_text(&lines->machine.words, texts[i], strlen(texts[i])), 0);
	CHECK_EQ(words__add_table(&lines->machine.words, entries, 3), 0);
	CHECK_EQ(words__add_width(&lines->machine.words, 3), 0);
	for (size_t i = 0; i < count; i++, bytes += OP_BYTES) {
		const struct op op = {.code = bytes[0] % OP_CODES,
				      .a = bytes[1],
				      .b = bytes[2],
				      .c = bytes[3],
				      .d = bytes[4] | (uint64_t)bytes[5] << 56};
		const bool is_jump = op.code >= OP_JUMP && op.code <= OP_JUMP_MISSING;

		ops[made] = op;
		if (is_jump || program__init(&program, &lines->machine.words, &op, 1) == 0)
			made++;
		if (!is_jump && program.op != NULL)
			program__deinit(&program);
	}
	for (size_t i = 0; i < made; i++)
		if (ops[i].code >= OP_JUMP && ops[i].code <= OP_JUMP_MISSING)
			ops[i].c %= (uint32_t)(made - i);
	CHECK_EQ(lines__add(lines, &line, ops, made, &number), 0);
	for (uint32_t key = 0; key < 8; key++)
		CHECK_EQ(lines__add_key(lines, key), 0);
	lines->unknown = lines->loss = number;
}

/* Read all. A program that takes more than it pushed is refused when it runs. */
static void read_all(struct lines *lines, uint64_t end)
{
	uint64_t sum = 0;
	int ret = 1;

	while (ret > 0) {
		ret = lines__read(lines, PAGE_BYTES, end, ret > 0);
		CHECK(ret >= 0 || ret == -EINVAL);
		CHECK(lines->out.bytes <= LINE_MAX_BYTES);
		for (size_t i = 0; i < lines->out.bytes; i++)
			sum += lines->out.data[i];
		lines->out.bytes = lines->notes = 0;
	}
	CHECK(sum != UINT64_MAX);
}

static void run(const char *kind, int fd, size_t bytes, const uint8_t *attrs, const uint8_t *ops,
		size_t count, bool is_counted)
{
	struct scan *const scan = scan__new(WANT_ALL);
	struct source *source;
	struct lines *lines;

	CHECK(scan != NULL);
	CHECK_EQ(scan__add_source(scan, kind, fd, &source), 0);
	source->page_bytes = PAGE_BYTES;
	source->tid_offset = 4;
	for (uint64_t i = 0; i < 2; i++) {
		const struct perf_event event = {
			.sample_type = load32(attrs + ATTR_BYTES * i) & 0x1ffffff,
			.read_format = attrs[ATTR_BYTES * i + 4],
			.has_trailer = attrs[4] >> 7,
			.is_wanted = true,
			.label = (int32_t)i,
		};

		CHECK_EQ(perf_events__add(&source->perf, &event), 0);
		CHECK_EQ(perf_events__add_id(&source->perf, EVENT + i), 0);
	}
	CHECK_EQ(scan__add_span(scan, 0, 0, bytes / 2), 0);
	CHECK_EQ(scan__add_span(scan, 1, bytes / 2, bytes - bytes / 2), 0);
	lines = lines__new(scan);
	CHECK(lines != NULL);
	add_program(lines, ops, count);
	if (is_counted) {
		const int ret = lines__count(lines, INT64_MAX);

		CHECK(ret == 0 || ret == -EINVAL);
	} else {
		/* In looks as at a file that grows, and at one whose head is wrong. */
		read_all(lines, bytes / 2);
		read_all(lines, bytes);
		read_all(lines, INT64_MAX);
	}
	lines__free(lines);
	scan__drop(scan);
}

/* Two events as for columns, {u8 operations, operations}, pages or records. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *const ops = data + HEAD_BYTES;
	const uint8_t *contents;
	static int fd = -1;
	size_t bytes, count;

	if (fd < 0)
		fd = memfd_create("records", MFD_CLOEXEC);
	if (size < HEAD_BYTES)
		return 0;
	count = data[2 * ATTR_BYTES] % OPS_MAX;
	if ((size - HEAD_BYTES) / OP_BYTES < count)
		return 0;
	contents = ops + count * OP_BYTES;
	bytes = size - (size_t)(contents - data);
	if (bytes > BYTES_MAX)
		bytes = BYTES_MAX;
	CHECK_EQ(ftruncate(fd, 0), 0);
	CHECK_EQ(pwrite(fd, contents, bytes, 0), bytes);
	for (int is_counted = 0; is_counted < 2; is_counted++) {
		run("ftrace", fd, bytes, data, ops, count, is_counted != 0);
		run("perf", fd, bytes, data, ops, count, is_counted != 0);
		run("blktrace", fd, bytes, data, ops, count, is_counted != 0);
	}
	CHECK(order__end(fd, 0, true) <= (int64_t)bytes);
	CHECK(order__end(fd, 0, false) >= order__end(fd, 0, true));
	return 0;
}
