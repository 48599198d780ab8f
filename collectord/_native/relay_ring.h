/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "ring.h"
#include "stream.h"

enum relay_contents {
	RELAY_BYTES,	/* unknown client: data are counted in bytes */
	RELAY_BLKTRACE, /* blktrace records, only whole ones in each chunk */
};

struct relay_ring_options {
	enum relay_contents contents;
	int fd;
	uint64_t capacity; /* bytes of all sub-buffers */
	uint32_t longest;  /* largest record: the sub-buffer size; 0: not known */
};

/*
 * The file of one relay ring in the running segment: consecutive bytes. It goes through the page
 * cache, since neither records nor reads are aligned; written data are flushed and evicted in
 * steps, so that a recording does not fill the cache. The writer thread owns it; any thread may
 * read `bytes`.
 */
struct relay_file {
	int fd; /* -1: the ring has no file in this segment */
	counter_t bytes;
	uint64_t sent; /* writeback was started up to here */
	uint64_t freed;
	struct sums sums;
};

/*
 * A file of a relay channel.
 *
 * Facts of kernel/relay.c, and consequences: read(2) never waits, whatever the flags; 0 means that
 * there is no data now. It omits padding. It also returns data of the sub-buffer that is still
 * written, and there may meet a record whose space is reserved but not filled. The file's size, as
 * in fstat(2), is the size of all sub-buffers completed since the channel was opened, without
 * padding. So a pass reads up to there; a partial sub-buffer is read only by a full pass of a
 * generation that found no newly completed one, and after the last write.
 *
 * A read of a full or overwritten buffer may skip sub-buffers that nobody read: then the size is
 * ahead of the bytes read when no more comes.
 *
 * poll(2) reports whole sub-buffers only, each of which wakes: edge-triggered. Nothing reports
 * that a client closed its channel: full passes check for it (POLLERR), and for the removal of its
 * file (POLLHUP, and EIO of the read).
 *
 * Passes take whole records only, and at most the channel's capacity.
 *
 * The shard's thread owns it, except for `file`, which is the writer's.
 */
struct relay_ring {
	struct ring ring;
	struct relay_ring_options options;
	bool partly;	   /* this pass also reads a partial sub-buffer */
	bool ending;	   /* no more will be written */
	bool ended;	   /* and all was read */
	uint64_t pass_bytes;
	uint64_t position;   /* in completed sub-buffers, counted from the opening */
	bool placed;	     /* `position` is known: no other reader came before */
	uint64_t completed;  /* the file's size at the pass's start, 0 if unknown */
	uint64_t last_completed; /* the same at the last generation */
	bool quiet;		 /* the generation before it found that size too */
	uint64_t astray_bytes;	 /* invalid bytes since the last valid record */
	/* The start of a record whose end is not read yet. */
	uint8_t *carry;
	uint32_t carry_bytes;
	struct blk_state state;

	counter_t numbered;	 /* numbered by the kernel: see struct blk_state */
	counter_t missing;	 /* numbered events missing from the data read */
	counter_t skipped_bytes; /* bytes of completed sub-buffers that no read returned */
	counter_t torn_bytes;	 /* invalid bytes, or the start of a record without its end */

	struct relay_file file;
};

int relay_ring__new(const struct relay_ring_options *options, struct ring **ring);

RING_KIND(relay_ring, ring)

/* A stream whose segments are sets of files, one for each relay ring, without rounds, padding or
 * sideband. `offset` of its segments is the sum of the bytes in all files. */
extern const struct stream_ops relay_stream__ops;
