/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "check.h"
#include "fake_ring.h"
#include "fake_slots.h"
#include "guarded.h"
#include "records.h"

/* Any contents of slots and heads: samples that are whole, and counted, come out. */

#define CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)
#define SLOTS 64u
#define KINDS 4u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input's first bytes; what is behind them is in the slots, again and again. */
struct shape {
	struct slot_head heads[2]; /* of two windows */
	uint8_t bytes[KINDS];
	uint8_t plausible; /* bit 0: heads are small; bit 1: marks follow each other */
	uint8_t reserved[3];
};

static struct fake_slots fake;
static struct guarded staging;

static uint64_t take(struct ring *ring)
{
	static struct chunk chunk;
	uint64_t samples = 0, calls = 0;
	enum ring_take took;

	ring->ops->hold(ring, false);
	do {
		records__chunk(&chunk, staging.data);
		do
			took = ring->ops->take(ring, &chunk, CHUNK_BYTES);
		while (took == RING_MORE);
		CHECK(chunk.used <= CHUNK_BYTES - CHUNK_MARKER_BYTES && ++calls < 4);
		for (uint32_t at = 0; at < chunk.used; samples++)
			at += walk__size(walk__load(chunk.data + at));
	} while (took == RING_CHUNK_FULL);
	CHECK_EQ(took, RING_EMPTY);
	return samples;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct slot_kind kinds[KINDS];
	struct slot_ring_options options = {.map = &fake.map,
					    .layout = {.time_offset = 32},
					    .kinds = kinds,
					    .kind_count = KINDS};
	struct shape shape;
	struct ring *ring;
	uint64_t samples = 0;

	if (staging.data == NULL) {
		fake_slots__init(&fake, 1, SLOTS);
		guarded__init(&staging, CHUNK_BYTES, -1);
	}
	if (size < sizeof(shape))
		return 0;
	memcpy(&shape, data, sizeof(shape));
	data += sizeof(shape);
	size -= sizeof(shape);
	for (size_t at = 0; size > 0 && at < SLOTS * sizeof(struct slot); at += size)
		memcpy((uint8_t *)fake.slots + at, data,
		       size < SLOTS * sizeof(struct slot) - at ? size
							       : SLOTS * sizeof(struct slot) - at);
	if ((shape.plausible & 2) != 0)
		for (uint32_t i = 0; i < SLOTS; i++)
			fake.slots[i].mark = (fake.slots[i].mark & 0xffu) | i << 8;
	for (uint32_t i = 0; i < KINDS; i++)
		kinds[i] = (struct slot_kind){i, (uint16_t)(1u + shape.bytes[i] % SLOT_DATA_MAX),
					      SLOT_NO_TASK};
	CHECK_EQ(slot_ring__new(&options, &ring), 0);
	for (int i = 0; i < 2; i++) {
		fake.heads[0] = shape.heads[i];
		if ((shape.plausible & 1) != 0) {
			fake.heads[0].slots %= 3 * SLOTS;
			fake.heads[0].records %= 2 * SLOTS;
		}
		ring->swept = true;
		ring__begin(ring);
		samples += take(ring);
	}
	CHECK_EQ(counter__read(&ring->samples), samples);
	CHECK_EQ(counter__read(&slot_ring__of(ring)->window.taken), samples);
	CHECK_EQ(ring->in_flight, samples);
	ring->ops->leave(ring, false);
	ring->ops->free(ring);
	return 0;
}
