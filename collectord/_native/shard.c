/* SPDX-License-Identifier: Apache-2.0 */
#include "shard.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "event_list.h"

#define EPOLL_BATCH 64
/* Timers of other shards lag behind the first one's by this part of the flush interval. */
#define SLACK_PART 8
/* How long a removal waits for a chunk, and how often it checks. */
#define REMOVE_WAIT_NS 2000000000u
#define REMOVE_LOOK_MS 10u

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
	shard->slack_ns = index == 0 ? 0 : writer->flush_ns / SLACK_PART;
	sem_init(&shard->begun, 0, 0);
	shard->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	shard->epoll_fd = shard->poke_fd < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
	if (shard->epoll_fd >= 0 &&
	    epoll_ctl(shard->epoll_fd, EPOLL_CTL_ADD, shard->poke_fd, &event) == 0)
		return 0;
	ret = -errno;
	shard__deinit(shard);
	return ret;
}

void shard__deinit(struct shard *shard)
{
	if (shard->writer == NULL)
		return;
	close(shard->poke_fd);
	close(shard->epoll_fd);
	sem_destroy(&shard->begun);
	memset(shard, 0, sizeof(*shard));
}

void shard__poke(struct shard *shard)
{
	/* EAGAIN: the counter is at its maximum, so the thread is awake anyway. */
	(void)eventfd_write(shard->poke_fd, 1);
}

void shard__wake_starved(struct shard *shard)
{
	/* Sequentially consistent; the partners are the stores in pass__take_chunk() and
	 * pass__stamp(): either they see what the writer returned before, or this sees them. */
	if (atomic_load(&shard->starved) || atomic_load(&shard->unstamped))
		shard__poke(shard);
}

uint64_t shard__drained(const struct shard *shard)
{
	/* Acquire; the partner is the release in pass__end(): the counters of the passes are
	 * visible. */
	return load_acquire(&shard->drained);
}

static void shard__collect_wakeups(struct shard *shard, const struct epoll_event *events, int n)
{
	eventfd_t pokes;

	for (int i = 0; i < n; i++) {
		struct ring *ring = events[i].data.ptr;

		if (ring == NULL) {
			(void)eventfd_read(shard->poke_fd, &pokes);
			continue;
		}
		ring->woken = true;
		ring->armed = false;
		ring->erred = (events[i].events & (EPOLLERR | EPOLLHUP)) != 0;
		if (ring->ops->wake != NULL)
			ring->ops->wake(ring, events[i].events);
	}
}

/* Returns how long the thread may sleep. Normally the first shard's timer issues the
 * generations. */
static int shard__pause_ms(const struct shard *shard)
{
	const uint64_t now_ns = clock__now_ns();
	const uint64_t due_ns =
		load_relaxed(&shard->writer->issued_ns) + shard->writer->flush_ns + shard->slack_ns;

	if (shard->again || due_ns <= now_ns)
		return 0;
	return (int)least((due_ns - now_ns + 999999) / 1000000,
			  shard->leaving > 0 ? REMOVE_LOOK_MS : INT_MAX);
}

static void *shard__run(void *context)
{
	struct shard *shard = context;
	struct epoll_event events[EPOLL_BATCH];
	uint64_t generation;
	char name[16];

	snprintf(name, sizeof(name), "drain/%u", shard->index);
	pthread_setname_np(pthread_self(), name);
	shard->tid = gettid();
	sem_post(&shard->begun);
	while (!load_acquire(&shard->stopping)) {
		const int n =
			epoll_wait(shard->epoll_fd, events, EPOLL_BATCH, shard__pause_ms(shard));

		if (n < 0)
			continue; /* EINTR: a debugger; signals are blocked */
		counter__add(&shard->wakeups, 1);
		shard__collect_wakeups(shard, events, n);
		writer__issue_due(shard->writer, shard, shard->slack_ns);
		/* Acquire; the partner is the release in writer__issue(): letters posted before
		 * the generation was issued are found, and carried out before it begins. */
		generation = load_acquire(&shard->writer->generation);
		shard__serve(shard);
		pass__run(shard, generation);
	}
	return NULL;
}

