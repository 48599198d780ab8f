/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "stream.h"

#define RECORD_ALIGN 8u

static int compare_ids(const void *left, const void *right)
{
	const uint64_t a = ((const struct walk_id *)left)->own;
	const uint64_t b = ((const struct walk_id *)right)->own;

	return a < b ? -1 : a > b;
}

/* Use a sorted copy of these ids from the next walk on. */
static int perf_ring__take_ids(struct perf_ring *perf, const struct walk_ids *from)
{
	const uint32_t count = from->count;
	struct walk_id *const ids = malloc(count * sizeof(*ids));
	const struct walk_id *const old = perf->ids.all;

	if (ids == NULL)
		return -ENOMEM;
	memcpy(ids, from->all, count * sizeof(*ids));
	qsort(ids, count, sizeof(*ids), compare_ids);
	HOLD(&perf->ids_lock);
	perf->ids = (struct walk_ids){.all = ids, .count = count};
	for (uint32_t i = 0; i < count; i++)
		perf->ids.renamed |= ids[i].own != ids[i].filed;
	perf->layout.ids = &perf->ids;
	free((void *)(uintptr_t)old);
	return 0;
}

/* Returns the time of the first record from `position` on, UINT64_MAX if there is none. */
static uint64_t perf_ring__first_ns(const struct perf_ring *perf, uint64_t position)
{
	const uint64_t unread = ring_map__head(perf->map) - position;
	uint8_t record[RECORD_MAX_BYTES];
	uint64_t header;

	if (unread == 0)
		return UINT64_MAX;
	if (unread < WALK_HEADER_BYTES || unread > perf->map->data_bytes)
		return 0;
	ring_map__copy(perf->map, position, &header, sizeof(header));
	if (walk__check(header) != FAULT_NONE || walk__size(header) > unread)
		return 0;
	ring_map__copy(perf->map, position, record, walk__size(header));
	/* Others map the ring: this is the header that was checked. */
	walk__store(record, header);
	return walk__time(record, &perf->layout);
}

int perf_ring__init(struct perf_ring *perf, const struct perf_ring_options *options)
{
	const uint64_t tail = ring_map__tail(options->map);
	uint64_t position;

	ring__init(&perf->ring, &perf_ring__ops, options->wakeup_fd);
	pthread_mutex_init(&perf->ids_lock, NULL);
	perf->map = options->map;
	perf->layout = options->layout;
	perf->layout.ids = NULL;
	perf->names = options->sideband;
	perf->note = options->note != NULL ? options->note : &perf->own;
	/* A predecessor may have read part: continue where it noted, or gave up, the last. */
	ring_note__read(perf->note, &position, &perf->taken);
	if ((int64_t)(position - tail) < 0 || options->note == NULL)
		position = tail;
	perf->ring.position = perf->ring.head = position;
	if (options->note != NULL)
		counter__set(&perf->ring.left_ns, perf_ring__first_ns(perf, position));
	return options->ids.count == 0 ? 0 : perf_ring__take_ids(perf, &options->ids);
}

int perf_ring__set_ids(struct ring *ring, const struct walk_ids *ids)
{
	struct perf_ring *const perf = perf_ring__of(ring);

	if (ring->ops != &perf_ring__ops || perf->ids.all == NULL || ids->count == 0)
		return -EINVAL;
	return perf_ring__take_ids(perf, ids);
}

int perf_ring__new(const struct perf_ring_options *options, struct ring **out)
{
	struct perf_ring *const perf = calloc(1, sizeof(*perf));
	const int ret = perf != NULL ? perf_ring__init(perf, options) : -ENOMEM;

	if (ret < 0)
		free(perf);
	else
		*out = &perf->ring;
	return ret;
}

void perf_ring__free(struct ring *ring)
{
	struct perf_ring *const perf = perf_ring__of(ring);

	free((void *)(uintptr_t)perf->ids.all);
	pthread_mutex_destroy(&perf->ids_lock);
	free(perf);
}

int perf_ring__join(struct ring *ring, struct stream *stream)
{
	struct perf_ring *const perf = perf_ring__of(ring);

	if (!perf->names)
		return 0;
	if (stream->snapshots && perf->note != &perf->own) {
		perf->keeps = true;
		perf->known = ring->position;
		perf->kept[0] = perf->kept[1] = ring_map__tail(perf->map);
		ring->position = ring->head = perf->kept[0];
	}
	ring->sideband = &stream->sideband;
	return sideband__join_layout(ring->sideband, &perf->layout);
}

