/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sys/epoll.h>

#include "aux_ring.h"
#include "clock.h"
#include "stream.h"
#include "window.h"

/*
 * The ring's cache lines were written by another core, and walking them in place is a chain of
 * dependent misses. A straight copy streams them in; the walk then finds this piece in the
 * nearest caches.
 */
#define PIECE_BYTES 32768u
#define RECORD_MAX_BYTES 65536u

void ring__init(struct ring *ring, struct ring_map *map, int wakeup_fd,
		const struct walk_layout *layout)
{
	memset(ring, 0, sizeof(*ring));
	ring->ops = &perf_ring__ops;
	ring->horizon_ns = UINT64_MAX;
	ring->map = map;
	ring->wakeup_fd = wakeup_fd;
	ring->layout = *layout;
	/* A predecessor may have read part of the ring: go on where it stopped. */
	ring->position = ring->head = ring_map__tail(map);
}

void ring__deinit(struct ring *ring)
{
	window__free(ring->window);
	aux_ring__free(ring->aux);
	free(ring->id_list);
	ring->window = NULL;
	ring->aux = NULL;
	ring->id_list = NULL;
}

bool ring__is_unread(const struct ring *ring)
{
	return ring->head != ring->position;
}

bool ring__is_reached(const struct ring *ring)
{
	return (int64_t)(ring->position - ring->goal) >= 0;
}

int ring__last(struct ring *ring)
{
	int ret = -EINVAL;

	for (; ring != NULL; ring = ring->behind)
		if (ring->ops->last != NULL) {
			ring->ops->last(ring);
			ret = 0;
		}
	return ret;
}

static int compare_ids(const void *left, const void *right)
{
	const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return a < b ? -1 : a > b;
}

int ring__set_ids(struct ring *ring, const uint64_t *ids, uint32_t count)
{
	if (count == 0)
		return 0;
	ring->id_list = malloc(count * sizeof(*ids));
	if (ring->id_list == NULL)
		return -ENOMEM;
	memcpy(ring->id_list, ids, count * sizeof(*ids));
	qsort(ring->id_list, count, sizeof(*ids), compare_ids);
	ring->ids = (struct walk_ids){ring->id_list, count};
	ring->layout.ids = &ring->ids;
	return 0;
}

void ring__refuse(struct ring *ring, uint32_t reason, uint64_t bytes)
{
	const uint64_t now_ns = clock__now_ns();

	counter__add(&ring->faults, 1);
	counter__add(&ring->quarantined_bytes, bytes);
	if (ring->faults_recent == 0 || now_ns - ring->faults_since_ns >= RING_FAULTS_NS) {
		ring->faults_since_ns = now_ns;
		ring->faults_recent = 0;
	}
	if (++ring->faults_recent == RING_FAULTS_MAX)
		atomic_store_explicit(&ring->fault, reason, memory_order_relaxed);
	atomic_store_explicit(&ring->last_fault, reason, memory_order_relaxed);
	/* Release; the partner is the acquire in untold_fault(). */
	atomic_store_explicit(&ring->fault_untold, true, memory_order_release);
}

/* Go on at the head of this pass. */
static void ring__skip(struct ring *ring, enum walk_fault fault)
{
	const uint64_t unread = ring->head - ring->position;

	/* A bad head may say more than there is. */
	ring__refuse(ring, (uint32_t)fault,
		     unread < ring->map->data_bytes ? unread : ring->map->data_bytes);
	ring->position = ring->head;
}

/* Upper bounds 0.1, 0.2 .. 0.9, 0.95, 1.0. */
static uint32_t fill_bucket(uint64_t used, uint64_t capacity)
{
	const uint64_t tenths = (used * 10 + capacity - 1) / capacity;

	if (tenths <= 9)
		return (uint32_t)tenths - 1;
	return used * 20 <= capacity * 19 ? 9 : 10;
}

void ring__count_fill(struct ring *ring, uint64_t used, uint64_t capacity)
{
	counter__max(&ring->high_watermark_bytes, used);
	if (used > 0)
		counter__add(&ring->fill[fill_bucket(used, capacity)], 1);
}

uint64_t ring__begin(struct ring *ring)
{
	uint64_t used;

	if (atomic_load_explicit(&ring->fault, memory_order_relaxed) != WALK_OK)
		return 0;
	ring->head = ring_map__head(ring->map);
	used = ring->head - ring->position;
	if (used > ring->map->data_bytes || (used & 7u) != 0) {
		ring__skip(ring, WALK_BAD_HEAD);
		ring_map__publish_tail(ring->map, ring->position);
		return 0;
	}
	counter__set(&ring->used_bytes, used);
	ring__count_fill(ring, used, ring->map->data_bytes);
	return used;
}

