/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct disk;
struct item;
struct stream;

/*
 * The work on the first item of a stream's queue: it is written part by part, or given up, and
 * ended. On a full disk it waits until there is room, or, if the segment is missing (EXFULL),
 * until one is prepared; other streams are written meanwhile. The disk's thread makes all calls.
 */

#define WORK_LOOK_NS 20000000u /* how often it checks whether the wait is over */

/* Whether the item may be written, or given up. */
bool work__is_ready(struct disk *disk, struct stream *stream);

/* Write the rest of the item. False: a part of it waits. */
bool work__write(struct disk *disk, struct stream *stream, struct item *item);

/* Count written bytes, and the time that the write took. */
void work__count(struct disk *disk, struct stream *stream, uint64_t bytes, uint64_t ns);

/* End a complete item. Its lane may reuse it at once. */
void work__end(struct disk *disk, struct stream *stream, struct item *ended);
