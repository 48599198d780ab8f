/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "blk_walk.h"
#include "ring.h"
#include "stream.h"

enum relay_contents {
	RELAY_BYTES,	/* of a client that nobody knows: what was read is counted in bytes */
	RELAY_BLKTRACE, /* records of blktrace, whole ones in each chunk */
};

struct relay_ring_options {
	enum relay_contents contents;
	int fd;
	uint64_t capacity; /* bytes of all sub-buffers */
	uint32_t longest;  /* bytes that a record may have: those of a sub-buffer; 0: not known */
	bool held;
};

/*
 * The file that one relay ring has to itself in the running segment: bytes, one after the other.
 * It goes through the page cache, since neither records nor what a read gives are aligned; what
 * was written is sent to the disk and let go in steps, so that a recording does not fill the cache.
 * All is the writer thread's, but `bytes` may be read by any.
 */
struct relay_file {
	int fd; /* -1: the segment has none for the ring */
	counter_t bytes;
	uint64_t sent; /* up to here its pages are on their way to the disk */
	uint64_t freed;
	struct sums sums;
};

/*
 * A file of a relay channel.
 *
 * Facts of kernel/relay.c, and what follows: read(2) never waits, whatever the flags; 0 means that
 * nothing is there now. It leaves padding out. It gives what is in the sub-buffer that is still
 * written too, and may meet a record there that has its room and not yet its contents. The file's
 * size, as fstat(2) has it, is what completed sub-buffers held, padding left out, since the channel
 * was opened. So a pass reads up to there; a part of a sub-buffer is read by a full pass of a
 * generation that found no other completed since the last one, and when nothing is written any more.
 *
 * A read of a buffer that is full, or is overwritten, may go on behind sub-buffers that nobody
 * read: then the size is ahead of what was read when no more comes.
 *
 * poll(2) tells of whole sub-buffers only, each of which wakes: edge-triggered. A channel that its
 * client closes tells nobody: full passes ask for it (POLLERR), or for its file being gone
 * (POLLHUP, and EIO of the read).
 *
 * Passes take whole records only, and at most what the channel holds.
 *
 * Threads: the shard's, but `file` is the writer's.
 */
struct relay_ring {
	struct ring ring;
	struct relay_ring_options options;
	bool partly;	   /* this pass reads a part of a sub-buffer too */
	bool last;	   /* nothing is written any more; under the shard's lock */
	bool ending;	   /* nothing more will be written */
	bool ended;	   /* and all was read */
	uint64_t pass_bytes;
	uint64_t position;   /* in what completed sub-buffers hold, from the opening on */
	bool placed;	     /* `position` is known: it is not where others have read before */
	uint64_t completed;  /* the file's size when the pass began, 0 where it does not tell */
	uint64_t last_completed; /* and when the last generation did */
	bool quiet;		 /* which was what the one before it found */
	uint64_t astray_bytes;	 /* that were no record, since the last that was one */
	/* The beginning of a record whose end a read did not give. */
	uint8_t *carry;
	uint32_t carry_bytes;
	struct blk_state state;

	counter_t numbered; /* by the kernel: see blk_walk.h */
	counter_t missing;	 /* numbered events that were not among what was read */
	counter_t skipped_bytes; /* of completed sub-buffers that no read gave */
	counter_t torn_bytes;	 /* that were no record, or the beginning of one without its end */

	struct relay_file file;
};

/* The fd stays the caller's. */
int relay_ring__new(const struct relay_ring_options *options, struct ring **ring);

RING_KIND(relay_ring, ring)

/*
 * A stream whose segments are sets of files, one for each relay ring. There are no rounds, no
 * padding and no sideband in it. `offset` of its segments is the sum of the bytes in all files.
 */
extern const struct stream_ops relay_stream__ops;
