/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include "shard.h"

/* How long data may wait while chunks are short and nothing can be written: the awaited shard
 * may have no chunk either. */
#define SHORT_WAIT_NS 50000000u

bool cut__is_needed(const struct stream *stream)
{
	uint32_t lanes = 0;

	if (!stream->ops->ordered || stream->snapshots)
		return false;
	for (uint32_t i = 0; i < SHARDS_MAX; i++)
		lanes += stream__lane(stream, i) != NULL;
	return lanes > 1;
}

void cut__end(struct cut *cut)
{
	cut->asked = cut->at_once = false;
	cut->held_ns = 0;
	store_relaxed(&cut->names, 0);
	store_relaxed(&cut->generation, 0);
}

/* Whether the item waits for the next segment. */
static bool cut__holds(const struct cut *cut, const struct item *item)
{
	const uint64_t generation = load_relaxed(&cut->generation);

	return generation != 0 && !item->names &&
	       (item->lane->cut_written == generation || load_relaxed(&cut->names) != 0);
}

/* Whether every lane has done what this step waits for. */
static bool cut__is_answered(const struct stream *stream)
{
	const struct cut *const cut = &stream->cut;
	const uint64_t generation = load_relaxed(&cut->generation);
	const bool named = load_relaxed(&cut->names) != 0;

	for (uint32_t i = 0; i < SHARDS_MAX; i++) {
		struct lane *const lane = stream__lane(stream, i);

		if (lane == NULL)
			continue;
		if (!named && lane->cut_written != generation)
			return false;
		/* Acquire twice; the partners are the releases in shard__let_go() and lane__answer(),
		 * before which it queued all that it read. */
		if (named && load_acquire(&lane->rings) > 0 &&
		    load_acquire(&lane->named) != generation)
			return false;
	}
	return true;
}

/* Move the first item that may be written to the head of the queue. False: there is none. */
static bool cut__pick(struct stream *stream)
{
	struct item **at = &stream->first, *item;

	while (*at != NULL && cut__holds(&stream->cut, *at))
		at = &(*at)->next;
	item = *at;
	if (item == NULL || at == &stream->first)
		return item != NULL;
	*at = item->next;
	if (stream->last == &item->next)
		stream->last = at;
	item->next = stream->first;
	stream->first = stream->unsent = item;
	return true;
}

static bool cut__is_late(const struct stream *stream, struct disk *disk, bool idle)
{
	const struct cut *const cut = &stream->cut;
	const uint64_t held_ns = cut->held_ns != 0 ? clock__now_ns() - cut->held_ns : 0;

	return disk->stopping || cut->at_once || held_ns > disk->writer->cut_wait_ns ||
	       (idle && held_ns > SHORT_WAIT_NS &&
		pool__is_short(disk->writer->pool, &stream->data_share));
}

bool cut__lets(struct stream *stream, struct disk *disk)
{
	struct cut *const cut = &stream->cut;
	bool answered, picked;

	cut->next = CUT_WAITS;
	if (cut->asked) {
		cut->next = CUT_BEGINS;
		return true;
	}
	/* Read this before the queue: then the items of the lanes that answered are in it. */
	answered = cut__is_answered(stream);
	picked = cut__pick(stream);
	if (cut__is_late(stream, disk, !picked))
		cut->next = CUT_LATE;
	else if (picked)
		return true;
	else if (answered)
		cut->next = load_relaxed(&cut->names) != 0 ? CUT_NAMED : CUT_AT_BOUNDARY;
	return cut->next != CUT_WAITS;
}

void cut__step(struct disk *disk, struct stream *stream)
{
	struct writer *const writer = disk->writer;
	struct cut *const cut = &stream->cut;
	const enum cut_step step = cut->next;

	cut->next = CUT_WAITS;
	switch (step) {
	case CUT_BEGINS:
		cut->asked = false;
		/* Release, as is the issue; the partner is the acquire in lane__begin_pass(). If
		 * another thread issues this generation meanwhile, a lane that did not know of the
		 * cut ends with the next one. */
		store_release(&cut->generation, load_acquire(&writer->generation) + 1);
		writer__issue(writer);
		break;
	case CUT_AT_BOUNDARY:
		/* Release; the partner is the acquire in lane__begin_pass(): the heads loaded then
		 * are behind the names of all queued samples. */
		store_release(&cut->names, load_relaxed(&cut->generation));
		for (uint32_t i = 0; i < writer->shard_count; i++)
			if (stream__lane(stream, i) != NULL)
				shard__poke(writer->shards[i]);
		break;
	default:
		stream__turn(stream, step == CUT_LATE);
	}
}

void cut__pass(struct cut *cut, const struct item *item)
{
	if (item->cut == 0 || item->cut != load_relaxed(&cut->generation))
		return;
	item->lane->cut_written = item->cut;
	if (cut->held_ns == 0)
		cut->held_ns = clock__now_ns();
}
