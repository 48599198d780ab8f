/* SPDX-License-Identifier: Apache-2.0 */
#include "relay_ring.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#define GONE_EVENTS (POLLERR | POLLHUP | POLLNVAL)

static void relay_ring__free(struct ring *ring)
{
	struct relay_ring *const relay = relay_ring__of(ring);

	sums__deinit(&relay->file.sums);
	free(relay->own);
	free(relay);
}

static uint8_t *relay_ring__slot(const struct relay_ring *relay, uint64_t turn)
{
	return relay->options.slots + (turn & 1) * RELAY_SLOT_BYTES;
}

/* Begin where an earlier process has noted that it stopped. */
static void relay_ring__resume(struct relay_ring *relay)
{
	struct relay_note *const note = relay->options.note;
	const uint64_t turn = load_acquire(&note->turn);
	const uint64_t position = note->at[turn & 1].position;

	store_relaxed(&note->serial, 0);
	relay->taken = note->at[turn & 1].samples;
	relay->state.sequence = (uint32_t)position;
	relay->carry = relay_ring__slot(relay, turn);
	relay->position = walk__load(relay->carry + RELAY_SLOT_BYTES - sizeof(uint64_t));
	/* The memory was another process's. */
	if (position >> 32 <= BLK_RECORD_BYTES_MAX)
		relay->carry_bytes = (uint32_t)(position >> 32);
	relay->placed = turn == 0;
}

int relay_ring__new(const struct relay_ring_options *options, struct ring **out)
{
	struct relay_ring *relay;

	if (options->capacity == 0 || options->longest > BLK_RECORD_BYTES_MAX)
		return -EINVAL;
	if (options->note != NULL && (options->contents != RELAY_BLKTRACE || options->slots == NULL))
		return -EINVAL;
	relay = calloc(1, sizeof(*relay));
	if (relay == NULL)
		return -ENOMEM;
	ring__init(&relay->ring, &relay_ring__ops, options->fd);
	relay->options = *options;
	relay->file.fd = -1;
	/* A newly set up trace: its first number is 1, and there was no other reader. */
	relay->state.begun = relay->placed = options->contents == RELAY_BLKTRACE;
	relay->carry = relay->own = malloc(BLK_RECORD_BYTES_MAX);
	if (sums__init(&relay->file.sums) < 0 || relay->own == NULL) {
		relay_ring__free(&relay->ring);
		return -ENOMEM;
	}
	if (options->note != NULL)
		relay_ring__resume(relay);
	*out = &relay->ring;
	return 0;
}

static void relay_ring__begin(struct ring *ring)
{
	struct relay_ring *relay = relay_ring__of(ring);
	const uint64_t capacity = relay->options.capacity;
	struct pollfd look = {.fd = relay->options.fd, .events = POLLIN};
	struct stat status;

	ring__count_fill(ring, least(relay->pass_bytes, capacity), capacity);
	relay->pass_bytes = 0;
	/* The generation's goal: the channel may hold this much. */
	ring->head = ring->position + (ring->first && !relay->ended ? capacity : 0);
	/* Polled before the read: data written before the end are then readable. */
	if (ring->swept && !relay->ended && !relay->ending && poll(&look, 1, 0) > 0 &&
	    (look.revents & GONE_EVENTS) != 0)
		relay->ending = true;
	if (fstat(relay->options.fd, &status) == 0)
		relay->completed = (uint64_t)status.st_size;
	if (ring->first) {
		relay->quiet = relay->completed == relay->last_completed;
		relay->last_completed = relay->completed;
	}
	relay->partly = ring->last || relay->ending || relay->completed == 0 ||
			(ring->swept && relay->quiet && relay->completed == relay->last_completed);
}

static bool relay_ring__is_unread(const struct ring *ring)
{
	return !relay_ring__of(ring)->ended; /* only a read tells */
}

static void relay_ring__count(struct relay_ring *relay, struct chunk *chunk, uint32_t bytes,
			      const struct blk_tally *tally)
{
	struct ring *const ring = &relay->ring;
	const uint64_t records = tally->events + tally->notes;

	chunk__append(chunk,
		      &(struct span){.ring = ring,
				     .samples = tally->events,
				     .bytes = bytes,
				     .records = records,
				     .first_ns = tally->first_ns,
				     .last_ns = tally->last_ns},
		      false);
	counter__add(&relay->numbered, tally->numbered);
	counter__add(&relay->missing, tally->missing);
	/* Release; the partners are the loads in Ring.counters(), each of which acquires: a
	 * record counted below is included in numbers read after it. */
	atomic_thread_fence(memory_order_release);
	ring__count(ring, tally->events, records, bytes);
	counter__max(&ring->last_sample_ns, tally->last_ns);
	ring->position += bytes;
}

