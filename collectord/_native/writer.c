/* SPDX-License-Identifier: Apache-2.0 */
#include "writer.h"

#include <string.h>
#include <sys/stat.h>

#include "event_list.h"
#include "shard.h"

#define SEGMENT_WAIT_NS 10000000000u
#define CUT_WAIT_NS 1000000000u
#define HURRY_NS 1000000000u
/* A disk on which a write takes less gets longer ones. */
#define FAST_NS 10000000u

void writer__init(struct writer *writer, struct pool *pool, struct event_list *events,
		  uint64_t flush_ns)
{
	memset(writer, 0, sizeof(*writer));
	writer->pool = pool;
	writer->events = events;
	writer->flush_ns = flush_ns;
	writer->segment_wait_ns = SEGMENT_WAIT_NS;
	writer->cut_wait_ns = CUT_WAIT_NS;
	writer->hurry_ns = HURRY_NS;
	writer->fast_ns = FAST_NS;
	writer->issued_ns = clock__now_ns();
	disk__init(&writer->disks[0], writer, 0);
	writer->disk_count = 1;
}

void writer__deinit(struct writer *writer)
{
	for (uint32_t i = 0; i < writer->disk_count; i++)
		disk__deinit(&writer->disks[i]);
	memset(writer, 0, sizeof(*writer));
}

uint32_t writer__streams(const struct writer *writer)
{
	/* Acquire; the partner is the release in writer__add(). */
	return load_acquire(&writer->stream_count);
}

struct stream *writer__stream(const struct writer *writer, uint32_t place)
{
	/* Acquire; the partner is the release in writer__add(). */
	return load_acquire(&writer->streams[place]);
}

void writer__add(struct writer *writer, struct stream *stream)
{
	const uint32_t place = stream->id % STREAMS_MAX;

	/* It has no data of earlier generations. */
	stream->ended = load_acquire(&writer->generation);
	stream->ended_ns[0] = stream->ended_ns[1] = clock__now_ns();
	atomic_store(&stream->disk, &writer->disks[0]);
	/* Release; the partner is the acquire in writer__stream(). */
	store_release(&writer->streams[place], stream);
	if (place >= writer__streams(writer))
		/* Release; the partner is the acquire in writer__streams(). */
		store_release(&writer->stream_count, place + 1);
}

bool writer__forget(struct writer *writer, struct stream *stream)
{
	if (!disk__is_done(stream))
		return false;
	atomic_store(&writer->streams[stream->id % STREAMS_MAX], NULL);
	/* A thread that found it there before holds one of these locks. */
	for (uint32_t i = 0; i < writer__disks(writer); i++) {
		pthread_mutex_lock(&writer->disks[i].lock);
		pthread_mutex_unlock(&writer->disks[i].lock);
	}
	return true;
}

/* Returns a queue that no stream uses, and whose thread therefore has nothing to write. */
static struct disk *writer__unused(struct writer *writer)
{
	bool used[DISKS_MAX] = {false};
	uint32_t unused = 0;

	for (uint32_t i = 0; i < writer__streams(writer); i++) {
		struct stream *const stream = writer__stream(writer, i);

		if (stream != NULL)
			used[atomic_load(&stream->disk) - writer->disks] = true;
	}
	while (used[unused])
		unused++;
	return &writer->disks[unused];
}

struct disk *writer__disk(struct writer *writer, dev_t device)
{
	const uint32_t count = writer->disk_count;
	struct disk *disk;

	if (writer->disks[0].device == 0)
		writer->disks[0].device = device;
	for (uint32_t i = 0; i < count; i++)
		if (writer->disks[i].device == device)
			return &writer->disks[i];
	if (count == DISKS_MAX) {
		disk = writer__unused(writer);
		disk->device = device;
		return disk;
	}
	disk = &writer->disks[count];
	disk__init(disk, writer, device);
	if (writer->disks[0].running && disk__start(disk) < 0) {
		disk__deinit(disk);
		return NULL;
	}
	/* Release; the partner is the acquire in writer__disks(). */
	store_release(&writer->disk_count, count + 1);
	return disk;
}

