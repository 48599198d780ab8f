/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>

#include "../walk.h"
#include "perf.h"

#define WORD_BYTES 8u

/* The words of a sample up to READ, and those of other records' trailers, in their orders, as
 * perf_output_sample() and __perf_event__output_id_sample() of kernel/events/core.c write them. */
static const uint64_t sample_words[] = {
	PERF_SAMPLE_IDENTIFIER, PERF_SAMPLE_IP,	  PERF_SAMPLE_TID,
	PERF_SAMPLE_TIME,	PERF_SAMPLE_ADDR, PERF_SAMPLE_ID,
	PERF_SAMPLE_STREAM_ID,	PERF_SAMPLE_CPU,  PERF_SAMPLE_PERIOD,
};
static const uint64_t trailer_words[] = {
	PERF_SAMPLE_TID,       PERF_SAMPLE_TIME, PERF_SAMPLE_ID,
	PERF_SAMPLE_STREAM_ID, PERF_SAMPLE_CPU,	 PERF_SAMPLE_IDENTIFIER,
};
/* The last words of a sample, of which AUX data alone come behind. */
static const uint64_t last_words[] = {
	PERF_SAMPLE_CGROUP,
	PERF_SAMPLE_DATA_PAGE_SIZE,
	PERF_SAMPLE_CODE_PAGE_SIZE,
};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Returns the bytes of the words of `type` before `word`; all of them if it is 0. */
static uint16_t before(const uint64_t *words, size_t count, uint64_t type, uint64_t word)
{
	uint16_t bytes = 0;

	for (size_t i = 0; i < count && words[i] != word; i++)
		bytes = (uint16_t)(bytes + ((type & words[i]) != 0 ? WORD_BYTES : 0));
	return bytes;
}

static uint16_t in_sample(uint64_t type, uint64_t word)
{
	if ((type & word) == 0)
		return 0;
	return (uint16_t)(WALK_HEADER_BYTES + before(sample_words, COUNT(sample_words), type, word));
}

static uint16_t from_end(const struct perf_event *event, uint64_t word)
{
	if (!event->has_trailer || (event->sample_type & word) == 0)
		return 0;
	return (uint16_t)(event->trailer_bytes -
			  before(trailer_words, COUNT(trailer_words), event->sample_type, word));
}

/* Returns where a sample has the id of its cgroup, from its end back. */
static uint16_t cgroup_back(uint64_t type)
{
	if ((type & PERF_SAMPLE_CGROUP) == 0 || (type & PERF_SAMPLE_AUX) != 0)
		return 0;
	return before(last_words, COUNT(last_words), type, 0);
}

/* Where all records have the id of their event. */
static void place_id(struct perf_events *events)
{
	uint64_t word = PERF_SAMPLE_IDENTIFIER;

	for (size_t i = 0; i < events->count; i++)
		if ((events->event[i].sample_type & PERF_SAMPLE_IDENTIFIER) == 0)
			word = PERF_SAMPLE_ID; /* then all have the same fields, or just one event */
	events->id_at = in_sample(events->event[0].sample_type, word);
	events->id_back = from_end(&events->event[0], word);
}

int perf_events__add(struct perf_events *events, const struct perf_event *told)
{
	const size_t bytes = (events->count + 1) * sizeof(*events->event);
	struct perf_event *const all = realloc(events->event, bytes), *event;

	if (all == NULL)
		return -ENOMEM;
	events->event = all;
	event = &all[events->count++];
	*event = *told;
	event->tid_at = in_sample(event->sample_type, PERF_SAMPLE_TID);
	event->time_at = in_sample(event->sample_type, PERF_SAMPLE_TIME);
	event->cpu_at = in_sample(event->sample_type, PERF_SAMPLE_CPU);
	event->fixed_bytes = (uint16_t)(WALK_HEADER_BYTES + before(sample_words, COUNT(sample_words),
								   event->sample_type, 0));
	event->trailer_bytes = 0;
	if (event->has_trailer)
		event->trailer_bytes =
			before(trailer_words, COUNT(trailer_words), event->sample_type, 0);
	event->identifier_at = in_sample(event->sample_type, PERF_SAMPLE_IDENTIFIER);
	event->id_at = in_sample(event->sample_type, PERF_SAMPLE_ID);
	event->identifier_back = from_end(event, PERF_SAMPLE_IDENTIFIER);
	event->id_back = from_end(event, PERF_SAMPLE_ID);
	event->tid_back = from_end(event, PERF_SAMPLE_TID);
	event->time_back = from_end(event, PERF_SAMPLE_TIME);
	event->cpu_back = from_end(event, PERF_SAMPLE_CPU);
	event->cgroup_back = cgroup_back(event->sample_type);
	place_id(events);
	return 0;
}

static void put(struct perf_id *places, size_t mask, struct perf_id id)
{
	size_t at = (size_t)id.id & mask;

	while (places[at].event != 0 && places[at].id != id.id)
		at = (at + 1) & mask;
	if (places[at].event == 0)
		places[at] = id;
}

int perf_events__add_id(struct perf_events *events, uint64_t id)
{
	if (events->place == NULL || 2 * events->id_count > events->mask) {
		const size_t mask = events->place == NULL ? 31 : 2 * events->mask + 1;
		struct perf_id *const places = calloc(mask + 1, sizeof(*places));

		if (places == NULL)
			return -ENOMEM;
		for (size_t i = 0; events->place != NULL && i <= events->mask; i++)
			if (events->place[i].event != 0)
				put(places, mask, events->place[i]);
		free(events->place);
		events->place = places;
		events->mask = mask;
	}
	put(events->place, events->mask,
	    (struct perf_id){.id = id, .event = (uint32_t)events->count});
	events->id_count++;
	return 0;
}

void perf_events__deinit(struct perf_events *events)
{
	free(events->event);
	free(events->place);
	*events = (struct perf_events){0};
}
