/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_RELAY_STREAM_H
#define COLLECTORD_RELAY_STREAM_H

#include <stdint.h>

#include "counter.h"
#include "stream.h"
#include "sums.h"

/*
 * A stream whose segments are sets of files, one for each relay ring. There are no rounds, no
 * padding and no sideband in it. `offset` of its segments is the sum of the bytes in all files.
 */

extern const struct stream_ops relay_stream__ops;

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

int relay_file__init(struct relay_file *file);
void relay_file__deinit(struct relay_file *file);

/* Begin the file of a new segment; -1 for none. */
void relay_file__begin(struct relay_file *file, int fd);

/* Append all or, with -errno, nothing: what went is cut off again. */
int relay_file__write(struct relay_file *file, const uint8_t *data, uint64_t bytes);

#endif
