/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "writer.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "event_list.h"
#include "ring.h"
#include "shard.h"

/*
 * How long a chunk waits for room on a full disk while somebody evicts, how long for a segment that
 * is missing (EXFULL), and how often the writer looks. Meanwhile other streams are written. A segment
 * that nobody makes in that time has its chunk given up, and those behind it without a wait, until
 * there is an answer.
 */
#define SPACE_WAIT_NS 2000000000u
#define SEGMENT_WAIT_NS 10000000000u
#define WAIT_LOOK_NS 20000000u
/* Below this share of free chunks a full disk is not waited for: what is queued is given up. */
#define SPACE_FREE_SHARE 4u

int writer__init(struct writer *writer, struct pool *pool, struct event_list *events,
		 uint64_t flush_ns)
{
	pthread_condattr_t attr;

	memset(writer, 0, sizeof(*writer));
	writer->pool = pool;
	writer->events = events;
	writer->flush_ns = flush_ns;
	writer->segment_wait_ns = SEGMENT_WAIT_NS;
	writer->issued_ns = clock__now_ns();
	pthread_mutex_init(&writer->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&writer->wake, &attr);
	pthread_condattr_destroy(&attr);
	return 0;
}

void writer__deinit(struct writer *writer)
{
	pthread_cond_destroy(&writer->wake);
	pthread_mutex_destroy(&writer->lock);
	memset(writer, 0, sizeof(*writer));
}

void writer__queue(struct writer *writer, struct item *item)
{
	struct stream *const stream = item->lane->stream;

	item->next = NULL;
	item->queued_ns = clock__now_ns();
	pthread_mutex_lock(&writer->lock);
	*stream->last = item;
	stream->last = &item->next;
	pthread_cond_signal(&writer->wake);
	pthread_mutex_unlock(&writer->lock);
}

void writer__poke(struct writer *writer)
{
	pthread_mutex_lock(&writer->lock);
	writer->poked = true;
	pthread_cond_signal(&writer->wake);
	pthread_mutex_unlock(&writer->lock);
}

/* `but` begins the pass itself. */
static uint64_t writer__begin(struct writer *writer, const struct shard *but)
{
	/* Release; the partner is the acquire in shard__run(). */
	const uint64_t generation =
		atomic_fetch_add_explicit(&writer->generation, 1, memory_order_release) + 1;

	for (uint32_t i = 0; i < writer->shard_count; i++)
		if (writer->shards[i] != but)
			shard__poke(writer->shards[i]);
	/* Who follows the generations learns of this one when it is done; late, when the last is not. */
	if (writer__drained(writer) + 1 < generation)
		event_list__poke(writer->events);
	return generation;
}

uint64_t writer__issue(struct writer *writer)
{
	atomic_store_explicit(&writer->issued_ns, clock__now_ns(), memory_order_relaxed);
	return writer__begin(writer, NULL);
}

uint64_t writer__due_ns(const struct writer *writer)
{
	return atomic_load_explicit(&writer->issued_ns, memory_order_relaxed) + writer->flush_ns;
}

void writer__issue_due(struct writer *writer, const struct shard *shard, uint64_t slack_ns)
{
	uint64_t issued_ns = atomic_load_explicit(&writer->issued_ns, memory_order_relaxed);
	const uint64_t now_ns = clock__now_ns();

	/* Of several shards whose time has come one issues it. */
	if (now_ns >= issued_ns + writer->flush_ns + slack_ns &&
	    atomic_compare_exchange_strong(&writer->issued_ns, &issued_ns, now_ns))
		writer__begin(writer, shard);
}

uint64_t writer__drained(const struct writer *writer)
{
	uint64_t least = atomic_load_explicit(&writer->generation, memory_order_acquire);

	for (uint32_t i = 0; i < writer->shard_count; i++) {
		const uint64_t done = shard__drained(writer->shards[i]);

		if (done < least)
			least = done;
	}
	return least;
}

