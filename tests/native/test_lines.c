/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "lines/lines.h"
#include "lines/put.h"

#include "walk.h"

#define PAGE 4096u
#define RECORDS 5000u
#define SAMPLE_BYTES 24u
#define ID 7u

/* {header, id, time}: a sample of one of two rings. */
static size_t add_sample(uint8_t *to, uint64_t time_ns)
{
	walk__store(to, PERF_RECORD_SAMPLE | (uint64_t)SAMPLE_BYTES << 48);
	walk__store(to + 8, ID);
	walk__store(to + 16, time_ns);
	return SAMPLE_BYTES;
}

static size_t end_round(uint8_t *to)
{
	walk__store(to, WALK_FINISHED_ROUND | UINT64_C(8) << 48);
	return 8;
}

/* Begin to read the records of a perf.data in the order of time; the caller ends both. */
static struct scan *order_of(const uint8_t *data, size_t bytes, const struct perf_event *event,
			     struct source **source, struct order *order)
{
	const int fd = memfd_create("records", MFD_CLOEXEC);
	struct scan *const scan = scan__new(WANT_ALL);

	CHECK(fd >= 0 && scan != NULL);
	CHECK_EQ(write(fd, data, bytes), bytes);
	CHECK_EQ(scan__add_source(scan, "perf", fd, source), 0);
	CHECK_EQ(close(fd), 0);
	CHECK_EQ(perf_events__add(&(*source)->perf, event), 0);
	CHECK_EQ(perf_events__add_id(&(*source)->perf, ID), 0);
	CHECK_EQ(scan__add_span(scan, -1, 0, bytes), 0);
	CHECK_EQ(order__init(order, *source, scan->spans), 0);
	return scan;
}

/* Two numbers are kept for each ring's piece, however many records it has. */
static void rings_are_kept_as_runs(void)
{
	const struct perf_event event = {.sample_type = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TIME,
					 .is_wanted = true};
	uint8_t *const data = malloc(2 * RECORDS * SAMPLE_BYTES + 8);
	struct order_fault fault;
	const uint8_t *record;
	struct source *source;
	struct scan *scan;
	struct order order;
	uint64_t offset, last_ns = 0;
	size_t bytes = 0, most = 0;

	CHECK(data != NULL);
	for (int ring = 0; ring < 2; ring++)
		for (uint64_t i = 1; i <= RECORDS; i++)
			bytes += add_sample(data + bytes, i);
	bytes += end_round(data + bytes);
	scan = order_of(data, bytes, &event, &source, &order);
	/* One round alone says nothing of what later ones may have. */
	CHECK_EQ(order__next(&order, bytes, false, &record, &offset, &fault), 0);
	CHECK_EQ(order.runs, 2);
	for (uint64_t i = 0; i < 2 * RECORDS; i++) {
		CHECK_EQ(order__next(&order, bytes, true, &record, &offset, &fault), 1);
		CHECK(fault.reason == NULL && walk__load(record + 16) >= last_ns);
		last_ns = walk__load(record + 16);
		most = order.runs > most ? order.runs : most;
	}
	CHECK_EQ(most, 2);
	CHECK_EQ(order__next(&order, bytes, true, &record, &offset, &fault), 0);
	CHECK_EQ(order.runs, 0);
	CHECK_EQ(order__end(source->fd, 0, true), bytes);
	order__deinit(&order);
	scan__drop(scan);
	free(data);
}

/* A record that lies in two blocks of the file is put together. */
static void records_may_lie_across_blocks(void)
{
	const struct perf_event event = {.sample_type = PERF_SAMPLE_IDENTIFIER, .is_wanted = true};
	const size_t large = 65528, bytes = 3 * large;
	uint8_t *const data = calloc(1, bytes);
	struct order_fault fault;
	const uint8_t *record;
	struct source *source;
	struct scan *scan;
	struct order order;
	uint64_t offset;

	CHECK(data != NULL);
	for (size_t at = 0; at < bytes; at += large) {
		walk__store(data + at, PERF_RECORD_SAMPLE | (uint64_t)large << 48);
		walk__store(data + at + 8, ID);
		walk__store(data + at + large - 8, at);
	}
	scan = order_of(data, bytes, &event, &source, &order);
	for (size_t at = 0; at < bytes; at += large) {
		CHECK_EQ(order__next(&order, bytes, true, &record, &offset, &fault), 1);
		CHECK_EQ(offset, at);
		CHECK_EQ(walk__load(record + large - 8), at);
	}
	order__deinit(&order);
	scan__drop(scan);
	free(data);
}

