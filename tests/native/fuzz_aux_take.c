/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "aux_ring.h"
#include "check.h"
#include "event_list.h"
#include "fake_aux.h"
#include "output.h"
#include "records.h"
#include "stream.h"

#define AUX_PAGES 4u
#define AUX_BYTES (AUX_PAGES * 4096u)
#define CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)
#define PASSES_MAX 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input's first bytes: what kind of ring it is. */
struct shape {
	uint8_t snapshot, hidden, whole, offset;
	uint16_t unused;
	uint16_t chunk_used; /* in units of 8 */
};

/* Then, for each pass, how the kernel moved on; the rest is what the data ring gets more of. */
struct step {
	uint16_t aux_words;
	uint16_t data_bytes; /* of the input, raw */
	uint8_t flags;	     /* of the AUX record */
	uint8_t mode;	     /* STEP_* */
};

enum { STEP_FULL = 1, STEP_LOSE = 2, STEP_WILD = 4, STEP_WINDOW = 8, STEP_STOP = 16 };

static struct guarded staging;
static struct fake_aux fakes[2];
static struct event_list events;
static struct stream stream;
static struct lane lane;

static void set_up(void)
{
	if (staging.data != NULL)
		return;
	guarded__init(&staging, CHUNK_BYTES, -1);
	for (uint32_t i = 0; i < 2; i++)
		fake_aux__init(&fakes[i], 2, AUX_PAGES, i == 1);
	CHECK_EQ(event_list__init(&events), 0);
	CHECK_EQ(stream__init(&stream, 0, CHUNK_BYTES,
			      &(struct stream_options){
				      .ops = &record_stream__ops,
				      .sideband_bytes = 1 << 16,
			      },
			      &events),
		 0);
	lane = (struct lane){.stream = &stream};
}

/* Let the kernel write `bytes` of the input into the data ring, whatever they mean. */
static void feed(struct fake_aux *fake, const uint8_t *bytes, size_t count)
{
	const uint64_t tail = ring_map__tail(&fake->ring.map);
	const uint64_t room = fake->ring.map.data_bytes - (fake->ring.head - tail);

	count &= ~(size_t)7;
	if (count > room)
		count = (size_t)room;
	fake_ring__poke(&fake->ring, fake->ring.head, bytes, count);
	fake_ring__set_head(&fake->ring, fake->ring.head + count);
}

static void run_kernel(struct fake_aux *fake, const struct step *step, bool offset)
{
	uint8_t record[64];

	if ((step->mode & STEP_WILD) != 0) {
		fake_aux__set_head(fake, fake->head + (uint64_t)step->aux_words * step->flags);
	} else if ((step->mode & STEP_LOSE) != 0) {
		fake->head += step->aux_words;
		fake_aux__set_head(fake, fake->head);
	} else if (fake->map.overwrite) {
		fake_aux__overwrite(fake, step->aux_words % AUX_BYTES, offset);
	} else {
		(void)fake_aux__run(fake, step->aux_words % AUX_BYTES);
	}
	(void)fake_ring__write(&fake->ring, record,
			       record__aux(record, fake->head, step->aux_words, step->flags, 1));
}

/* What the chunk holds is pieces and records from end to end. */
static uint64_t payload_of(const struct chunk *chunk, uint32_t from)
{
	struct walk_tally tally = {0};
	enum fault fault;
	size_t last;

	CHECK(chunk->used <= CHUNK_BYTES - CHUNK_MARKER_BYTES);
	CHECK_EQ(walk__file(chunk->data + from, chunk->used - from, &(struct walk_layout){0},
			    &tally, &fault, &last),
		 chunk->used - from);
	return tally.aux_bytes;
}

