/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_PAGE_TRACK_H
#define COLLECTORD_PAGE_TRACK_H

#include <stdbool.h>
#include <stdint.h>

#include "chunk.h"
#include "counter.h"
#include "sums.h"

struct segment;

/*
 * One ring's extent of the running segment: whole sub-buffers, one behind the other.
 *
 *   offset                                     offset + bytes          offset + capacity
 *   +---------+---------+-----   ----+---------+ . . . . . . . . . . . +
 *   | final   | final   |            | tail    |   claimed, zeros
 *   +---------+---------+-----   ----+---------+ . . . . . . . . . . . +
 *
 * The tail is the last page while it may go on: a flush takes what the kernel has of the
 * sub-buffer that it still writes, and the remainder comes later as a page of its own. That is
 * put behind the tail's data, and the tail is written anew in its place. Behind `bytes` more may be
 * in flight, none of which goes into the tail. All is the writer thread's, but `bytes` may be read
 * by any.
 */
struct page_track {
	uint64_t offset, capacity, allocated; /* capacity 0: the segment has no extent for it */
	counter_t bytes;
	uint32_t page_bytes;
	bool tail_open;
	bool unseen;	  /* pages went by that were never in our memory: there are no checksums */
	uint64_t tail_ns; /* where time stands at the tail's end */
	uint64_t sent;	  /* bytes in flight */
	uint64_t sent_ns; /* where time stands at their end, 0: nothing can be put there */
	uint8_t *tail;
	struct sums sums; /* of the final pages */
};

int page_track__init(struct page_track *track, uint32_t page_bytes);
void page_track__deinit(struct page_track *track);

/* Begin an extent of a new segment. */
void page_track__begin(struct page_track *track, uint64_t offset, uint64_t capacity);

/* The extent is at its end: give the checksums of all pages, the tail included, the caller's to
 * free(); NULL where there are none. */
struct sum *page_track__give_sums(struct page_track *track, uint32_t *count);

/* Bytes that fit behind the last page. */
uint64_t page_track__room(const struct page_track *track);

/*
 * Write the first pages of `load`, as many as go, and take them off it; `written` tells what they
 * were, its bytes those that the extent grew by. Returns an error only when none went: the extent
 * is then as it was before. -EXFULL: there is no room left in it, whatever the disk has. A part of
 * a page is taken back.
 */
int page_track__write(struct page_track *track, struct segment *segment, struct load *load,
		      struct span *written);

/*
 * Have a write of all pages of `load` ready, behind what was sent before; `calls`: how many loads are
 * in flight with it. False: a part of it has no room, or goes into the tail. What was sent first landed;
 * or nothing of what was sent is to stay.
 */
bool page_track__send(struct page_track *track, struct segment *segment, const struct load *load,
		      uint32_t calls, struct flight *flight);
void page_track__land(struct page_track *track, struct load *load, struct span *written);
void page_track__recall(struct page_track *track, const struct segment *segment);

/*
 * Move up to `bytes`, whole pages, from a pipe to the extent. Returns how many bytes of whole
 * pages went, or -errno as above when none did; `torn`: bytes of a page that went into the file in
 * part, and were taken back.
 */
int64_t page_track__splice(struct page_track *track, struct segment *segment, int pipe_fd,
			   uint64_t bytes, uint32_t *torn);

#endif
