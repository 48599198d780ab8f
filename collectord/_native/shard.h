/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <semaphore.h>

#include "ring.h"
#include "writer.h"

/*
 * The rings that one thread drains.
 *
 * Facts about poll on a perf ring, and consequences: the poll that sees POLLIN consumes it, so a
 * ring left unread after a wake-up may never wake again, and one below its watermark never does.
 * Hence each wake-up drains all rings of the shard, and a generation (once per flush interval, by
 * the shard's own timer) reads them all, whatever woke. After its task is gone an fd reports
 * POLLHUP for ever, while other tasks may still feed the ring: edge-triggered polling reports each
 * wake-up once.
 */
struct shard {
	struct ring *rings;
	struct ring *turn;  /* the next pass's first ring; NULL: that of the list */
	struct lane *lanes; /* those with rings */
	/* The mailbox: one thread at a time posts, without waiting or allocating. The start of a
	 * pass carries out all letters in the order of posting. */
	_Atomic(struct letter *) letters; /* newest first */
	uint64_t posted;		  /* number of the newest; for the thread that posts */
	_Atomic uint64_t answered;	  /* all letters up to this number are done */
	uint32_t leaving;		  /* rings about to leave */
	struct pool *pool;
	struct writer *writer;
	uint64_t floor_bytes;
	uint64_t slack_ns; /* its timer lags behind the first shard's by this */
	bool again; /* a ring's turn ended early, or a generation waits: pass again at once */
	uint32_t index;
	int epoll_fd, poke_fd;
	_Atomic bool stopping;
	_Atomic bool starved;	  /* the last pass found no free chunk */
	uint32_t starved_rank;	  /* the first rank that found none in this pass; RANKS: none */
	_Atomic bool unstamped;	  /* the writer does not yet know a lane's last generation */
	_Atomic uint64_t drained; /* the last generation done in every lane */
	_Atomic uint64_t passed;  /* the last one issued before a completed pass */
	pthread_t thread;
	pid_t tid;
	sem_t begun;  /* the thread has published its tid */
	bool running; /* the thread makes the passes */

	counter_t passes, wakeups, pass_ns, pass_ns_max;
};

int shard__init(struct shard *shard, uint32_t index, struct pool *pool, struct writer *writer,
		uint64_t floor_bytes);
void shard__deinit(struct shard *shard);
int shard__start(struct shard *shard);
void shard__stop(struct shard *shard);

/* Calls that change the set of rings are made by one thread at a time, and return at once. The
 * shard carries them out before any later generation begins, or at once if no thread runs. */

/* Drain the ring from the next pass on: if it has a front, with that, which has no ring behind
 * it yet. The first ring of a `stream` creates its lane. -errno: the fd cannot be polled. */
int shard__add(struct shard *shard, struct stream *stream, struct ring *ring);
/*
 * Post a command to the ring's shard. -EBUSY: its last command of this kind is not done yet;
 * -EINVAL: the command does not apply to it, or the ring behind it cannot be held.
 *
 * COMMAND_HOLD: passes leave it alone. An overwritable ring is always held: COMMAND_LET_GO takes
 * its window. COMMAND_LAST: no more is written into it: passes wait for nothing. COMMAND_REMOVE:
 * it is drained once more, then it has `left`: it and its fd are used no more. If no chunk comes
 * free for two seconds, its remaining data are `abandoned`.
 */
int shard__post(struct ring *ring, enum command command);
/* Whether its shard carried out all commands to the ring. The events' fd becomes readable then. */
bool shard__has_answered(const struct ring *ring);
/* Whether the ring has left too. */
bool shard__has_left(const struct ring *ring);
/* Carry out posted letters; called by the thread that makes the passes. */
void shard__serve(struct shard *shard);
/* Wake the thread for a new generation, or a stop. */
void shard__poke(struct shard *shard);
/* Wake it if its last pass found no free chunk, or has something left to report. */
void shard__wake_starved(struct shard *shard);
uint64_t shard__drained(const struct shard *shard);

/* A pass over a shard's rings. The thread that makes the shard's passes makes all calls. */

/* Drain the rings that are due; in lanes with an unfinished generation all of them, and after
 * an incomplete pass those of all lanes. Finished lanes begin `generation`, if it is new. */
void pass__run(struct shard *shard, uint64_t generation);

/* Drain one ring completely, outside of a pass, giving up the shard's half full chunks if none
 * is free. False: part of the ring is unread. */
bool pass__last(struct shard *shard, struct ring *ring);