uint64_t writer__written(struct writer *writer)
{
	uint64_t least = writer__drained(writer);
	const uint32_t count =
		atomic_load_explicit(&writer->stream_count, memory_order_acquire);

	for (uint32_t i = 0; i < count; i++) {
		const uint64_t written = stream__written(writer->streams[i], least);

		if (written < least)
			least = written;
	}
	return least;
}

uint64_t writer__oldest_ns(struct writer *writer)
{
	const uint32_t count =
		atomic_load_explicit(&writer->stream_count, memory_order_acquire);
	uint64_t queued_ns = 0;

	pthread_mutex_lock(&writer->lock);
	for (uint32_t i = 0; i < count; i++) {
		const struct item *item = writer->streams[i]->first;

		if (item != NULL && (queued_ns == 0 || item->queued_ns < queued_ns))
			queued_ns = item->queued_ns;
	}
	pthread_mutex_unlock(&writer->lock);
	return queued_ns != 0 ? clock__now_ns() - queued_ns : 0;
}

static struct timespec deadline(uint64_t ns)
{
	return (struct timespec){
		.tv_sec = (time_t)(ns / 1000000000u),
		.tv_nsec = (long)(ns % 1000000000u),
	};
}

/* False: nobody can be asked. */
static bool writer__ask(struct writer *writer, struct stream *stream, int error)
{
	struct event *event = event__new(EVENT_SPACE_WANTED, stream->id, 0);

	if (event == NULL)
		return false;
	event->error = error;
	pthread_mutex_lock(&stream->lock);
	stream->space_answer = SPACE_UNANSWERED;
	pthread_mutex_unlock(&stream->lock);
	event_list__push(writer->events, event);
	return true;
}

static int writer__answer(struct stream *stream, bool missing)
{
	int answer;

	pthread_mutex_lock(&stream->lock);
	answer = stream->space_answer;
	if (stream->next.open && (missing || stream->rotate_wanted))
		answer = SPACE_RETRY; /* the next file is as good as an answer */
	pthread_mutex_unlock(&stream->lock);
	return answer;
}

/* Ask for room, or for the segment that is missing. True: the part waits for the answer. */
static bool writer__begin_wait(struct writer *writer, struct stream *stream, int error)
{
	const bool missing = error == EXFULL;
	const uint64_t now_ns = clock__now_ns();

	if (missing) {
		if (stream->unanswered && writer__answer(stream, true) != SPACE_UNANSWERED)
			stream->unanswered = false;
		/* In one that nothing is in, and that so does not end, this ring has no extent. */
		if (stream->unanswered || (stream->current.open && stream->current.chunks == 0))
			return false;
	} else if (stream->space_asked_ns != 0 &&
		   now_ns - stream->space_asked_ns < writer->flush_ns) {
		return false;
	}
	if (!writer__ask(writer, stream, error))
		return false;
	stream->work.waits_for = error;
	stream->work.since_ns = now_ns;
	return true;
}

/* Is there time, and memory, to wait on? */
static bool writer__may_wait(struct writer *writer, const struct work *work)
{
	const uint64_t waited_ns = clock__now_ns() - work->since_ns;

	if (writer->stopping)
		return false;
	if (work->waits_for == EXFULL)
		return waited_ns < writer->segment_wait_ns;
	return waited_ns < SPACE_WAIT_NS &&
	       pool__free_count(writer->pool) > writer->pool->count / SPACE_FREE_SHARE;
}

