/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shard.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "pass.h"

#define EPOLL_BATCH 64
/* Part of the flush interval by which the timers of other shards come after the first one's. */
#define SLACK_PART 8
/* How long a removal waits for a chunk, and how often it looks. */
#define REMOVE_WAIT_NS 2000000000u
#define REMOVE_LOOK_NS 10000000

int shard__init(struct shard *shard, uint32_t index, struct pool *pool, struct writer *writer,
		uint64_t floor_bytes)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
	int ret;

	memset(shard, 0, sizeof(*shard));
	shard->index = index;
	shard->pool = pool;
	shard->writer = writer;
	shard->floor_bytes = floor_bytes;
	shard->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (shard->epoll_fd < 0)
		return -errno;
	shard->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (shard->poke_fd < 0 ||
	    epoll_ctl(shard->epoll_fd, EPOLL_CTL_ADD, shard->poke_fd, &event) < 0) {
		ret = -errno;
		if (shard->poke_fd >= 0)
			close(shard->poke_fd);
		close(shard->epoll_fd);
		return ret;
	}
	pthread_mutex_init(&shard->lock, NULL);
	sem_init(&shard->begun, 0, 0);
	return 0;
}

void shard__deinit(struct shard *shard)
{
	if (shard->writer == NULL)
		return;
	for (uint32_t i = 0; i < STREAMS_MAX; i++)
		free(shard->lanes[i]);
	free(shard->rings);
	close(shard->poke_fd);
	close(shard->epoll_fd);
	sem_destroy(&shard->begun);
	pthread_mutex_destroy(&shard->lock);
	memset(shard, 0, sizeof(*shard));
}

void shard__poke(struct shard *shard)
{
	const uint64_t one = 1;
	/* EAGAIN: the counter is at its maximum, so the thread is awake anyway. */
	const ssize_t ignored = write(shard->poke_fd, &one, sizeof(one));

	(void)ignored;
}

void shard__wake_starved(struct shard *shard)
{
	/*
	 * Sequentially consistent; the partners are the stores in pass__take_chunk() and
	 * pass__stamp(): either they see what the writer gave back before, or this sees them.
	 */
	if (atomic_load(&shard->starved) || atomic_load(&shard->unstamped))
		shard__poke(shard);
}

uint64_t shard__drained(const struct shard *shard)
{
	/* Acquire; the partner is the release in pass__end(): the counters of the passes show. */
	return atomic_load_explicit(&shard->drained, memory_order_acquire);
}

static uint64_t shard__slack_ns(const struct shard *shard)
{
	return shard->index == 0 ? 0 : shard->writer->flush_ns / SLACK_PART;
}

static void shard__collect_wakeups(struct shard *shard, const struct epoll_event *events, int n)
{
	uint64_t pokes;

	for (int i = 0; i < n; i++) {
		struct ring *ring = events[i].data.ptr;

		if (ring == NULL) {
			if (read(shard->poke_fd, &pokes, sizeof(pokes)) < 0)
				continue; /* EAGAIN: nothing to clear */
		} else if (!ring->left) {
			ring->woken = true;
			ring->armed = false;
			ring->erred = (events[i].events & (EPOLLERR | EPOLLHUP)) != 0;
			if (ring->ops->wake != NULL)
				ring->ops->wake(ring, events[i].events);
		}
	}
}

/* How long the thread may sleep. The first shard's timer issues the generations, as long as it does. */
static int shard__pause_ms(const struct shard *shard)
{
	const uint64_t now_ns = clock__now_ns();
	const uint64_t due_ns = writer__due_ns(shard->writer) + shard__slack_ns(shard);
	uint64_t pause_ms;

	if (shard->again)
		return 0;
	if (due_ns <= now_ns)
		return 0;
	pause_ms = (due_ns - now_ns + 999999) / 1000000;
	return pause_ms < INT_MAX ? (int)pause_ms : INT_MAX;
}

static void *shard__run(void *context)
{
	struct shard *shard = context;
	struct epoll_event events[EPOLL_BATCH];
	char name[16];

	snprintf(name, sizeof(name), "drain/%u", shard->index);
	pthread_setname_np(pthread_self(), name);
	shard->tid = gettid();
	sem_post(&shard->begun);
	while (!atomic_load_explicit(&shard->stopping, memory_order_acquire)) {
		const int n = epoll_wait(shard->epoll_fd, events, EPOLL_BATCH,
					 shard__pause_ms(shard));

		if (n < 0)
			continue; /* EINTR: a debugger; signals are blocked */
		counter__add(&shard->wakeups, 1);
		pthread_mutex_lock(&shard->lock);
		shard__collect_wakeups(shard, events, n);
		writer__issue_due(shard->writer, shard, shard__slack_ns(shard));
		/* Acquire; the partner is the release in writer__begin(). */
		pass__run(shard, atomic_load_explicit(&shard->writer->generation,
							memory_order_acquire));
		pthread_mutex_unlock(&shard->lock);
	}
	return NULL;
}

static struct lane *shard__lane(struct shard *shard, struct stream *stream)
{
	struct lane *lane = shard->lanes[stream->id];

