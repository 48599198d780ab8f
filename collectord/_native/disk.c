/* SPDX-License-Identifier: Apache-2.0 */
#include "writer.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A step for a stream, taken without the lock. */
typedef void disk_step_fn(struct disk *disk, struct stream *stream);

void disk__init(struct disk *disk, struct writer *writer, dev_t device)
{
	pthread_condattr_t attr;

	memset(disk, 0, sizeof(*disk));
	disk->writer = writer;
	disk->device = device;
	store_relaxed(&disk->chunks, WRITE_CHUNKS / 2);
	/* If that is refused, writes are made one at a time. */
	(void)syscall(SYS_io_setup, (long)WRITES_MAX, &disk->aio);
	pthread_mutex_init(&disk->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&disk->wake, &attr);
	pthread_condattr_destroy(&attr);
}

void disk__deinit(struct disk *disk)
{
	if (disk->aio != 0)
		syscall(SYS_io_destroy, disk->aio);
	pthread_cond_destroy(&disk->wake);
	pthread_mutex_destroy(&disk->lock);
	memset(disk, 0, sizeof(*disk));
}

static struct disk *disk__lock(struct stream *stream)
{
	for (;;) {
		struct disk *const disk = atomic_load(&stream->disk);

		pthread_mutex_lock(&disk->lock);
		if (disk == atomic_load(&stream->disk))
			return disk;
		pthread_mutex_unlock(&disk->lock);
	}
}

void disk__queue(struct stream *stream, struct item *item, bool wakes)
{
	struct disk *disk;
	bool waits;

	item->next = NULL;
	item->queued_ns = clock__now_ns();
	disk = disk__lock(stream);
	*stream->last = item;
	stream->last = &item->next;
	if (stream->unsent == NULL)
		stream->unsent = item;
	waits = flight__holds(disk, stream);
	pthread_mutex_unlock(&disk->lock);
	/* Outside of the lock, because the woken thread would only wait for it. */
	if (wakes && !waits)
		pthread_cond_signal(&disk->wake);
}

void disk__poke(struct disk *disk)
{
	HOLD(&disk->lock);
	disk->poked = true;
	pthread_cond_signal(&disk->wake);
}

void disk__move(struct stream *stream, struct disk *to)
{
	struct disk *const from = disk__lock(stream);

	if (from != to && from->at != stream && stream->sent.items == 0)
		atomic_store(&stream->disk, to);
	pthread_mutex_unlock(&from->lock);
	disk__poke(to);
}

bool disk__is_done(struct stream *stream)
{
	struct disk *const disk = disk__lock(stream);
	const bool done = disk->at != stream && stream->first == NULL && stream->finished;

	pthread_mutex_unlock(&disk->lock);
	return done;
}

/* Under the lock: returns the stream at this place if it is on the disk; else NULL. */
static struct stream *disk__stream(const struct disk *disk, uint32_t place)
{
	struct stream *const stream = writer__stream(disk->writer, place);

	return stream != NULL && atomic_load(&stream->disk) == disk ? stream : NULL;
}

uint64_t disk__waits_ns(struct stream *stream)
{
	struct disk *const disk = disk__lock(stream);
	const bool waits = stream->first != NULL &&
			   !(stream->first == stream->unsent && flight__holds(disk, stream));
	const uint64_t queued_ns = waits ? stream->first->queued_ns : 0;

	pthread_mutex_unlock(&disk->lock);
	return queued_ns != 0 ? clock__now_ns() - queued_ns : 0;
}

static void disk__pop(struct disk *disk, struct stream *stream)
{
	HOLD(&disk->lock);
	if (stream->unsent == stream->first)
		stream->unsent = stream->first->next;
	stream->first = stream->first->next;
	if (stream->first == NULL)
		stream->last = &stream->first;
}

static void disk__process(struct disk *disk, struct stream *stream)
{
	struct item *const item = stream->first;
	const bool done = work__write(disk, stream, item);

	flight__look(disk);
	if (!done)
		return;
	stream->settling = false;
	disk__pop(disk, stream);
	work__end(disk, stream, item);
}

/* Complete the first item, which was written. */
static void disk__reap(struct disk *disk, struct stream *stream)
{
	struct item *const item = stream->first;
	struct chunk *const chunk = item->chunk;

	disk__pop(disk, stream);
	stream->sent.items--;
	stream->sent.bytes -= chunk->flight.bytes;
	stream->sent.pieces -= chunk->piece_count;
	stream->ops->land(stream, chunk);
	work__count(disk, stream, chunk->flight.bytes, chunk->flight.ns);
	work__end(disk, stream, item);
}

