/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/bpf.h>
#include <string.h>

#include "check.h"
#include "fake_bpf.h"
#include "fake_ring.h"
#include "guarded.h"
#include "records.h"

/* Any contents and positions of a BPF ring buffer: samples that are whole, and counted, come out. */

#define CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)
#define PAGES 2u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input's first bytes; what is behind them is in the ring, again and again. */
struct shape {
	uint64_t tail, head;
	uint16_t chunk_used; /* in units of 8 */
	uint8_t fields;	     /* in units of 8 */
	uint8_t plausible; /* bit 0: head is taken as the distance from the tail, within the ring; bit 1:
			      * the first record has the length that takes all of that */
};

static struct fake_bpf fake;
static struct guarded staging;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct chunk chunk;
	struct bpf_ring_options options = {.perf = {.map = &fake.map, .wakeup_fd = -1}};
	struct shape shape;
	struct ring *ring;
	uint64_t samples = 0, calls = 0;
	enum ring_take took;
	uint8_t *memory;

	if (staging.data == NULL) {
		fake_bpf__init(&fake, PAGES);
		guarded__init(&staging, CHUNK_BYTES, -1);
	}
	if (size < sizeof(shape))
		return 0;
	memcpy(&shape, data, sizeof(shape));
	data += sizeof(shape);
	size -= sizeof(shape);
	memory = (uint8_t *)(uintptr_t)fake.map.data;
	for (uint64_t at = 0; size > 0 && at < fake.map.data_bytes; at += size)
		memcpy(memory + at, data,
		       size < fake.map.data_bytes - at ? size : fake.map.data_bytes - at);
	/* The kernel's positions are at multiples of 8. */
	shape.tail &= ~UINT64_C(7);
	if ((shape.plausible & 1) != 0)
		shape.head = shape.tail + (shape.head % fake.map.data_bytes & ~UINT64_C(7));
	if ((shape.plausible & 2) != 0 && shape.head - shape.tail >= BPF_RINGBUF_HDR_SZ) {
		const uint32_t bytes = (uint32_t)(shape.head - shape.tail - BPF_RINGBUF_HDR_SZ) &
				       (BPF_RINGBUF_DISCARD_BIT - 1);

		memcpy(memory + (shape.tail & (fake.map.data_bytes - 1)), &bytes, sizeof(bytes));
	}
	fake_bpf__start_at(&fake, shape.tail);
	fake_bpf__set_head(&fake, shape.head);
	options.fields_bytes = shape.fields % 8 * 8u;
	CHECK_EQ(bpf_ring__new(&options, &ring), 0);
	records__chunk(&chunk, staging.data);
	chunk.used = shape.chunk_used * 8u % (CHUNK_BYTES - CHUNK_MARKER_BYTES);
	CHECK(ring__begin(ring) <= fake.map.data_bytes);
	do {
		const uint32_t before = chunk.used;

		took = ring->ops->take(ring, &chunk, CHUNK_BYTES);
		CHECK(chunk.used <= CHUNK_BYTES - CHUNK_MARKER_BYTES && ++calls < 4);
		for (uint32_t at = before; at < chunk.used; samples++)
			at += walk__size(walk__load(chunk.data + at));
		if (took == RING_CHUNK_FULL)
			records__chunk(&chunk, staging.data);
	} while (took == RING_CHUNK_FULL);
	CHECK_EQ(counter__read(&ring->samples), samples);
	CHECK_EQ(ring->in_flight, samples);
	CHECK_EQ(ring_map__tail(&fake.map), ring->position);
	CHECK(took != RING_FAULTY || ring->position == shape.head);
	ring->ops->leave(ring, false);
	ring->ops->free(ring);
	return 0;
}
