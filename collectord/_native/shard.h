/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_SHARD_H
#define COLLECTORD_SHARD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "counter.h"
#include "ring.h"
#include "stream.h"
#include "writer.h"

/*
 * The rings that one thread drains.
 *
 * Facts about poll on a perf ring, and what follows: POLLIN is consumed by the poll that sees it,
 * so a ring left unread after a wake-up may never wake again, and one below its watermark never
 * does. Hence each wake-up drains all rings of the shard, and a generation (once per flush
 * interval, by the shard's own timer) takes them all, whatever woke. After its task is gone an fd reports POLLHUP
 * for ever, while other tasks may still feed the ring: edge-triggered, each new wake-up is one.
 */
struct shard {
	pthread_mutex_t lock; /* held for a pass; adding and removing rings waits for it */
	struct ring **rings;
	struct lane *lanes[STREAMS_MAX];
	struct pool *pool;
	struct writer *writer;
	uint64_t floor_bytes;
	uint32_t turn; /* the ring that the next pass begins with */
	bool again;    /* a ring's turn ended early, or a generation waits: pass at once */
	uint32_t index;
	uint32_t ring_count;
	int epoll_fd, poke_fd;
	_Atomic bool stopping;
	_Atomic bool starved;	   /* the last pass found no free chunk */
	_Atomic bool unstamped;	   /* the writer was not told yet of what a lane is done with */
	_Atomic uint64_t drained; /* the last generation that is done for every lane */
	pthread_t thread;
	pid_t tid;
	sem_t begun; /* the thread has told its tid */
	bool running;

	counter_t passes, wakeups, pass_ns, pass_ns_max;
};

int shard__init(struct shard *shard, uint32_t index, struct pool *pool, struct writer *writer,
		uint64_t floor_bytes);
void shard__deinit(struct shard *shard);
int shard__start(struct shard *shard);
void shard__stop(struct shard *shard);

/* The lane of `stream` is made when its first ring comes. */
int shard__add(struct shard *shard, struct stream *stream, struct ring *ring);
/* Drain once more, then forget the ring. -EAGAIN: for two seconds no chunk came free to drain it
 * into; it was left with what is still in it, which counts as lost. Either way nothing reads it, or
 * looks at its fd, any more. */
int shard__remove(struct shard *shard, struct ring *ring);

/* While a ring is held passes leave it alone; none is at it when this returns. An overwritable one
 * is read at no other time: to let it go is to take its window. -EINVAL: what is behind it is none
 * that can be held. */
int shard__hold(struct shard *shard, struct ring *ring, bool held);

/* Drain `behind` too, with its front. -EEXIST: that has one; -EINVAL: it is sideband, or it is held and
 * this one cannot be, or has its times elsewhere than the stream's sideband. */
int shard__pair(struct shard *shard, struct ring *behind);

/* Nothing is written into the ring any more: passes wait for nothing. -EINVAL: that is nothing to it. */
int shard__last(struct shard *shard, struct ring *ring);

/* Wake the thread: a new generation, or a stop. */
void shard__poke(struct shard *shard);
/* Wake it if its last pass found no free chunk, or had something left to tell. */
void shard__wake_starved(struct shard *shard);
uint64_t shard__drained(const struct shard *shard);

#endif
