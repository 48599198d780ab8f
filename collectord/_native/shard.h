/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

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
	struct ring *rings;
	struct ring *turn;		  /* the one that the next pass begins with; NULL: the first */
	struct lane *lanes;		  /* that have rings */
	/*
	 * The mailbox: who posts, one at a time, waits for nothing, and nothing is allocated for it. All
	 * that is there is done at the start of a pass, in the order in which it was posted.
	 */
	_Atomic(struct letter *) letters; /* the newest first */
	uint64_t posted;		  /* the number of the newest; who posts reads it */
	_Atomic uint64_t answered;	  /* all up to this number is done */
	uint32_t leaving;		  /* rings that are to leave */
	struct pool *pool;
	struct writer *writer;
	uint64_t floor_bytes;
	bool again; /* a ring's turn ended early, or a generation waits: pass at once */
	uint32_t index;
	int epoll_fd, poke_fd;
	_Atomic bool stopping;
	_Atomic bool starved;	   /* the last pass found no free chunk */
	_Atomic bool unstamped;	   /* the writer was not told yet of what a lane is done with */
	_Atomic uint64_t drained; /* the last generation that is done for every lane */
	_Atomic uint64_t passed;  /* the last one that was issued before a pass which is over */
	pthread_t thread;
	pid_t tid;
	sem_t begun; /* the thread has told its tid */
	bool running; /* it is the thread that makes passes */

	counter_t passes, wakeups, pass_ns, pass_ns_max;
};

int shard__init(struct shard *shard, uint32_t index, struct pool *pool, struct writer *writer,
		uint64_t floor_bytes);
void shard__deinit(struct shard *shard);
int shard__start(struct shard *shard);
void shard__stop(struct shard *shard);

/*
 * The calls that change what is drained are made by one thread at a time, and return at once. The shard
 * does as it is told before it begins a generation that was issued later, or at once where no thread runs.
 */

/* Drain it from the next pass on: one that has a front with that, which has none behind it yet. The lane
 * of `stream` is made when its first ring comes. -errno: the fd cannot be polled. */
int shard__add(struct shard *shard, struct stream *stream, struct ring *ring);
/*
 * Tell the ring's shard. -EBUSY: it has not done the last such command to that ring yet.
 *
 * COMMAND_HOLD: passes leave it alone. An overwritable one is read at no other time: with COMMAND_LET_GO
 * its window is taken.
 * COMMAND_LAST: nothing is written into it any more: passes wait for nothing.
 * COMMAND_REMOVE: it is drained once more, then it has `left`: nothing reads it, or looks at its fd, any
 * more. If for two seconds no chunk comes free for that, what is still in it is `abandoned`.
 */
int shard__post(struct shard *shard, struct ring *ring, enum command command);
/* Did the shard do all that was posted to this ring? */
bool shard__has_answered(const struct shard *shard, const struct ring *ring);
/* Do what was posted; from who makes the passes. */
void shard__serve(struct shard *shard);

/* Wake the thread: a new generation, or a stop. */
void shard__poke(struct shard *shard);
/* Wake it if its last pass found no free chunk, or had something left to tell. */
void shard__wake_starved(struct shard *shard);
uint64_t shard__drained(const struct shard *shard);
/* Has it made a pass since this generation was issued? Also where that is not done for its rings. */
bool shard__has_passed(const struct shard *shard, uint64_t generation);

/*
 * A pass over a shard's rings. All calls are made by who makes the shard's passes.
 */

/* Drain what is due; of lanes whose generation is not done everything, and of all lanes after a pass
 * that left something behind. Those that are done begin `generation`, if it is a new one. */
void pass__run(struct shard *shard, uint64_t generation);

/* Drain one ring to the end, outside of a pass, and give up the shard's half full chunks if none
 * was free. False: part of the ring is unread. */
bool pass__last(struct shard *shard, struct ring *ring);
