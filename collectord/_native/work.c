/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "event_list.h"
#include "shard.h"

/* How long a chunk waits for room. If a missing segment is not prepared in the writer's time limit,
 * the chunk is given up, and so are later ones without a wait, until there is an answer. */
#define SPACE_WAIT_NS 2000000000u
/* Below this share of free chunks there is no wait for a full disk: queued items are given up. */
#define SPACE_FREE_SHARE 4u

/* Whether room, or a new segment, can resolve the error. */
static bool work__may_come(int error)
{
	return segment__is_short(error) || error == EXFULL;
}

static enum request work__answer(struct stream *stream, bool missing)
{
	HOLD(&stream->lock);
	if (stream->next.open && (missing || stream->rotate_wanted))
		return SPACE_RETRY; /* the next file counts as an answer */
	return stream->space_answer;
}

/* Ask for space, or for a segment. Returns whether the item waits for the answer. */
static bool work__wait(struct disk *disk, struct stream *stream, int error)
{
	const bool missing = error == EXFULL;
	const uint64_t now_ns = clock__now_ns();
	struct event *event;

	if (missing) {
		if (stream->unanswered && work__answer(stream, true) != SPACE_UNANSWERED)
			stream->unanswered = false;
		/* The running segment is empty and so will not end, and this ring has no extent
		 * in it. */
		if (stream->unanswered || (stream->current.open && stream->current.chunks == 0))
			return false;
	} else if (stream->space_asked_ns != 0 &&
		   now_ns - stream->space_asked_ns < disk->writer->flush_ns) {
		return false;
	}
	event = event__new(EVENT_SPACE_WANTED, stream->id, 0);
	if (event == NULL)
		return false;
	event->error = stream->work.waits_for = error;
	stream->work.since_ns = now_ns;
	pthread_mutex_lock(&stream->lock);
	stream->space_answer = SPACE_UNANSWERED;
	pthread_mutex_unlock(&stream->lock);
	event_list__push(disk->writer->events, event);
	return true;
}

/* Whether there is time, and memory, for a longer wait. */
static bool work__may_wait(struct disk *disk, const struct work *work)
{
	const uint64_t waited_ns = clock__now_ns() - work->since_ns;
	struct pool *const pool = disk->writer->pool;

	if (disk->stopping)
		return false;
	if (work->waits_for == EXFULL)
		return waited_ns < disk->writer->segment_wait_ns;
	return waited_ns < SPACE_WAIT_NS && pool__free_count(pool) > pool->count / SPACE_FREE_SHARE;
}

bool work__is_ready(struct disk *disk, struct stream *stream)
{
	struct work *const work = &stream->work;
	const bool missing = work->waits_for == EXFULL;
	enum request answer;

	if (work->waits_for == 0)
		return true;
	answer = work__answer(stream, missing);
	if (answer == SPACE_UNANSWERED && work__may_wait(disk, work))
		return false;
	if (answer != SPACE_RETRY)
		work->refused = work->waits_for;
	/* Room is requested once per flush interval; a missing segment says nothing about the
	 * next one. */
	if (!missing)
		stream->space_asked_ns = clock__now_ns();
	stream->unanswered = missing && answer == SPACE_UNANSWERED;
	work->waits_for = 0;
	return true;
}

/* Give spans up. ESHUTDOWN: they came when the stream was finished, which is no error of a file. */
static void work__give_up(struct disk *disk, struct stream *stream, const struct span *spans,
			  uint32_t count, int error)
{
	const bool full = work__may_come(error), late = error == ESHUTDOWN;
	const uint64_t now_ns = clock__now_ns();
	struct event *event;

	counter__add(&disk->write_errors, late ? 0 : 1);
	for (uint32_t i = 0; i < count; i++) {
		const struct span *span = &spans[i];

		counter__add(full ? &span->ring->lost_disk_full : &span->ring->lost_dropped,
			     span->samples);
		atomic_fetch_sub_explicit(&span->ring->in_flight, span->samples,
					  memory_order_relaxed);
	}
	if (full || late ||
	    (stream->failure_told_ns != 0 &&
	     now_ns - stream->failure_told_ns < disk->writer->flush_ns))
		return;
	stream->failure_told_ns = now_ns;
	event = event__new(EVENT_WRITE_FAILED, stream->id, 0);
	if (event != NULL) {
		event->segment.token = stream->current.token;
		event->error = error;
	}
	event_list__push(disk->writer->events, event);
}

void work__count(struct disk *disk, struct stream *stream, uint64_t bytes, uint64_t ns)
{
	stream->space_asked_ns = 0;
	stream->cut.at_once = false;
	counter__add(&disk->write_ns, ns);
	counter__add(&disk->written_bytes, bytes);
	counter__add(&disk->written_chunks, 1);
}

bool work__write(struct disk *disk, struct stream *stream, struct item *item)
{
	struct work *const work = &stream->work;
	const struct span *spans;

	item->round = stream->ops->ordered && !stream->snapshots &&
		      !load_relaxed(&stream->holds_back) &&
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
				work__count(disk, stream, bytes, clock__now_ns() - begun_ns);
				continue;
			}
			work->bytes = bytes;
			stream->cut.at_once = ret != -EXFULL;
			if (stream->finished)
				ret = -ESHUTDOWN;
			if (work__may_come(-ret) && work__wait(disk, stream, -ret))
				return false;
		}
		if (segment__is_short(-ret))
			stream__make_evictable(stream, work->bytes);
		lost = stream->ops->pass_over(stream, item, &spans);
		if (lost > 0)
			work__give_up(disk, stream, spans, lost, -ret);
	}
}

void work__end(struct disk *disk, struct stream *stream, struct item *ended)
{
	struct writer *const writer = disk->writer;
	struct item item = *ended;
	struct lane *lane = item.lane;
	const bool asked = item.stamp != 0 && writer__is_asked(writer, lane__written(lane));

	stream->work = (struct work){0};
	if (stream->ops->end != NULL && stream->ops->end(stream, &item)) {
		stream->round_due = false;
		stream->round = load_acquire(&writer->generation);
	}
	if (item.chunk != NULL)
		pool__give(writer->pool, item.chunk);
	else if (item.ticket != NULL)
		ring__drop(item.ticket);
	else
		/* The partner is the load in lane__stamp(). */
		atomic_store(&lane->mark_queued, false);
	/* A flush ends here, which is not in flight beside others; or none follows. */
	if (item.stamp != 0 || load_relaxed(&lane->rings) == 0)
		stream__tell(stream);
	cut__pass(&stream->cut, &item);
	stream__pass_written(stream, lane, &item);
	/* The partners are the loads in stream__lane() and lane__stamp(). */
	atomic_fetch_sub(&lane->queued, 1);
	for (uint32_t i = 0; i < writer->shard_count; i++)
		shard__wake_starved(writer->shards[i]);
	if (asked || load_relaxed(&lane->rings) == 0)
		event_list__poke(writer->events);
}
