/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "aux_ring.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "dummy_event.h"
#include "fake_aux.h"
#include "output.h"
#include "records.h"
#include "rig.h"
#include "stream.h"

#define CHUNK_BYTES (128u << 10)
#define AUX_PAGES 16u
#define AUX_BYTES (AUX_PAGES * 4096u)

/* A data ring and its AUX area, drained by hand. */
static struct fake_aux fake;
static struct ring *data;
static struct ring *aux;
static struct stream stream;
static struct event_list events;
static struct lane lane;
static struct guarded staging;
static struct chunk chunk;

static void empty_chunk(void)
{
	records__chunk(&chunk, staging.data);
}

static struct aux_ring_options plain(void)
{
	return (struct aux_ring_options){
		.map = &fake.map,
		.origin = {.idx = 5, .tid = UINT32_MAX, .cpu = 5},
	};
}

static void begin(bool snapshot)
{
	fake_aux__init(&fake, 4, AUX_PAGES, snapshot);
	guarded__init(&staging, CHUNK_BYTES, -1);
	CHECK_EQ(event_list__init(&events), 0);
	CHECK_EQ(stream__init(&stream, 0, CHUNK_BYTES,
			      &(struct stream_options){
				      .ops = &record_stream__ops,
				      .sideband_bytes = 1 << 20,
			      },
			      &events),
		 0);
	lane = (struct lane){.stream = &stream};
	data = fake_ring__open(&fake.ring);
	data->lane = &lane;
	empty_chunk();
}

static void pair(const struct aux_ring_options *options)
{
	struct aux_ring_options with = *options;

	/* Room for that of give_event(). */
	with.enable_fds = &(int){-1};
	with.enable_count = 1;
	CHECK_EQ(aux_ring__new(&with, data, &aux), 0);
	aux_ring__of(aux)->options.enable_count = 0;
	aux->lane = &lane;
	data->behind = aux;
}

static void give_event(int fd)
{
	struct aux_ring *const area = aux_ring__of(aux);

	area->enable_fds[0] = fd;
	area->options.enable_count = 1;
}

static void end(void)
{
	aux->ops->free(aux);
	stream__deinit(&stream);
	event_list__deinit(&events);
	guarded__deinit(&staging);
	fake_aux__deinit(&fake);
}

/* That of the next pass, if it is a full one; else 0. */
static uint64_t next_generation(bool full)
{
	static uint64_t generation;

	return full ? ++generation : 0;
}

/* One pass into the open chunk. */
static enum ring_take pass_of(uint64_t generation)
{
	ring__begin(aux);
	if (ring__begin(data) > 0)
		CHECK_EQ(data->ops->take(data, &chunk, CHUNK_BYTES), RING_EMPTY);
	aux->ops->follow(aux, generation);
	return aux->ops->take(aux, &chunk, CHUNK_BYTES);
}

static enum ring_take pass(bool full)
{
	return pass_of(next_generation(full));
}

struct found {
	uint64_t pieces, words, first_word, first_offset, end_offset;
};

/* The pieces in the chunk, which follow each other without a gap. */
static struct found look(void)
{
	struct output output = {.data = chunk.data, .bytes = chunk.used};
	struct found found = {0};
	struct aux_piece piece;
	size_t at = 0, at_piece;
	const uint8_t *payload;

	while ((payload = output__next_piece(&output, &at, &piece, &at_piece)) != NULL) {
		if (found.pieces++ == 0) {
			found.first_word = walk__load(payload);
			found.first_offset = piece.offset;
		} else {
			CHECK_EQ(piece.offset, found.end_offset);
		}
		CHECK_EQ(piece.origin.idx, 5);
		CHECK_EQ(piece.origin.cpu, 5);
		CHECK_EQ(piece.origin.tid, UINT32_MAX);
		CHECK_EQ(piece.reference, 0);
		CHECK_EQ(piece.bytes % 8, 0);
		for (uint64_t i = 0; i < piece.bytes; i += 8)
			CHECK_EQ(walk__load(payload + i), found.first_word + found.words++);
		found.end_offset = piece.offset + piece.bytes;
	}
	return found;
}

