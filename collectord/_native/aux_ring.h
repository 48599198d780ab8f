/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "perf_ring.h"

#define AUX_ENDS 1024u
/* The number of a window's last bytes that are kept to detect overwriting. An area is no
 * smaller. */
#define AUX_EDGE_BYTES 4096u

/* Ends of AUX records, ascending, beyond the bytes taken. If the list is full, the newest two
 * become one, so their data stay together. */
struct aux_ends {
	uint64_t all[AUX_ENDS];
	uint32_t first, count;
};

/* Add an end; one that is not beyond the last is ignored. */
void aux_ends__push(struct aux_ends *ends, uint64_t end);
/* Forget ends up to `limit`; returns the last of them, 0 if there is none. */
uint64_t aux_ends__pop(struct aux_ends *ends, uint64_t limit);

/*
 * How the last bytes of a free-running AUX area, whose event is stopped, are found, oldest first.
 *
 * AUX_MONOTONIC: the driver counts bytes, as cs_etm's ETR does (handle->head += size,
 *   drivers/hwtracing/coresight/coresight-tmc-etr.c). The head says everything.
 * AUX_OFFSET: the driver gives the place in the buffer where it will continue, as intel_pt
 *   (arch/x86/events/intel/pt.c, pt_update_head()) and arm_spe (drivers/perf/arm_spe_pmu.c,
 *   arm_spe_perf_aux_output_end()) do. The buffer's last bytes show whether it was ever full: pages
 *   begin as zeros, and no trace has that many zeros. The last window's last bytes show whether it
 *   wrapped since then: they have changed, or, if few of them were due to be overwritten, they are
 *   the same by chance and count as repeated. The AUX record does not help: intel_pt always writes
 *   the buffer's size into it, arm_spe the last run's bytes.
 * AUX_LEARNED: the driver's rule is unknown. Both rules agree until the area wraps. Then a count
 *   exceeds the buffer's size; a place goes back, or has trace behind it.
 *
 * A window's positions are free running, and equal to places in the buffer modulo its size.
 */
enum aux_head_rule { AUX_MONOTONIC, AUX_OFFSET, AUX_LEARNED, AUX_HEAD_RULES };

struct aux_window {
	_Atomic enum aux_head_rule rule; /* AUX_LEARNED until a window decides */
	uint64_t end; /* not AUX_MONOTONIC: end of the last window, and its last bytes: */
	uint8_t edge[AUX_EDGE_BYTES];
	bool any, wrapped;
};

/* The window is [end - held, end). Its part [begin, end) is new, the part before it is repeated. */
struct aux_extent {
	uint64_t begin, end, held;
	uint64_t overwritten; /* AUX_MONOTONIC: bytes between those taken and the window */
};

/* Find the window; all bytes before position `taken` were taken. False: the head went back,
 * which it cannot. */
bool aux_window__find(struct aux_window *window, const struct ring_map *map, uint64_t taken,
		      struct aux_extent *extent);
/* Returns how many bytes a window would hold now, as far as the head tells. */
uint64_t aux_window__held(const struct aux_window *window, const struct ring_map *map);

struct aux_ring_options {
	struct ring_map *map;
	enum aux_framing framing;
	struct aux_origin origin;
	bool reference_tsc;
	bool whole_records;
	const int *enable_fds; /* copied */
	uint32_t enable_count;
	enum aux_head_rule head_rule;
	struct ring_note *note; /* of an area that another process keeps, or NULL */
};

/*
 * The AUX area behind a data ring, its front. Its samples are bytes of payload.
 *
 *   hardware ──► AUX area ──copy by aux_head──► pieces in the chunk of the data ring
 *   kernel   ──► data ring ──AUX records────────► what ends where, which flags
 *
 * Facts, and consequences. An AUX record is lost when the data ring is full, while the head
 * advances: so bytes are taken by the head, and records only say where a piece may end. The kernel
 * stores a record before the head that covers it; so loading the AUX head before the data head
 * finds the record of each byte in the pass that takes the byte. The exception is a record written
 * by an interrupt in the middle of another record: data_head waits for the outer one. A full area,
 * or a truncated record, stops the event until it is enabled again; if that happened while a pass
 * made room, neither bytes nor records show it, only the wake-up does. Linux before 6.16 stops the
 * event's PMU and still calls the event active, so that ENABLE alone has no effect (found on
 * 6.12.117): DISABLE precedes it after a truncated record, which may be of size 0, and when no
 * data came between two full passes since the area was found more than half full, or the data ring
 * lost records. The kernel's own account of the event's enabled time continues meanwhile, so the
 * stopped time is measured here.
 *
 * A process that goes on with an area of another one's knows from its note up to which end the AUX
 * records were read: the data ring has them no more. The note has the end before the data ring's
 * note says that its record was read.
 *
 * The shard's thread owns it.
 */
struct aux_ring {
	struct ring ring;
	struct aux_ring_options options;
	struct perf_ring *data; /* the front */
	bool touched;		/* bytes or a truncated record came since the last complete pass */
	bool suspect;		/* the area may have been full since it was last found idle */
	/* Time of a truncated record; with a foreign clock, of the pass; 0: enabled since. */
	uint64_t halted_ns;
	uint64_t idle_generation, emptied_generation; /* the last ones counted */
	uint64_t idle_position;			      /* position at the end of that one's pass */
	uint64_t idle_lost; /* losses of the data ring when the area was last found idle */
	uint64_t start; /* the head when the ring was added; 0 of one that another process keeps */
	struct ring_note *note; /* `own`, unless another process keeps the area */
	struct ring_note own;
	uint64_t place;	       /* behind its last piece, see chunk__place() */
	uint64_t recorded_end; /* end of the last AUX record, 0: none seen */
	uint64_t full_head;    /* head in the last full pass that found the data ring empty */
	uint64_t orphan_end;   /* the same in the one before: bytes before it have no record */
	struct aux_ends ends;
	struct aux_window window;
	uint64_t window_ns;  /* when the last window was opened */
	uint64_t emptied_ns; /* opening time of the last window whose data ring was then read to
			      * its head */

	counter_t pieces;
	counter_t aux_records, truncated, partial, collisions;
	counter_t unrecorded_bytes, orphan_bytes;
	counter_t enables, restarts, disabled_ns;
	counter_t windows, window_bytes, window_taken_bytes, repeated_bytes, overwritten_bytes;

	int enable_fds[]; /* copy of the options' list */
};

/* Make the AUX ring behind `front`, a perf ring, which it joins with core__add_ring(). -EINVAL:
 * the front is another kind, or hidden pieces must hold whole records. If whole records must
 * not be split, it joins only a stream whose chunks have room for the whole area. */
int aux_ring__new(const struct aux_ring_options *options, struct ring *front, struct ring **ring);

RING_KIND(aux_ring, ring)
