/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_ring.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "stream.h"

#define LENGTH_MASK (~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT))
#define SAMPLE_HEAD_BYTES (WALK_HEADER_BYTES + 8u) /* header, id */
#define RAW_HEAD_BYTES 4u			   /* u32 size */
#define SAMPLE_BYTES_MAX 65528u

/* A record in the ring. */
struct bpf_record {
	const uint8_t *data;
	uint32_t bytes; /* size of `data` */
	uint64_t whole; /* from this record to the next */
	bool discarded;
};

/* Find the first unread record. False: none is committed. An invalid record has no `whole`. */
static bool bpf_ring__look(const struct bpf_ring *bpf, struct bpf_record *record)
{
	const struct ring *const ring = &bpf->perf.ring;
	const struct ring_map *const map = bpf->perf.map;
	const uint64_t unread = ring->head - ring->position;
	const uint8_t *const at = map->data + (ring->position & (map->data_bytes - 1));
	uint32_t length;

	if (unread == 0)
		return false;
	/* Acquire; the partner is the xchg() in bpf_ringbuf_commit(): the data are there. */
	length = __atomic_load_n((const uint32_t *)(const void *)at, __ATOMIC_ACQUIRE);
	if ((length & BPF_RINGBUF_BUSY_BIT) != 0)
		return false;
	record->data = at + BPF_RINGBUF_HDR_SZ;
	record->bytes = length & LENGTH_MASK;
	record->discarded = (length & BPF_RINGBUF_DISCARD_BIT) != 0;
	record->whole = ((uint64_t)record->bytes + BPF_RINGBUF_HDR_SZ + 7) & ~UINT64_C(7);
	if (record->whole > unread)
		record->whole = 0;
	return true;
}

/* Note the time of what a predecessor left unread. */
static void bpf_ring__look_before(struct bpf_ring *bpf)
{
	struct ring *const ring = &bpf->perf.ring;
	const uint32_t at = bpf->perf.layout.time_offset - SAMPLE_HEAD_BYTES;
	struct bpf_record record;

	ring->head = ring_map__head(bpf->perf.map);
	if (ring->head == ring->position)
		counter__set(&ring->left_ns, UINT64_MAX);
	else if (bpf->perf.layout.time_offset < SAMPLE_HEAD_BYTES || !bpf_ring__look(bpf, &record) ||
		 record.whole == 0 || record.discarded || record.bytes < at + sizeof(uint64_t))
		counter__set(&ring->left_ns, 0);
	else
		counter__set(&ring->left_ns, walk__load(record.data + at));
	ring->head = ring->position;
}

int bpf_ring__new(const struct bpf_ring_options *options, struct ring **out)
{
	struct bpf_ring *bpf;

	if (options->fields_bytes % 8 != 0 || options->fields_bytes > SAMPLE_BYTES_MAX / 2)
		return -EINVAL;
	bpf = calloc(1, sizeof(*bpf));
	if (bpf == NULL)
		return -ENOMEM;
	/* Without ids it cannot fail. */
	(void)perf_ring__init(&bpf->perf, &options->perf);
	bpf->perf.ring.ops = &bpf_ring__ops;
	bpf->options = *options;
	if (options->perf.note != NULL)
		bpf_ring__look_before(bpf);
	*out = &bpf->perf.ring;
	return 0;
}

static uint64_t sample_bytes(const struct bpf_record *record)
{
	return (SAMPLE_HEAD_BYTES + (uint64_t)record->bytes + RAW_HEAD_BYTES + 7) & ~UINT64_C(7);
}

/* Raw data and their size end at a multiple of 8, padded with zeros. */
static void bpf_ring__write(const struct bpf_ring *bpf, uint8_t *to, const struct bpf_record *record)
{
	const uint16_t size = (uint16_t)sample_bytes(record);
	const uint32_t raw_at = SAMPLE_HEAD_BYTES + bpf->options.fields_bytes;
	const uint32_t raw_bytes = size - raw_at - RAW_HEAD_BYTES;
	const uint32_t bytes = record->bytes - bpf->options.fields_bytes;

	walk__store(to, walk__header(PERF_RECORD_SAMPLE, 0, size));
	walk__store(to + WALK_HEADER_BYTES, bpf->options.id);
	memcpy(to + SAMPLE_HEAD_BYTES, record->data, bpf->options.fields_bytes);
	memcpy(to + raw_at, &raw_bytes, sizeof(raw_bytes));
	memcpy(to + raw_at + RAW_HEAD_BYTES, record->data + bpf->options.fields_bytes, bytes);
	memset(to + raw_at + RAW_HEAD_BYTES + bytes, 0, raw_bytes - bytes);
}

static enum ring_take bpf_ring__take(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes)
{
	struct bpf_ring *const bpf = bpf_ring__of(ring);
	const size_t room = chunk_bytes - CHUNK_MARKER_BYTES;
	enum fault fault = FAULT_NONE;
	enum ring_take took = RING_EMPTY;
	struct bpf_record record;
	size_t put = 0;

	while (bpf_ring__look(bpf, &record)) {
		const uint64_t size = sample_bytes(&record);

		if (record.whole == 0)
			fault = WALK_PAST_HEAD;
		else if (!record.discarded &&
			 (record.bytes < bpf->options.fields_bytes || size > SAMPLE_BYTES_MAX))
			fault = WALK_BAD_SIZE;
		if (fault != FAULT_NONE)
			break;
		if (!record.discarded && size > room - chunk->used - put) {
			took = RING_CHUNK_FULL;
			break;
		}
		ring->position += record.whole;
		if (record.discarded)
			continue;
		bpf_ring__write(bpf, chunk->data + chunk->used + put, &record);
		put += size;
		/* The walk follows while the data are in the nearest caches. */
		if (put >= PIECE_BYTES) {
			perf_ring__put(&bpf->perf, chunk, put);
			put = 0;
		}
	}
	if (put > 0)
		perf_ring__put(&bpf->perf, chunk, put);
	if (fault != FAULT_NONE) {
		ring__skip(ring, fault, bpf->perf.map->data_bytes);
		took = RING_FAULTY;
	}
	ring_note__write(bpf->perf.note, ring->position,
			 bpf->perf.taken + counter__read(&ring->samples), chunk__place(chunk));
	ring_map__publish_tail(bpf->perf.map, ring->position);
	return took;
}

/* Unread data stay in the kernel's ring, for the next process if another one keeps it. */
static void bpf_ring__leave(struct ring *ring, bool drained)
{
	struct bpf_ring *const bpf = bpf_ring__of(ring);
	struct bpf_record record;

	if (bpf->perf.note != &bpf->perf.own)
		return;
	while (!drained && bpf_ring__look(bpf, &record) && record.whole != 0) {
		const bool sample = !record.discarded;

		ring__count_abandoned(ring, sample, sample, sample ? sample_bytes(&record) : 0);
		ring->position += record.whole;
	}
}

const struct ring_ops bpf_ring__ops = {
	.poll = EPOLLIN | EPOLLET,
	.records = true,
	.stream = &record_stream__ops,
	.join = perf_ring__join,
	.begin = perf_ring__begin,
	.is_unread = ring__is_unread,
	.take = bpf_ring__take,
	.leave = bpf_ring__leave,
	.free = perf_ring__free,
};