/* Returns where a record may begin, since `data`, at least four bytes, is none; counts the bytes
 * before it. */
static uint32_t relay_ring__skip(struct relay_ring *relay, const uint8_t *data, uint32_t bytes)
{
	uint32_t skipped = 1;

	/* The last three may be the first bytes of a record. */
	while (skipped + 3 < bytes && load32(data + skipped) != BLK_MAGIC)
		skipped++;
	relay->astray_bytes += skipped;
	counter__add(&relay->torn_bytes, skipped);
	return skipped;
}

/* Note for a successor that `room` bytes are about to be read behind the start of a record. */
static void relay_ring__announce(struct relay_ring *relay, struct chunk *chunk, uint32_t room)
{
	struct relay_note *const note = relay->options.note;
	const uint32_t begin = chunk->used + relay->carry_bytes, end = begin + room;
	const uint32_t edge = room < RELAY_EDGE_BYTES ? room : RELAY_EDGE_BYTES;

	if (note == NULL)
		return;
	memset(chunk->data + end - edge, 0, edge);
	note->span = (uint64_t)chunk->used << 32 | end;
	/* Release: with the serial the span is valid. The partner is the kill. */
	store_release(&note->serial, load_relaxed(&chunk->note->serial));
}

/* Note for a successor what has been read and counted: first what is in the chunk, then what left
 * the kernel, and last that no read is under way. So a kill in between shows too much, not too
 * little, and the numbers tell which records these are. */
static void relay_ring__note(struct relay_ring *relay, struct chunk *chunk)
{
	struct relay_note *const note = relay->options.note;
	uint64_t turn;

	if (note == NULL)
		return;
	chunk__publish(chunk);
	turn = load_relaxed(&note->turn) + 1;
	note->at[turn & 1].position = relay->state.sequence | (uint64_t)relay->carry_bytes << 32;
	note->at[turn & 1].samples = relay->taken + counter__read(&relay->ring.samples);
	relay->carry = relay_ring__slot(relay, turn);
	walk__store(relay->carry + RELAY_SLOT_BYTES - sizeof(uint64_t), relay->position);
	/* Release: a kill leaves the old pair and slot or the new ones. The partner is the kill. */
	store_release(&note->turn, turn);
	store_release(&note->serial, 0);
}

/* Returns where the start of the next incomplete record goes. */
static uint8_t *relay_ring__next_carry(const struct relay_ring *relay)
{
	const struct relay_note *const note = relay->options.note;

	if (note == NULL)
		return relay->own;
	return relay_ring__slot(relay, load_relaxed(&note->turn) + 1);
}

/* Move the whole records together at `data`, and keep the start of the next one. Returns their
 * bytes. */
static uint32_t relay_ring__sort(struct relay_ring *relay, uint8_t *data, uint32_t bytes,
				 struct blk_tally *tally, enum fault *fault)
{
	uint32_t at = 0, kept = 0;

	for (;;) {
		const uint32_t whole = (uint32_t)blk__run(
			data + at, bytes - at, relay->options.longest, &relay->state, tally, fault);

		if (kept != at)
			memmove(data + kept, data + at, whole);
		kept += whole;
		at += whole;
		if (whole > 0)
			relay->astray_bytes = 0;
		if (*fault == FAULT_NONE || *fault == BLK_OLD_MAGIC)
			break;
		at += relay_ring__skip(relay, data + at, bytes - at);
		if (relay->astray_bytes > BLK_RECORD_BYTES_MAX)
			break;
		*fault = FAULT_NONE;
		if (bytes - at < 4)
			break;
	}
	relay->carry_bytes = bytes - at;
	if (*fault == FAULT_NONE)
		memcpy(relay_ring__next_carry(relay), data + at, relay->carry_bytes);
	return kept;
}

/* Add the whole records among the `bytes` behind the used ones to the chunk, and keep the rest. */
static enum fault relay_ring__accept(struct relay_ring *relay, struct chunk *chunk, uint32_t bytes)
{
	uint8_t *data = chunk->data + chunk->used;
	struct blk_tally tally = {0};
	enum fault fault = FAULT_NONE;
	uint32_t whole = bytes;