/* Under the lock: may the stream's first item be written, or given up? */
static bool writer__is_ready(struct writer *writer, struct stream *stream)
{
	struct work *const work = &stream->work;
	const bool missing = work->waits_for == EXFULL;
	int answer;

	if (work->waits_for == 0)
		return true;
	answer = writer__answer(stream, missing);
	if (answer == SPACE_UNANSWERED && writer__may_wait(writer, work))
		return false;
	if (answer != SPACE_RETRY)
		work->refused = work->waits_for;
	/* For room it is asked once per flush interval; a segment that was missing says nothing about
	 * the next one. */
	if (!missing)
		stream->space_asked_ns = clock__now_ns();
	stream->unanswered = missing && answer == SPACE_UNANSWERED;
	work->waits_for = 0;
	return true;
}

static bool is_full(int ret)
{
	return ret == -ENOSPC || ret == -EDQUOT;
}

/* What may be otherwise when somebody has made room, or a segment. */
static bool may_pass(int ret)
{
	return is_full(ret) || ret == -EXFULL;
}

/* ESHUTDOWN: it came when the stream was finished, which is no fault of a file. */
static void writer__give_up(struct writer *writer, struct stream *stream,
			    const struct span *spans, uint32_t count, int error)
{
	const bool full = may_pass(-error), late = error == ESHUTDOWN;
	const uint64_t now_ns = clock__now_ns();
	struct event *event;

	counter__add(&writer->write_errors, late ? 0 : 1);
	for (uint32_t i = 0; i < count; i++) {
		const struct span *span = &spans[i];

		counter__add(full ? &span->ring->lost_disk_full : &span->ring->lost_dropped,
			     span->samples);
		atomic_fetch_sub_explicit(&span->ring->in_flight, span->samples,
					  memory_order_relaxed);
	}
	if (full || late || (stream->failure_told_ns != 0 &&
		     now_ns - stream->failure_told_ns < writer->flush_ns))
		return;
	stream->failure_told_ns = now_ns;
	event = event__new(EVENT_WRITE_FAILED, stream->id, 0);
	if (event != NULL) {
		event->token = stream->current.token;
		event->error = error;
	}
	event_list__push(writer->events, event);
}

/* Write what is left of the item. False: a part of it waits. */
static bool writer__write(struct writer *writer, struct stream *stream, struct item *item)
{
	struct work *const work = &stream->work;
	const struct span *spans;

	item->round = stream->ops->ordered && !stream->snapshots &&
		      !atomic_load_explicit(&stream->holds_back, memory_order_relaxed) &&
		      stream__completes_round(stream, item->lane, item->stamp);
	for (;;) {
		const uint64_t begun_ns = clock__now_ns();
		uint64_t bytes = 0;
		uint32_t lost;
		int ret = -work->refused;

		work->refused = 0;
		if (ret == 0) {
			ret = stream->ops->write(stream, item, &bytes);
			if (ret == 0)
				return true;
			if (ret > 0) {
				stream->space_asked_ns = 0;
				counter__add(&writer->write_ns, clock__now_ns() - begun_ns);
				counter__add(&writer->written_bytes, bytes);
				counter__add(&writer->written_chunks, 1);
				continue;
			}
			work->bytes = bytes;
			if (stream->finished)
				ret = -ESHUTDOWN;
			if (may_pass(ret) && writer__begin_wait(writer, stream, -ret))
				return false;
		}
		if (is_full(ret))
			stream__make_evictable(stream, work->bytes);
		lost = stream->ops->pass_over(stream, item, &spans);
		if (lost > 0)
			writer__give_up(writer, stream, spans, lost, -ret);
	}
}

/* Nothing is left of the item, which may be another one as soon as its lane can have it again. */
static void writer__end(struct writer *writer, struct stream *stream, struct item *ended)
{
	struct item item = *ended;
	struct lane *lane = item.lane;

	stream->work = (struct work){0};
	if (stream->ops->end(stream, &item)) {
		stream->round_due = false;
		stream->round = atomic_load_explicit(&writer->generation, memory_order_acquire);
	}
	if (item.chunk != NULL)
		pool__give(writer->pool, item.chunk);
	else if (item.ticket == NULL)
		/* The partner is the load in lane__mark(). */
		atomic_store(&lane->mark_queued, false);
	stream__pass_written(stream, lane, &item);
	/* The partners are the loads in stream__lane() and lane__stamp(). */
	atomic_fetch_sub(&lane->queued, 1);
	for (uint32_t i = 0; i < writer->shard_count; i++)
		shard__wake_starved(writer->shards[i]);
	if (item.stamp != 0 || atomic_load_explicit(&lane->rings, memory_order_relaxed) == 0)
		event_list__poke(writer->events);
}

