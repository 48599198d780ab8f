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

#include "stream.h"

/* If less room than this is left, the chunk is closed rather than filled with a small piece. */
#define PIECE_MIN_BYTES 65536u

/* PERF_RECORD_AUX, without its trailer. */
struct aux_record {
	uint64_t header, offset, size, flags;
};

static void aux_ring__free(struct ring *ring)
{
	free(aux_ring__of(ring));
}

/* Tell a successor what was read, before the kernel gets it back. */
static void aux_ring__note(struct aux_ring *aux)
{
	ring_note__write(aux->note, aux->ring.position, aux->recorded_end, aux->place);
}

/* A predecessor may have read part of it: continue where it noted, or gave up, the last. */
static void aux_ring__go_on(struct aux_ring *aux)
{
	const struct ring_map *const map = aux->options.map;
	const uint64_t tail = ring_map__tail(map);
	uint64_t position, end;

	ring_note__read(aux->note, &position, &end);
	if ((int64_t)(position - tail) < 0)
		position = tail;
	aux->ring.position = aux->ring.head = aux->start = position;
	if (aux->options.note == NULL)
		return;
	aux->recorded_end = end;
	if (aux->options.whole_records && end > position && end - position <= map->data_bytes)
		aux_ends__push(&aux->ends, end);
	/* Its event may have stopped meanwhile for want of room, which is given back now. */
	aux->start = 0;
	aux->suspect = position > 0;
	ring_map__publish_tail(map, position);
}

int aux_ring__new(const struct aux_ring_options *options, struct ring *front, struct ring **out)
{
	const struct ring_map *map = options->map;
	const size_t fds_bytes = options->enable_count * sizeof(*options->enable_fds);
	struct aux_ring *aux;

	/* A hidden piece is shorter than an AUX record may be. */
	if (front->ops != &perf_ring__ops ||
	    (options->whole_records && options->framing == AUX_HIDDEN))
		return -EINVAL;
	aux = calloc(1, sizeof(*aux) + fds_bytes);
	if (aux == NULL)
		return -ENOMEM;
	ring__init(&aux->ring, &aux_ring__ops, -1);
	aux->options = *options;
	if (fds_bytes > 0)
		memcpy(aux->enable_fds, options->enable_fds, fds_bytes);
	aux->ring.front = front;
	aux->note = options->note != NULL ? options->note : &aux->own;
	aux->ring.never_held = !map->overwrite && options->note == NULL;
	aux->data = perf_ring__of(front);
	aux->window.rule = options->head_rule;
	if (map->overwrite)
		counter__set(&aux->ring.horizon_ns, 0);
	else
		aux_ring__go_on(aux);
	*out = &aux->ring;
	return 0;
}

static int aux_ring__join(struct ring *ring, struct stream *stream)
{
	const struct aux_ring *const aux = aux_ring__of(ring);
	const struct ring *const front = ring->front;
	const uint32_t room = stream->scratch_bytes - CHUNK_MARKER_BYTES -
			      aux_piece__head_bytes(aux->options.framing);
	int ret;

	if (front->sideband != NULL || (front->held && ring->never_held) ||
	    (aux->options.whole_records && aux->options.map->data_bytes > room))
		return -EINVAL;
	ret = sideband__join_layout(&stream->sideband, &aux->data->layout);
	if (ret == 0 && aux->options.map->overwrite)
		store_relaxed(&stream->holds_back, true);
	return ret;
}

static void aux_ring__begin(struct ring *ring)
{
	struct aux_ring *const aux = aux_ring__of(ring);
	const struct ring_map *const map = aux->options.map;

	if (!ring__is_sound(ring))
		return;
	if (map->overwrite) {
		const uint64_t used = aux_window__held(&aux->window, map);

		counter__set(&ring->used_bytes, used);
		counter__max(&ring->high_watermark_bytes, used);
		/* The contents of a window are in no other; in flight they need the names of
		 * their time. */
		if (ring->head == ring->position && ring->in_flight == 0 &&
		    ring->front->in_flight == 0)
			counter__set(&ring->horizon_ns, aux->emptied_ns);
		return;
	}
	if (!ring__load(ring, ring_map__head(map), map->data_bytes, 1)) {
		aux_ring__note(aux);
		ring_map__publish_tail(map, ring->position);
	}
	aux->suspect |= ring->head - ring->position > map->data_bytes / 2;
}

