/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rows.h"

static size_t hash(int32_t tid)
{
	return (uint32_t)tid * UINT32_C(2654435769) >> 7;
}

int names__init(struct names *names, size_t count, size_t text_bytes)
{
	size_t places = 16;

	while (places < 2 * count)
		places *= 2;
	names->mask = places - 1;
	names->place = malloc(places * sizeof(*names->place));
	names->text = malloc(text_bytes > 0 ? text_bytes : 1);
	if (names->place == NULL || names->text == NULL) {
		names__deinit(names);
		return -ENOMEM;
	}
	for (size_t i = 0; i < places; i++)
		names->place[i] = (struct name){.tid = ROW_NONE};
	names->used = 0;
	names->text_bytes = text_bytes;
	names->left = count;
	return 0;
}

static struct name *place_of(const struct names *names, int32_t tid)
{
	size_t at = hash(tid) & names->mask;

	while (names->place[at].tid != tid && names->place[at].tid != ROW_NONE)
		at = (at + 1) & names->mask;
	return &names->place[at];
}

void names__add(struct names *names, int32_t tid, const char *text, size_t bytes)
{
	struct name *const name = place_of(names, tid);

	if (tid == ROW_NONE || name->tid == tid || names->left == 0 ||
	    bytes > names->text_bytes - names->used)
		return;
	memcpy(names->text + names->used, text, bytes);
	*name = (struct name){.tid = tid, .at = (uint32_t)names->used, .bytes = (uint32_t)bytes};
	names->used += bytes;
	names->left--;
}

const char *names__find(const struct names *names, int32_t tid, uint32_t *bytes)
{
	const struct name *name;

	if (names->place == NULL || tid == ROW_NONE)
		return NULL;
	name = place_of(names, tid);
	if (name->tid != tid)
		return NULL;
	*bytes = name->bytes;
	return names->text + name->at;
}

void names__deinit(struct names *names)
{
	free(names->place);
	free(names->text);
	*names = (struct names){0};
}