	if (lane != NULL)
		return lane;
	lane = calloc(1, sizeof(*lane));
	if (lane == NULL)
		return NULL;
	lane->stream = stream;
	lane->shard = shard->index;
	lane->begun = shard__drained(shard);
	atomic_store_explicit(&lane->drained, lane->begun, memory_order_relaxed);
	shard->lanes[stream->id] = lane;
	return lane;
}

static void shard__join(struct shard *shard, struct stream *stream, const struct ring *ring)
{
	struct lane *const lane = ring->lane;

	pool__join(shard->pool, &stream->data_share, SHARE_DATA_CHUNKS);
	if (ring->sideband != NULL)
		pool__join(shard->pool, &stream->sideband_share, SHARE_SIDEBAND_CHUNKS);
	/* It may have been without rings, and so without generations. */
	if (lane->rings == 0 && lane__drained(lane) < shard__drained(shard)) {
		lane->begun = shard__drained(shard);
		atomic_store_explicit(&lane->drained, lane->begun, memory_order_relaxed);
	}
}

int shard__add(struct shard *shard, struct stream *stream, struct ring *ring)
{
	struct epoll_event event = {.events = ring->ops->poll, .data.ptr = ring};
	struct ring **rings;
	int ret = 0;

	pthread_mutex_lock(&shard->lock);
	rings = realloc(shard->rings, (shard->ring_count + 1) * sizeof(struct ring *));
	ring->lane = shard__lane(shard, stream);
	if (rings != NULL)
		shard->rings = rings;
	if (rings == NULL || ring->lane == NULL)
		ret = -ENOMEM;
	else if (event.events != 0 &&
		 epoll_ctl(shard->epoll_fd, EPOLL_CTL_ADD, ring->wakeup_fd, &event) < 0)
		ret = -errno;
	if (ret == 0) {
		shard__join(shard, stream, ring);
		shard->rings[shard->ring_count++] = ring;
		ring->armed = true;
		ring->lane->rings++;
		/* Release; the partner is the acquire in stream__lane(). */
		atomic_store_explicit(&stream->lanes[shard->index], ring->lane,
				      memory_order_release);
	}
	pthread_mutex_unlock(&shard->lock);
	return ret;
}

/* Forget the ring, and its fd: when the caller has closed that, its number may come again. */
static void shard__let_go(struct shard *shard, struct ring *ring, bool drained)
{
	for (struct ring *each = ring; each != NULL; each = each->behind) {
		if (each->ops->leave != NULL)
			each->ops->leave(each, drained);
		each->left = true;
	}
	epoll_ctl(shard->epoll_fd, EPOLL_CTL_DEL, ring->wakeup_fd, NULL);
	for (uint32_t i = 0; i < shard->ring_count; i++)
		if (shard->rings[i] == ring)
			shard->rings[i--] = shard->rings[--shard->ring_count];
	if (ring->lane->rings == 1)
		lane__yield(ring->lane, shard->pool);
	/* Release; the partner is the acquire in stream__lane(). */
	atomic_fetch_sub_explicit(&ring->lane->rings, 1, memory_order_release);
}

int shard__remove(struct shard *shard, struct ring *ring)
{
	const struct timespec pause = {.tv_nsec = REMOVE_LOOK_NS};
	const uint64_t begun_ns = clock__now_ns();

	for (;;) {
		const bool late = clock__now_ns() - begun_ns > REMOVE_WAIT_NS;
		bool drained, gone;

		pthread_mutex_lock(&shard->lock);
		drained = ring->left || pass__last(shard, ring);
		gone = drained || late;
		if (gone && !ring->left)
			shard__let_go(shard, ring, drained);
		pthread_mutex_unlock(&shard->lock);
		if (gone)
			return drained ? 0 : -EAGAIN;
		nanosleep(&pause, NULL);
	}
}

int shard__hold(struct shard *shard, struct ring *ring, bool held)
{
	int ret = 0;

	pthread_mutex_lock(&shard->lock);
	if (!ring->left) { /* else its maps may be gone */
		if (ring->ops->hold != NULL)
			ret = ring->ops->hold(ring, held);
		if (ret == 0)
			ring->held = held;
	}
	pthread_mutex_unlock(&shard->lock);
	return ret;
}

int shard__pair(struct shard *shard, struct ring *behind)
{
	struct ring *const front = behind->front;
	int ret;

	pthread_mutex_lock(&shard->lock);
	ret = front->behind != NULL ? -EEXIST : behind->ops->join(behind, front->lane->stream);
	if (ret == 0) {
		behind->lane = front->lane;
		front->behind = behind;
	}
	pthread_mutex_unlock(&shard->lock);
	return ret;
}

int shard__last(struct shard *shard, struct ring *ring)
{
	int ret;

	pthread_mutex_lock(&shard->lock);
	ret = ring__last(ring);
	pthread_mutex_unlock(&shard->lock);
	return ret;
}

int shard__start(struct shard *shard)
{
	const int ret = -pthread_create(&shard->thread, NULL, shard__run, shard);

	shard->running = ret == 0;
	/* Whoever starts it can schedule it. */
	while (ret == 0 && sem_wait(&shard->begun) < 0)
		continue; /* EINTR */
	return ret;
}

void shard__stop(struct shard *shard)
{
	if (!shard->running)
		return;
	atomic_store_explicit(&shard->stopping, true, memory_order_release);
	shard__poke(shard);
	pthread_join(shard->thread, NULL);
	shard->running = false;
}
