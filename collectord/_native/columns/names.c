/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rows.h"

#define NAME_UNKNOWN UINT32_MAX

static size_t hash(int32_t tid)
{
	return (uint32_t)tid * UINT32_C(2654435769) >> 7;
}

/* Returns room for one more, NULL without memory; `*ret` is 0 if there are enough already. */
static struct name *more(struct names *names, int *ret)
{
	*ret = 0;
	if (names->count == NAMES_MAX)
		return NULL;
	if (names->count == names->room) {
		const size_t room = names->room > 0 ? 2 * names->room : 64;
		struct name *const name = realloc(names->name, room * sizeof(*name));

		*ret = -ENOMEM;
		if (name == NULL)
			return NULL;
		names->name = name;
		names->room = room;
	}
	*ret = 0;
	return &names->name[names->count];
}

int names__add(struct names *names, int32_t tid, uint64_t since_ns, const char *text, size_t bytes)
{
	const size_t at = names->text.bytes;
	struct name *name;
	int ret;

	if (tid == ROW_NONE)
		return 0;
	name = more(names, &ret);
	if (name == NULL)
		return ret;
	ret = store__put_text(&names->text, (const uint8_t *)text, bytes);
	if (ret < 0)
		return ret;
	*name = (struct name){
		.since_ns = since_ns,
		.tid = tid,
		.parent = ROW_NONE,
		.number = (uint32_t)names->count++,
		.at = (uint32_t)at,
		.bytes = (uint32_t)(names->text.bytes - at),
	};
	return 0;
}

int names__fork(struct names *names, int32_t tid, int32_t parent, uint64_t since_ns)
{
	struct name *name;
	int ret;

	if (tid == ROW_NONE || parent == ROW_NONE || tid == parent)
		return 0;
	name = more(names, &ret);
	if (name == NULL)
		return ret;
	*name = (struct name){
		.since_ns = since_ns,
		.tid = tid,
		.parent = parent,
		.number = (uint32_t)names->count++,
		.bytes = NAME_UNKNOWN,
	};
	return 0;
}

static int by_time(const void *first, const void *second)
{
	const struct name *const a = first, *const b = second;

	if (a->since_ns != b->since_ns)
		return a->since_ns < b->since_ns ? -1 : 1;
	return a->number < b->number ? -1 : 1;
}

static int by_thread(const void *first, const void *second)
{
	const struct name *const a = first, *const b = second;

	if (a->tid != b->tid)
		return a->tid < b->tid ? -1 : 1;
	return by_time(first, second);
}

static struct name_place *place_of(const struct names *names, int32_t tid)
{
	size_t at = hash(tid) & names->mask;

	while (names->place[at].tid != tid && names->place[at].tid != ROW_NONE)
		at = (at + 1) & names->mask;
	return &names->place[at];
}

static void clear(struct names *names)
{
	for (size_t i = 0; i <= names->mask; i++)
		names->place[i] = (struct name_place){.tid = ROW_NONE};
}

int names__settle(struct names *names)
{
	size_t places = 16;

	while (places < 2 * names->count)
		places *= 2;
	names->mask = places - 1;
	names->place = malloc(places * sizeof(*names->place));
	if (names->place == NULL || store__reserve(&names->text, NAME_SLACK_BYTES) < 0)
		return -ENOMEM;
	memset(names->text.data + names->text.bytes, 0, NAME_SLACK_BYTES);
	if (names->count == 0) {
		clear(names);
		return 0;
	}
	/* In the order of time each fork gets the name that its parent has then. */
	qsort(names->name, names->count, sizeof(*names->name), by_time);
	clear(names);
	for (size_t i = 0; i < names->count; i++) {
		struct name *const name = &names->name[i];
		struct name_place *place;

		if (name->parent != ROW_NONE) {
			place = place_of(names, name->parent);
			if (place->tid != ROW_NONE) {
				name->at = names->name[place->first].at;
				name->bytes = names->name[place->first].bytes;
			}
		}
		place = place_of(names, name->tid);
		*place = (struct name_place){.tid = name->tid, .first = (uint32_t)i};
	}
	qsort(names->name, names->count, sizeof(*names->name), by_thread);
	clear(names);
	for (size_t i = 0; i < names->count; i++) {
		struct name_place *const place = place_of(names, names->name[i].tid);

		if (place->tid == ROW_NONE)
			*place = (struct name_place){.tid = names->name[i].tid,
						     .first = (uint32_t)i};
		place->count++;
	}
	return 0;
}

struct named names__find(const struct names *names, int32_t tid, uint64_t stamp_ns)
{
	struct named found = {.tid = tid, .until_ns = UINT64_MAX};
	const struct name_place *place;
	const struct name *name;
	uint32_t low = 0, high;

	if (names->place == NULL || tid == ROW_NONE)
		return found;
	place = place_of(names, tid);
	if (place->tid != tid)
		return found;
	/* The last one that is not later. */
	name = &names->name[place->first];
	for (high = place->count; low < high;) {
		const uint32_t middle = low + (high - low) / 2;

		if (name[middle].since_ns <= stamp_ns)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < place->count)
		found.until_ns = name[low].since_ns - 1;
	if (low == 0)
		return found;
	found.since_ns = name[low - 1].since_ns;
	if (name[low - 1].bytes != NAME_UNKNOWN) {
		found.text = (const char *)names->text.data + name[low - 1].at;
		found.bytes = name[low - 1].bytes;
	}
	return found;
}

void names__deinit(struct names *names)
{
	free(names->name);
	free(names->place);
	free(names->text.data);
	*names = (struct names){0};
}
