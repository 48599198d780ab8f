/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "aux_piece.h"
#include "perf_ring.h"

#define AUX_ENDS 1024u
/* So many of a window's last bytes tell whether they are there still. An area is no smaller. */
#define AUX_EDGE_BYTES 4096u

/* Where AUX records end, ascending, as far as nothing behind was taken. With more than fit the
 * newest two become one: what they tell of stays together. */
struct aux_ends {
	uint64_t all[AUX_ENDS];
	uint32_t first, count;
};

/* One that is not behind the last one is passed over. */
void aux_ends__push(struct aux_ends *ends, uint64_t end);
/* Forget those up to `limit`: the last of them, 0 if there is none. */
uint64_t aux_ends__pop(struct aux_ends *ends, uint64_t limit);

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
	uint64_t end; /* but for AUX_MONOTONIC: of the last window, and its last bytes: */
	uint8_t edge[AUX_EDGE_BYTES];
	bool any, wrapped;
};

/* The window is [end - held, end). Of it [begin, end) is new, what is before that is repeated. */
struct aux_extent {
	uint64_t begin, end, held;
	uint64_t repeated;
	uint64_t overwritten; /* AUX_MONOTONIC: between what was taken and the window */
};

/* Everything before position `taken` was taken. False: the head went back where it cannot. */
bool aux_window__find(struct aux_window *window, const struct aux_map *map, uint64_t taken,
		      struct aux_extent *extent);

/* How many bytes a window would hold now, as far as the head tells. */
uint64_t aux_window__held(const struct aux_window *window, const struct aux_map *map);

struct aux_ring_options {
	struct aux_map *map;
	enum aux_framing framing;
	struct aux_origin origin;
	bool reference_tsc;
	bool whole_records;
	const int *enable_fds; /* copied */
	uint32_t enable_count;
	enum aux_head_rule head_rule;
};

/*
 * The AUX area behind a data ring, its front. Its samples are bytes of payload.
 *
 *   hardware ──► AUX area ──copy by aux_head──► pieces in the chunk of the data ring
 *   kernel   ──► data ring ──AUX records────────► what ends where, which flags
 *
 * Facts, and what follows. An AUX record is lost when the data ring is full, while the head goes on:
 * bytes are taken by the head, the records say no more than where a piece may end. The kernel stores
 * a record before the head that covers it; loading the AUX head before the data head therefore
 * finds the record of each byte in the pass that takes the byte. The exception is a record written
 * by an interrupt in the middle of another record: data_head waits for the outer one. No room, or a
 * truncated record, stops the event until it is enabled again; when that happened beside a pass
 * that made room, no byte and no record tells, only the wake-up does. Linux before 6.16 stops the
 * event's PMU and goes on to call the event active, so that ENABLE alone changes nothing there
 * (found on 6.12.117): after a truncated record, which may be of size 0, and where nothing has come
 * from one full pass to the next since the area was found more than half full, or the data ring lost
 * records, DISABLE precedes it. Its own account of the time
 * that an event is enabled goes on meanwhile, too, so how long it stood is measured here.
 *
 * Threads: the shard's.
 */
struct aux_ring {
	struct ring ring;
	struct aux_ring_options options;
	struct perf_ring *data; /* the front */
	bool stopping; /* enable nothing, wait for no record */
	bool touched;  /* bytes were taken, or a truncated record seen, since a pass was complete */
	bool halted;   /* a truncated record was seen, and the events not enabled since */
	uint64_t halted_ns;	/* time of that record, of the pass with a foreign clock */
	bool suspect;  /* the area may have been full since it was last found idle */
	uint64_t idle_generation, emptied_generation; /* the last ones that were counted */
	uint64_t idle_position; /* at the end of that one's pass */
	uint64_t idle_lost;	/* what the data ring had lost when it was last found idle */
	uint64_t start;		/* the head when the ring was added */
	uint64_t recorded_end;	/* of the last AUX record, 0: none seen */
	uint64_t full_head;	/* as loaded in the last full pass that found the data ring empty */
	uint64_t orphan_end;	/* likewise in the one before it: what is before has no record */
	struct aux_ends ends;
	struct aux_window window;
	uint64_t window_ns;  /* when the last window was opened */
	uint64_t emptied_ns; /* of the last one whose data ring was read to its head since */

	counter_t pieces;
	counter_t aux_records, truncated, partial, collisions;
	counter_t unrecorded_bytes, orphan_bytes;
	counter_t enables, restarts, disabled_ns;
	counter_t windows, window_bytes, window_taken_bytes, repeated_bytes, overwritten_bytes;
	counter_t head_rule; /* of the windows, as known so far */

	int enable_fds[]; /* what the options name, copied */
};

/* The AUX ring behind `front`, a perf ring, that it joins with core__add_ring(). -EINVAL: the front is none, or
 * hidden pieces are to hold whole records. It joins no stream whose chunks have no room for all of it if
 * whole records must not be split. */
int aux_ring__new(const struct aux_ring_options *options, struct ring *front, struct ring **ring);

RING_KIND(aux_ring, ring)