static void bytes_are_taken_by_the_head_across_every_wrap(enum aux_framing framing)
{
	struct aux_ring_options options = plain();
	uint64_t next = 0;

	begin(false);
	options.framing = framing;
	pair(&options);
	for (uint64_t words = 1; words < 1500; words += 7) {
		struct found found;

		empty_chunk();
		CHECK_EQ(fake_aux__run(&fake, words), words);
		CHECK_EQ(pass(false), RING_EMPTY);
		found = look();
		CHECK_EQ(found.words, words);
		CHECK_EQ(found.first_word, next);
		CHECK_EQ(found.first_offset, next * 8);
		next += words;
		CHECK_EQ(ring_map__tail(&fake.map), next * 8);
		CHECK_EQ(chunk.piece_count, framing == AUX_AUXTRACE ? 1 : 0);
		CHECK_EQ(chunk.span_count, 2);
		CHECK_EQ(chunk.spans[1].samples, words * 8);
	}
	CHECK(next * 8 > 10 * AUX_BYTES);
	CHECK_EQ(counter__read(&aux->bytes), next * 8);
	CHECK_EQ(aux->in_flight, next * 8);
	end();
}

static void payload_follows_auxtrace_records(void)
{
	bytes_are_taken_by_the_head_across_every_wrap(AUX_AUXTRACE);
}

static void payload_is_hidden_in_records(void)
{
	bytes_are_taken_by_the_head_across_every_wrap(AUX_HIDDEN);
}

static void what_a_hidden_record_cannot_hold_makes_several(void)
{
	struct aux_ring_options options = plain();
	struct found found;

	begin(false);
	options.framing = AUX_HIDDEN;
	pair(&options);
	CHECK_EQ(fake_aux__run(&fake, AUX_BYTES / 8 - 1), AUX_BYTES / 8 - 1);
	CHECK_EQ(pass(false), RING_EMPTY);
	found = look();
	CHECK_EQ(found.pieces, 2);
	CHECK_EQ(found.words, AUX_BYTES / 8 - 1);
	end();
}

/* Not a record says so: those were lost with a full data ring. */
static void bytes_without_an_aux_record_are_taken(void)
{
	const struct aux_ring_options options = plain();
	uint8_t record[64];

	begin(false);
	pair(&options);
	while (fake_ring__write(&fake.ring, record, record__sample(record, 24, 1, 1)))
		;
	CHECK_EQ(fake_aux__run(&fake, 100), 100);
	CHECK_EQ(fake.lost_records, 1);
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(look().words, 100);
	/* Which the next one that comes tells. */
	CHECK_EQ(fake_aux__run(&fake, 10), 10);
	empty_chunk();
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(look().words, 10);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->aux_records), 1);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->unrecorded_bytes), 0); /* the first one was lost */
	while (fake_ring__write(&fake.ring, record, record__sample(record, 24, 1, 1)))
		;
	CHECK_EQ(fake_aux__run(&fake, 7), 7);
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(fake_aux__run(&fake, 1), 1);
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->unrecorded_bytes), 7 * 8);
	end();
}

static void flags_of_aux_records_are_counted(void)
{
	const struct aux_ring_options options = plain();
	uint8_t record[64];

	begin(false);
	pair(&options);
	for (uint64_t flags = 0; flags < 16; flags++)
		CHECK(fake_ring__write(&fake.ring, record, record__aux(record, 0, 0, flags, 1)));
	/* A record that is too short to be one. */
	CHECK(fake_ring__write(&fake.ring, record, record__plain(record, PERF_RECORD_AUX, 24)));
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->aux_records), 16);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->truncated), 8);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->partial), 8);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->collisions), 8);
	end();
}

/* A small piece at the end of each chunk would cost more than the room it fills. */
static void a_chunk_with_little_room_is_closed_first(void)
{
	const struct aux_ring_options options = plain();
	struct found found;

	begin(false);
	pair(&options);
	CHECK_EQ(fake_aux__run(&fake, AUX_BYTES / 8 - 1), AUX_BYTES / 8 - 1);
	ring__begin(aux);
	chunk.used = CHUNK_BYTES - 40000;
	CHECK_EQ(aux->ops->take(aux, &chunk, CHUNK_BYTES), RING_CHUNK_FULL);
	CHECK_EQ(chunk.used, CHUNK_BYTES - 40000);
	CHECK_EQ(ring_map__tail(&fake.map), 0);
	empty_chunk();
	CHECK_EQ(aux->ops->take(aux, &chunk, CHUNK_BYTES), RING_EMPTY);
	found = look();
	CHECK_EQ(found.pieces, 1);
	CHECK_EQ(found.words, AUX_BYTES / 8 - 1);
	/* But what is little goes in. */
	empty_chunk();
	chunk.used = CHUNK_BYTES - CHUNK_MARKER_BYTES - 904;
	CHECK_EQ(fake_aux__run(&fake, 100), 100);
	ring__begin(aux);
	CHECK_EQ(aux->ops->take(aux, &chunk, CHUNK_BYTES), RING_EMPTY);
	CHECK_EQ(chunk.used, CHUNK_BYTES - CHUNK_MARKER_BYTES - 904 + 48 + 800);
	end();
}