/* Note that the data ring is read to its head or past its goal. A generation counts once,
 * however many passes it takes. */
static void aux_ring__follow(struct ring *ring, uint64_t generation)
{
	struct aux_ring *const aux = aux_ring__of(ring);

	aux->emptied_ns = aux->window_ns;
	if (!aux->options.whole_records)
		return;
	if (generation > aux->emptied_generation) {
		aux->emptied_generation = generation;
		aux->orphan_end = aux->full_head;
		aux->full_head = aux->ring.head;
	}
	if (ring->last)
		aux->orphan_end = aux->ring.head;
}

static uint64_t *aux_ends__at(struct aux_ends *ends, uint32_t index)
{
	return &ends->all[(ends->first + index) % AUX_ENDS];
}

void aux_ends__push(struct aux_ends *ends, uint64_t end)
{
	if (ends->count > 0 && end <= *aux_ends__at(ends, ends->count - 1))
		return;
	if (ends->count < AUX_ENDS)
		ends->count++;
	*aux_ends__at(ends, ends->count - 1) = end;
}

uint64_t aux_ends__pop(struct aux_ends *ends, uint64_t limit)
{
	uint64_t last = 0;

	for (; ends->count > 0 && *aux_ends__at(ends, 0) <= limit; ends->count--) {
		last = *aux_ends__at(ends, 0);
		ends->first = (ends->first + 1) % AUX_ENDS;
	}
	return last;
}

/* Returns how much of the next `limit` bytes may go into one piece, so that it ends where an
 * AUX record does. `all`: these are all bytes; then 0 means to wait for a record. */
static uint64_t aux_ring__whole(struct aux_ring *aux, uint64_t limit, bool all)
{
	const uint64_t position = aux->ring.position;
	uint64_t end = aux_ends__pop(&aux->ends, position + limit);

	if (end > position || !all || aux->orphan_end <= position)
		return end > position ? end - position : 0;
	/* Its record was lost, or it would have come before: the end is unknown. */
	end = aux->orphan_end < position + limit ? aux->orphan_end : position + limit;
	counter__add(&aux->orphan_bytes, end - position);
	return end - position;
}

/* Returns the bytes of the next piece; 0: none goes into this chunk, or, if `waits`, into any
 * in this pass. */
static uint64_t aux_ring__next(struct aux_ring *aux, const struct chunk *chunk,
			       uint32_t chunk_bytes, bool *waits)
{
	const struct ring *const ring = &aux->ring;
	const uint64_t unread = ring->head - ring->position;
	const uint32_t used =
		chunk->used + CHUNK_MARKER_BYTES + aux_piece__head_bytes(aux->options.framing);
	/* There is no pad in the middle: all of these, and so a cut at the chunk's end, are
	 * multiples of 8. */
	const uint64_t room = used < chunk_bytes ? chunk_bytes - used : 0;
	uint64_t limit = unread < room ? unread : room;

	*waits = false;
	if (chunk->piece_count == CHUNK_PIECES || chunk->span_count == CHUNK_SPANS ||
	    (room < unread && room < PIECE_MIN_BYTES && chunk->used > 0))
		return 0;
	if (aux->options.framing == AUX_HIDDEN && limit > AUX_HIDDEN_PAYLOAD_MAX)
		limit = AUX_HIDDEN_PAYLOAD_MAX;
	if (!aux->options.whole_records)
		return limit;
	if (aux->options.map->overwrite)
		return limit == unread ? limit : 0;
	limit = aux_ring__whole(aux, limit, limit == unread);
	*waits = limit == 0 && room >= unread;
	return limit;
}

