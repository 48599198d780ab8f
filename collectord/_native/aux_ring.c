/* SPDX-License-Identifier: Apache-2.0 */
#include "aux_ring.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#ifdef __x86_64__
#include <x86intrin.h>
#endif

#include "clock.h"
#include "stream.h"
#ifdef COLLECTORD_MUTATION
#include "mutation.h"
#endif

/* With less room than this left a chunk is closed rather than filled with a small piece. */
#define PIECE_MIN_BYTES 65536u

static void aux_ring__free(struct ring *ring)
{
	struct aux_ring *const aux = aux_ring__of(ring);

	aux_window__deinit(&aux->window);
	free(aux->enable_fds);
	free(aux);
}

static int aux_ring__reserve(struct aux_ring *aux, const struct aux_ring_options *options)
{
	const size_t bytes = options->enable_count * sizeof(*aux->enable_fds);

	aux->enable_fds = malloc(bytes + 1);
	if (aux->enable_fds == NULL)
		return -ENOMEM;
	if (bytes > 0)
		memcpy(aux->enable_fds, options->enable_fds, bytes);
	aux->enable_count = options->enable_count;
	return options->map->snapshot ? aux_window__init(&aux->window, options->head_rule) : 0;
}

int aux_ring__new(const struct aux_ring_options *options, struct ring *front, struct ring **out)
{
	const struct aux_map *map = options->map;
	struct aux_ring *aux;
	int ret;

	/* A hidden piece is shorter than an AUX record may be. */
	if (front->ops != &perf_ring__ops ||
	    (options->whole_records && options->framing == AUX_HIDDEN))
		return -EINVAL;
	aux = calloc(1, sizeof(*aux));
	if (aux == NULL)
		return -ENOMEM;
	ring__init(&aux->ring, &aux_ring__ops, -1, false);
	ret = aux_ring__reserve(aux, options);
	if (ret < 0) {
		aux_ring__free(&aux->ring);
		return ret;
	}
	aux->map = options->map;
	aux->ring.front = front;
	aux->data = perf_ring__of(front);
	aux->framing = options->framing;
	aux->origin = options->origin;
	aux->reference_tsc = options->reference_tsc;
	aux->whole_records = options->whole_records;
	/* A predecessor may have read part of it: go on where it stopped. */
	if (!map->snapshot)
		aux->ring.position = aux->ring.head = aux_map__tail(map);
	else
		counter__set(&aux->ring.horizon_ns, 0);
	aux->start = aux->ring.head;
	counter__set(&aux->head_rule, options->head_rule);
	*out = &aux->ring;
	return 0;
}

static int aux_ring__join(struct ring *ring, struct stream *stream)
{
	const struct aux_ring *const aux = aux_ring__of(ring);
	const struct ring *const front = ring->front;
	const uint32_t room = stream->scratch_bytes - CHUNK_MARKER_BYTES -
			      aux_piece__head_bytes(aux->framing);
	int ret;

	if (front->sideband != NULL || (front->held && !aux->map->snapshot) ||
	    (aux->whole_records && aux->map->bytes > room))
		return -EINVAL;
	ret = sideband__join_layout(&stream->sideband, &aux->data->layout);
	if (ret == 0 && aux->map->snapshot)
		atomic_store_explicit(&stream->holds_back, true, memory_order_relaxed);
	return ret;
}

static void aux_ring__begin(struct ring *ring, bool first)
{
	struct aux_ring *const aux = aux_ring__of(ring);
	uint64_t used;

	(void)first;
	if (!ring__is_sound(ring))
		return;
	if (aux->map->snapshot) {
		used = aux_window__held(&aux->window, aux->map);
		counter__set(&ring->used_bytes, used);
		counter__max(&ring->high_watermark_bytes, used);
		/* What came with a window comes with no other; on its way it needs its names. */
		if (ring->head == ring->position && ring->in_flight == 0 &&
		    ring->front->in_flight == 0)
			counter__set(&ring->horizon_ns, aux->emptied_ns);
		return;
	}
	if (!ring__load(ring, aux_map__head(aux->map), aux->map->bytes, 1))
		aux_map__publish_tail(aux->map, ring->position);
	aux->suspect |= ring->head - ring->position > aux->map->bytes / 2;
}

/* The data ring is empty up to the head of this pass. A generation counts once, however many passes it
 * takes. */
