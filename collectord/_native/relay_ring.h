/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "perf_ring.h"
#include "ring.h"
#include "stream.h"

enum relay_contents {
	RELAY_BYTES,	/* unknown client: data are counted in bytes */
	RELAY_BLKTRACE, /* blktrace records, only whole ones in each chunk */
};

/*
 * How far a block trace's file was read, in memory that outlives this process: of 64 bytes, laid out
 * like struct ring_note up to the pairs. The position is the last number, and above its 32 bits the
 * length of the record whose start alone was read; that start is in the slot of the same turn, and
 * in its last word `position` of struct relay_ring: whoever reads beyond completed sub-buffers may
 * meet a record that is not filled yet.
 *
 * A read takes bytes out of the kernel, and a kill may come before they are counted. So the read is
 * announced: where it goes in which chunk, behind the start of a record that is there already. Its
 * last RELAY_EDGE_BYTES are zeroed before, so that a successor (recovery/left_blocks.py) can tell a
 * record that is cut there from nothing.
 */
struct relay_note {
	_Atomic uint64_t turn; /* at[turn & 1] is valid */
	struct {
		uint64_t position, samples;
	} at[2];
	_Atomic uint64_t serial; /* of the chunk that is read into; 0: none is */
	uint64_t span; /* offsets in it: of the first byte in the upper half, of the end in the lower */
	uint64_t unused;
};

_Static_assert(sizeof(struct relay_note) == sizeof(struct ring_note), "one kind of memory");

#define RELAY_EDGE_BYTES BLK_HEADER_BYTES
#define RELAY_SLOT_BYTES 69632u /* for any record, in whole pages */

_Static_assert(RELAY_SLOT_BYTES >= BLK_RECORD_BYTES_MAX + 8, "a slot holds every record");

struct relay_ring_options {
	enum relay_contents contents;
	int fd;
	uint64_t capacity;	 /* bytes of all sub-buffers */
	uint32_t longest;	 /* largest record: the sub-buffer size; 0: not known */
	struct relay_note *note; /* of a blktrace that outlives this process, or NULL */
	uint8_t *slots;		 /* two of RELAY_SLOT_BYTES, by turns */
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
	bool partly; /* this pass also reads a partial sub-buffer */
	bool ending; /* no more will be written */
	bool ended;  /* and all was read */
	uint64_t pass_bytes;
	uint64_t position;	 /* in completed sub-buffers, counted from the opening */
	bool placed;		 /* `position` is known: no other reader came before */
	uint64_t completed;	 /* the file's size at the pass's start, 0 if unknown */
	uint64_t last_completed; /* the same at the last generation */
	bool quiet;		 /* the generation before it found that size too */
	uint64_t astray_bytes;	 /* invalid bytes since the last valid record */
	/* The start of a record whose end is not read yet: in `own`, or in a slot. */
	uint8_t *carry, *own;
	uint64_t taken; /* events that earlier processes took, of a trace that outlives them */
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
