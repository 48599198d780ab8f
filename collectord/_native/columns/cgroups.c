/* SPDX-License-Identifier: Apache-2.0 */
#include "cgroups.h"

#include <errno.h>
#include <stdlib.h>

#define PLACES_FIRST 64u

/* Returns the place of an id, or the free one where it would be. */
static struct cgroup *place_of(struct cgroup *places, size_t mask, uint64_t id)
{
	size_t at = (size_t)(id * UINT64_C(0x9e3779b97f4a7c15) >> 32) & mask;

	while (places[at].number != 0 && places[at].id != id)
		at = (at + 1) & mask;
	return &places[at];
}

/* Make room for one more. Returns -errno. */
static int grow(struct cgroups *cgroups)
{
	const size_t room = cgroups->place != NULL ? cgroups->mask + 1 : 0;
	const size_t more = room > 0 ? 2 * room : PLACES_FIRST;
	struct cgroup *places;

	if (2 * cgroups->count < room)
		return 0;
	places = calloc(more, sizeof(*places));
	if (places == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < room; i++)
		if (cgroups->place[i].number != 0)
			*place_of(places, more - 1, cgroups->place[i].id) = cgroups->place[i];
	free(cgroups->place);
	cgroups->place = places;
	cgroups->mask = more - 1;
	return 0;
}

int cgroups__add(struct cgroups *cgroups, uint64_t id, const char *path, size_t bytes)
{
	const size_t at = cgroups->text.bytes;
	struct cgroup *place;
	int ret;

	if (cgroups->count == CGROUPS_MAX || at > CGROUPS_TEXT_MAX)
		return 0;
	ret = grow(cgroups);
	if (ret < 0)
		return ret;
	place = place_of(cgroups->place, cgroups->mask, id);
	if (place->number != 0)
		return 0;
	ret = store__put_text(&cgroups->text, (const uint8_t *)path, bytes);
	if (ret < 0)
		return ret;
	*place = (struct cgroup){
		.id = id,
		.number = (uint32_t)++cgroups->count,
		.at = (uint32_t)at,
		.bytes = (uint32_t)(cgroups->text.bytes - at),
	};
	return 0;
}

const struct cgroup *cgroups__find(const struct cgroups *cgroups, uint64_t id)
{
	const struct cgroup *place;

	if (cgroups->place == NULL)
		return NULL;
	place = place_of(cgroups->place, cgroups->mask, id);
	return place->number != 0 ? place : NULL;
}

void cgroups__deinit(struct cgroups *cgroups)
{
	free(cgroups->place);
	free(cgroups->text.data);
	*cgroups = (struct cgroups){0};
}