/* Write all sent items again, one by one, so that none behind the refused one counts as begun. */
static void disk__recall(struct disk *disk, struct stream *stream)
{
	stream->sent = (struct sent){0};
	stream->ops->recall(stream);
	HOLD(&disk->lock);
	/* A successor does not write them where others may be by then. */
	for (const struct item *item = stream->first; item != stream->unsent; item = item->next)
		chunk__aim(item->chunk, 0, 0);
	stream->unsent = stream->first;
}

static void disk__tell(struct disk *disk, struct stream *stream)
{
	(void)disk;
	stream__tell(stream);
}

/* Under the lock: whether the others let this stream pass. A long queue shares the disk, and so
 * does one that waits for room. */
static bool disk__leads(const struct disk *disk, struct stream *stream)
{
	const uint64_t now_ns = clock__now_ns();
	uint32_t count = 0;

	if (!load_relaxed(&stream->hurries) || disk->stopping) {
		stream->hurried_ns = 0;
		return false;
	}
	for (const struct item *item = stream->first; item != NULL; item = item->next)
		if (++count > load_relaxed(&disk->chunks))
			return false;
	if (stream->work.waits_for != 0)
		return false;
	if (stream->hurried_ns == 0)
		stream->hurried_ns = now_ns;
	return now_ns - stream->hurried_ns < disk->writer->hurry_ns;
}

/* Under the lock: whether streams that do not hurry begin no write. */
static bool disk__is_reserved(const struct disk *disk)
{
	bool reserved = false;

	for (uint32_t i = 0; i < writer__streams(disk->writer); i++) {
		struct stream *const stream = disk__stream(disk, i);

		if (stream != NULL && disk__leads(disk, stream))
			reserved = true;
	}
	return reserved;
}

/* Under the lock: whether its chunks wait for the reserved segment, however long that takes. */
static bool disk__waits_to_begin(const struct disk *disk, struct stream *stream)
{
	if (!load_relaxed(&stream->reserved) || load_relaxed(&stream->begun) || disk->stopping ||
	    stream->first->chunk == NULL)
		return false;
	HOLD(&stream->lock);
	return !stream->finish_wanted;
}

/* Decide the next step, under the lock; NULL: no step before something else happens. `held`: it
 * begins no write. */
static disk_step_fn *disk__step(struct disk *disk, struct stream *stream, bool held, bool *waits)
{
	const bool cuts = stream->cut.asked || load_relaxed(&stream->cut.generation) != 0;

	if (stream->tells)
		return disk__tell;
	stream->gathers = cuts ? 0 : flight__gathers(disk, stream);
	if (stream->first == NULL && !cuts)
		return NULL;
	if (stream->first != NULL && disk__waits_to_begin(disk, stream))
		return NULL;
	if (stream->sent.items == 0) {
		if (!work__is_ready(disk, stream) ||
		    (cuts && stream->work.since_ns == 0 && !cut__lets(stream, disk))) {
			*waits = true;
			return NULL;
		}
		if (cuts && stream->cut.next != CUT_WAITS)
			return cut__step;
		if (held) {
			*waits = true;
			return NULL;
		}
		if (cuts)
			return disk__process;
		if (flight__holds(disk, stream))
			return NULL;
		return flight__may_send(disk, stream) ? flight__send : disk__process;
	}
	if (stream->first->chunk->flight.landed) {
		if (!stream->first->chunk->flight.refused)
			return disk__reap;
		stream->settling = true;
		return flight__have_landed(stream) ? disk__recall : NULL;
	}
	if (held || flight__holds(disk, stream))
		return NULL;
	return flight__may_send(disk, stream) ? flight__send : NULL;
}

/* Under the lock: returns the first rank that has items, while chunks are short; otherwise, or if
 * all items are of one rank, RANKS. */
static uint32_t disk__favoured(struct disk *disk)
{
	uint32_t first = RANKS, last = 0;

	for (uint32_t i = 0; i < writer__streams(disk->writer); i++) {
		struct stream *const stream = disk__stream(disk, i);
		uint32_t rank;

		if (stream == NULL || stream->first == NULL)
			continue;
		rank = load_relaxed(&stream->data_share.rank);
		first = rank < first ? rank : first;
		last = rank > last ? rank : last;
	}
	return first < last && pool__is_short(disk->writer->pool, NULL) ? first : RANKS;
}

/* Under the lock: whether a write of this rank is in flight: then the disk is not idle while others
 * wait. */
static bool disk__writes(const struct disk *disk, uint32_t rank)
{
	for (uint32_t i = 0; i < writer__streams(disk->writer); i++) {
		const struct stream *const stream = disk__stream(disk, i);

		if (stream != NULL && stream->sent.items > 0 &&
		    load_relaxed(&stream->data_share.rank) == rank)
			return true;
	}
	return false;
}

/* Under the lock: returns the stream whose turn it is, or NULL; only of the ranks `from` to `to` does
 * one begin a write. `next`: index of the next stream; `waits`: one has items that must wait. */