static uint64_t aux_ring__reference(const struct aux_ring *aux)
{
#ifdef __x86_64__
	if (aux->options.reference_tsc)
		return __rdtsc();
#endif
	(void)aux;
	return 0;
}

static void aux_ring__take_piece(struct aux_ring *aux, struct chunk *chunk, uint64_t bytes)
{
	struct ring *const ring = &aux->ring;
	const enum aux_framing framing = aux->options.framing;
	uint8_t *const to = chunk->data + chunk->used;
	struct aux_piece piece = {
		.bytes = bytes,
		.offset = ring->position,
		.reference = aux_ring__reference(aux),
		.origin = aux->options.origin,
	};

	MUTATE(piece.bytes = mutation__aux(bytes));
	ring_map__copy(aux->options.map, ring->position, to + aux_piece__head_bytes(framing),
		       (size_t)piece.bytes);
	counter__add(&aux->pieces, 1);
	ring__count(ring, piece.bytes, 0, piece.bytes);
	if (framing == AUX_AUXTRACE)
		chunk->pieces[chunk->piece_count++] = chunk->used;
	chunk__append(chunk,
		      &(struct span){.ring = ring,
				     .samples = piece.bytes,
				     .bytes = aux_piece__write(to, framing, &piece)},
		      true);
	ring->position += bytes;
	aux->place = chunk__place(chunk);
	aux_ring__note(aux);
	if (!aux->options.map->overwrite)
		ring_map__publish_tail(aux->options.map, ring->position);
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

/* Returns the time in a record, if it is of our clock; else the present time. */
static uint64_t aux_ring__time_of(const struct aux_ring *aux, const uint8_t *record)
{
	const uint64_t now_ns = clock__now_ns();
	uint64_t time_ns;

	if (aux->data->ring.lane->stream->sideband.foreign_clock)
		return now_ns;
	time_ns = walk__trailer_time(record, &aux->data->layout);
	return time_ns != 0 && time_ns < now_ns ? time_ns : now_ns;
}

static void aux_ring__learn_record(struct aux_ring *aux, const uint8_t *at)
{
	const uint64_t area_bytes = aux->options.map->data_bytes;
	struct aux_record record;
	uint64_t end;

	memcpy(&record, at, sizeof(record));
	end = record.offset + record.size;
	counter__add(&aux->aux_records, 1);
	counter__add(&aux->partial, (record.flags & PERF_AUX_FLAG_PARTIAL) != 0);
	counter__add(&aux->collisions, (record.flags & PERF_AUX_FLAG_COLLISION) != 0);
	if ((record.flags & PERF_AUX_FLAG_TRUNCATED) != 0) {
		counter__add(&aux->truncated, 1);
		aux->touched = true;
		if (aux->halted_ns == 0)
			aux->halted_ns = aux_ring__time_of(aux, at);
	}
	/* In a snapshot the meaning of both depends on the driver, and no kernel hands out more
	 * than the area. */
	if (aux->options.map->overwrite || record.size > area_bytes)
		return;
	if (aux->recorded_end != 0 && record.offset > aux->recorded_end &&
	    record.offset - aux->recorded_end <= area_bytes)
		counter__add(&aux->unrecorded_bytes, record.offset - aux->recorded_end);
	aux->recorded_end = end;
	/* It may be beyond the head of this pass, but not beyond what can have come since. */
	if (aux->options.whole_records && end - aux->ring.position <= 2 * area_bytes)
		aux_ends__push(&aux->ends, end);
}

static void aux_ring__learn(struct ring *ring, const uint8_t *records, size_t bytes)
{
	uint16_t size;

	for (size_t at = 0; at < bytes; at += size) {
		const uint64_t header = walk__load(records + at);

		size = walk__size(header);
		if (walk__type(header) == PERF_RECORD_AUX && size >= sizeof(struct aux_record))
			aux_ring__learn_record(aux_ring__of(ring), records + at);
	}
	aux_ring__note(aux_ring__of(ring));
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
	bool restart = aux->halted_ns != 0;

	aux->touched = false;
	if (full) {
		aux->idle_generation = generation;
		/* Without any room there is no record, and one may be lost with the data ring. An
		 * event that is only idle is left alone: restarting it costs an interrupt and a gap
		 * in its trace. */
		if (began && position == aux->idle_position) {
			restart |= aux->suspect || lost != aux->idle_lost;
			aux->suspect = false;
			aux->idle_lost = lost;
		}
		aux->idle_position = position;
	}
	/* Before its first byte an event may wait, for example for its exec. */
	if (aux->options.map->overwrite || ring->last || aux->options.enable_count == 0 ||
	    !ring__is_sound(&aux->ring) || !(touched || restart || (began && (woken || full))))
		return;
	for (uint32_t i = 0; i < aux->options.enable_count; i++) {
		/* ENABLE costs no interrupt if the event is enabled. An error means that its
		 * CPU or task is gone. */
		if (restart)
			(void)ioctl(aux->enable_fds[i], PERF_EVENT_IOC_DISABLE, 0);
		(void)ioctl(aux->enable_fds[i], PERF_EVENT_IOC_ENABLE, 0);
	}
	counter__add(&aux->enables, 1);
	if (restart)
		counter__add(&aux->restarts, 1);
	if (aux->halted_ns != 0) {
		const uint64_t now_ns = clock__now_ns();

		counter__add(&aux->disabled_ns,
			     now_ns > aux->halted_ns ? now_ns - aux->halted_ns : 0);
		aux->halted_ns = 0;
	}
}

/* Open a window when the ring is released, its event stopped: the following passes take the area's
 * present contents. */
static void aux_ring__hold(struct ring *ring, bool held)
{
	struct aux_ring *const aux = aux_ring__of(ring);
	struct aux_extent extent;

	if (held || !aux->options.map->overwrite || !ring__is_sound(ring))
		return;
	/* Bytes of the last window that no pass took are new in this one. */
	if (!aux_window__find(&aux->window, aux->options.map, ring->position, &extent)) {
		ring->head = extent.end;
		ring__skip(ring, WALK_BAD_HEAD, aux->options.map->data_bytes);
		return;
	}
	counter__add(&aux->overwritten_bytes, extent.overwritten);
	ring->position = extent.begin;
	ring->head = extent.end;
	aux->window_ns = clock__now_ns();
	counter__add(&aux->windows, 1);
	counter__set(&aux->window_bytes, extent.held);
	counter__set(&aux->window_taken_bytes, extent.end - extent.begin);
	counter__add(&aux->repeated_bytes, extent.begin - (extent.end - extent.held));
}

/* Unread data stay in the area, for the next process if another one keeps it. */
static void aux_ring__leave(struct ring *ring, bool drained)
{
	const bool lasts = aux_ring__of(ring)->options.note != NULL;
	const uint64_t unread = drained || lasts ? 0 : ring->head - ring->position;

	ring__count_abandoned(ring, unread, 0, unread);
	ring->position += unread;
}

/* Drop the oldest records of a held data ring while it is more than half full. */
static void aux_ring__recycle(struct ring *ring)
{
	struct perf_ring *const data = aux_ring__of(ring)->data;

	if (aux_ring__of(ring)->options.map->overwrite)
		perf_ring__give_up(data, data->map->data_bytes / 2);
}

const struct ring_ops aux_ring__ops = {
	.payload = true,
	.waits = true,
	.stream = &record_stream__ops,
	.join = aux_ring__join,
	.begin = aux_ring__begin,
	.is_unread = ring__is_unread,
	.take = aux_ring__take,
	.learn = aux_ring__learn,
	.follow = aux_ring__follow,
	.resume = aux_ring__resume,
	.recycle = aux_ring__recycle,
	.hold = aux_ring__hold,
	.leave = aux_ring__leave,
	.free = aux_ring__free,
};
