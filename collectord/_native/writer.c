/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "writer.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "event_list.h"
#include "page_stream.h"
#include "relay_stream.h"
#include "ring.h"
#include "shard.h"

/*
 * How long a full disk may hold the writer while somebody evicts, and how often it looks. A segment
 * that is missing (EXFULL) holds it until it is there or refused: there is room on the disk, and
 * what comes meanwhile waits in the chunks, and then in the kernel's rings.
 */
#define SPACE_WAIT_NS 2000000000u
#define SPACE_LOOK_NS 20000000u
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
	writer->last = &writer->first;
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
	item->next = NULL;
	item->queued_ns = clock__now_ns();
	pthread_mutex_lock(&writer->lock);
	*writer->last = item;
	writer->last = &item->next;
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

uint64_t writer__issue(struct writer *writer)
{
	uint64_t generation;

	pthread_mutex_lock(&writer->lock);
	writer->issued_ns = clock__now_ns();
	pthread_mutex_unlock(&writer->lock);
	/* Release; the partner is the acquire in shard__run(). */
	generation = atomic_fetch_add_explicit(&writer->generation, 1, memory_order_release) + 1;
	for (uint32_t i = 0; i < writer->shard_count; i++)
		shard__poke(writer->shards[i]);
	return generation;
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
		for (uint32_t s = 0; s < writer->shard_count; s++) {
			const struct lane *lane = stream__lane(writer->streams[i], s);

			if (lane != NULL && lane__written(lane) < least)
				least = lane__written(lane);
		}
	}
	return least;
}