void writer__place(struct writer *writer, struct stream *stream, struct segment *segment)
{
	struct disk *disk;
	struct stat status;

	if (fstat(segment__fd(segment), &status) < 0)
		return;
	segment->file = status.st_ino;
	pool__note_file(writer->pool, stream->id, status.st_dev, status.st_ino);
	disk = writer__disk(writer, status.st_dev);
	if (disk != NULL)
		disk__move(stream, disk);
}

uint32_t writer__disks(const struct writer *writer)
{
	/* Acquire; the partner is the release in writer__disk(). */
	return load_acquire(&writer->disk_count);
}

void writer__poke(struct writer *writer)
{
	for (uint32_t i = 0; i < writer__disks(writer); i++)
		disk__poke(&writer->disks[i]);
}

void writer__wake(struct writer *writer)
{
	for (uint32_t i = 0; i < writer__disks(writer); i++)
		pthread_cond_signal(&writer->disks[i].wake);
}

/* Wake the shards; `but` begins the pass itself. */
static uint64_t writer__begin(struct writer *writer, uint64_t generation, const struct shard *but)
{
	for (uint32_t i = 0; i < writer->shard_count; i++)
		if (writer->shards[i] != but)
			shard__poke(writer->shards[i]);
	/* The follower learns of this generation when it is done; later, if the last one is not. */
	if (writer__drained(writer) + 1 < generation && writer__is_followed(writer, generation - 1))
		event_list__poke(writer->events);
	return generation;
}

uint64_t writer__issue(struct writer *writer)
{
	uint64_t before = load_relaxed(&writer->generation);

	store_relaxed(&writer->issued_ns, clock__now_ns());
	do
		store_relaxed(&writer->asked, before + 1);
	/* Release; the partner is the acquire in shard__run(): with the generation it sees the
	 * request. */
	while (!atomic_compare_exchange_weak_explicit(&writer->generation, &before, before + 1,
						      memory_order_release, memory_order_relaxed));
	return writer__begin(writer, before + 1, NULL);
}

bool writer__is_asked(const struct writer *writer, uint64_t done)
{
	return done < load_relaxed(&writer->asked);
}

bool writer__is_followed(const struct writer *writer, uint64_t generation)
{
	/* It only rises: a thread that sees an old value reports one end too many. */
	return load_relaxed(&writer->followed) <= generation;
}

void writer__issue_due(struct writer *writer, const struct shard *shard, uint64_t slack_ns)
{
	uint64_t issued_ns = load_relaxed(&writer->issued_ns);
	const uint64_t now_ns = clock__now_ns();

	/* If several shards are due, one issues it. */
	if (now_ns >= issued_ns + writer->flush_ns + slack_ns &&
	    atomic_compare_exchange_strong(&writer->issued_ns, &issued_ns, now_ns))
		/* Release; the partner is the acquire in shard__run(). */
		writer__begin(
			writer,
			atomic_fetch_add_explicit(&writer->generation, 1, memory_order_release) + 1,
			shard);
}

uint64_t writer__drained(const struct writer *writer)
{
	uint64_t done = load_acquire(&writer->generation);

	for (uint32_t i = 0; i < writer->shard_count; i++)
		done = least(done, shard__drained(writer->shards[i]));
	return done;
}

uint64_t writer__oldest_ns(struct writer *writer)
{
	uint64_t oldest_ns = 0;

	for (uint32_t i = 0; i < writer__streams(writer); i++) {
		struct stream *const stream = writer__stream(writer, i);
		const uint64_t waits_ns = stream != NULL ? disk__waits_ns(stream) : 0;

		if (waits_ns > oldest_ns)
			oldest_ns = waits_ns;
	}
	return oldest_ns;
}

int writer__start(struct writer *writer)
{
	int ret = 0;

	for (uint32_t i = 0; ret == 0 && i < writer->disk_count; i++)
		ret = disk__start(&writer->disks[i]);
	return ret;
}

void writer__stop(struct writer *writer)
{
	for (uint32_t i = 0; i < writer->disk_count; i++)
		disk__stop(&writer->disks[i]);
}
