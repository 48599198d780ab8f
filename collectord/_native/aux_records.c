/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/perf_event.h>

#include "aux_ring.h"
#include "clock.h"
#include "stream.h"

/* Body of PERF_RECORD_AUX: u64 aux_offset, aux_size, flags. */
#define AT_AUX_OFFSET 8u
#define AT_AUX_SIZE 16u
#define AT_AUX_FLAGS 24u
#define AUX_RECORD_BYTES 32u

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

void aux_ends__drop(struct aux_ends *ends, uint64_t position)
{
	while (ends->count > 0 && *aux_ends__at(ends, 0) <= position) {
		ends->first = (ends->first + 1) % AUX_ENDS;
		ends->count--;
	}
}

uint64_t aux_ends__last(const struct aux_ends *ends, uint64_t limit)
{
	uint32_t low = 0, high = ends->count;

	while (low < high) {
		const uint32_t middle = low + (high - low) / 2;

		if (ends->all[(ends->first + middle) % AUX_ENDS] <= limit)
			low = middle + 1;
		else
			high = middle;
	}
	return low > 0 ? ends->all[(ends->first + low - 1) % AUX_ENDS] : 0;
}

/* The time that a record tells, if it is of our clock; else the time now. */
static uint64_t aux_ring__time_of(const struct aux_ring *aux, const uint8_t *record)
{
	const uint64_t now_ns = clock__now_ns();
	uint64_t time_ns;

	if (aux->data->ring.lane->stream->sideband.foreign_clock)
		return now_ns;
	time_ns = walk__trailer_time(record, &aux->data->layout);
	return time_ns != 0 && time_ns < now_ns ? time_ns : now_ns;
}

static void learn_aux(struct aux_ring *aux, const uint8_t *record)
{
	const uint64_t offset = walk__load(record + AT_AUX_OFFSET);
	const uint64_t size = walk__load(record + AT_AUX_SIZE);
	const uint64_t flags = walk__load(record + AT_AUX_FLAGS);
	const uint64_t end = offset + size;

	counter__add(&aux->aux_records, 1);
	if ((flags & PERF_AUX_FLAG_PARTIAL) != 0)
		counter__add(&aux->partial, 1);
	if ((flags & PERF_AUX_FLAG_COLLISION) != 0)
		counter__add(&aux->collisions, 1);
	if ((flags & PERF_AUX_FLAG_TRUNCATED) != 0) {
		counter__add(&aux->truncated, 1);
		aux->touched = true;
		if (!aux->halted)
			aux->halted_ns = aux_ring__time_of(aux, record);
		aux->halted = true;
	}
	/* In a snapshot the two mean what the driver likes, and no kernel hands out more than all. */
	if (aux->map->snapshot || size > aux->map->bytes)
		return;
	if (aux->recorded_end != 0 && offset > aux->recorded_end &&
	    offset - aux->recorded_end <= aux->map->bytes)
		counter__add(&aux->unrecorded_bytes, offset - aux->recorded_end);
	aux->recorded_end = end;
	/* Beyond the head of this pass it may be, not beyond what can have come since. */
	if (aux->whole_records && end - aux->ring.position <= 2 * aux->map->bytes)
		aux_ends__push(&aux->ends, end);
}

void aux_ring__learn(struct ring *ring, const uint8_t *records, size_t bytes)
{
	struct aux_ring *const aux = aux_ring__of(ring);

	for (size_t at = 0; at < bytes; at += walk__size(walk__load(records + at))) {
		const uint64_t header = walk__load(records + at);

		if (walk__type(header) == PERF_RECORD_AUX &&
		    walk__size(header) >= AUX_RECORD_BYTES)
			learn_aux(aux, records + at);
	}
}
