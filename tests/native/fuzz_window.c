/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/perf_event.h>
#include <string.h>

#include "check.h"
#include "fake_ring.h"
#include "guarded.h"
#include "records.h"
#include "ring.h"
#include "perf_ring.h"

#define CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)
#define PAGES_LOG_MAX 5u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input's first bytes; the rest is what the ring holds, over and over. */
struct shape {
	uint64_t heads[2]; /* of two windows */
	uint16_t time_offset, time_trailer;
	uint16_t chunk_used; /* in units of 8 */
	uint8_t pages_log;
	uint8_t plausible; /* the heads are distances that the ring may have been written for */
};

static struct fake_ring rings[PAGES_LOG_MAX];
static struct guarded staging;

static void set_up(void)
{
	if (staging.data != NULL)
		return;
	guarded__init(&staging, CHUNK_BYTES, -1);
	for (uint32_t i = 0; i < PAGES_LOG_MAX; i++) {
		fake_ring__init(&rings[i], 1u << i);
		rings[i].map.overwrite = true;
	}
}

/* Take a window into chunks, the first of which is used in part; each is whole records. */
static void take(struct ring *ring, uint32_t used)
{
	static struct chunk chunk;
	const uint64_t data_bytes = perf_ring__of(ring)->map->data_bytes;
	uint64_t taken = 0, calls = 0, wanted;
	enum ring_take took;

	ring->ops->hold(ring, false);
	wanted = ring->head - ring->position;
	CHECK(wanted <= data_bytes);
	do {
		const uint32_t before = used;
		struct walk_tally tally = {0};
		enum fault fault;
		size_t last;

		records__chunk(&chunk, staging.data);
		chunk.used = used;
		used = 0;
		do {
			took = ring->ops->take(ring, &chunk, CHUNK_BYTES);
		} while (took == RING_MORE);
		CHECK(++calls <= 3 + data_bytes / (CHUNK_BYTES - 65536));
		CHECK(chunk.used <= CHUNK_BYTES - CHUNK_MARKER_BYTES);
		CHECK_EQ(walk__file(chunk.data + before, chunk.used - before,
				    &perf_ring__of(ring)->layout, &tally, &fault, &last),
			 chunk.used - before);
		taken += chunk.used - before;
	} while (took == RING_CHUNK_FULL);
	CHECK_EQ(taken, wanted);
	CHECK_EQ(ring->head, ring->position);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct walk_layout layout;
	struct shape shape;
	struct fake_ring *fake;
	struct perf_ring_options options;
	struct ring *ring;

	set_up();
	if (size < sizeof(shape))
		return 0;
	memcpy(&shape, data, sizeof(shape));
	data += sizeof(shape);
	size -= sizeof(shape);
	fake = &rings[shape.pages_log % PAGES_LOG_MAX];
	for (uint64_t at = 0; size > 0 && at < fake->map.data_bytes; at += size)
		fake_ring__poke(fake, at, data,
				size < fake->map.data_bytes - at ? size : fake->map.data_bytes - at);
	if (shape.plausible % 2 == 1)
		for (int i = 0; i < 2; i++)
			shape.heads[i] =
				-(shape.heads[i] % (3 * fake->map.data_bytes) & ~UINT64_C(7));
	layout = (struct walk_layout){
		.time_offset = shape.time_offset,
		.time_trailer = shape.time_trailer,
	};
	fake_ring__start_at(fake, 0);
	options = (struct perf_ring_options){.map = &fake->map, .wakeup_fd = -1, .layout = layout};
	CHECK_EQ(window__new(&options, &ring), 0);
	for (int i = 0; i < 2; i++) {
		fake_ring__set_head(fake, shape.heads[i]);
		ring->swept = true;
		ring__begin(ring);
		take(ring, shape.chunk_used * 8u % (CHUNK_BYTES - CHUNK_MARKER_BYTES));
	}
	ring->ops->free(ring);
	return 0;
}