/* True: a request is left for later. */
static bool writer__serve(struct writer *writer)
{
	const uint32_t count =
		atomic_load_explicit(&writer->stream_count, memory_order_acquire);
	bool left = false;

	for (uint32_t i = 0; i < count; i++) {
		struct stream *const stream = writer->streams[i];

		left |= stream__serve(stream);
		if (stream->finished) {
			pool__leave(writer->pool, &stream->data_share);
			pool__leave(writer->pool, &stream->sideband_share);
		}
	}
	return left;
}

/* Under the lock: the stream whose turn it is, or NULL; `waits`: one has items that must wait. */
static struct stream *writer__next(struct writer *writer, bool *waits)
{
	const uint32_t count =
		atomic_load_explicit(&writer->stream_count, memory_order_acquire);

	*waits = false;
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t turn = (writer->turn + i) % count;
		struct stream *stream = writer->streams[turn];

		if (stream->first == NULL)
			continue;
		if (writer__is_ready(writer, stream)) {
			writer->turn = turn + 1;
			return stream;
		}
		*waits = true;
	}
	return NULL;
}

/* Under the lock: wait for an item, a poke, or until one that waits is to be looked at. */
static void writer__sleep(struct writer *writer, bool waits)
{
	const struct timespec until = deadline(clock__now_ns() + WAIT_LOOK_NS);

	if (waits)
		pthread_cond_timedwait(&writer->wake, &writer->lock, &until);
	else
		pthread_cond_wait(&writer->wake, &writer->lock);
}

/* Under the lock, which is given up for the write. */
static void writer__process(struct writer *writer, struct stream *stream)
{
	struct item *const item = stream->first;
	bool written;

	pthread_mutex_unlock(&writer->lock);
	written = writer__write(writer, stream, item);
	pthread_mutex_lock(&writer->lock);
	if (!written)
		return;
	stream->first = item->next;
	if (stream->first == NULL)
		stream->last = &stream->first;
	pthread_mutex_unlock(&writer->lock);
	writer__end(writer, stream, item);
	pthread_mutex_lock(&writer->lock);
}

static void *writer__run(void *context)
{
	struct writer *writer = context;
	bool left = false; /* a request, until something was written */

	pthread_setname_np(pthread_self(), "writer");
	pthread_mutex_lock(&writer->lock);
	for (;;) {
		bool waits;
		struct stream *stream = writer__next(writer, &waits);

		if (stream == NULL && !writer->poked) {
			if (writer->stopping)
				break;
			writer__sleep(writer, waits);
			continue;
		}
		if (stream != NULL)
			writer__process(writer, stream);
		if (writer->poked || left) {
			writer->poked = false;
			pthread_mutex_unlock(&writer->lock);
			left = writer__serve(writer);
			pthread_mutex_lock(&writer->lock);
		}
	}
	pthread_mutex_unlock(&writer->lock);
	return NULL;
}

int writer__start(struct writer *writer)
{
	const int ret = -pthread_create(&writer->thread, NULL, writer__run, writer);

	writer->running = ret == 0;
	return ret;
}

void writer__stop(struct writer *writer)
{
	if (!writer->running)
		return;
	pthread_mutex_lock(&writer->lock);
	writer->stopping = true;
	pthread_cond_signal(&writer->wake);
	pthread_mutex_unlock(&writer->lock);
	pthread_join(writer->thread, NULL);
	writer->running = false;
}