/* Where a chunk cuts, no pad comes between what belongs together. */
static void only_the_end_of_what_is_there_is_padded(void)
{
	const struct aux_ring_options options = plain();
	struct output output;
	struct aux_piece piece;
	size_t at = 0, at_piece;

	begin(false);
	pair(&options);
	fake_aux__set_head(&fake, AUX_BYTES - 3);
	for (uint32_t i = 0; i < AUX_BYTES; i++)
		fake.memory.data[i] = (uint8_t)(1 + i % 255);
	ring__begin(aux);
	CHECK_EQ(aux->ops->take(aux, &chunk, 65536 + 4096 - 8 * 1000), RING_CHUNK_FULL);
	output = (struct output){.data = chunk.data, .bytes = chunk.used};
	CHECK(output__next_piece(&output, &at, &piece, &at_piece) != NULL);
	CHECK_EQ(piece.bytes % 8, 0);
	CHECK_EQ(chunk.used, 48 + piece.bytes);
	empty_chunk();
	CHECK_EQ(aux->ops->take(aux, &chunk, CHUNK_BYTES), RING_EMPTY);
	output = (struct output){.data = chunk.data, .bytes = chunk.used};
	at = 0;
	CHECK(output__next_piece(&output, &at, &piece, &at_piece) != NULL);
	CHECK_EQ(piece.offset + piece.bytes, AUX_BYTES - 3);
	CHECK_EQ(chunk.used, 48 + piece.bytes + 3);
	CHECK_EQ(counter__read(&aux->bytes), AUX_BYTES - 3);
	end();
}

static void behind_a_head_beyond_the_area_the_ring_goes_on(void)
{
	const struct aux_ring_options options = plain();
	const int fd = dummy_event__open();

	begin(false);
	pair(&options);
	CHECK_EQ(fake_aux__run(&fake, 1), 1);
	CHECK_EQ(pass(false), RING_EMPTY);
	fake_aux__set_head(&fake, AUX_BYTES + 9);
	CHECK_EQ(ring__begin(aux), 0);
	CHECK_EQ(aux->last_fault, WALK_BAD_HEAD);
	CHECK_EQ(counter__read(&aux->quarantined_bytes), AUX_BYTES);
	CHECK_EQ(ring_map__tail(&fake.map), AUX_BYTES + 9);
	fake_aux__set_head(&fake, AUX_BYTES + 109);
	CHECK_EQ(ring__begin(aux), 100);
	/* Again and again: it is left alone. */
	for (uint32_t i = 1; i < RING_FAULTS_MAX; i++) {
		CHECK_EQ(aux->fault, FAULT_NONE);
		fake_aux__set_head(&fake, (i + 1) * (2 * AUX_BYTES + 9));
		CHECK_EQ(ring__begin(aux), 0);
	}
	CHECK_EQ(aux->fault, WALK_BAD_HEAD);
	/* Nobody would read what the event makes. */
	give_event(fd);
	aux->ops->resume(aux, true, next_generation(true));
	CHECK_EQ(dummy_event__enabled_ns(fd), 0);
	end();
	close(fd);
}

static void a_successor_goes_on_at_the_tail(void)
{
	const struct aux_ring_options options = plain();
	struct found found;

	begin(false);
	CHECK_EQ(fake_aux__run(&fake, 100), 100);
	ring_map__publish_tail(&fake.map, 40 * 8);
	pair(&options);
	CHECK_EQ(pass(false), RING_EMPTY);
	found = look();
	CHECK_EQ(found.first_word, 40);
	CHECK_EQ(found.first_offset, 40 * 8);
	CHECK_EQ(found.words, 60);
	end();
}

/* Like pair(), as the next process that has the area of another one's. */
static void succeed(const struct aux_ring_options *options)
{
	if (aux != NULL)
		aux->ops->free(aux);
	pair(options);
}

