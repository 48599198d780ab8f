/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/perf_event.h>
#include <string.h>

#include "check.h"
#include "fake_ring.h"
#include "guarded.h"
#include "records.h"
#include "ring.h"
#include "stream.h"

#define CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)
#define PAGES_LOG_MAX 5u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input's first bytes; the rest is what the ring holds, over and over. */
struct shape {
	uint64_t tail, head;
	uint16_t time_offset, time_trailer;
	uint16_t chunk_used; /* in units of 8 */
	uint8_t pages_log;
	uint8_t plausible; /* head is taken as the distance from the tail, within the ring */
};

static struct fake_ring rings[PAGES_LOG_MAX];
static struct guarded staging;
static struct stream stream; /* has no more than its sideband */
static struct lane lane = {.stream = &stream};

static void set_up(void)
{
	if (staging.data != NULL)
		return;
	guarded__init(&staging, CHUNK_BYTES, -1);
	for (uint32_t i = 0; i < PAGES_LOG_MAX; i++)
		fake_ring__init(&rings[i], 1u << i);
	CHECK_EQ(sideband__init(&stream.sideband, 1 << 18), 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct chunk chunk;
	struct walk_layout layout;
	struct shape shape;
	struct fake_ring *fake;
	struct ring *ring;
	uint64_t unread, taken = 0, calls = 0;
	enum ring_take took = RING_CHUNK_FULL;

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
		shape.head = shape.tail + (shape.head % fake->map.data_bytes & ~UINT64_C(7));
	fake_ring__start_at(fake, shape.tail);
	fake_ring__set_head(fake, shape.head);

	layout = (struct walk_layout){
		.time_offset = shape.time_offset,
		.time_trailer = shape.time_trailer,
		.cpu_trailer = shape.time_trailer > 8 ? 8 : 0,
	};
	ring = fake_ring__open_with(fake, &layout);
	ring->lane = &lane;
	ring->sideband = &stream.sideband;
	stream.sideband.layout = layout;
	unread = ring__begin(ring);
	CHECK(unread <= fake->map.data_bytes);
	records__chunk(&chunk, staging.data);
	chunk.used = shape.chunk_used * 8u % (CHUNK_BYTES - CHUNK_MARKER_BYTES);
	while (unread > 0 && took == RING_CHUNK_FULL) {
		const uint32_t before = chunk.used;
		struct walk_tally tally = {0};
		enum fault fault;
		size_t last;

		took = ring->ops->take(ring, &chunk, CHUNK_BYTES);
		CHECK(++calls <= 2 + fake->map.data_bytes / (CHUNK_BYTES - 65536));
		CHECK(chunk.used <= CHUNK_BYTES - CHUNK_MARKER_BYTES);
		CHECK_EQ(walk__file(chunk.data + before, chunk.used - before, &layout, &tally,
				    &fault, &last),
			 chunk.used - before);
		taken += chunk.used - before;
		records__chunk(&chunk, staging.data);
	}
	CHECK((took == RING_FAULTY) == (counter__read(&ring->faults) > 0) || unread == 0);
	CHECK_EQ(ring->position, shape.head);
	CHECK_EQ(ring_map__tail(&fake->map), ring->position);
	CHECK(unread == 0 || taken + counter__read(&ring->quarantined_bytes) == unread);
	sideband__settle(&stream.sideband, UINT64_MAX);
	stream.sideband.log_used = 0; /* what carries the highest time of all */
	return 0;
}