/* Without rings it took part in no generation. */
static struct lane *shard__lane(struct shard *shard, struct stream *stream)
{
	struct lane *lane = load_relaxed(&stream->lanes[shard->index]);

	if (lane == NULL) {
		lane = calloc(1, sizeof(*lane));
		if (lane == NULL)
			return NULL;
		lane->stream = stream;
		lane->shard = shard;
	}
	/* Acquire; the partner is the release in shard__let_go(). */
	if (load_acquire(&lane->rings) == 0)
		store_relaxed(&lane->drained, shard__drained(shard));
	/* Release; the partner is the acquire in stream__lane(). */
	store_release(&stream->lanes[shard->index], lane);
	return lane;
}

/* It is counted at once: those who wait for the stream's next generation wait for this ring. */
int shard__add(struct shard *shard, struct stream *stream, struct ring *ring)
{
	struct epoll_event event = {.events = ring->ops->poll, .data.ptr = ring};

	if (ring->front != NULL) {
		ring->lane = ring->front->lane;
		ring->front->partner = ring;
		return shard__post(ring, COMMAND_ADD);
	}
	ring->lane = shard__lane(shard, stream);
	if (ring->lane == NULL)
		return -ENOMEM;
	ring->armed = true;
	if (event.events != 0 &&
	    epoll_ctl(shard->epoll_fd, EPOLL_CTL_ADD, ring->wakeup_fd, &event) < 0)
		return -errno;
	pool__join(shard->pool, &stream->data_share, SHARE_DATA_CHUNKS);
	if (ring->sideband != NULL)
		pool__join(shard->pool, &stream->sideband_share, SHARE_SIDEBAND_CHUNKS);
	atomic_fetch_add_explicit(&ring->lane->rings, 1, memory_order_relaxed);
	return shard__post(ring, COMMAND_ADD);
}

/* Returns the link to the lane, or where it would be. */
static struct lane **shard__link(struct shard *shard, const struct lane *lane)
{
	struct lane **link = &shard->lanes;

	while (*link != NULL && *link != lane)
		link = &(*link)->next;
	return link;
}

static void shard__take_on(struct shard *shard, struct ring *ring)
{
	struct lane *const lane = ring->lane, **const link = shard__link(shard, lane);
	struct ring **last = &shard->rings;

	if (ring->front != NULL) {
		ring->front->behind = ring;
		return;
	}
	if (*link == NULL) {
		lane->begun = shard__drained(shard);
		store_relaxed(&lane->drained, lane->begun);
		lane->next = NULL;
		*link = lane;
	}
	while (*last != NULL)
		last = &(*last)->next;
	*last = ring;
}

/* Forget the ring and its fd, whose number may be reused when the caller has closed it. */
static void shard__let_go(struct shard *shard, struct ring *ring, bool drained)
{
	struct lane *const lane = ring->lane;
	struct ring **at = &shard->rings;

	for (struct ring *each = ring; each != NULL; each = each->behind)
		if (each->ops->leave != NULL)
			each->ops->leave(each, drained);
	epoll_ctl(shard->epoll_fd, EPOLL_CTL_DEL, ring->wakeup_fd, NULL);
	while (*at != ring)
		at = &(*at)->next;
	*at = ring->next;
	if (shard->turn == ring)
		shard->turn = ring->next;
	shard->leaving--;
	if (load_relaxed(&lane->rings) == 1) {
		lane__yield(lane, shard->pool);
		*shard__link(shard, lane) = lane->next;
	}
	/* Release; the partners are the acquires in stream__lane() and shard__lane(). */
	if (atomic_fetch_sub_explicit(&lane->rings, 1, memory_order_release) == 1)
		writer__poke(shard->writer); /* its chunks wait for more, and no stamp follows */
	if (ring->behind != NULL)
		ring->behind->left = true;
	ring->left = true;
	event_list__poke(shard->writer->events);
}