static void empty(struct chunk *chunk, uint32_t used)
{
	records__chunk(chunk, staging.data);
	chunk->used = used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct chunk chunk;
	struct aux_ring_options options = {0};
	const struct walk_layout layout = {.time_trailer = 24, .cpu_trailer = 16};
	struct fake_aux *fake;
	struct shape shape;
	struct ring *ring, *aux;
	uint64_t taken = 0, found = 0;

	set_up();
	if (size < sizeof(shape))
		return 0;
	memcpy(&shape, data, sizeof(shape));
	data += sizeof(shape);
	size -= sizeof(shape);
	fake = &fakes[shape.snapshot % 2];
	memset(fake->memory.data, 0, AUX_BYTES);
	fake->head = fake->word = 0;
	fake_aux__set_head(fake, 0);
	ring_map__publish_tail(&fake->map, 0);
	fake_ring__start_at(&fake->ring, 0);
	ring = fake_ring__open_with(&fake->ring, &layout);
	ring->lane = &lane;
	stream.sideband.layout = layout;
	options.map = &fake->map;
	options.framing = shape.hidden % 2 == 1 ? AUX_HIDDEN : AUX_AUXTRACE;
	options.whole_records = shape.whole % 2 == 1 && options.framing == AUX_AUXTRACE;
	options.head_rule = (enum aux_head_rule)(shape.offset % AUX_HEAD_RULES);
	CHECK_EQ(aux_ring__new(&options, ring, &aux), 0);
	aux->lane = &lane;
	ring->behind = aux;

	for (uint32_t pass = 0; pass < PASSES_MAX && size >= sizeof(struct step); pass++) {
		struct step step;
		enum ring_take took;
		uint32_t calls = 0;
		uint32_t used =
			pass == 0 ? shape.chunk_used * 8u % (CHUNK_BYTES - CHUNK_MARKER_BYTES) : 0;

		memcpy(&step, data, sizeof(step));
		data += sizeof(step);
		size -= sizeof(step);
		run_kernel(fake, &step, shape.offset % 2 == 1);
		if (step.data_bytes < size) {
			feed(fake, data, step.data_bytes);
			data += step.data_bytes;
			size -= step.data_bytes;
		}
		if (fake->map.overwrite && (step.mode & STEP_WINDOW) != 0)
			aux->ops->hold(aux, false);
		aux->last |= (step.mode & STEP_STOP) != 0;
		ring__begin(aux);
		ring__begin(ring);
		if (ring->fault != FAULT_NONE)
			break;
		if (fake->map.overwrite)
			aux->ops->recycle(aux);
		else if (ring->head != ring->position)
			do {
				empty(&chunk, 0);
				took = ring->ops->take(ring, &chunk, CHUNK_BYTES);
				CHECK(++calls < 8);
			} while (took == RING_CHUNK_FULL);
		aux->ops->follow(aux, (step.mode & STEP_FULL) != 0 ? pass + 1 : 0);
		calls = 0;
		do {
			const uint64_t position = aux->position;

			empty(&chunk, used);
			took = aux->ops->take(aux, &chunk, CHUNK_BYTES);
			CHECK(took == RING_EMPTY || took == RING_CHUNK_FULL);
			CHECK(took == RING_EMPTY || chunk.used > 0);
			found += payload_of(&chunk, used);
			taken += aux->position - position;
			used = 0;
			CHECK(++calls < 8);
		} while (took == RING_CHUNK_FULL);
		aux->ops->resume(aux, false, pass + 1);
		if (aux->fault == FAULT_NONE && !options.whole_records)
			CHECK_EQ(aux->position, aux->head);
	}
	CHECK_EQ(found, taken);
	CHECK_EQ(counter__read(&aux->bytes), taken);
	CHECK_EQ(aux->in_flight, taken);
	if (!fake->map.overwrite && counter__read(&aux->faults) == 0)
		CHECK_EQ(ring_map__tail(&fake->map), taken);
	sideband__settle(&stream.sideband, UINT64_MAX);
	stream.sideband.log_used = 0; /* what carries the highest time of all */
	memset(stream.sideband.switches, 0, sizeof(stream.sideband.switches));
	aux->ops->free(aux);
	return 0;
}
