/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "guarded.h"
#include "relay_ring.h"

#define CHUNK_BYTES (72u << 10)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct guarded memory;
static uint8_t kept[1u << 20];

/* What was kept is whole records, as many as were counted, in the order of their numbers. */
static void check_kept(const struct ring *ring, size_t bytes)
{
	const struct relay_ring *const relay = relay_ring__of(ring);
	struct blk_state state = {.begun = true};
	struct blk_tally tally = {0};
	enum fault fault;

	CHECK_EQ(blk__run(kept, bytes, 0, &state, &tally, &fault), bytes);
	CHECK_EQ(fault, FAULT_NONE);
	CHECK_EQ(tally.events, counter__read(&ring->samples));
	CHECK_EQ(tally.events + tally.notes, counter__read(&ring->records));
	CHECK_EQ(tally.numbered, counter__read(&relay->numbered));
	CHECK_EQ(tally.missing, counter__read(&relay->missing));
	CHECK_EQ(tally.numbered, tally.events + tally.missing);
}

/* The input: pieces {u8 bytes, 0: 255 and more; that many bytes}, each of which one pass reads. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct relay_ring_options options = {
		.contents = RELAY_BLKTRACE,
		.capacity = 1u << 20,
		.longest = 4096,
	};
	struct chunk chunk;
	struct ring *ring;
	size_t total = 0;
	int fds[2];

	if (memory.data == NULL)
		guarded__init(&memory, CHUNK_BYTES, -1);
	CHECK_EQ(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
	options.fd = fds[0];
	CHECK_EQ(relay_ring__new(&options, &ring), 0);
	while (size > 1 && atomic_load(&ring->fault) == 0) {
		size_t piece = data[0] > 0 ? data[0] : 255u + data[1];

		data++;
		size--;
		if (piece > size)
			piece = size;
		CHECK_EQ(write(fds[1], data, piece), piece);
		data += piece;
		size -= piece;
		chunk = (struct chunk){.data = memory.data};
		ring->swept = true;
		ring->first = true;
		ring->ops->begin(ring);
		(void)ring->ops->take(ring, &chunk, CHUNK_BYTES);
		CHECK(chunk.used <= CHUNK_BYTES && total + chunk.used <= sizeof(kept));
		memcpy(kept + total, chunk.data, chunk.used);
		total += chunk.used;
	}
	check_kept(ring, total);
	ring->ops->free(ring);
	close(fds[0]);
	close(fds[1]);
	return 0;
}
