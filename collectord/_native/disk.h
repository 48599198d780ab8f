/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "chunk.h"
#include "counter.h"
#include "stream.h"

/* Writes in flight. */
#define DISK_DEPTH 4u

struct writer;

/*
 * One file system: the queue of its writes, and the thread that makes them. The streams whose
 * segments are there take turns, each with its items in queue order; a stream whose item waits,
 * for room or for a segment, lets the others pass.
 *
 * While more than one chunk is queued, items that only need writing are sent several at a time:
 * see writes in flight below. Chunks that nobody waits for stay queued until they are enough for
 * one write. Each item is counted as stored, or as refused, in the order of the queue.
 */
struct disk {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool poked, stopping, running;
	bool slow;     /* the last write took long: one at a time */
	bool left;     /* a request waits until an item is written */
	uint32_t turn; /* index of the next stream */
	uint32_t in_flight;
	aio_context_t aio; /* 0: not available, so no writes in flight */
	struct stream *at; /* the stream whose item is being written, or NULL */
	struct writer *writer;
	dev_t device; /* 0: not known before the first segment */
	pthread_t thread;

	counter_t written_bytes, written_chunks, write_errors, write_ns;
};

void disk__init(struct disk *disk, struct writer *writer, dev_t device);
void disk__deinit(struct disk *disk);
int disk__start(struct disk *disk);
/* Write all queued items, then end the thread. */
void disk__stop(struct disk *disk);

/* Queue an item from a pass. The disk owns it until it is written. If not `wakes`, the thread
 * looks at it after the next item that does, or a writer__wake(). */
void disk__queue(struct stream *stream, struct item *item, bool wakes);
/* Check the streams' requests and answers. */
void disk__poke(struct disk *disk);
/* Move the queue of a stream whose files are on `to` there, unless a write of it is in progress. */
void disk__move(struct stream *stream, struct disk *to);
/* Whether a stream without new items is complete and no longer in use by its disk. */
bool disk__is_done(struct stream *stream);
/* Returns how long the first item of a stream has waited for the disk, in ns; 0: no item has. */
uint64_t disk__waits_ns(struct stream *stream);

/*
 * Writes in flight: the first items of a stream's queue, which the kernel writes in any order
 * while the disk's thread continues. Items adjacent in a file become one write, because most of
 * the cost of a write does not grow with its length. They use io_submit(2): it needs no thread,
 * which sessions that leave this process out would have to know, and it works where io_uring is
 * forbidden. Through the page cache, and where a file grows, the kernel writes synchronously, one
 * after the other. The disk's thread makes all calls, under the disk's lock, which may be released
 * meanwhile.
 */

/* Set up asynchronous writes. If that is refused, writes are made one at a time. */
void flight__begin(struct disk *disk);

/*
 * Returns how many bytes of unsent items may wait for more, with which they become one write: no
 * more than the segment has room for, and none while a request or the end waits for them, while
 * the disk is slow or refuses, or where the chunk that fills a segment begins its cut. The disk's
 * thread makes the call.
 */
uint64_t flight__gathers(const struct disk *disk, const struct stream *stream);

/*
 * Whether the unsent items do wait: they are too few for a write, chunks are not short, and no
 * flush waits for them. It needs no time limit: each generation queues a stamp in each lane with
 * rings.
 */
bool flight__holds(const struct disk *disk, const struct stream *stream);

/* Whether the first unsent item may be sent. A single queued item is written at once instead. */
bool flight__may_send(const struct disk *disk, const struct stream *stream);

/* Send it, with some of the following ones, or find that it has to wait until no write of the
 * stream is in flight. */
void flight__send(struct disk *disk, struct stream *stream);

/* Wait until a write has completed. */
void flight__await(struct disk *disk);

/* Whether all writes in flight have completed. */
bool flight__have_landed(const struct stream *stream);

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