uint64_t writer__oldest_ns(struct writer *writer)
{
	uint64_t queued_ns;

	pthread_mutex_lock(&writer->lock);
	queued_ns = writer->first != NULL ? writer->first->queued_ns : 0;
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

/* Is there time and memory to wait for room? */
static bool writer__may_wait(struct writer *writer, uint64_t since_ns)
{
	return clock__now_ns() - since_ns < SPACE_WAIT_NS &&
	       pool__free_count(writer->pool) > writer->pool->count / SPACE_FREE_SHARE;
}

/*
 * Ask for room, or for the segment that is missing, and wait for it. True: try the write again.
 * For room it asks once per flush interval, and each time for a segment: one that was missing says
 * nothing about the next one.
 */
static bool writer__await(struct writer *writer, struct stream *stream, int error)
{
	const uint64_t now_ns = clock__now_ns();
	const bool missing = error == EXFULL;
	int answer;

	if (missing) {
		/* Nothing is in it, so that it does not end, and has no extent for this ring. */
		if (stream->current.open && stream->current.chunks == 0)
			return false;
	} else {
		if (stream->space_asked_ns != 0 &&
		    now_ns - stream->space_asked_ns < writer->flush_ns)
			return false;
		stream->space_asked_ns = now_ns;
	}
	if (!writer__ask(writer, stream, error))
		return false;
	pthread_mutex_lock(&writer->lock);
	/* All that ends the wait comes with a poke. */
	while ((answer = writer__answer(stream, missing)) == SPACE_UNANSWERED &&
	       !writer->stopping && (missing || writer__may_wait(writer, now_ns))) {
		const struct timespec until = deadline(clock__now_ns() + SPACE_LOOK_NS);

		pthread_cond_timedwait(&writer->wake, &writer->lock, &until);
	}
	pthread_mutex_unlock(&writer->lock);
	return answer == SPACE_RETRY;
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

static void writer__give_up(struct writer *writer, struct stream *stream,
			    const struct span *spans, uint32_t count, int error)
{
	const bool full = may_pass(-error);
	const uint64_t now_ns = clock__now_ns();
	struct event *event;

	counter__add(&writer->write_errors, 1);
	for (uint32_t i = 0; i < count; i++) {
		const struct span *span = &spans[i];

		counter__add(full ? &span->ring->lost_disk_full : &span->ring->lost_dropped,
			     span->samples);
		atomic_fetch_sub_explicit(&span->ring->in_flight, span->samples,
					  memory_order_relaxed);
	}
	if (full || (stream->failure_told_ns != 0 &&
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

static void writer__wrote(struct writer *writer, struct stream *stream, uint64_t bytes,
			  uint64_t begun_ns)
{
	stream->space_asked_ns = 0;
	counter__add(&writer->write_ns, clock__now_ns() - begun_ns);
	counter__add(&writer->written_bytes, bytes);
	counter__add(&writer->written_chunks, 1);
}

/* Returns whether the chunk is on its file. */
static bool writer__write(struct writer *writer, struct stream *stream, struct chunk *chunk,
			  bool round)
{
	const uint64_t begun_ns = clock__now_ns();
	const uint32_t bytes = chunk__pad(chunk->data, chunk->used, round);
	int ret;

	do {
		stream__advance(stream, bytes);
		ret = stream__write_chunk(stream, chunk, bytes);
	} while (may_pass(ret) && writer__await(writer, stream, -ret));
	if (is_full(ret))
		stream__make_evictable(stream, bytes);
	if (ret < 0) {
		writer__give_up(writer, stream, chunk->spans, chunk->span_count, -ret);
		return false;
	}
	writer__wrote(writer, stream, bytes, begun_ns);
	return true;
}

/* Write one ring's pages; what does not go is given up. */
static void writer__write_load(struct writer *writer, struct stream *stream,
			       struct page_load *load)
{
	while (load->span.bytes > 0) {
		const uint64_t begun_ns = clock__now_ns();
		int64_t went;

		page_stream__advance(stream, load->span.ring, load->span.bytes);
		went = page_stream__write(stream, load);
		if (went >= 0) {
			writer__wrote(writer, stream, (uint64_t)went, begun_ns);
			continue;
		}
		if (may_pass((int)went) && writer__await(writer, stream, (int)-went))
			continue;
		if (is_full((int)went))
			stream__make_evictable(stream, load->span.bytes);
		writer__give_up(writer, stream, &load->span, 1, (int)-went);
		return;
	}
}

static void writer__write_pages(struct writer *writer, struct stream *stream,
				struct chunk *chunk)
{
	uint8_t *data = chunk->data;

	for (uint32_t i = 0; i < chunk->span_count; i++) {
		struct page_load load = {.span = chunk->spans[i], .data = data};

		data += load.span.bytes;
		writer__write_load(writer, stream, &load);
	}
}

/* Write what each ring has in a chunk to its file; what does not go is given up. */
static void writer__write_relay(struct writer *writer, struct stream *stream,
				const struct chunk *chunk)
{
	const uint8_t *data = chunk->data;

	for (uint32_t i = 0; i < chunk->span_count; i++) {
		const struct span *span = &chunk->spans[i];
		const uint64_t begun_ns = clock__now_ns();
		int ret;

		do {
			relay_stream__advance(stream, span->ring, span->bytes);
			ret = relay_stream__write(stream, span, data);
		} while (may_pass(ret) && writer__await(writer, stream, -ret));
		if (is_full(ret))
			stream__make_evictable(stream, span->bytes);
		if (ret < 0)
			writer__give_up(writer, stream, span, 1, -ret);
		else
			writer__wrote(writer, stream, span->bytes, begun_ns);
		data += span->bytes;
	}
}

/* Move a ring's pipe to its file. What cannot go that way is read and written as other pages. */
static void writer__write_pipe(struct writer *writer, struct stream *stream, struct ring *ring)
{
	struct page_load load;

	while (ring->pages->pipe_bytes > 0) {
		const uint64_t begun_ns = clock__now_ns();
		int64_t went;

		page_stream__advance(stream, ring, ring->pages->pipe_bytes);
		went = page_stream__splice(stream, ring);
		if (went > 0) {
			writer__wrote(writer, stream, (uint64_t)went, begun_ns);
			continue;
		}
		if (may_pass((int)went) && writer__await(writer, stream, (int)-went))
			continue;
		while (page_stream__load_pipe(stream, ring, &load))
			writer__write_load(writer, stream, &load);
	}
}

static void writer__process(struct writer *writer, struct item *queued)
{
	const struct item item = *queued; /* the lane may queue its mark again at once */
	struct lane *lane = item.lane;
	struct stream *stream = lane->stream;
	const bool pages = stream->page_bytes > 0;
	const bool ordered = !stream__is_split(stream) && !stream->snapshots &&
			     !atomic_load_explicit(&stream->holds_back, memory_order_relaxed);
	const bool round = ordered && stream__completes_round(stream, lane, item.stamp);
	bool marked = false;

	if (item.spliced != NULL) {
		writer__write_pipe(writer, stream, item.spliced);
		/* Release; the partner is the acquire in page_ring__fetch(): the pipe is empty. */
		atomic_store_explicit(&item.spliced->pages->ticket_queued, false,
				      memory_order_release);
	} else if (item.chunk != NULL && pages) {
		writer__write_pages(writer, stream, item.chunk);
		pool__give(writer->pool, item.chunk);
	} else if (item.chunk != NULL && stream->relay) {
		writer__write_relay(writer, stream, item.chunk);
		pool__give(writer->pool, item.chunk);
	} else if (item.chunk != NULL) {
		marked = writer__write(writer, stream, item.chunk, round) && round;
		stream__note(stream, item.chunk);
		pool__give(writer->pool, item.chunk);
	} else {
		/* The partner is the load in lane__mark(). */
		atomic_store(&lane->mark_queued, false);
		/* A marker only orders what is there: without room the next round does. */
		marked = round && stream->round_due && stream__write_round(stream) == 0;
	}
	if (marked) {
		stream->round_due = false;
		stream->round = atomic_load_explicit(&writer->generation, memory_order_acquire);
		counter__add(&writer->rounds, 1);
	}
	stream__pass_written(stream, lane, &item);
	atomic_fetch_sub_explicit(&lane->queued, 1, memory_order_release);
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

	for (uint32_t i = 0; i < count; i++)
		left |= stream__serve(writer->streams[i]);
	return left;
}

static void *writer__run(void *context)
{
	struct writer *writer = context;

	pthread_setname_np(pthread_self(), "writer");
	pthread_mutex_lock(&writer->lock);
	writer->tid = gettid();
	for (;;) {
		struct item *item = writer->first;
		const bool poked = writer->poked;
		const uint64_t due_ns = writer->issued_ns + writer->flush_ns;
		const bool due = clock__now_ns() >= due_ns && !writer->stopping;
		bool left = false;

		if (item == NULL && !poked && !due) {
			const struct timespec until = deadline(due_ns);

			if (writer->stopping)
				break;
			pthread_cond_timedwait(&writer->wake, &writer->lock, &until);
			continue;
		}
		if (item != NULL) {
			writer->first = item->next;
			if (writer->first == NULL)
				writer->last = &writer->first;
		}
		writer->poked = false;
		if (due)
			writer->issued_ns = clock__now_ns();
		pthread_mutex_unlock(&writer->lock);
		/*
		 * A shard that has not answered the last one waits for a chunk. While chunks are
		 * queued more would not help; with none queued, others hold them half full.
		 */
		if (due && (item == NULL || writer__drained(writer) >=
						    atomic_load_explicit(&writer->generation,
									 memory_order_relaxed)))
			writer__issue(writer);
		if (item != NULL)
			writer__process(writer, item);
		if (poked)
			left = writer__serve(writer);
		pthread_mutex_lock(&writer->lock);
		writer->poked |= left;
	}
	pthread_mutex_unlock(&writer->lock);
	return NULL;
}

int writer__start(struct writer *writer)
{
	int ret;

	writer->issued_ns = clock__now_ns();
	ret = -pthread_create(&writer->thread, NULL, writer__run, writer);
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