/* A kill came before the kernel got back what the note tells of. */
static void a_successor_goes_on_where_the_note_says(void)
{
	struct ring_note note = {0};
	struct aux_ring_options options = plain();
	struct found found;

	begin(false);
	options.note = &note;
	pair(&options);
	CHECK_EQ(fake_aux__run(&fake, 100), 100);
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(note.at[note.turn & 1].position, 100 * 8);
	CHECK_EQ(note.place[note.turn & 1], chunk__place(&chunk));
	ring_map__publish_tail(&fake.map, 40 * 8);
	CHECK_EQ(fake_aux__run(&fake, 10), 10);
	succeed(&options);
	CHECK_EQ(ring_map__tail(&fake.map), 100 * 8);
	empty_chunk();
	CHECK_EQ(pass(false), RING_EMPTY);
	found = look();
	CHECK_EQ(found.first_word, 100);
	CHECK_EQ(found.words, 10);
	/* One that was taken otherwise is not taken again. */
	CHECK_EQ(fake_aux__run(&fake, 10), 10);
	ring_map__publish_tail(&fake.map, 115 * 8);
	succeed(&options);
	empty_chunk();
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(look().first_word, 115);
	end();
}

static struct aux_ring_options whole(void)
{
	struct aux_ring_options options = plain();

	options.whole_records = true;
	return options;
}

static void no_piece_ends_inside_of_what_an_aux_record_tells_of(void)
{
	const struct aux_ring_options options = whole();
	uint64_t next = 0, state = 3;

	begin(false);
	pair(&options);
	for (uint32_t i = 0; i < 300; i++) {
		uint64_t ends[8] = {0}, count = 1 + random__next(&state) % 7;
		uint64_t at = next * 8;
		struct found found;
		enum ring_take took;

		for (uint64_t r = 0; r < count; r++) {
			const uint64_t words = 1 + random__next(&state) % 1000;

			CHECK_EQ(fake_aux__run(&fake, words), words);
			ends[r] = fake.head;
		}
		empty_chunk();
		chunk.used = (uint32_t)(random__next(&state) % 16000 * 8);
		CHECK(chunk.used < CHUNK_BYTES);
		memset(chunk.data, 0, CHUNK_BYTES);
		/* The data ring's own chunk. */
		(void)ring__begin(aux);
		CHECK(ring__begin(data) > 0);
		ring__begin(aux);
		{
			struct chunk other;

			records__chunk(&other, malloc(CHUNK_BYTES));
			CHECK_EQ(data->ops->take(data, &other, CHUNK_BYTES), RING_EMPTY);
			free(other.data);
		}
		aux->ops->follow(aux, 0);
		do {
			const uint32_t used = chunk.used;

			took = aux->ops->take(aux, &chunk, CHUNK_BYTES);
			memmove(chunk.data, chunk.data + used, chunk.used - used);
			chunk.used -= used;
			found = look();
			CHECK_EQ(found.first_word, found.words > 0 ? next : 0);
			next += found.words;
			if (found.words > 0) {
				bool is_end = false;

				for (uint64_t r = 0; r < count; r++)
					is_end |= ends[r] == found.end_offset;
				CHECK(is_end);
				CHECK_EQ(found.first_offset, at);
				at = found.end_offset;
			}
			empty_chunk();
		} while (took == RING_CHUNK_FULL);
		CHECK_EQ(next * 8, fake.head);
	}
	CHECK_EQ(counter__read(&aux_ring__of(aux)->orphan_bytes), 0);
	end();
}

/* Its predecessor has read the records, and not the bytes. */
static void a_successor_knows_up_to_where_records_were_read(void)
{
	struct ring_note note = {0};
	struct aux_ring_options options = whole();

	begin(false);
	options.note = &note;
	pair(&options);
	CHECK_EQ(fake_aux__run(&fake, 100), 100);
	CHECK_EQ(fake_aux__run(&fake, 50), 50);
	CHECK(ring__begin(data) > 0);
	CHECK_EQ(data->ops->take(data, &chunk, CHUNK_BYTES), RING_EMPTY);
	succeed(&options);
	empty_chunk();
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(look().words, 150);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->orphan_bytes), 0);
	/* What nobody read of comes with the records. */
	CHECK_EQ(fake_aux__run(&fake, 7), 7);
	empty_chunk();
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(look().words, 7);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->unrecorded_bytes), 0);
	end();
}

