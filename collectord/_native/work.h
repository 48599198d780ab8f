/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct disk;
struct item;
struct stream;

/*
 * What is done with the first item of a stream's queue: it is written part by part, or given up, and
 * ended. On a full disk it waits until somebody has made room, or for the segment that is missing
 * (EXFULL) until somebody has made that; other streams are written meanwhile. All calls are the disk's
 * thread's.
 */

#define WORK_LOOK_NS 20000000u /* how often it looks whether the wait is over */

/* May the item be written, or given up? */
bool work__is_ready(struct disk *disk, struct stream *stream);

/* Write what is left of it. False: a part of it waits. */
bool work__write(struct disk *disk, struct stream *stream, struct item *item);

/* So much was written, in so much time. */
void work__count(struct disk *disk, struct stream *stream, uint64_t bytes, uint64_t ns);

/* Nothing is left of the item, which may be another one as soon as its lane can have it again. */
void work__end(struct disk *disk, struct stream *stream, struct item *ended);