/* Note that the ring was read up to the beginning of a record. */
static void perf_ring__keep_behind(struct perf_ring *perf)
{
	const uint64_t position = perf->ring.position, size = perf->map->data_bytes;

	if (position - perf->kept[1] < size / 4)
		return;
	perf->kept[0] = perf->kept[1];
	perf->kept[1] = position;
	/* Whatever comes at once, the kernel has room. */
	if (position - perf->kept[0] > size / 2)
		perf->kept[0] = position;
}

/* Give to the kernel what was read. */
static void perf_ring__give_back(const struct perf_ring *perf)
{
	ring_map__publish_tail(perf->map, perf->keeps ? perf->kept[0] : perf->ring.position);
}

void perf_ring__begin(struct ring *ring)
{
	struct perf_ring *const perf = perf_ring__of(ring);

	if (!ring__is_sound(ring) ||
	    ring__load(ring, ring_map__head(perf->map), perf->map->data_bytes, RECORD_ALIGN))
		return;
	perf->kept[0] = perf->kept[1] = ring->position;
	perf_ring__give_back(perf);
}

/* Note losses, throttles and sideband in walked records. */
static void perf_ring__note(struct perf_ring *perf, const uint8_t *records, size_t bytes,
			    const struct walk_tally *tally)
{
	struct ring *const ring = &perf->ring;

	counter__max(&ring->last_sample_ns, tally->last_ns);
	if (tally->records == tally->samples)
		return;
	if (ring->behind != NULL)
		ring->behind->ops->learn(ring->behind, records, bytes);
	counter__add(&perf->lost_records, tally->lost_records);
	counter__add(&perf->lost_samples, tally->lost_samples);
	counter__add(&perf->neutralised, tally->neutralised);
	counter__add(&perf->throttles, tally->throttles);
}

/* Whether an earlier process has read what comes next. */
static bool perf_ring__is_known(const struct perf_ring *perf)
{
	return perf->keeps && (int64_t)(perf->known - perf->ring.position) > 0;
}

/* Returns how much there is to read in one go. */
static uint64_t perf_ring__unread(const struct perf_ring *perf)
{
	const uint64_t unread = perf->ring.head - perf->ring.position;

	if (!perf_ring__is_known(perf))
		return unread;
	return least(unread, perf->known - perf->ring.position);
}

/* Add walked records that lie behind the end of `chunk`. */
static void perf_ring__keep(struct perf_ring *perf, struct chunk *chunk, size_t bytes,
			    struct walk_tally *tally)
{
	struct ring *const ring = &perf->ring;
	const uint8_t *const records = chunk->data + chunk->used;
	struct span span;

	MUTATE(bytes = ring->sideband == NULL ? mutation__records(records, bytes, tally) : bytes);
	if (bytes == 0)
		return;
	counter__add(&perf->relabelled, tally->relabelled);
	perf_ring__note(perf, records, bytes, tally);
	ring__count(ring, tally->samples, tally->records, bytes);
	if (ring->sideband != NULL && ring->lane->stream->snapshots) {
		/* It is used as sideband only, and has no samples. */
		atomic_fetch_sub_explicit(&ring->in_flight, tally->samples, memory_order_relaxed);
		if (perf_ring__is_known(perf))
			sideband__append_past(ring->sideband, records, bytes);
		else
			sideband__append(ring->sideband, records, bytes);
		return;
	}
	span = (struct span){
		.ring = ring,
		.samples = tally->samples,
		.bytes = bytes,
		.records = tally->records,
		.first_ns = tally->first_ns,
		.last_ns = tally->last_ns,
		.names = tally->records != tally->samples &&
			 (ring->sideband != NULL || ring->behind != NULL),
	};
	chunk__append(chunk, &span, true);
}

void perf_ring__put(struct perf_ring *perf, struct chunk *chunk, size_t bytes)
{
	struct walk_tally tally = {0};
	enum fault fault;

	bytes = walk__run(chunk->data + chunk->used, bytes, &perf->layout, &tally, &fault);
	perf_ring__keep(perf, chunk, bytes, &tally);
}

/* Copy and walk piece by piece. A record cut by the end of a piece is copied again with the
 * next one. */
static enum ring_take perf_ring__take(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes)
{
	struct perf_ring *const perf = perf_ring__of(ring);
	enum fault fault = FAULT_NONE;
	size_t piece = PIECE_BYTES;

