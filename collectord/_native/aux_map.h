/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_AUX_MAP_H
#define COLLECTORD_AUX_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring_map.h"

/*
 * The AUX area of a mapped perf ring.
 *
 *   +--------------+----------+---------------------------------+
 *   | control page | data     | AUX, aux_bytes = page size << n |
 *   +--------------+----------+---------------------------------+
 *                             ^ aux_offset
 *
 * aux_head (kernel) and aux_tail (we) are in the control page of the ring. Mapped for writing, both
 * are free-running byte positions, and the kernel stops at the tail. Mapped read-only, the kernel
 * overwrites what is oldest, there is no tail, and what the head is depends on the driver: see
 * struct aux_window. Layout and protocol: include/uapi/linux/perf_event.h, struct perf_event_mmap_page.
 */
struct aux_map {
	struct ring_map *ring; /* the caller keeps it mapped */
	const uint8_t *data;
	uint64_t bytes;
	bool snapshot;
};

/* Map behind the ring that `ring` mapped from `fd`. -EINVAL: `bytes` is not a power of two of
 * pages; else -errno. */
int aux_map__init(struct aux_map *map, struct ring_map *ring, int fd, uint64_t bytes,
		  bool snapshot);
void aux_map__deinit(struct aux_map *map);

/* What it covers is readable, and its PERF_RECORD_AUX is in the data ring already, or was lost. */
uint64_t aux_map__head(const struct aux_map *map);
uint64_t aux_map__tail(const struct aux_map *map);

/* Copy `bytes` (<= map->bytes) from free-running `position` on, across the wrap. */
void aux_map__copy(const struct aux_map *map, uint64_t position, void *to, size_t bytes);

/* Give everything before `tail` back to the kernel. */
void aux_map__publish_tail(const struct aux_map *map, uint64_t tail);

/*
 * Which bytes of a free-running AUX area, whose event is stopped, are its last ones, oldest first.
 *
 * AUX_MONOTONIC: the driver counts on, as cs_etm's ETR does (handle->head += size,
 *   drivers/hwtracing/coresight/coresight-tmc-etr.c). All is known from the head.
 * AUX_OFFSET: the driver says where in the buffer it will go on, as intel_pt
 *   (arch/x86/events/intel/pt.c, pt_update_head()) and arm_spe (drivers/perf/arm_spe_pmu.c,
 *   arm_spe_perf_aux_output_end()) do. Whether it ever came to the end shows in the buffer's last
 *   bytes: pages begin as zeros, and no trace is that long nothing but zeros. Whether it came around
 *   since the last window shows in the last bytes of that one: they are there no more, or, where few
 *   of them were due to be overwritten last, the same by chance and called repeated. The AUX record
 *   does not help: intel_pt writes the buffer's size into it each time, arm_spe the last run's bytes.
 * AUX_LEARNED: a driver of which neither is known. Both are the same as long as the area did not come
 *   around. Then a count is larger than the buffer; a place goes back, or has trace behind it.
 *
 * A window's positions are free running, and equal to places in the buffer modulo its size.
 */
enum aux_head_rule { AUX_MONOTONIC, AUX_OFFSET, AUX_LEARNED, AUX_HEAD_RULES };

struct aux_window {
	enum aux_head_rule rule; /* AUX_LEARNED until a window told */
	uint64_t end;	/* but for AUX_MONOTONIC: of the last window, and its last bytes: */
	uint8_t *edge;
	bool any, wrapped;
};

/* The window is [end - held, end). Of it [begin, end) is new, what is before that is repeated. */
struct aux_extent {
	uint64_t begin, end, held;
	uint64_t repeated;
	uint64_t overwritten; /* AUX_MONOTONIC: between what was taken and the window */
};

int aux_window__init(struct aux_window *window, enum aux_head_rule rule);
void aux_window__deinit(struct aux_window *window);

/* Everything before position `taken` was taken. False: the head went back where it cannot. */
bool aux_window__find(struct aux_window *window, const struct aux_map *map, uint64_t taken,
		      struct aux_extent *extent);

/* How many bytes a window would hold now, as far as the head tells. */
uint64_t aux_window__held(const struct aux_window *window, const struct aux_map *map);

#endif