static void shard__let_leave(struct shard *shard)
{
	struct ring *next;

	for (struct ring *ring = shard->rings; ring != NULL; ring = next) {
		bool drained;

		next = ring->next;
		if (ring->leave_by_ns == 0)
			continue;
		drained = pass__last(shard, ring);
		if (drained || !shard->running || clock__now_ns() >= ring->leave_by_ns)
			shard__let_go(shard, ring, drained);
	}
}

static void shard__obey(struct shard *shard, struct ring *ring, enum command command)
{
	if (ring->left)
		return; /* its maps may be gone */
	switch (command) {
	case COMMAND_ADD:
		shard__take_on(shard, ring);
		break;
	case COMMAND_HOLD:
	case COMMAND_LET_GO:
		ring__hold(ring, command == COMMAND_HOLD);
		break;
	case COMMAND_LAST:
		ring__last(ring);
		break;
	case COMMAND_REMOVE:
		if (ring->leave_by_ns == 0)
			shard->leaving++;
		ring->leave_by_ns = clock__now_ns() + REMOVE_WAIT_NS;
		break;
	}
}

void shard__serve(struct shard *shard)
{
	struct letter *first = NULL, *newest = NULL;
	uint64_t number;

	if (load_relaxed(&shard->letters) != NULL) {
		/* Acquire; the partner is the release in shard__post(): the letter's ring is
		 * visible. */
		newest = atomic_exchange_explicit(&shard->letters, NULL, memory_order_acquire);
		number = newest->number;
		while (newest != NULL) {
			struct letter *const next = newest->next;

			newest->next = first;
			first = newest;
			newest = next;
		}
		for (; first != NULL; first = first->next)
			shard__obey(shard, first->ring, first->command);
		/* Release; the partner is the acquires in shard__has_answered() and shard__post(). */
		store_release(&shard->answered, number);
		event_list__poke(shard->writer->events);
	}
	if (shard->leaving > 0)
		shard__let_leave(shard);
}

bool shard__has_answered(const struct ring *ring)
{
	/* Acquire; the partner is the release in shard__serve(): its effects are visible. */
	return load_acquire(&ring->lane->shard->answered) >= ring->asked;
}

bool shard__has_left(const struct ring *ring)
{
	return ring->left && shard__has_answered(ring);
}

int shard__post(struct ring *ring, enum command command)
{
	struct shard *const shard = ring->lane->shard;
	struct letter *const letter = &ring->letters[command];

	if (!ring__obeys(ring, command))
		return -EINVAL;
	/* Acquire; the partner is the same one: the letter is no more in use. */
	if (load_acquire(&shard->answered) < letter->number)
		return -EBUSY;
	*letter = (struct letter){.ring = ring, .number = ++shard->posted, .command = command};
	ring->asked = letter->number;
	letter->next = load_relaxed(&shard->letters);
	/* Release; the partner is the acquire in shard__serve(). */
	while (!atomic_compare_exchange_weak_explicit(&shard->letters, &letter->next, letter,
						      memory_order_release, memory_order_relaxed))
		continue;
	if (shard->running)
		shard__poke(shard);
	else
		shard__serve(shard);
	return 0;
}

int shard__start(struct shard *shard)
{
	int ret;

	shard->running = true;
	ret = thread__start(&shard->thread, shard__run, shard);
	if (ret < 0)
		shard->running = false;
	/* The thread that starts it can schedule it. */
	while (ret == 0 && sem_wait(&shard->begun) < 0)
		continue; /* EINTR */
	return ret;
}

void shard__stop(struct shard *shard)
{
	if (!shard->running)
		return;
	store_release(&shard->stopping, true);
	shard__poke(shard);
	pthread_join(shard->thread, NULL);
	shard->running = false;
}