	HOLD(&perf->ids_lock);
	while (ring->position != ring->head && fault == FAULT_NONE) {
		uint8_t *const to = chunk->data + chunk->used;
		const uint64_t unread = perf_ring__unread(perf);
		const size_t room = chunk_bytes - CHUNK_MARKER_BYTES - chunk->used;
		const size_t span = unread < room ? (size_t)unread : room;
		const size_t copied = span < piece ? span : piece;
		struct walk_tally tally = {0};
		size_t walked;

		ring_map__copy(perf->map, ring->position, to, copied);
		walked = walk__run(to, copied, &perf->layout, &tally, &fault);
		if (walked == 0 && fault == FAULT_NONE) {
			if (copied < span) {
				piece = RECORD_MAX_BYTES;
				continue;
			}
			/* Whether it is whole in the ring, so that only the chunk's end cuts it. */
			if (span < unread &&
			    (span < WALK_HEADER_BYTES || walk__size(walk__load(to)) <= unread))
				break;
			fault = WALK_PAST_HEAD;
		}
		perf_ring__keep(perf, chunk, walked, &tally);
		ring->position += walked;
		perf_ring__keep_behind(perf);
	}
	if (fault != FAULT_NONE) {
		ring__skip(ring, fault, perf->map->data_bytes);
		perf->kept[0] = perf->kept[1] = ring->position;
	}
	ring_note__write(perf->note, ring->position, perf->taken + counter__read(&ring->samples),
			 chunk__place(chunk));
	perf_ring__give_back(perf);
	if (fault != FAULT_NONE)
		return RING_FAULTY;
	return ring->position == ring->head ? RING_EMPTY : RING_CHUNK_FULL;
}

/* Returns the length of the first whole records at `copy`, which reach `bytes` if there are so
 * many. */
static size_t whole_records(const uint8_t *copy, size_t span, size_t bytes)
{
	size_t at = 0;

	while (at < bytes) {
		const size_t size =
			span - at < WALK_HEADER_BYTES ? 0 : walk__size(walk__load(copy + at));

		if (size < WALK_HEADER_BYTES || size > span - at)
			return at;
		at += size;
	}
	return at;
}

/* Walk and skip the oldest whole records that exceed `keep` unread bytes: they have `bytes`.
 * False: there are no more. */
static bool perf_ring__pass_over(struct perf_ring *perf, uint64_t keep, struct walk_tally *tally,
				 size_t *bytes)
{
	struct ring *const ring = &perf->ring;
	const uint64_t unread = ring->head - ring->position;
	uint8_t scratch[RECORD_MAX_BYTES];
	const size_t span = unread < sizeof(scratch) ? (size_t)unread : sizeof(scratch);
	enum fault fault;
	size_t whole;

	if (unread <= keep || !ring__is_sound(ring))
		return false;
	HOLD(&perf->ids_lock);
	*tally = (struct walk_tally){0};
	ring_map__copy(perf->map, ring->position, scratch, span);
	whole = whole_records(scratch, span, unread - keep < span ? unread - keep : span);
	/* If there are none the walk finds the reason. */
	*bytes = walk__run(scratch, whole > 0 ? whole : span, &perf->layout, tally, &fault);
	if (*bytes > 0) {
		perf_ring__note(perf, scratch, *bytes, tally);
		/* No chunk will hold its sideband about traced tasks. */
		if (ring->behind != NULL && tally->records != tally->samples)
			sideband__append(&ring->lane->stream->sideband, scratch, *bytes);
	} else if (fault == FAULT_NONE) {
		fault = WALK_PAST_HEAD;
	}
	ring->position += *bytes;
	if (fault != FAULT_NONE)
		ring__skip(ring, fault, perf->map->data_bytes);
	return true;
}

void perf_ring__give_up(struct perf_ring *perf, uint64_t keep)
{
	struct walk_tally tally;
	size_t bytes;

	while (perf_ring__pass_over(perf, keep, &tally, &bytes)) {
		counter__add(&perf->overwritten_samples, tally.samples);
		ring_map__publish_tail(perf->map, perf->ring.position);
	}
}

/* Unread data stay in the kernel's ring, for the next process if another one keeps it. */
static void perf_ring__leave(struct ring *ring, bool drained)
{
	struct perf_ring *const perf = perf_ring__of(ring);
	struct walk_tally tally;
	size_t bytes;

	if (perf->note != &perf->own)
		return;
	while (!drained && perf_ring__pass_over(perf, 0, &tally, &bytes))
		ring__count_abandoned(ring, tally.samples, tally.records, bytes);
}

static void perf_ring__wake(struct ring *ring, uint32_t events)
{
	if ((events & EPOLLHUP) != 0)
		store_relaxed(&ring->hung_up, true);
}

const struct ring_ops perf_ring__ops = {
	.poll = EPOLLIN | EPOLLET,
	.records = true,
	.stream = &record_stream__ops,
	.join = perf_ring__join,
	.begin = perf_ring__begin,
	.is_unread = ring__is_unread,
	.take = perf_ring__take,
	.wake = perf_ring__wake,
	.leave = perf_ring__leave,
	.free = perf_ring__free,
};
