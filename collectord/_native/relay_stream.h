/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_RELAY_STREAM_H
#define COLLECTORD_RELAY_STREAM_H

#include "relay_ring.h"
#include "stream.h"

/*
 * A stream whose segments are sets of files, one for each relay ring. There are no rounds, no
 * padding and no sideband in it. `offset` of its segments is the sum of the bytes in all files.
 */

extern const struct stream_ops relay_stream__ops;

/* The writer's: move on as stream__advance() does, or if the segment has no file for the ring. */
void relay_stream__advance(struct stream *stream, const struct ring *ring, uint64_t bytes);

/* The writer's: append what one ring has in a chunk to its file, all or nothing. -EXFULL: the
 * next segment is missing, because none is open, or this one has no file for the ring. */
int relay_stream__write(struct stream *stream, const struct span *span, const uint8_t *data);

#endif
