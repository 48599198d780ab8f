/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/perf_event.h>
#include <string.h>

#include "walk.h"
#include "check.h"
#include "guarded.h"
#include "records.h"

static const enum aux_framing framings[] = {AUX_AUXTRACE, AUX_HIDDEN};

/* A piece of `bytes` bytes of payload, each 0xee, so that what follows it is no record. */
static uint32_t put(uint8_t *to, enum aux_framing framing, uint64_t bytes)
{
	const struct aux_piece piece = {
		.bytes = bytes,
		.offset = 0x1122334455667788,
		.reference = 99,
		.origin = {.idx = 3, .tid = UINT32_MAX, .cpu = 2},
	};

	memset(to + aux_piece__head_bytes(framing), 0xee, bytes);
	return aux_piece__write(to, framing, &piece);
}

static void what_is_written_is_read(void)
{
	static uint8_t buffer[70000];

	for (uint32_t i = 0; i < 2; i++) {
		for (uint64_t bytes = 0; bytes < 300; bytes++) {
			const uint32_t all = put(buffer, framings[i], bytes);
			struct aux_piece piece;
			uint64_t whole;

			CHECK_EQ(all % 8, 0);
			CHECK(all - bytes < aux_piece__head_bytes(framings[i]) + 8);
			CHECK(aux_piece__read(buffer, all, &piece, &whole));
			CHECK_EQ(whole, all);
			CHECK_EQ(piece.bytes, bytes);
			CHECK_EQ(piece.offset, 0x1122334455667788);
			CHECK_EQ(piece.reference, 99);
			CHECK_EQ(piece.origin.idx, 3);
			CHECK_EQ(piece.origin.tid, UINT32_MAX);
			CHECK_EQ(piece.origin.cpu, 2);
		}
	}
}

/* Offsets as in tools/lib/perf/include/perf/event.h, struct perf_record_auxtrace. */
static void an_auxtrace_record_is_laid_out_as_perf_has_it(void)
{
	uint8_t buffer[128];
	uint32_t word;

	CHECK_EQ(put(buffer, AUX_AUXTRACE, 13), 48 + 16);
	CHECK_EQ(walk__load(buffer), walk__header(71, 0, 48));
	CHECK_EQ(walk__load(buffer + 8), 16);
	CHECK_EQ(walk__load(buffer + 16), 0x1122334455667788);
	CHECK_EQ(walk__load(buffer + 24), 99);
	memcpy(&word, buffer + 32, 4);
	CHECK_EQ(word, 3);
	memcpy(&word, buffer + 36, 4);
	CHECK_EQ(word, UINT32_MAX);
	memcpy(&word, buffer + 40, 4);
	CHECK_EQ(word, 2);
	CHECK_EQ(buffer[48 + 12], 0xee);
	CHECK_EQ(buffer[48 + 13], 0);
}

static void a_hidden_piece_is_one_record_that_readers_ignore(void)
{
	static uint8_t buffer[65536];
	struct aux_piece piece;
	uint64_t whole;

	CHECK_EQ(put(buffer, AUX_HIDDEN, AUX_HIDDEN_PAYLOAD_MAX), 65528);
	CHECK_EQ(walk__load(buffer), walk__header(WALK_FINISHED_INIT, 0, 65528));
	CHECK(memcmp(buffer + 8, "COTDAUX1", 8) == 0);
	CHECK(aux_piece__read(buffer, 65528, &piece, &whole));
	CHECK_EQ(piece.bytes, AUX_HIDDEN_PAYLOAD_MAX);
}