static void aux_ring__follow(struct ring *ring, uint64_t generation)
{
	struct aux_ring *const aux = aux_ring__of(ring);

	aux->emptied_ns = aux->window_ns;
	if (!aux->whole_records)
		return;
	if (generation > aux->emptied_generation) {
		aux->emptied_generation = generation;
		aux->orphan_end = aux->full_head;
		aux->full_head = aux->ring.head;
	}
	if (aux->stopping)
		aux->orphan_end = aux->ring.head;
}

/* How much of the next `limit` bytes may go into one piece, so that it ends where an AUX record
 * does. `all`: nothing is behind them, 0 means to wait for a record then. */
static uint64_t aux_ring__whole(struct aux_ring *aux, uint64_t limit, bool all)
{
	const uint64_t position = aux->ring.position;
	uint64_t end;

	aux_ends__drop(&aux->ends, position);
	end = aux_ends__last(&aux->ends, position + limit);
	if (end > position || !all || aux->orphan_end <= position)
		return end > position ? end - position : 0;
	/* Its record was lost, or it would have come before: nobody can say any more where it ends. */
	end = aux->orphan_end < position + limit ? aux->orphan_end : position + limit;
	counter__add(&aux->orphan_bytes, end - position);
	return end - position;
}

/* Bytes of the next piece, 0: none goes into this chunk, or, if `waits`, into any in this pass. */
static uint64_t aux_ring__next(struct aux_ring *aux, const struct chunk *chunk,
			       uint32_t chunk_bytes, bool *waits)
{
	const struct ring *const ring = &aux->ring;
	const uint64_t unread = ring->head - ring->position;
	const uint32_t used = chunk->used + CHUNK_MARKER_BYTES + aux_piece__head_bytes(aux->framing);
	/* No pad in the middle: all of these, and so what the chunk's end cuts, are multiples of 8. */
	const uint64_t room = used < chunk_bytes ? chunk_bytes - used : 0;
	uint64_t limit = unread < room ? unread : room;

	*waits = false;
	if (chunk->piece_count == CHUNK_PIECES || chunk->span_count == CHUNK_SPANS ||
	    (room < unread && room < PIECE_MIN_BYTES && chunk->used > 0))
		return 0;
	if (aux->framing == AUX_HIDDEN && limit > AUX_HIDDEN_PAYLOAD_MAX)
		limit = AUX_HIDDEN_PAYLOAD_MAX;
	if (!aux->whole_records)
		return limit;
	if (aux->map->snapshot)
		return limit == unread ? limit : 0;
	limit = aux_ring__whole(aux, limit, limit == unread);
	*waits = limit == 0 && room >= unread;
	return limit;
}

static uint64_t aux_ring__reference(const struct aux_ring *aux)
{
#ifdef __x86_64__
	if (aux->reference_tsc)
		return __rdtsc();
#endif
	(void)aux;
	return 0;
}

static void aux_ring__take_piece(struct aux_ring *aux, struct chunk *chunk, uint64_t bytes)
{
	struct ring *const ring = &aux->ring;
	uint8_t *const to = chunk->data + chunk->used;
	struct aux_piece piece = {
		.bytes = bytes,
		.offset = ring->position,
		.reference = aux_ring__reference(aux),
		.origin = aux->origin,
	};

#ifdef COLLECTORD_MUTATION
	piece.bytes = mutation__aux(bytes);
#endif
	aux_map__copy(aux->map, ring->position, to + aux_piece__head_bytes(aux->framing),
		      (size_t)piece.bytes);
	counter__add(&aux->pieces, 1);
	ring__count(ring, piece.bytes, 0, piece.bytes);
	if (aux->framing == AUX_AUXTRACE)
		chunk->pieces[chunk->piece_count++] = chunk->used;
	chunk__append(chunk,
		      &(struct span){.ring = ring,
				     .samples = piece.bytes,
				     .bytes = aux_piece__write(to, aux->framing, &piece)},
		      true);
	ring->position += bytes;
	if (!aux->map->snapshot)
		aux_map__publish_tail(aux->map, ring->position);
	aux->touched = true;
}

static enum ring_take aux_ring__take(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes)
{
	struct aux_ring *const aux = aux_ring__of(ring);

	while (ring->position != ring->head) {
		bool waits;
		const uint64_t bytes = aux_ring__next(aux, chunk, chunk_bytes, &waits);

		if (bytes == 0)
			return waits ? RING_EMPTY : RING_CHUNK_FULL;
		aux_ring__take_piece(aux, chunk, bytes);
	}
	return RING_EMPTY;
}

