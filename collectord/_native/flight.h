/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_FLIGHT_H
#define COLLECTORD_FLIGHT_H

#include <stdbool.h>

struct disk;
struct stream;

/*
 * Writes that are in flight: the first items of a stream's queue, sent by the disk's thread and made by
 * its helpers, which are started as they are needed. Calls but the last one are that thread's, under
 * the disk's lock.
 */

/* May the first item that was not sent be? One whose only item is queued is written at once, which wakes
 * nobody. */
bool flight__may_send(const struct disk *disk, const struct stream *stream);

/* Send it, or find that it has to wait until nothing of the stream is in flight. The lock is given up
 * meanwhile. */
void flight__send(struct disk *disk, struct stream *stream);

/* Have all that were sent landed? */
bool flight__have_landed(const struct stream *stream);

/* Once nothing is in flight: end the helpers. */
void flight__end(struct disk *disk);

#endif