static void records_of_these_types_may_be_no_pieces(void)
{
	static uint8_t buffer[4096];
	struct aux_piece piece;
	uint64_t whole;

	/* Padding. */
	memset(buffer, 0, sizeof(buffer));
	walk__store(buffer, walk__header(WALK_FINISHED_INIT, 0, 4096));
	CHECK(!aux_piece__read(buffer, 4096, &piece, &whole));
	/* Shorter than a body, cut by the end, of another size than it says, not aligned. */
	walk__store(buffer, walk__header(WALK_AUXTRACE, 0, 40));
	CHECK(!aux_piece__read(buffer, 4096, &piece, &whole));
	(void)put(buffer, AUX_AUXTRACE, 64);
	CHECK(!aux_piece__read(buffer, 40, &piece, &whole));
	CHECK(aux_piece__read(buffer, 48, &piece, &whole));
	CHECK_EQ(whole, 48 + 64);
	walk__store(buffer + 8, 63);
	CHECK(!aux_piece__read(buffer, 4096, &piece, &whole));
	walk__store(buffer + 8, UINT64_MAX - 7);
	CHECK(!aux_piece__read(buffer, 4096, &piece, &whole));
	(void)put(buffer, AUX_HIDDEN, 64);
	walk__store(buffer + 16, 72);
	CHECK(!aux_piece__read(buffer, 4096, &piece, &whole));
	/* A sample. */
	(void)record__sample(buffer, 64, 1, 1);
	CHECK(!aux_piece__read(buffer, 64, &piece, &whole));
}

/* Samples before and behind each piece, and a walk from one to the next. */
static void a_walk_over_a_file_steps_over_payload(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		struct guarded memory;
		struct walk_tally tally = {0};
		enum fault fault;
		size_t last, used = 0;

		guarded__init(&memory, 8192, -1);
		for (uint64_t bytes = 5; bytes < 500; bytes += 99) {
			used += record__sample(memory.data + used, 64, bytes, bytes);
			used += put(memory.data + used, framings[i], bytes);
		}
		used += record__sample(memory.data + used, 64, 500, 500);
		/* Nothing is readable behind the end. */
		memmove(memory.data + memory.bytes - used, memory.data, used);
		CHECK_EQ(walk__file(memory.data + memory.bytes - used, used, &records__layout,
				    &tally, &fault, &last),
			 used);
		CHECK_EQ(fault, FAULT_NONE);
		CHECK_EQ(last, used - 64);
		CHECK_EQ(tally.samples, 6);
		CHECK_EQ(tally.records, 11);
		CHECK_EQ(tally.aux_pieces, 5);
		CHECK_EQ(tally.aux_bytes, 5 + 104 + 203 + 302 + 401);
		CHECK_EQ(tally.last_ns, 500);
		guarded__deinit(&memory);
	}
}

static void a_piece_that_is_cut_ends_a_walk_before_it(void)
{
	static uint8_t buffer[4096];
	const size_t first = record__sample(buffer, 64, 1, 1);
	const size_t used = first + put(buffer + first, AUX_AUXTRACE, 800);

	for (size_t bytes = first; bytes < used; bytes++) {
		struct walk_tally tally = {0};
		enum fault fault;
		size_t last;

		CHECK_EQ(walk__file(buffer, bytes, &records__layout, &tally, &fault, &last), first);
		CHECK_EQ(fault, bytes < first + 8 ? FAULT_NONE : WALK_PAST_HEAD);
		CHECK_EQ(tally.aux_pieces, 0);
		CHECK_EQ(tally.records, 1);
	}
}

static void an_auxtrace_record_of_no_sense_ends_a_walk(void)
{
	static uint8_t buffer[4096];
	struct walk_tally tally = {0};
	enum fault fault;
	size_t last;

	(void)put(buffer, AUX_AUXTRACE, 800);
	walk__store(buffer + 8, 801);
	CHECK_EQ(walk__file(buffer, 4096, &records__layout, &tally, &fault, &last), 0);
	CHECK_EQ(fault, WALK_BAD_SIZE);
}

int main(void)
{
	RUN(what_is_written_is_read);
	RUN(an_auxtrace_record_is_laid_out_as_perf_has_it);
	RUN(a_hidden_piece_is_one_record_that_readers_ignore);
	RUN(records_of_these_types_may_be_no_pieces);
	RUN(a_walk_over_a_file_steps_over_payload);
	RUN(a_piece_that_is_cut_ends_a_walk_before_it);
	RUN(an_auxtrace_record_of_no_sense_ends_a_walk);
	return 0;
}
