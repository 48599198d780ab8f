/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "page_rig.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "pages.h"

struct ring *ring;
struct page_ring *pages;
struct chunk chunk;
int source = -1, sink = -1;
uint8_t page[PAGE_BYTES];
static struct guarded memory;

void empty_chunk(void)
{
	chunk = (struct chunk){.data = memory.data};
}

void begin_with(enum page_transport transport, struct page_map *map)
{
	const struct page_ring_options options = {
		.transport = transport,
		.fd = source,
		.page_bytes = PAGE_BYTES,
		.subbufs = SUBBUFS,
		.map = map,
	};

	CHECK_EQ(page_ring__new(&options, &ring), 0);
	pages = page_ring__of(ring);
	guarded__init(&memory, CHUNK_BYTES, -1);
	empty_chunk();
}

void begin(void)
{
	int fds[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
	source = fds[0];
	sink = fds[1];
	begin_with(PAGE_READ, NULL);
}

void end(void)
{
	ring->ops->free(ring);
	guarded__deinit(&memory);
	if (source >= 0)
		close(source);
	if (sink >= 0)
		close(sink);
	source = sink = -1;
}

void give(void)
{
	CHECK_EQ(write(sink, page, PAGE_BYTES), PAGE_BYTES);
}

void give_events(uint64_t ns, uint32_t events, uint64_t serial)
{
	page__start(page, PAGE_BYTES, ns);
	while (events-- > 0)
		page__event(page, 1, serial++);
	give();
}

enum ring_take take(bool full)
{
	ring->swept = full;
	ring->ops->begin(ring);
	return ring->ops->take(ring, &chunk, CHUNK_BYTES);
}

void expect_serials(uint64_t serial, uint64_t until)
{
	uint64_t last_ns = 0;

	pages__check(chunk.data, chunk.used, PAGE_BYTES, &serial, &last_ns);
	CHECK_EQ(serial, until);
}