/* Note what walked records tell beside themselves. */
static void ring__note(struct ring *ring, const uint8_t *records, size_t bytes,
		       const struct walk_tally *tally)
{
	counter__max(&ring->last_sample_ns, tally->last_ns);
	if (tally->records == tally->samples)
		return;
	if (ring->behind != NULL)
		aux_ring__learn(ring->behind->aux, records, bytes);
	counter__add(&ring->lost_records, tally->lost_records);
	counter__add(&ring->lost_samples, tally->lost_samples);
	counter__add(&ring->neutralised, tally->neutralised);
	counter__add(&ring->throttles, tally->throttles);
	counter__add(&ring->unthrottles, tally->unthrottles);
}

#ifdef COLLECTORD_MUTATION
/* Test builds only: forget the last record of the first span, so that the ledger must miss it. */
static size_t mutate(struct ring *ring, const uint8_t *copy, size_t walked,
		     struct walk_tally *tally)
{
	static _Atomic bool done;
	size_t at = 0, last = 0;

	if (ring->sideband != NULL || tally->samples == 0 || atomic_exchange(&done, true))
		return walked;
	for (; at < walked; at += walk__size(walk__load(copy + at)))
		last = at;
	tally->samples--;
	tally->records--;
	return last;
}
#endif

/* Add walked records that lie behind the end of `chunk`. */
static void ring__keep(struct ring *ring, struct chunk *chunk, size_t bytes,
		       struct walk_tally *tally)
{
	const uint8_t *const records = chunk->data + chunk->used;
	bool names;

#ifdef COLLECTORD_MUTATION
	bytes = mutate(ring, records, bytes, tally);
#endif
	if (bytes == 0)
		return;
	counter__add(&ring->samples, tally->samples);
	counter__add(&ring->relabelled, tally->relabelled);
	counter__add(&ring->records, tally->records);
	counter__add(&ring->bytes, bytes);
	ring__note(ring, records, bytes, tally);
	if (ring->absorbed) {
		sideband__append(ring->sideband, records, bytes);
		return;
	}
	names = tally->records != tally->samples &&
		(ring->sideband != NULL || ring->behind != NULL);
	atomic_fetch_add_explicit(&ring->in_flight, tally->samples, memory_order_relaxed);
	chunk__append(chunk, ring, (uint32_t)bytes, tally, names);
}

void ring__put(struct ring *ring, struct chunk *chunk, size_t bytes)
{
	struct walk_tally tally = {0};
	enum walk_fault fault;

	bytes = walk__run(chunk->data + chunk->used, bytes, &ring->layout, &tally, &fault);
	ring__keep(ring, chunk, bytes, &tally);
}

enum ring_take ring__take(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes)
{
	uint8_t *const to = chunk->data + chunk->used;
	const uint64_t unread = ring->head - ring->position;
	const size_t room = chunk_bytes - CHUNK_MARKER_BYTES - chunk->used;
	const size_t span = unread < room ? (size_t)unread : room;
	struct walk_tally tally = {0};
	enum walk_fault fault = WALK_OK;
	size_t copied = 0, walked = 0;

	while (copied < span && fault == WALK_OK) {
		const size_t piece = span - copied < PIECE_BYTES ? span - copied : PIECE_BYTES;

		ring_map__copy(ring->map, ring->position + copied, to + copied, piece);
		copied += piece;
		walked += walk__run(to + walked, copied - walked, &ring->layout, &tally, &fault);
	}
	/* What is left whole in the ring but not by the copy was cut by the chunk's end. */
	if (fault == WALK_OK && walked < span) {
		const bool has_header = span - walked >= WALK_HEADER_BYTES;

		if (span == unread ||
		    (has_header && walk__size(walk__load(to + walked)) > unread - walked))
			fault = WALK_PAST_HEAD;
	}
	ring__keep(ring, chunk, walked, &tally);
	ring->position += walked;
	if (fault != WALK_OK)
		ring__skip(ring, fault);
	ring_map__publish_tail(ring->map, ring->position);
	if (fault != WALK_OK)
		return RING_FAULTY;
	if (ring->position == ring->head)
		return RING_EMPTY;
	/* What was absorbed takes no room of the chunk; with nothing taken it had too little left. */
	return ring->absorbed && walked > 0 ? RING_MORE : RING_CHUNK_FULL;
}