/* Whoever wrote the note may lie. */
static void an_impossible_note_is_a_fault_of_the_area(void)
{
	struct ring_note note = {.at[0] = {.position = AUX_BYTES * 3, .samples = UINT64_MAX}};
	struct aux_ring_options options = whole();

	begin(false);
	options.note = &note;
	pair(&options);
	CHECK_EQ(fake_aux__run(&fake, 100), 0);
	CHECK_EQ(ring__begin(aux), 0);
	CHECK_EQ(aux->last_fault, WALK_BAD_HEAD);
	end();
}

/* Nothing is read before its segment has a place, and nothing after its end. */
static void an_area_of_another_process_can_be_held(void)
{
	struct ring_note note = {0};
	struct aux_ring_options options = plain();

	begin(false);
	data->held = true;
	pair(&options);
	CHECK_EQ(aux->ops->join(aux, &stream), -EINVAL);
	data->partner = aux;
	CHECK(!ring__obeys(data, COMMAND_HOLD));
	options.note = &note;
	succeed(&options);
	data->partner = aux;
	CHECK_EQ(aux->ops->join(aux, &stream), 0);
	CHECK(ring__obeys(data, COMMAND_HOLD));
	CHECK_EQ(fake_aux__run(&fake, 100), 100);
	ring__hold(data, true);
	CHECK_EQ(pass(false), RING_EMPTY);
	/* It is no window: that would have no bytes. */
	ring__hold(data, false);
	CHECK_EQ(look().words, 100);
	CHECK_EQ(fake_aux__run(&fake, 100), 100);
	ring__begin(aux);
	aux->ops->leave(aux, false);
	CHECK_EQ(counter__read(&aux->abandoned), 0);
	CHECK_EQ(ring_map__tail(&fake.map), 100 * 8);
	end();
}

static void bytes_whose_record_is_to_come_wait_for_it(void)
{
	const struct aux_ring_options options = whole();
	uint8_t record[64];

	begin(false);
	pair(&options);
	fake_aux__set_head(&fake, 800);
	CHECK_EQ(pass(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 0);
	CHECK_EQ(ring_map__tail(&fake.map), 0);
	CHECK(fake_ring__write(&fake.ring, record, record__aux(record, 0, 800, 0, 1)));
	CHECK_EQ(pass(true), RING_EMPTY);
	CHECK_EQ(ring_map__tail(&fake.map), 800);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->orphan_bytes), 0);
	end();
}

static void bytes_whose_record_was_lost_are_taken_a_full_pass_later(void)
{
	const struct aux_ring_options options = whole();
	uint8_t record[64];

	begin(false);
	pair(&options);
	fake_aux__set_head(&fake, 800);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(pass(true), RING_EMPTY);
	CHECK_EQ(ring_map__tail(&fake.map), 0);
	/* What came since may have a record on its way. */
	fake_aux__set_head(&fake, 1000);
	CHECK_EQ(pass(true), RING_EMPTY);
	CHECK_EQ(ring_map__tail(&fake.map), 800);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->orphan_bytes), 800);
	CHECK(fake_ring__write(&fake.ring, record, record__aux(record, 800, 200, 0, 1)));
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(ring_map__tail(&fake.map), 1000);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->orphan_bytes), 800);
	fake_aux__set_head(&fake, 1100);
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(ring_map__tail(&fake.map), 1000);
	/* At the end nothing is waited for. */
	fake_aux__set_head(&fake, 1200);
	aux->last = true;
	CHECK_EQ(pass(false), RING_EMPTY);
	CHECK_EQ(ring_map__tail(&fake.map), 1200);
	end();
}

/* Passes of a generation that have to begin again, for want of a chunk, follow at once. */
static void a_generation_counts_once(void)
{
	const struct aux_ring_options options = whole();
	const int fd = dummy_event__open();

	begin(false);
	pair(&options);
	give_event(fd);
	fake_aux__set_head(&fake, 800);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(pass_of(1), RING_EMPTY);
	CHECK_EQ(ring_map__tail(&fake.map), 0);
	CHECK_EQ(pass_of(2), RING_EMPTY);
	CHECK_EQ(ring_map__tail(&fake.map), 800);
	/* It was nearly full. */
	aux_ring__of(aux)->suspect = true;
	aux->ops->resume(aux, false, 2);
	for (int i = 0; i < 5; i++)
		aux->ops->resume(aux, false, 2);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->restarts), 0);
	aux->ops->resume(aux, false, 3);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->restarts), 1);
	end();
	close(fd);
}