/* Enable the events again where the kernel may have disabled them. */
static void aux_ring__resume(struct ring *ring, bool woken, uint64_t generation)
{
	struct aux_ring *const aux = aux_ring__of(ring);
	const bool full = generation > aux->idle_generation;
	const uint64_t position = aux->ring.position;
	const uint64_t lost = counter__read(&aux->data->lost_records);
	const bool began = position != aux->start;
	const bool touched = aux->touched;
	bool restart = aux->halted;

	aux->touched = false;
	if (full) {
		aux->idle_generation = generation;
		/*
		 * With no room at all there is no record, and one may be lost with the data ring.
		 * An event that is only idle is left alone: restarting it costs an interrupt and a
		 * gap in its trace.
		 */
		if (began && position == aux->idle_position) {
			restart |= aux->suspect || lost != aux->idle_lost;
			aux->suspect = false;
			aux->idle_lost = lost;
		}
		aux->idle_position = position;
	}
	/* Before its first byte an event may wait for its exec, or for whom knows what. */
	if (aux->map->snapshot || aux->stopping || aux->enable_count == 0 ||
	    atomic_load_explicit(&aux->ring.fault, memory_order_relaxed) != FAULT_NONE ||
	    !(touched || restart || (began && (woken || full))))
		return;
	for (uint32_t i = 0; i < aux->enable_count; i++) {
		/* ENABLE costs no interrupt when it is enabled. An error is that of an event whose
		 * CPU or task is gone. */
		if (restart)
			(void)ioctl(aux->enable_fds[i], PERF_EVENT_IOC_DISABLE, 0);
		(void)ioctl(aux->enable_fds[i], PERF_EVENT_IOC_ENABLE, 0);
	}
	counter__add(&aux->enables, 1);
	if (restart)
		counter__add(&aux->restarts, 1);
	if (aux->halted) {
		const uint64_t now_ns = clock__now_ns();

		counter__add(&aux->disabled_ns,
			     now_ns > aux->halted_ns ? now_ns - aux->halted_ns : 0);
		aux->halted = false;
	}
}

/* The event stands still: the following passes take what the area holds now. */
static void aux_ring__open_window(struct aux_ring *aux)
{
	struct ring *const ring = &aux->ring;
	struct aux_extent extent;

	if (atomic_load_explicit(&ring->fault, memory_order_relaxed) != FAULT_NONE)
		return;
	/* What no pass came to take of the last window is new in this one. */
	if (!aux_window__find(&aux->window, aux->map, ring->position, &extent)) {
		ring->head = extent.end;
		ring__skip(ring, WALK_BAD_HEAD, aux->map->bytes);
		return;
	}
	ring->position = extent.begin;
	ring->head = extent.end;
	aux->window_ns = clock__now_ns();
	counter__add(&aux->windows, 1);
	counter__set(&aux->head_rule, aux->window.rule);
	counter__set(&aux->window_bytes, extent.held);
	counter__set(&aux->window_taken_bytes, extent.end - extent.begin);
	counter__add(&aux->repeated_bytes, extent.repeated);
	counter__add(&aux->overwritten_bytes, extent.overwritten);
}

static void aux_ring__leave(struct ring *ring, bool drained)
{
	const uint64_t unread = drained ? 0 : ring->head - ring->position;

	ring__count_abandoned(ring, unread, 0, unread);
	ring->position += unread;
}

/* Give up the oldest records of a held data ring while more than half of it is full. */
static void aux_ring__recycle(struct ring *ring)
{
	struct perf_ring *const data = aux_ring__of(ring)->data;

	if (aux_ring__of(ring)->map->snapshot)
		perf_ring__give_up(data, data->map->data_bytes / 2);
}

static bool aux_ring__can_hold(const struct ring *ring)
{
	return aux_ring__of(ring)->map->snapshot;
}

static void aux_ring__hold(struct ring *ring, bool held)
{
	if (!held)
		aux_ring__open_window(aux_ring__of(ring));
}

static void aux_ring__last(struct ring *ring)
{
	aux_ring__of(ring)->stopping = true;
}

const struct ring_ops aux_ring__ops = {
	.payload = true,
	.join = aux_ring__join,
	.begin = aux_ring__begin,
	.is_unread = ring__is_unread,
	.is_reached = ring__is_reached,
	.take = aux_ring__take,
	.learn = aux_ring__learn,
	.follow = aux_ring__follow,
	.resume = aux_ring__resume,
	.recycle = aux_ring__recycle,
	.can_hold = aux_ring__can_hold,
	.hold = aux_ring__hold,
	.last = aux_ring__last,
	.leave = aux_ring__leave,
	.free = aux_ring__free,
};