/* The length of the first whole records at `copy`, of as many as make `bytes` if they are there. */
static size_t whole_records(const uint8_t *copy, size_t span, size_t bytes)
{
	size_t at = 0;

	while (at < bytes) {
		const size_t size = span - at < WALK_HEADER_BYTES
					    ? 0
					    : walk__size(walk__load(copy + at));

		if (size < WALK_HEADER_BYTES || size > span - at)
			return at;
		at += size;
	}
	return at;
}

/* Walk the oldest whole records, of as many as are more than `keep` unread bytes, and pass over
 * them. Returns their length. */
static size_t ring__pass_over(struct ring *ring, uint8_t *scratch, size_t scratch_bytes,
			      uint64_t keep, struct walk_tally *tally, enum walk_fault *fault)
{
	const uint64_t unread = ring->head - ring->position;
	const size_t span = unread < scratch_bytes ? (size_t)unread : scratch_bytes;
	size_t whole, walked;

	ring_map__copy(ring->map, ring->position, scratch, span);
	whole = whole_records(scratch, span, unread - keep < span ? unread - keep : span);
	/* With none the walk says what is wrong with it. */
	walked = walk__run(scratch, whole > 0 ? whole : span, &ring->layout, tally, fault);
	if (walked > 0) {
		ring__note(ring, scratch, walked, tally);
		/* No chunk will hold what it tells of who was traced. */
		if (ring->behind != NULL && tally->records != tally->samples)
			sideband__append(&ring->lane->stream->sideband, scratch, walked);
	} else if (*fault == WALK_OK) {
		*fault = WALK_PAST_HEAD;
	}
	ring->position += walked;
	return walked;
}

static bool ring__has_more(const struct ring *ring, uint64_t keep)
{
	return ring->head - ring->position > keep &&
	       atomic_load_explicit(&ring->fault, memory_order_relaxed) == WALK_OK;
}

void ring__give_up(struct ring *ring, uint8_t *scratch, size_t scratch_bytes, uint64_t keep)
{
	while (ring__has_more(ring, keep)) {
		struct walk_tally tally = {0};
		enum walk_fault fault;

		if (ring__pass_over(ring, scratch, scratch_bytes, keep, &tally, &fault) > 0) {
			counter__add(&ring->overwritten_samples, tally.samples);
			counter__add(&ring->overwritten_records, tally.records);
		}
		if (fault != WALK_OK)
			ring__skip(ring, fault);
		ring_map__publish_tail(ring->map, ring->position);
	}
}

void ring__abandon(struct ring *ring)
{
	uint8_t scratch[RECORD_MAX_BYTES];

	while (ring__has_more(ring, 0)) {
		struct walk_tally tally = {0};
		enum walk_fault fault;

		counter__add(&ring->bytes, ring__pass_over(ring, scratch, sizeof(scratch), 0, &tally,
							   &fault));
		counter__add(&ring->samples, tally.samples);
		counter__add(&ring->records, tally.records);
		counter__add(&ring->abandoned, tally.samples);
		if (fault != WALK_OK)
			ring__skip(ring, fault);
	}
}

static void perf_ring__begin(struct ring *ring, bool first)
{
	(void)first;
	ring__begin(ring);
}

static void perf_ring__wake(struct ring *ring, uint32_t events)
{
	if ((events & EPOLLHUP) != 0)
		atomic_store_explicit(&ring->hung_up, true, memory_order_relaxed);
}

static int perf_ring__hold(struct ring *ring, bool held)
{
	return ring->behind != NULL ? ring->behind->ops->hold(ring->behind, held) : 0;
}

static void perf_ring__leave(struct ring *ring, bool drained)
{
	if (!drained)
		ring__abandon(ring);
}

void perf_ring__free(struct ring *ring)
{
	ring__deinit(ring);
	free(ring);
}

const struct ring_ops perf_ring__ops = {
	.poll = EPOLLIN | EPOLLET,
	.begin = perf_ring__begin,
	.is_unread = ring__is_unread,
	.is_reached = ring__is_reached,
	.take = ring__take,
	.wake = perf_ring__wake,
	.hold = perf_ring__hold,
	.leave = perf_ring__leave,
	.free = perf_ring__free,
};
