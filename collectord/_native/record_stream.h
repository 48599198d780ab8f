/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_RECORD_STREAM_H
#define COLLECTORD_RECORD_STREAM_H

#include <stdint.h>

#include "stream.h"

/*
 * A stream whose segments hold perf records, in whole chunks one behind the other: padded, with the
 * ends of rounds between them, and behind a replay of the sideband that is known. All is the
 * writer's.
 */
extern const struct stream_ops record_stream__ops;

/*
 * Append a chunk, padded and with a marker if `round`, to the running segment, behind the replay if
 * the segment is new. -EXFULL: no segment is open, the next one is missing. On any error the segment is as it was
 * before.
 */
int record_stream__write_chunk(struct stream *stream, const struct chunk *chunk, bool round);

/* The chunk was written, or given up: the segments that come replay what it held of sideband. */
void record_stream__note(struct stream *stream, const struct chunk *chunk);

#endif
