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
 * One file system: the queue of what is to be written there, and the thread that does it. The streams
 * whose segments are there take turns, each with its items in the order in which they were queued; one
 * whose item waits, for room or for a segment, lets the others pass.
 *
 * While more is queued than one chunk, those that need nothing but to be written are sent, several at
 * a time: writes in flight, see below. Each is counted as stored, or as refused, in the order of the
 * queue.
 */
struct disk {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool poked, stopping, running;
	bool slow; /* the last write took long: one at a time */
	uint32_t turn; /* the stream that comes next */
	uint32_t in_flight;
	aio_context_t aio; /* 0: there is none, and so nothing is in flight */
	struct stream *at; /* the stream whose item is written now, or NULL */
	struct writer *writer;
	dev_t device; /* 0: the first segment tells */
	pthread_t thread;

	counter_t written_bytes, written_chunks, write_errors, write_ns;
};

void disk__init(struct disk *disk, struct writer *writer, dev_t device);
void disk__deinit(struct disk *disk);
int disk__start(struct disk *disk);
/* Write what is queued, then end the thread. */
void disk__stop(struct disk *disk);

/* From a pass. The item is the disk's until it was written. */
void disk__queue(struct stream *stream, struct item *item);
/* Look at the streams' requests and answers. */
void disk__poke(struct disk *disk);
/* The stream's files are on `to`: its queue goes there, unless a write of it is under way. */
void disk__move(struct stream *stream, struct disk *to);
/* Of a stream to which nothing comes any more: is all done, and its disk at it no more? */
bool disk__is_done(struct stream *stream);
/* When the oldest of its items was queued, 0: there is none. */
uint64_t disk__oldest_ns(struct disk *disk);
/* For how long the first item of a stream has waited for its end, 0 where there is none. */
uint64_t disk__waits_ns(struct stream *stream);

/*
 * Writes in flight: the first items of a stream's queue, which the kernel writes while the disk's thread
 * goes on, in any order; what lies together in a file is one write, as most of what a write costs does
 * not grow with its length. By io_submit(2): it takes no thread, which sessions that leave this process
 * out would have to know, and is there where io_uring is forbidden. Through the page cache, and where a file
 * grows, the kernel writes as it is asked to, one after the other. All calls are the disk's thread's,
 * under the disk's lock, which may be given up meanwhile.
 */

/* Where it is refused, one write is made after the other. */
void flight__begin(struct disk *disk);

/* May the first item that was not sent be? One whose only item is queued is written at once. */
bool flight__may_send(const struct disk *disk, const struct stream *stream);

/* Send it, with some of those behind it, or find that it has to wait until nothing of the stream is in
 * flight. */
void flight__send(struct disk *disk, struct stream *stream);

/* Wait until one has landed. */
void flight__await(struct disk *disk);

/* Have all that were sent landed? */
bool flight__have_landed(const struct stream *stream);