static struct stream *disk__turn(struct disk *disk, uint32_t from, uint32_t to, uint32_t *next,
				 disk_step_fn **step, bool *waits)
{
	const uint32_t count = writer__streams(disk->writer);
	const bool reserved = disk__is_reserved(disk);

	*waits = false;
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t turn = (*next + i) % count;
		struct stream *const stream = disk__stream(disk, turn);
		uint32_t rank;

		if (stream == NULL)
			continue;
		rank = load_relaxed(&stream->data_share.rank);
		*step = disk__step(disk, stream,
				   rank < from || rank > to ||
					   (reserved && !load_relaxed(&stream->hurries)),
				   waits);
		if (*step != NULL) {
			*next = turn + 1;
			return stream;
		}
	}
	return NULL;
}

/* Under the lock: the same for all ranks. While chunks are short the first rank that has items goes
 * first, but for one turn of TURNS_OF_RANK, and others begin a write when it has none to write. */
static struct stream *disk__next(struct disk *disk, disk_step_fn **step, bool *waits)
{
	const uint32_t favoured = disk__favoured(disk);
	const bool others_first = disk->favours + 1 >= TURNS_OF_RANK;
	struct stream *stream = NULL;
	uint32_t others = favoured + 1;

	if (favoured == RANKS) {
		disk->favours = 0;
		return disk__turn(disk, 0, RANKS, &disk->turn, step, waits);
	}
	if (!others_first) {
		stream = disk__turn(disk, 0, favoured, &disk->turn, step, waits);
		if (disk__writes(disk, favoured))
			others = RANKS; /* none */
	}
	if (stream == NULL)
		stream = disk__turn(disk, others, RANKS, &disk->others_turn, step, waits);
	if (stream == NULL && others_first)
		stream = disk__turn(disk, 0, favoured, &disk->turn, step, waits);
	if (stream != NULL && (*step == disk__process || *step == flight__send)) {
		const bool other = load_relaxed(&stream->data_share.rank) > favoured;

		disk->favours = other ? 0 : disk->favours + 1;
	}
	return stream;
}

/* Serve requests, under the lock. True: a request is left for later. */
static bool disk__serve(struct disk *disk)
{
	struct writer *const writer = disk->writer;
	bool left = false;

	for (uint32_t i = 0; i < writer__streams(writer); i++) {
		struct stream *const stream = disk__stream(disk, i);

		if (stream == NULL)
			continue;
		/* A segment does not end before all writes sent to it have completed. */
		left |= stream->sent.items > 0 || stream__serve(stream);
		/* Its last ring may have left, so that no flush follows. */
		stream->tells = stream__has_news(stream);
		if (stream->finished) {
			pool__leave(writer->pool, &stream->data_share);
			pool__leave(writer->pool, &stream->sideband_share);
		}
	}
	return left;
}

/* Under the lock: wait for an item, a poke, or the next check of a waiting item. */
static void disk__sleep(struct disk *disk, bool waits)
{
	const uint64_t until_ns = clock__now_ns() + WORK_LOOK_NS;
	const struct timespec until = {
		.tv_sec = (time_t)(until_ns / 1000000000u),
		.tv_nsec = (long)(until_ns % 1000000000u),
	};

	if (waits)
		pthread_cond_timedwait(&disk->wake, &disk->lock, &until);
	else
		pthread_cond_wait(&disk->wake, &disk->lock);
}

static void *disk__run(void *context)
{
	struct disk *const disk = context;

	pthread_setname_np(pthread_self(), "writer");
	pthread_mutex_lock(&disk->lock);
	for (;;) {
		disk_step_fn *step = NULL;
		bool waits;
		struct stream *const stream = disk__next(disk, &step, &waits);

		if (stream == NULL && !disk->poked) {
			if (disk->in_flight > 0) {
				step = flight__await;
			} else if (disk->stopping) {
				break;
			} else {
				disk__sleep(disk, waits);
				continue;
			}
		}
		if (step != NULL) {
			disk->at = stream;
			pthread_mutex_unlock(&disk->lock);
			step(disk, stream);
			pthread_mutex_lock(&disk->lock);
			disk->at = NULL;
		}
		if (disk->poked || disk->left) {
			disk->poked = false;
			disk->left = disk__serve(disk);
		}
	}
	pthread_mutex_unlock(&disk->lock);
	return NULL;
}

int disk__start(struct disk *disk)
{
	const int ret = thread__start(&disk->thread, disk__run, disk);

	disk->running = ret == 0;
	return ret;
}

void disk__stop(struct disk *disk)
{
	if (!disk->running)
		return;
	pthread_mutex_lock(&disk->lock);
	disk->stopping = true;
	pthread_cond_signal(&disk->wake);
	pthread_mutex_unlock(&disk->lock);
	pthread_join(disk->thread, NULL);
	disk->running = false;
}