	if (relay->options.contents == RELAY_BYTES) {
		tally.events = bytes;
	} else {
		whole = relay_ring__sort(relay, data, bytes, &tally, &fault);
		MUTATE(whole = mutation__blktrace(data, whole, &tally));
	}
	if (whole > 0)
		relay_ring__count(relay, chunk, whole, &tally);
	return fault;
}

/* Drop the start of a record whose end will not come. */
static void relay_ring__drop_carry(struct relay_ring *relay)
{
	counter__add(&relay->torn_bytes, relay->carry_bytes);
	relay->carry_bytes = 0;
}

/* Count the incomplete record, and, if the ring was not `drained`, unread bytes. */
static void relay_ring__leave(struct ring *ring, bool drained)
{
	struct relay_ring *relay = relay_ring__of(ring);

	/* Bytes left behind by a fault are in quarantine. A successor reads on where the note is. */
	if (!ring__is_sound(ring) || (relay->options.note != NULL && !relay->ended))
		return;
	relay_ring__drop_carry(relay);
	if (!drained && relay->placed && relay->position < relay->completed)
		counter__add(&relay->skipped_bytes, relay->completed - relay->position);
}

/* Note that all data of the pass's start are read. */
static void relay_ring__place(struct relay_ring *relay)
{
	if (relay->position < relay->completed) {
		if (relay->placed)
			counter__add(&relay->skipped_bytes, relay->completed - relay->position);
		relay->position = relay->completed;
	}
	relay->placed = true;
}

static enum ring_take relay_ring__take(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes)
{
	struct relay_ring *relay = relay_ring__of(ring);
	/* Room for the rest of the incomplete record, and for the start of the next. */
	const uint32_t least_room = relay->options.contents == RELAY_BLKTRACE ? BLK_RECORD_BYTES_MAX
									      : CHUNK_ALIGN_BYTES;

	while (relay->pass_bytes < relay->options.capacity) {
		uint8_t *const data = chunk->data + chunk->used;
		uint32_t room = chunk_bytes - chunk->used;
		enum fault fault;
		ssize_t n;
		bool gone;

		if (room < least_room)
			return RING_CHUNK_FULL;
		room -= relay->carry_bytes;
		if (!relay->partly) {
			if (relay->position >= relay->completed)
				return RING_EMPTY;
			room = (uint32_t)least(relay->completed - relay->position, room);
		}
		memcpy(data, relay->carry, relay->carry_bytes);
		relay_ring__announce(relay, chunk, room);
		n = TEMP_FAILURE_RETRY(read(relay->options.fd, data + relay->carry_bytes, room));
		gone = n < 0 && errno != EAGAIN;
		if (n > 0) {
			relay->pass_bytes += (uint64_t)n;
			relay->position += (uint64_t)n;
		}
		if (n < (ssize_t)room && !gone)
			relay_ring__place(relay);
		if (n <= 0) {
			/* Whether all data that will ever come were read. */
			relay->ended = gone || relay->ending;
			if (relay->ended) {
				relay_ring__drop_carry(relay);
				store_relaxed(&ring->hung_up, true);
			}
			if (relay->options.note != NULL)
				store_relaxed(&relay->options.note->serial, 0);
			return RING_EMPTY;
		}
		fault = relay_ring__accept(relay, chunk, relay->carry_bytes + (uint32_t)n);
		if (fault != FAULT_NONE) {
			/* Continue behind the data read. */
			ring__refuse(ring, fault, relay->carry_bytes);
			relay->carry_bytes = 0;
			relay->astray_bytes = 0;
			relay_ring__note(relay, chunk);
			return RING_FAULTY;
		}
		relay_ring__note(relay, chunk);
		if ((uint32_t)n < room && !relay->ending)
			return RING_EMPTY;
	}
	return RING_EMPTY;
}

static void relay_ring__wake(struct ring *ring, uint32_t events)
{
	relay_ring__of(ring)->ending |= (events & (EPOLLERR | EPOLLHUP)) != 0;
}

const struct ring_ops relay_ring__ops = {
	.poll = EPOLLIN | EPOLLET,
	.waits = true,
	.stream = &relay_stream__ops,
	.begin = relay_ring__begin,
	.is_unread = relay_ring__is_unread,
	.take = relay_ring__take,
	.wake = relay_ring__wake,
	.leave = relay_ring__leave,
	.free = relay_ring__free,
};
