/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "guarded.h"
#include "page_ring.h"

#define PAGE_BYTES 4096u
#define SUBBUFS 3u
#define CHUNK_BYTES (6 * PAGE_BYTES)
#define FETCHES_MAX 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input: u8 transport, then for each fetch one of these, behind it
 * `bytes` bytes. */
struct fetch {
	uint16_t bytes; /* of a page that is read, or changed in the mapping */
	uint16_t read;	/* the mapping's reader */
	uint8_t id;
	uint8_t events; /* read in all, as the mapping says */
	uint8_t flags;	/* 1: a pass begins, 2: a full one, 4: the time goes on, 8: a short read */
};

static struct guarded staging, mapping;
static struct page_meta *meta;
static const uint8_t *input;
static size_t left;
static uint8_t begin_flags;
static int source, sink;

static bool next_fetch(struct fetch *fetch, const uint8_t **bytes)
{
	if (left < sizeof(*fetch))
		return false;
	memcpy(fetch, input, sizeof(*fetch));
	input += sizeof(*fetch);
	left -= sizeof(*fetch);
	if (fetch->bytes > PAGE_BYTES)
		fetch->bytes = PAGE_BYTES;
	if (fetch->bytes > left)
		fetch->bytes = (uint16_t)left;
	*bytes = input;
	input += fetch->bytes;
	left -= fetch->bytes;
	return true;
}

static int move_reader(int fd)
{
	const uint8_t *bytes;
	struct fetch fetch;

	(void)fd;
	if (!next_fetch(&fetch, &bytes))
		return -1;
	begin_flags = fetch.flags;
	meta->reader.id = fetch.id % (SUBBUFS + 2);
	meta->reader.read = fetch.read;
	meta->read = fetch.events;
	if (meta->reader.id <= SUBBUFS)
		memcpy(mapping.data + PAGE_BYTES * (1 + meta->reader.id), bytes, fetch.bytes);
	return 0;
}

/* Pages to be read next, as a socket keeps them apart. */
static void fill_source(const struct page_ring *pages)
{
	static uint8_t page[PAGE_BYTES];
	const uint8_t *bytes;
	struct fetch fetch;

	if (!next_fetch(&fetch, &bytes))
		return;
	begin_flags = fetch.flags;
	memset(page, 0, sizeof(page));
	memcpy(page, bytes, fetch.bytes);
	if ((fetch.flags & 4) != 0)
		walk__store(page, pages->last_ns - pages->behind_ns);
	/* A socket that is full takes no more for now. */
	if (write(sink, page, (fetch.flags & 8) != 0 ? fetch.bytes : PAGE_BYTES) < 0)
		CHECK_EQ(errno, EAGAIN);
}

static void set_up(void)
{
	int fds[2];

	if (staging.data != NULL)
		return;
	guarded__init(&staging, CHUNK_BYTES, -1);
	guarded__init(&mapping, (SUBBUFS + 2) * PAGE_BYTES, -1);
	meta = (struct page_meta *)mapping.data;
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
	source = fds[0];
	sink = fds[1];
}

/* All pages of the chunk are sound, and hold what was counted. */
static void check_chunk(struct ring *ring, struct chunk *chunk, uint64_t *events)
{
	struct subbuf_tally tally = {0};
	enum fault fault;
	uint64_t told = 0, bytes = 0;

	CHECK_EQ(chunk->used % PAGE_BYTES, 0);
	CHECK_EQ(subbuf__pages(chunk->data, chunk->used, PAGE_BYTES, &tally, &fault), chunk->used);
	CHECK(chunk->span_count <= 1);
	if (chunk->span_count == 1) {
		told = chunk->spans[0].samples;
		bytes = chunk->spans[0].bytes;
		CHECK_EQ(chunk->spans[0].last_ns, tally.last_ns);
	}
	CHECK_EQ(tally.events, told);
	CHECK_EQ(chunk->used, bytes);
	*events += told;
	CHECK_EQ(counter__read(&ring->samples), *events);
	*chunk = (struct chunk){.data = staging.data};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct chunk chunk;
	struct page_map map;
	struct page_ring_options options = {.page_bytes = PAGE_BYTES, .subbufs = SUBBUFS};
	struct page_ring *pages;
	struct ring *ring;
	uint64_t events = 0;
	uint8_t drop[PAGE_BYTES];

	set_up();
	if (size < 2)
		return 0;
	input = data + 1;
	left = size - 1;
	memset(mapping.data, 0, mapping.bytes);
	map = (struct page_map){
		.meta = meta,
		.pages = mapping.data + PAGE_BYTES,
		.subbuf_bytes = PAGE_BYTES,
		.subbufs = SUBBUFS + 1,
		.get_reader = move_reader,
	};
	options.transport = data[0] % 2 == 0 ? PAGE_READ : PAGE_MMAP;
	options.fd = source;
	options.map = options.transport == PAGE_MMAP ? &map : NULL;
	if (options.map != NULL)
		(void)move_reader(-1);
	CHECK_EQ(page_ring__new(&options, &ring), 0);
	pages = page_ring__of(ring);
	chunk = (struct chunk){.data = staging.data};
	for (uint32_t i = 0; i < FETCHES_MAX && ring->fault == 0 && left > 0; i++) {
		const uint64_t faults = counter__read(&ring->faults);
		enum ring_take took;

		if (options.map == NULL)
			fill_source(pages);
		if (i == 0 || (begin_flags & 1) != 0) {
			ring->swept = (begin_flags & 2) != 0;
			ring->ops->begin(ring);
		}
		took = ring->ops->take(ring, &chunk, CHUNK_BYTES);
		CHECK((took == RING_FAULTY) == (counter__read(&ring->faults) != faults));
		CHECK(took != RING_TICKET && chunk.used <= CHUNK_BYTES);
		CHECK(pages->pass_pages <= SUBBUFS + 1);
		CHECK(pages->taken <= PAGE_BYTES - SUBBUF_HEADER_BYTES);
		if (took == RING_CHUNK_FULL)
			check_chunk(ring, &chunk, &events);
	}
	check_chunk(ring, &chunk, &events);
	CHECK_EQ(ring->in_flight, events);
	while (read(source, drop, sizeof(drop)) > 0)
		;
	ring->ops->free(ring);
	return 0;
}
