/* SPDX-License-Identifier: Apache-2.0 */
#include "aux_ring.h"

/* This many last bytes of a buffer are examined: a page, as pages begin as zeros. */
#define TAIL_BYTES 4096u

/* Whether data were ever written to the end of the buffer, behind `head`. */
static bool has_tail(const struct ring_map *map, uint64_t head)
{
	uint64_t at = map->data_bytes - TAIL_BYTES;

	if (at < head)
		at = head;
	while (at < map->data_bytes && map->data[at] == 0)
		at++;
	return at < map->data_bytes;
}

/* Whether the `bytes` bytes before `position` are the last bytes of the last window. */
static bool is_edge(const struct aux_window *window, const struct ring_map *map, uint64_t position,
		    uint64_t bytes)
{
	const uint8_t *const edge = window->edge + AUX_EDGE_BYTES - bytes;

	for (uint64_t i = 0; i < bytes; i++)
		if (map->data[(position - bytes + i) & (map->data_bytes - 1)] != edge[i])
			return false;
	return true;
}

static void learn(struct aux_window *window, const struct ring_map *map)
{
	const uint64_t head = ring_map__head(map);

	if (head > map->data_bytes)
		window->rule = AUX_MONOTONIC;
	else if ((window->any && head < window->end) || has_tail(map, head))
		window->rule = AUX_OFFSET;
}

static void find_offset(struct aux_window *window, const struct ring_map *map,
			struct aux_extent *extent)
{
	/* The oldest bytes are just behind the end. */
	const uint64_t at = ring_map__head(map) & (map->data_bytes - 1);
	const uint64_t fresh = (at - window->end) & (map->data_bytes - 1);
	const uint64_t old = map->data_bytes - fresh;

	window->wrapped |= (window->any && at < window->end) || has_tail(map, at);
	extent->held = window->wrapped ? map->data_bytes : at;
	if (!window->wrapped)
		extent->end = at;
	else if (!window->any)
		extent->end = map->data_bytes + at;
	else if (is_edge(window, map, window->end, old < AUX_EDGE_BYTES ? old : AUX_EDGE_BYTES))
		extent->end = window->end + fresh;
	else
		extent->end = window->end + map->data_bytes + fresh;
}

bool aux_window__find(struct aux_window *window, const struct ring_map *map, uint64_t taken,
		      struct aux_extent *extent)
{
	*extent = (struct aux_extent){0};
	if (window->rule == AUX_LEARNED)
		learn(window, map);
	if (window->rule == AUX_OFFSET) {
		find_offset(window, map, extent);
	} else {
		extent->end = ring_map__head(map);
		extent->held = extent->end < map->data_bytes ? extent->end : map->data_bytes;
	}
	window->any = true;
	if (window->rule != AUX_MONOTONIC) {
		window->end = extent->end;
		ring_map__copy(map, extent->end - AUX_EDGE_BYTES, window->edge, AUX_EDGE_BYTES);
	}
	if (extent->end < taken)
		return false;
	extent->begin = extent->end - extent->held;
	if (window->rule == AUX_MONOTONIC && extent->begin > taken)
		extent->overwritten = extent->begin - taken;
	if (extent->begin < taken)
		extent->begin = taken;
	return true;
}

uint64_t aux_window__held(const struct aux_window *window, const struct ring_map *map)
{
	const uint64_t head = ring_map__head(map);

	return window->wrapped || head > map->data_bytes ? map->data_bytes : head;
}