static void more_records_than_are_kept_stay_together(void)
{
	const struct aux_ring_options options = whole();
	struct aux_ends *ends;

	begin(false);
	pair(&options);
	ends = &aux_ring__of(aux)->ends;
	for (uint64_t end = 8; end <= 8 * 2 * AUX_ENDS; end += 8)
		aux_ends__push(ends, end);
	aux_ends__push(ends, 8); /* not behind the last */
	CHECK_EQ(ends->count, AUX_ENDS);
	CHECK_EQ(aux_ends__pop(ends, 7), 0);
	CHECK_EQ(aux_ends__pop(ends, 8), 8);
	CHECK_EQ(aux_ends__pop(ends, 8), 0);
	CHECK_EQ(aux_ends__pop(ends, 8 * 100 + 7), 8 * 100);
	CHECK_EQ(aux_ends__pop(ends, 8 * 2 * AUX_ENDS - 1), 8 * (AUX_ENDS - 1));
	CHECK_EQ(aux_ends__pop(ends, UINT64_MAX), 8 * 2 * AUX_ENDS);
	CHECK_EQ(ends->count, 0);
	end();
}

static void whole_records_need_chunks_that_hold_them(void)
{
	struct aux_ring_options options = whole();

	begin(false);
	options.framing = AUX_HIDDEN;
	CHECK_EQ(-aux_ring__new(&options, data, &aux), EINVAL);
	options.framing = AUX_AUXTRACE;
	pair(&options);
	stream.scratch_bytes = AUX_BYTES;
	CHECK_EQ(-aux->ops->join(aux, &stream), EINVAL);
	stream.scratch_bytes = CHUNK_BYTES;
	CHECK_EQ(aux->ops->join(aux, &stream), 0);
	end();
}

static void a_window_is_taken_once_and_is_new_once(enum aux_head_rule rule)
{
	struct aux_ring_options options = plain();
	struct found found;

	begin(true);
	options.head_rule = rule;
	pair(&options);
	fake_aux__overwrite(&fake, AUX_BYTES / 8 + 500, rule == AUX_OFFSET);
	CHECK_EQ(pass(true), RING_EMPTY);
	CHECK_EQ(look().words, 0); /* nobody asked for it */
	aux->ops->hold(aux, false);
	CHECK_EQ(pass(true), RING_EMPTY);
	found = look();
	CHECK_EQ(found.words, AUX_BYTES / 8);
	CHECK_EQ(found.first_word, 500);
	CHECK_EQ(found.first_offset % AUX_BYTES, 500 * 8);
	empty_chunk();
	CHECK_EQ(pass(true), RING_EMPTY);
	CHECK_EQ(look().words, 0);
	fake_aux__overwrite(&fake, 100, rule == AUX_OFFSET);
	aux->ops->hold(aux, false);
	CHECK_EQ(pass(true), RING_EMPTY);
	CHECK_EQ(look().first_word, AUX_BYTES / 8 + 500);
	CHECK_EQ(look().words, 100);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->windows), 2);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->window_bytes), AUX_BYTES);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->window_taken_bytes), 800);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->repeated_bytes), AUX_BYTES - 800);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->overwritten_bytes),
		 rule == AUX_MONOTONIC ? 500 * 8 : 0);
	CHECK_EQ(counter__read(&aux->bytes), AUX_BYTES + 800);
	CHECK_EQ(ring_map__tail(&fake.map), 0); /* it has none */
	end();
}

static void a_window_by_a_head_that_counts(void)
{
	a_window_is_taken_once_and_is_new_once(AUX_MONOTONIC);
}

static void a_window_by_a_head_that_is_a_place(void)
{
	a_window_is_taken_once_and_is_new_once(AUX_OFFSET);
}

