/* SPDX-License-Identifier: Apache-2.0 */
#include "aux_window.h"

#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

/* This many last bytes of a buffer are looked at: a page, as pages begin as zeros. */
#define TAIL_BYTES 4096u

int aux_window__init(struct aux_window *window, enum aux_head_rule rule, uint64_t limit,
		     uint64_t bytes)
{
	*window = (struct aux_window){.rule = rule, .limit = limit};
	if (rule == AUX_MONOTONIC)
		return 0;
	window->prints = calloc((size_t)(bytes / AUX_BLOCK_BYTES), sizeof(*window->prints));
	return window->prints != NULL ? 0 : -ENOMEM;
}

void aux_window__deinit(struct aux_window *window)
{
	free(window->prints);
	window->prints = NULL;
}

static uint64_t print_of(const struct aux_map *map, uint64_t block)
{
	return XXH3_64bits(map->data + block * AUX_BLOCK_BYTES, AUX_BLOCK_BYTES);
}

/* Was anything ever written to the end of the buffer, behind `head`? */
static bool has_tail(const struct aux_map *map, uint64_t head)
{
	uint64_t at = map->bytes - TAIL_BYTES;

	if (at < head)
		at = head;
	while (at < map->bytes && map->data[at] == 0)
		at++;
	return at < map->bytes;
}

/* Are the whole blocks between the head and what was taken, around the end, as they were? With no
 * whole block between them nobody can tell. */
static bool is_old(const struct aux_window *window, const struct aux_map *map, uint64_t head,
		   uint64_t bytes)
{
	const uint64_t blocks = map->bytes / AUX_BLOCK_BYTES;
	const uint64_t first = (head + AUX_BLOCK_BYTES - 1) / AUX_BLOCK_BYTES;
	const uint64_t behind = (head + bytes) / AUX_BLOCK_BYTES;

	for (uint64_t block = first; block < behind; block++)
		if (print_of(map, block % blocks) != window->prints[block % blocks])
			return false;
	return first < behind;
}

static void find_offset(struct aux_window *window, const struct aux_map *map, uint64_t taken,
			struct aux_extent *extent)
{
	const uint64_t mask = map->bytes - 1;
	/* Just behind the end is where it begins again. */
	const uint64_t at = aux_map__head(map) & mask;
	const uint64_t fresh = (at - taken) & mask;

	window->wrapped |= (window->any && at < taken) || has_tail(map, at);
	extent->held = window->wrapped ? map->bytes : at;
	if (!window->wrapped)
		extent->end = at;
	else if (!window->any)
		extent->end = map->bytes + at;
	else if (is_old(window, map, at, map->bytes - fresh))
		extent->end = taken + fresh;
	else
		extent->end = taken + map->bytes + fresh;
	for (uint64_t block = 0; block < map->bytes / AUX_BLOCK_BYTES; block++)
		window->prints[block] = print_of(map, block);
}

bool aux_window__find(struct aux_window *window, const struct aux_map *map, uint64_t taken,
		      struct aux_extent *extent)
{
	*extent = (struct aux_extent){0};
	if (window->rule == AUX_OFFSET) {
		find_offset(window, map, taken, extent);
	} else {
		extent->end = aux_map__head(map);
		extent->held = extent->end < map->bytes ? extent->end : map->bytes;
	}
	window->any = true;
	if (extent->end < taken)
		return false;
	if (window->limit > 0 && extent->held > window->limit)
		extent->held = window->limit;
	extent->begin = extent->end - extent->held;
	if (extent->begin < taken) {
		extent->repeated = taken - extent->begin;
		extent->begin = taken;
	} else if (window->rule == AUX_MONOTONIC) {
		extent->overwritten = extent->begin - taken;
	}
	return true;
}

uint64_t aux_window__held(const struct aux_window *window, const struct aux_map *map)
{
	const uint64_t head = aux_map__head(map);

	return window->wrapped || head > map->bytes ? map->bytes : head;
}
