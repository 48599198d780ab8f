/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband_state.h"

#include <stdbool.h>
#include <stdlib.h>

void *budget__alloc(struct budget *budget, size_t bytes)
{
	void *memory = NULL;

	if (budget->bytes_max - budget->bytes >= bytes)
		memory = calloc(1, bytes);
	if (memory == NULL)
		budget->refused++;
	else
		budget->bytes += bytes;
	return memory;
}

void budget__release(struct budget *budget, void *memory, size_t bytes)
{
	free(memory);
	budget->bytes -= bytes;
}

struct blob *blob__new(struct budget *budget, const uint8_t *record)
{
	const uint16_t size = walk__size(walk__load(record));
	struct blob *blob = budget__alloc(budget, sizeof(*blob) + size);

	if (blob == NULL)
		return NULL;
	blob->refs = 1;
	blob->size = size;
	memcpy(blob->bytes, record, size);
	return blob;
}

struct blob *blob__get(struct blob *blob)
{
	if (blob != NULL)
		blob->refs++;
	return blob;
}

void blob__put(struct budget *budget, struct blob *blob)
{
	if (blob != NULL && --blob->refs == 0)
		budget__release(budget, blob, sizeof(*blob) + blob->size);
}

void mappings__clear(struct mappings *mappings, struct budget *budget)
{
	for (uint32_t i = 0; i < mappings->count; i++)
		blob__put(budget, mappings->all[i].record);
	mappings->count = 0;
}

void mappings__deinit(struct mappings *mappings, struct budget *budget)
{
	mappings__clear(mappings, budget);
	budget__release(budget, mappings->all, mappings->room * sizeof(*mappings->all));
	memset(mappings, 0, sizeof(*mappings));
}

static bool mappings__reserve(struct mappings *mappings, struct budget *budget, uint32_t room)
{
	struct mapping *all;

	if (room <= mappings->room)
		return true;
	all = budget__alloc(budget, room * sizeof(*all));
	if (all == NULL)
		return false;
	if (mappings->count > 0)
		memcpy(all, mappings->all, mappings->count * sizeof(*all));
	budget__release(budget, mappings->all, mappings->room * sizeof(*all));
	mappings->all = all;
	mappings->room = room;
	return true;
}

static uint64_t end_of(uint64_t start, uint64_t length)
{
	return length < UINT64_MAX - start ? start + length : UINT64_MAX;
}

void mappings__cover(struct mappings *mappings, struct budget *budget, uint64_t start,
		     uint64_t length)
{
	const uint64_t end = end_of(start, length);
	uint32_t kept = 0;

	for (uint32_t i = 0; i < mappings->count; i++) {
		struct mapping *old = &mappings->all[i];

		if (start <= old->start && old->end <= end)
			blob__put(budget, old->record);
		else
			mappings->all[kept++] = *old;
	}
	mappings->count = kept;
}

void mappings__add(struct mappings *mappings, struct budget *budget, const uint8_t *record,
		   uint64_t start, uint64_t length)
{
	const uint64_t end = end_of(start, length);
	struct blob *blob;

	mappings__cover(mappings, budget, start, length);
	if (!mappings__reserve(mappings, budget,
			       mappings->count < mappings->room ? mappings->count + 1
								: mappings->room * 2 + 8))
		return;
	blob = blob__new(budget, record);
	if (blob != NULL)
		mappings->all[mappings->count++] = (struct mapping){start, end, blob};
}

void mappings__inherit(struct mappings *mappings, struct budget *budget,
		       const struct mappings *from)
{
	mappings__clear(mappings, budget);
	if (from->count == 0 || !mappings__reserve(mappings, budget, from->count))
		return;
	for (uint32_t i = 0; i < from->count; i++) {
		mappings->all[i] = from->all[i];
		blob__get(mappings->all[i].record);
	}
	mappings->count = from->count;
}