/* A data ring that nobody empties keeps what came last, and says what went. */
static void a_held_data_ring_gives_up_its_oldest_records(void)
{
	const struct aux_ring_options options = plain();
	const uint64_t half = 2 * 4096;
	static uint8_t record[4096];
	uint64_t serial = 0, told = 0;

	begin(true);
	pair(&options);
	stream.sideband.layout = records__layout;
	for (uint32_t i = 0; i < 400; i++) {
		const uint16_t size = (uint16_t)(24 + 8 * (i % 60));

		CHECK(fake_ring__write(&fake.ring, record,
				       record__sample(record, size, serial++, 1 + i)));
		if (i == 50)
			CHECK(fake_ring__write(&fake.ring, record, record__lost(record, 9, 1)));
		ring__begin(data);
		aux->ops->recycle(aux);
		CHECK(data->head - data->position <= half);
		/* No more than had to go: one record's size, which is below 504. */
		CHECK(counter__read(&perf_ring__of(data)->overwritten_samples) == told ||
		      data->head - data->position > half - 504);
		told = counter__read(&perf_ring__of(data)->overwritten_samples);
	}
	CHECK(told > 300);
	CHECK_EQ(counter__read(&data->samples), 0);
	CHECK_EQ(counter__read(&perf_ring__of(data)->lost_records), 9);
	/* The rest is as it was. */
	CHECK(ring__begin(data) > 0);
	CHECK_EQ(data->ops->take(data, &chunk, CHUNK_BYTES), RING_EMPTY);
	CHECK_EQ(record__check_sample(chunk.data), told);
	CHECK_EQ(counter__read(&data->samples), 400 - told);
	end();
}

static void garbage_in_a_held_data_ring_is_passed_over(void)
{
	const struct aux_ring_options options = plain();
	const uint64_t sizes[] = {0, 4, 12, 65528};

	for (uint32_t i = 0; i < 4; i++) {
		begin(true);
		pair(&options);
		fake_ring__poke(&fake.ring, 0, &(uint64_t){walk__header(9, 0, (uint16_t)sizes[i])},
				8);
		fake_ring__set_head(&fake.ring, 3 * 4096);
		ring__begin(data);
		aux->ops->recycle(aux);
		CHECK_EQ(data->last_fault, sizes[i] == 65528 ? WALK_PAST_HEAD : WALK_BAD_SIZE);
		CHECK_EQ(data->position, data->head);
		CHECK_EQ(ring_map__tail(&fake.ring.map), data->head);
		end();
	}
}

/* What happens in a pass, and whether it enables. */
struct enabling {
	uint64_t words; /* that came before */
	bool truncated, woken, full, began, stopping, snapshot;
	bool enables;
};

static void events_are_enabled_when_the_kernel_may_have_disabled_them(void)
{
	static const struct enabling cases[] = {
		{.words = 10, .enables = true},
		{.truncated = true, .enables = true},
		{.began = true, .enables = false},
		/* The kernel found no room beside the pass that made it. */
		{.began = true, .woken = true, .enables = true},
		{.began = true, .full = true, .enables = true},
		/* It may wait for its exec. */
		{.woken = true, .full = true, .enables = false},
		{.words = 10, .stopping = true, .enables = false},
		{.words = 10, .snapshot = true, .enables = false},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct enabling *at = &cases[i];
		struct aux_ring_options options = plain();
		const int fd = dummy_event__open();
		uint8_t record[64];

		begin(at->snapshot);
		pair(&options);
		if (at->began) {
			CHECK_EQ(fake_aux__run(&fake, 1), 1);
			CHECK_EQ(pass(false), RING_EMPTY);
			aux->ops->resume(aux, false, 0); /* of none yet */
		}
		give_event(fd);
		aux->last = at->stopping;
		if (at->words > 0 && at->snapshot) {
			fake_aux__overwrite(&fake, at->words, false);
			aux->ops->hold(aux, false);
		} else if (at->words > 0) {
			CHECK_EQ(fake_aux__run(&fake, at->words), at->words);
		}
		if (at->truncated)
			CHECK(fake_ring__write(&fake.ring, record,
					       record__aux(record, 0, 0, PERF_AUX_FLAG_TRUNCATED,
							   1)));
		CHECK_EQ(pass(at->full), RING_EMPTY);
		aux->ops->resume(aux, at->woken, next_generation(at->full));
		CHECK_EQ(counter__read(&aux_ring__of(aux)->enables), at->enables ? 1 : 0);
		CHECK((dummy_event__enabled_ns(fd) > 0) == at->enables);
		end();
		close(fd);
	}
}

/* Let `full` full passes, and one of the other kind before them, find nothing. */
static void idle(uint32_t full)
{
	for (uint32_t i = 0; i <= full; i++) {
		CHECK_EQ(pass(i > 0), RING_EMPTY);
		aux->ops->resume(aux, false, next_generation(i > 0));
	}
}

