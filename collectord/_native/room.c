/* SPDX-License-Identifier: Apache-2.0 */
#include "room.h"

#include <errno.h>

#include "clock.h"
#include "disk.h"
#include "event_list.h"
#include "writer.h"

/*
 * How long a chunk waits for room. One whose segment nobody makes in the time that the writer has for
 * that is given up, and those behind it without a wait, until there is an answer.
 */
#define SPACE_WAIT_NS 2000000000u
/* Below this share of free chunks a full disk is not waited for: what is queued is given up. */
#define SPACE_FREE_SHARE 4u

bool room__is_short(int error)
{
	return error == ENOSPC || error == EDQUOT;
}

bool room__may_come(int error)
{
	return room__is_short(error) || error == EXFULL;
}

/* False: nobody can be asked. */
static bool room__ask(struct disk *disk, struct stream *stream, int error)
{
	struct event *event = event__new(EVENT_SPACE_WANTED, stream->id, 0);

	if (event == NULL)
		return false;
	event->error = error;
	pthread_mutex_lock(&stream->lock);
	stream->space_answer = SPACE_UNANSWERED;
	pthread_mutex_unlock(&stream->lock);
	event_list__push(disk->writer->events, event);
	return true;
}

static int room__answer(struct stream *stream, bool missing)
{
	int answer;

	pthread_mutex_lock(&stream->lock);
	answer = stream->space_answer;
	if (stream->next.open && (missing || stream->rotate_wanted))
		answer = SPACE_RETRY; /* the next file is as good as an answer */
	pthread_mutex_unlock(&stream->lock);
	return answer;
}

bool room__wait(struct disk *disk, struct stream *stream, int error)
{
	const bool missing = error == EXFULL;
	const uint64_t now_ns = clock__now_ns();

	if (missing) {
		if (stream->unanswered && room__answer(stream, true) != SPACE_UNANSWERED)
			stream->unanswered = false;
		/* In one that nothing is in, and that so does not end, this ring has no extent. */
		if (stream->unanswered || (stream->current.open && stream->current.chunks == 0))
			return false;
	} else if (stream->space_asked_ns != 0 &&
		   now_ns - stream->space_asked_ns < disk->writer->flush_ns) {
		return false;
	}
	if (!room__ask(disk, stream, error))
		return false;
	stream->work.waits_for = error;
	stream->work.since_ns = now_ns;
	return true;
}

/* Is there time, and memory, to wait on? */
static bool room__may_wait(struct disk *disk, const struct work *work)
{
	const uint64_t waited_ns = clock__now_ns() - work->since_ns;
	struct pool *const pool = disk->writer->pool;

	if (disk->stopping)
		return false;
	if (work->waits_for == EXFULL)
		return waited_ns < disk->writer->segment_wait_ns;
	return waited_ns < SPACE_WAIT_NS &&
	       pool__free_count(pool) > pool->count / SPACE_FREE_SHARE;
}

bool room__is_over(struct disk *disk, struct stream *stream)
{
	struct work *const work = &stream->work;
	const bool missing = work->waits_for == EXFULL;
	int answer;

	if (work->waits_for == 0)
		return true;
	answer = room__answer(stream, missing);
	if (answer == SPACE_UNANSWERED && room__may_wait(disk, work))
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
