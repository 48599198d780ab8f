/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_PAGE_STREAM_H
#define COLLECTORD_PAGE_STREAM_H

#include <stdint.h>

#include "page_ring.h"
#include "page_track.h"
#include "stream.h"

/*
 * A stream whose segments hold sub-buffers: each ring has an extent of its own in the file, see
 * page_track.h. There are no rounds, no padding and no sideband in it. `offset` of its segments
 * is the sum of the bytes in all extents.
 */

extern const struct stream_ops page_stream__ops;

/* Bytes of each of a stream's rings in its running segment. */
struct page_progress {
	uint64_t token;
	uint32_t count;
	struct page_progress_ring {
		uint64_t bytes;
		uint32_t id;
	} *rings; /* the caller's to free() */
};

/* Any thread. -ENOMEM. Token 0 and no rings: no segment is open. */
int page_stream__progress(struct stream *stream, struct page_progress *progress);

/*
 * The calls below are the writer's.
 */

/* Move on to the prepared segment as stream__advance() does, or if the ring's extent is full. */
void page_stream__advance(struct stream *stream, const struct ring *ring, uint64_t bytes);

/* Write the first pages of `load`, as many as go, and take them off it. Returns the bytes that
 * went to the file, or -errno when nothing did. -EXFULL: the next segment is missing, because none
 * is open, or the ring's extent of this one is full. */
int64_t page_stream__write(struct stream *stream, struct load *load);

/* Move what the ring has in its pipe, or a part. Returns bytes, or -errno as above when nothing
 * went; -EINVAL: this file takes nothing from a pipe. */
int64_t page_stream__splice(struct stream *stream, struct ring *ring);

/* Take pages out of the ring's pipe: they are in flight from now on. False: the pipe is empty. */
bool page_stream__load_pipe(struct stream *stream, struct ring *ring, struct load *load);

#endif