/* ENABLE alone is not enough where the kernel takes a stopped event for an active one. */
static void an_event_that_may_stand_is_disabled_first(void)
{
	const struct aux_ring_options options = plain();
	const int fd = dummy_event__open();
	uint8_t record[64];
	uint64_t before_ns;

	begin(false);
	pair(&options);
	give_event(fd);
	CHECK_EQ(fake_aux__run(&fake, 10), 10);
	idle(3);
	CHECK(counter__read(&aux_ring__of(aux)->enables) > 0);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->restarts), 0); /* it is idle, no more */

	/* A truncated record, of no bytes. */
	CHECK(fake_ring__write(&fake.ring, record,
			       record__aux(record, 80, 0, PERF_AUX_FLAG_TRUNCATED,
					   clock__now_ns() - 5000000)));
	idle(0);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->restarts), 1);
	CHECK(counter__read(&aux_ring__of(aux)->disabled_ns) >= 5000000);
	/* In that order: it is on. */
	before_ns = dummy_event__enabled_ns(fd);
	CHECK(dummy_event__enabled_ns(fd) > before_ns);
	idle(3);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->restarts), 1);

	/* It was nearly full, and then nothing came any more. */
	CHECK_EQ(fake_aux__run(&fake, AUX_BYTES / 16 + 1), AUX_BYTES / 16 + 1);
	idle(1);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->restarts), 1);
	idle(3);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->restarts), 2);

	/* The data ring lost records, of which one may have told. */
	CHECK_EQ(fake_aux__run(&fake, 1), 1);
	CHECK(fake_ring__write(&fake.ring, record, record__lost(record, 1, 1)));
	idle(1);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->restarts), 2);
	idle(3);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->restarts), 3);
	end();
	close(fd);
}

/* Of a clock that is not ours the time between says nothing. */
static void a_foreign_clock_does_not_tell_how_long_an_event_stood(void)
{
	const struct aux_ring_options options = plain();
	const int fd = dummy_event__open();
	uint8_t record[64];

	begin(false);
	pair(&options);
	stream.sideband.foreign_clock = true;
	give_event(fd);
	CHECK(fake_ring__write(&fake.ring, record,
			       record__aux(record, 80, 0, PERF_AUX_FLAG_TRUNCATED, 1)));
	idle(0);
	CHECK_EQ(counter__read(&aux_ring__of(aux)->restarts), 1);
	CHECK(counter__read(&aux_ring__of(aux)->disabled_ns) < clock__now_ns() / 2);
	end();
	close(fd);
}

int main(void)
{
	RUN(payload_follows_auxtrace_records);
	RUN(payload_is_hidden_in_records);
	RUN(what_a_hidden_record_cannot_hold_makes_several);
	RUN(bytes_without_an_aux_record_are_taken);
	RUN(flags_of_aux_records_are_counted);
	RUN(a_chunk_with_little_room_is_closed_first);
	RUN(only_the_end_of_what_is_there_is_padded);
	RUN(behind_a_head_beyond_the_area_the_ring_goes_on);
	RUN(a_successor_goes_on_at_the_tail);
	RUN(a_successor_goes_on_where_the_note_says);
	RUN(a_successor_knows_up_to_where_records_were_read);
	RUN(an_impossible_note_is_a_fault_of_the_area);
	RUN(an_area_of_another_process_can_be_held);
	RUN(no_piece_ends_inside_of_what_an_aux_record_tells_of);
	RUN(bytes_whose_record_is_to_come_wait_for_it);
	RUN(bytes_whose_record_was_lost_are_taken_a_full_pass_later);
	RUN(a_generation_counts_once);
	RUN(more_records_than_are_kept_stay_together);
	RUN(whole_records_need_chunks_that_hold_them);
	RUN(a_window_by_a_head_that_counts);
	RUN(a_window_by_a_head_that_is_a_place);
	RUN(a_held_data_ring_gives_up_its_oldest_records);
	RUN(garbage_in_a_held_data_ring_is_passed_over);
	RUN(events_are_enabled_when_the_kernel_may_have_disabled_them);
	RUN(an_event_that_may_stand_is_disabled_first);
	RUN(a_foreign_clock_does_not_tell_how_long_an_event_stood);
	return 0;
}
