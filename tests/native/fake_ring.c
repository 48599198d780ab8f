/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_ring.h"

#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "check.h"
#include "records.h"

void fake_ring__init(struct fake_ring *ring, uint32_t pages)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct perf_event_mmap_page *control;

	memset(ring, 0, sizeof(*ring));
	guarded__init(&ring->memory, (1 + pages) * page, -1);
	control = (struct perf_event_mmap_page *)(void *)ring->memory.data;
	ring->map = (struct ring_map){
		.page = control,
		.data = ring->memory.data + page,
		.data_bytes = pages * page,
		.head = &control->data_head,
		.tail = &control->data_tail,
	};
	ring->wakeup_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	CHECK(ring->wakeup_fd >= 0);
}

void fake_ring__deinit(struct fake_ring *ring)
{
	free((void *)(uintptr_t)ring->perf.ids.all);
	close(ring->wakeup_fd);
	guarded__deinit(&ring->memory);
}

struct ring *fake_ring__open_with(struct fake_ring *ring, const struct walk_layout *layout)
{
	const struct perf_ring_options options = {
		.map = &ring->map,
		.wakeup_fd = ring->wakeup_fd,
		.layout = *layout,
	};

	memset(&ring->perf, 0, sizeof(ring->perf));
	CHECK_EQ(perf_ring__init(&ring->perf, &options), 0);
	return &ring->perf.ring;
}

struct ring *fake_ring__open(struct fake_ring *ring)
{
	return fake_ring__open_with(ring, &records__layout);
}

uint64_t ring__begin(struct ring *ring)
{
	ring->ops->begin(ring);
	return ring->head - ring->position;
}

void fake_ring__start_at(struct fake_ring *ring, uint64_t position)
{
	ring->head = position;
	ring->map.page->data_tail = position;
	fake_ring__set_head(ring, position);
}

void fake_ring__poke(struct fake_ring *ring, uint64_t position, const void *bytes, size_t count)
{
	uint8_t *const data = (uint8_t *)(uintptr_t)ring->map.data;
	const size_t index = (size_t)(position & (ring->map.data_bytes - 1));
	const size_t until_wrap = (size_t)ring->map.data_bytes - index;
	const size_t first = count < until_wrap ? count : until_wrap;

	memcpy(data + index, bytes, first);
	memcpy(data, (const uint8_t *)bytes + first, count - first);
}

void fake_ring__set_head(struct fake_ring *ring, uint64_t head)
{
	ring->head = head;
	/* Release; the partner is the acquire in ring_map__head(). */
	__atomic_store_n(&ring->map.page->data_head, head, __ATOMIC_RELEASE);
}

void fake_ring__write_backward(struct fake_ring *ring, const uint8_t *record, uint16_t size)
{
	fake_ring__poke(ring, ring->head - size, record, size);
	fake_ring__set_head(ring, ring->head - size);
}

void fake_ring__wake(struct fake_ring *ring)
{
	const uint64_t one = 1;

	CHECK(write(ring->wakeup_fd, &one, sizeof(one)) == sizeof(one));
}

bool fake_ring__write(struct fake_ring *ring, const uint8_t *record, uint16_t size)
{
	/* Acquire; the partner is the release in ring_map__publish_tail(). The kernel's own load
	 * is relaxed with a control dependency, which C has no word for. */
	const uint64_t tail = __atomic_load_n(&ring->map.page->data_tail, __ATOMIC_ACQUIRE);
	uint8_t lost[32];
	const uint64_t extra =
		ring->lost > 0 ? record__lost(lost, ring->lost, walk__load(record + 16)) : 0;

	/* CIRC_SPACE: a ring is never filled to the last byte. */
	if (ring->map.data_bytes - 1 - (ring->head - tail) < size + extra) {
		ring->lost++;
		ring->lost_all++;
		return false;
	}
	if (extra > 0)
		fake_ring__poke(ring, ring->head, lost, extra);
	ring->lost = 0;
	fake_ring__poke(ring, ring->head + extra, record, size);
	fake_ring__set_head(ring, ring->head + extra + size);
	return true;
}
