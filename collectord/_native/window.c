/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_ring.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "slot_ring.h"
#include "stream.h"

/* How often a copy is repeated because a record was completed meanwhile. */
#define COPIES_MAX 3
/* Contexts that may be in the middle of a record on one CPU: task, soft interrupt, interrupt, NMI. */
#define NESTING 4u

/* Returns the bytes written since the ring was made: head counts down from 0. */
static uint64_t written_to(uint64_t head)
{
	return -head;
}

static void window__unmap(struct window *window)
{
	if (window->copy != MAP_FAILED)
		munmap(window->copy, window->copy_bytes);
	window->copy = MAP_FAILED;
}

static void window__free(struct ring *ring)
{
	struct window *const window = window__of(ring);

	window__unmap(window);
	free(window->pieces);
	perf_ring__free(ring);
}

/*
 * Copy the ring, the newest record first. Returns the head, and in `stable` how much of the copy
 * cannot have been overwritten meanwhile.
 *
 * A record begun before the ring was paused is completed all the same. It belongs to the window,
 * and overwrites its oldest bytes.
 */
static uint64_t window__copy(const struct window *window, uint64_t *stable)
{
	const struct ring_map *const map = window->perf.map;
	const uint64_t data_bytes = map->data_bytes;
	uint64_t head = ring_map__head(map), moved = 0;

	for (int copies = 0; copies < COPIES_MAX; copies++) {
		uint64_t now;

		ring_map__copy(map, head, window->copy, (size_t)least(written_to(head), data_bytes));
		/* The copy is complete before the head is read again. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		now = ring_map__head(map);
		moved = head - now;
		if (moved == 0)
			break;
		if (copies + 1 < COPIES_MAX)
			head = now;
	}
	*stable = least(written_to(head), data_bytes - least(moved, data_bytes));
	return head;
}

/* Continue with a ring that earlier processes had, up to `position`. */
static void window__resume(struct window *window, uint64_t position)
{
	struct walk_layout layout = window->perf.layout;
	struct walk_tally tally = {0};
	uint64_t stable, begun_ns = window->seen_ns;
	enum fault fault;
	const uint64_t head = window__copy(window, &stable);

	layout.ids = NULL;
	(void)walk__run(window->copy, (size_t)stable, &layout, &tally, &fault);
	(void)madvise(window->copy, window->copy_bytes, MADV_DONTNEED);
	if (tally.first_ns != 0 && tally.first_ns < begun_ns)
		begun_ns = tally.first_ns;
	/* Names of any age may be needed, until all of it is overwritten. */
	for (uint32_t i = 0; i < WINDOW_STEPS; i++)
		window->steps[i] = (struct window_step){.begun_ns = begun_ns};
	window->seen = written_to(head);
	/* The note may be wrong: a window has no less than nothing. */
	window->last = (position & 7u) == 0 && position - head <= INT64_MAX ? position : head;
}

int window__new(const struct perf_ring_options *options, struct ring **out)
{
	const struct ring_map *const map = options->map;
	/* Two neighbours together have at least one and a half PIECE_BYTES. */
	const size_t pieces = (size_t)(map->data_bytes / (PIECE_BYTES / 2)) + 2;
	struct window *window = calloc(1, sizeof(*window));
	uint64_t position, samples;
	int ret;

	if (window == NULL)
		return -ENOMEM;
	ret = perf_ring__init(&window->perf, options);
	ring_note__read(window->perf.note, &position, &samples);
	window->perf.ring.position = window->perf.ring.head = 0;
	window->pieces = calloc(pieces, sizeof(*window->pieces));
	window->copy_bytes = (size_t)map->data_bytes;
	window->copy = mmap(NULL, window->copy_bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	window->perf.ring.ops = &window__ops;
	counter__set(&window->perf.ring.horizon_ns, 0);
	if (ret < 0 || window->pieces == NULL || window->copy == MAP_FAILED) {
		window__free(&window->perf.ring);
		return -ENOMEM;
	}
	/* A new ring was empty then: later contents came after it. */
	window->seen_ns = clock__now_ns();
	window->steps[0] = (struct window_step){window->seen_ns, window->seen_ns};
	if (options->note != NULL && ring_map__head(map) != 0)
		window__resume(window, position);
	*out = &window->perf.ring;
	return 0;
}

void window__warm(const struct ring *ring)
{
	const struct slot_ring *const slots = slot_ring__of(ring);
	const struct window *const window = slots == NULL ? window__of(ring) : &slots->window;

#ifdef MADV_POPULATE_WRITE
	/* EINVAL before Linux 5.14: then the copy faults the pages in, one by one. */
	if (window != NULL)
		(void)madvise(window->copy, window->copy_bytes, MADV_POPULATE_WRITE);
#else
	(void)window;
#endif
}

/* Date the steps that began since the last check, assuming an even rate in between. */
static void window__date(struct window *window, uint64_t written, uint64_t step, uint64_t now_ns)
{
	const uint64_t last = written / step;
	const double pace = (double)(now_ns - window->seen_ns) / (double)(written - window->seen);
	uint64_t at = window->seen / step + 1;

	if (last >= at + WINDOW_STEPS)
		at = last - WINDOW_STEPS + 1;
	for (; at <= last; at++)
		window->steps[at % WINDOW_STEPS] = (struct window_step){
			.since_ns = window->seen_ns,
			.begun_ns = window->seen_ns +
				    (uint64_t)((double)(at * step - window->seen) * pace),
		};
	window->seen = written;
	window->seen_ns = now_ns;
}

/* Note how much the ring holds, and in a swept pass also since when. */
static void window__begin(struct ring *ring)
{
	struct window *const window = window__of(ring);
	const uint64_t data_bytes = window->perf.map->data_bytes;
	const uint64_t step = data_bytes / (WINDOW_STEPS / 2), now_ns = clock__now_ns();
	const uint64_t written = written_to(ring_map__head(window->perf.map));
	const uint64_t used = least(written, data_bytes);
	const struct window_step *oldest;

	counter__set(&ring->used_bytes, used);
	counter__max(&ring->high_watermark_bytes, used);
	if (!ring->swept)
		return;
	window__date(window, written, step, now_ns);
	oldest = &window->steps[(written - used) / step % WINDOW_STEPS];
	/* Data in flight to a file still need the names of their time. */
	if (ring->head == ring->position && load_relaxed(&ring->in_flight) == 0)
		counter__set(&ring->horizon_ns, oldest->since_ns);
	counter__set(&window->held_ns, now_ns - oldest->begun_ns);
}

struct window_walk {
	size_t kept;   /* whole records, from the start of the copy on */
	size_t margin; /* at the end of the copy, not to be trusted */
	enum fault fault;
};

/* Find the whole records within the first `bytes` bytes of the copy, the last of which may be
 * overwritten if the ring is `wrapped`. */
static struct window_walk window__walk(const struct window *window, size_t bytes, bool wrapped)
{
	struct window_walk walk = {0};
	size_t largest = 0;

	while (bytes - walk.kept >= WALK_HEADER_BYTES) {
		const uint64_t header = walk__load(window->copy + walk.kept);
		const uint16_t size = walk__size(header);

		walk.fault = walk__check(header);
		if (walk.fault != FAULT_NONE || size > bytes - walk.kept)
			break;
		walk.kept += size;
		if (size > largest)
			largest = size;
	}
	/* In each context a record may have been begun before the ring was paused. None is assumed
	 * to be larger than the largest one present. */
	if (wrapped)
		walk.margin = largest < bytes / (2 * NESTING) ? NESTING * largest : bytes / 2;
	if (wrapped && bytes - walk.kept <= walk.margin)
		walk.fault = FAULT_NONE;
	return walk;
}

/* Divide new records into pieces, and count the others. `trusted`: no record lies beyond. Returns
 * the bytes of the new ones. */
static size_t window__sort(struct window *window, size_t kept, size_t fresh, size_t trusted)
{
	uint64_t taken = 0, repeated = 0, repeated_bytes = 0;
	size_t at, size, end = 0;

	window->piece_count = 0;
	for (at = 0; at < kept; at += size) {
		const uint64_t header = walk__load(window->copy + at);
		const bool sample = walk__type(header) == PERF_RECORD_SAMPLE;

		size = walk__size(header);
		if (at + size > trusted)
			break;
		if (at < fresh) {
			end = at + size;
			if (window->piece_count == 0 ||
			    end - window->pieces[window->piece_count - 1] > PIECE_BYTES)
				window->pieces[window->piece_count++] = at;
			taken += sample;
		} else {
			repeated += sample;
			repeated_bytes += size;
		}
	}
	counter__add(&window->taken, taken);
	counter__add(&window->repeated, repeated);
	counter__add(&window->repeated_bytes, repeated_bytes);
	return end;
}

static void window__take(struct window *window)
{
	struct ring *const ring = &window->perf.ring;
	const uint64_t data_bytes = window->perf.map->data_bytes;
	uint64_t stable, fresh, bytes, unread = 0;
	const uint64_t head = window__copy(window, &stable);
	const bool wrapped = written_to(head) > stable;
	struct window_walk walk;

	window->wanted = false;
	fresh = window->last - head;
	/* It counts down, in steps of records. */
	if ((head & 7u) != 0 || fresh > INT64_MAX) {
		ring__refuse(ring, WALK_BAD_HEAD, stable);
		window->last = head;
		return;
	}
	walk = window__walk(window, (size_t)stable, wrapped);
	/* A ring that was never full has overwritten nothing, so all must be records. */
	if (walk.fault == FAULT_NONE && !wrapped && walk.kept != stable)
		walk.fault = WALK_PAST_HEAD;
	bytes = window__sort(window, walk.kept, (size_t)least(fresh, data_bytes),
			     (size_t)stable - walk.margin);
	/* Nobody reads the bytes behind a fault; but records that the last window had are not
	 * lost by it. */
	if (walk.fault != FAULT_NONE && walk.kept < least(fresh, stable))
		unread = least(fresh, stable) - walk.kept;
	counter__add(&window->windows, 1);
	counter__add(&window->overwritten_bytes, fresh - bytes - unread);
	window->last = head;
	ring->head = ring->position + bytes;
	if (unread > 0)
		ring__refuse(ring, walk.fault, unread);
}

/* All pieces are delivered: take the requested window. Without one, or if it has nothing new,
 * or no whole record, free the pages, which may not be needed for hours. */
static void window__next(struct window *window)
{
	if (window->wanted)
		window__take(window);
	if (window->piece_count == 0)
		(void)madvise(window->copy, window->copy_bytes, MADV_DONTNEED);
}

/* Take a window when the ring is released, now, or after the last one is delivered. It is
 * paused then. */
static void window__hold(struct ring *ring, bool held)
{
	struct window *const window = window__of(ring);

	if (held || load_relaxed(&ring->fault) != FAULT_NONE)
		return;
	window->wanted = true;
	if (window->piece_count == 0)
		window__next(window);
}

/* Put the oldest remaining piece into `chunk`. */
static enum ring_take window__give(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes)
{
	struct window *const window = window__of(ring);
	const size_t room = chunk_bytes - CHUNK_MARKER_BYTES - chunk->used;
	const size_t end = (size_t)(ring->head - ring->position);
	size_t at, bytes, size;
	uint64_t begin;
	uint8_t *to;

	if (window->piece_count == 0)
		return RING_EMPTY;
	at = window->pieces[window->piece_count - 1];
	bytes = end - at;
	if (bytes > room)
		return RING_CHUNK_FULL;
	to = chunk->data + chunk->used + bytes;
	begin = window->last + at;
	for (; at < end; at += size) {
		size = walk__size(walk__load(window->copy + at));
		to -= size;
		memcpy(to, window->copy + at, size);
	}
	perf_ring__put(&window->perf, chunk, bytes);
	/* A successor takes what is newer out of the ring again: this copy ends with the process. */
	ring_note__write(window->perf.note, begin,
			 window->perf.taken + counter__read(&ring->samples), chunk__place(chunk));
	ring->position += bytes;
	window->piece_count--;
	if (window->piece_count == 0)
		window__next(window);
	return window->piece_count == 0 ? RING_EMPTY : RING_MORE;
}

/* Count the pieces not delivered, which nobody will take; no more windows come. */
static void window__leave(struct ring *ring, bool drained)
{
	struct window *const window = window__of(ring);
	const size_t unread = (size_t)(ring->head - ring->position);
	struct walk_tally tally = {0};
	enum fault fault;

	(void)drained; /* then there are none */
	(void)walk__run(window->copy, unread, &window->perf.layout, &tally, &fault);
	ring__count_abandoned(ring, tally.samples, tally.records, unread);
	ring->position = ring->head;
	window->piece_count = 0;
	window->wanted = false;
	window__unmap(window);
}

/* The kernel wakes at each wrap of such a ring, which is of no use. */
const struct ring_ops window__ops = {
	.copied = true,
	.records = true,
	.stream = &record_stream__ops,
	.join = perf_ring__join,
	.begin = window__begin,
	.is_unread = ring__is_unread,
	.take = window__give,
	.hold = window__hold,
	.leave = window__leave,
	.free = window__free,
};
