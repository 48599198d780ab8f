/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_FLIGHT_H
#define COLLECTORD_FLIGHT_H

#include <stdbool.h>

struct disk;
struct stream;

/*
 * Writes in flight: the first items of a stream's queue, which the kernel writes while the disk's thread
 * goes on, in any order. By io_submit(2): it takes no thread, which sessions that leave this process out
 * would have to know, and is there where io_uring is forbidden. Through the page cache, and where a file
 * grows, the kernel writes as it is asked to, one after the other. All calls are the disk's thread's,
 * under the disk's lock, which may be given up meanwhile.
 */

/* May the first item that was not sent be? One whose only item is queued is written at once. */
bool flight__may_send(const struct disk *disk, const struct stream *stream);

/* Send it, or find that it has to wait until nothing of the stream is in flight. */
void flight__send(struct disk *disk, struct stream *stream);

/* Wait until one has landed. */
void flight__await(struct disk *disk);

/* Have all that were sent landed? */
bool flight__have_landed(const struct stream *stream);

#endif