/* The payload of AUXTRACE is none, though it looks like one; what follows has its place in time. */
static void a_payload_is_no_record(void)
{
	const struct perf_event event = {.sample_type = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TIME,
					 .is_wanted = true};
	uint8_t data[256] = {0};
	struct order_fault fault;
	const uint8_t *record;
	struct source *source;
	struct scan *scan;
	struct order order;
	uint64_t offset;
	size_t bytes = 0;

	bytes += add_sample(data, 10);
	walk__store(data + bytes, WALK_AUXTRACE | UINT64_C(48) << 48);
	walk__store(data + bytes + 8, SAMPLE_BYTES + 8);
	bytes += 48;
	bytes += add_sample(data + bytes, 20);
	bytes += end_round(data + bytes);
	bytes += add_sample(data + bytes, 30);
	scan = order_of(data, bytes, &event, &source, &order);
	CHECK_EQ(order__next(&order, bytes, true, &record, &offset, &fault), 1);
	CHECK_EQ(walk__load(record + 16), 10);
	CHECK_EQ(order__next(&order, bytes, true, &record, &offset, &fault), 1);
	CHECK(fault.reason == NULL && walk__load(record + 16) == 30);
	CHECK_EQ(order__next(&order, bytes, true, &record, &offset, &fault), 0);
	CHECK_EQ(order__end(source->fd, 0, true), 0);
	order__deinit(&order);
	scan__drop(scan);
}

/* A program cannot take what it has not pushed, push without an end, or name what is not there. */
static void programs_are_bounded(void)
{
	const struct record record = {.payload = (const uint8_t *)"", .cpu = 1};
	struct op ops[64] = {{.code = OP_LITERAL}};
	struct store out = {0};
	struct machine *const machine = calloc(1, sizeof(*machine));
	struct program program;

	CHECK(machine != NULL);
	machine->out = &out;
	CHECK_EQ(program__init(&program, &machine->words, ops, 1), (uint64_t)-EINVAL);
	ops[0] = (struct op){.code = OP_JUMP, .c = 1};
	CHECK_EQ(program__init(&program, &machine->words, ops, 1), (uint64_t)-EINVAL);
	ops[0] = (struct op){.code = OP_CODES};
	CHECK_EQ(program__init(&program, &machine->words, ops, 1), (uint64_t)-EINVAL);
	ops[0] = (struct op){.code = OP_ADD};
	CHECK_EQ(program__init(&program, &machine->words, ops, 1), 0);
	CHECK_EQ(machine__run(machine, &program, &record), 1);
	program__deinit(&program);
	for (size_t i = 0; i < 64; i++)
		ops[i] = (struct op){.code = i < 60 ? OP_CPU : OP_PLAIN};
	CHECK_EQ(program__init(&program, &machine->words, ops, 64), 0);
	CHECK_EQ(machine__run(machine, &program, &record), 1);
	CHECK(out.bytes == 4 && memcmp(out.data, "????", 4) == 0);
	out.bytes = 0;
	program__deinit(&program);
	ops[0] = (struct op){.code = OP_CPU};
	ops[1] = (struct op){.code = OP_PLAIN};
	ops[2] = (struct op){.code = OP_PLAIN};
	CHECK_EQ(program__init(&program, &machine->words, ops, 3), 0);
	CHECK_EQ(machine__run(machine, &program, &record), 1);
	CHECK(out.bytes == 2 && memcmp(out.data, "1?", 2) == 0);
	program__deinit(&program);
	free(out.data);
	free(machine);
}

/* Those of C1, in UTF-8, too: a terminal obeys them. */
static void control_characters_are_escaped_in_json(void)
{
	static const char text[] = "\x1b\x7f\xc2\x9b\xc3\xa9",
			  quoted[] = "\"\\u001b\\u007f\\u009b\xc3\xa9\"";
	const struct value value = {
		.kind = VALUE_TEXT, .data = (const uint8_t *)text, .bytes = sizeof(text) - 1};
	struct store out = {0};

	CHECK_EQ(put__quoted(&out, &value, false), 0);
	CHECK(out.bytes == sizeof(quoted) - 1 && memcmp(out.data, quoted, out.bytes) == 0);
	free(out.data);
}

int main(void)
{
	rings_are_kept_as_runs();
	records_may_lie_across_blocks();
	a_payload_is_no_record();
	programs_are_bounded();
	control_characters_are_escaped_in_json();
	return 0;
}
