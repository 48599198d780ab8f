/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_ROOM_H
#define COLLECTORD_ROOM_H

#include <stdbool.h>

struct disk;
struct stream;

/*
 * How the first item of a stream waits where there is no room for it: on a full disk until somebody
 * has made some, or for the segment that is missing (EXFULL) until somebody has made that. Other
 * streams are written meanwhile. All calls are the disk's thread's.
 */

#define ROOM_LOOK_NS 20000000u /* how often it looks whether the wait is over */

/* What may be otherwise when somebody has made room, or a segment. */
bool room__may_come(int error);
/* That is because the disk is full. */
bool room__is_short(int error);

/* Ask for it. True: the item waits for the answer. */
bool room__wait(struct disk *disk, struct stream *stream, int error);

/* May the item be written, or given up? */
bool room__is_over(struct disk *disk, struct stream *stream);

#endif
