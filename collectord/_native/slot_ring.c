/* SPDX-License-Identifier: Apache-2.0 */
#include "slot_ring.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "stream.h"

#define NUMBERS (UINT64_C(1) << SLOT_NUMBER_BITS)
/* How often a slot that is being written is looked at again, and how often in a window. */
#define LOOKS_MAX 64u
#define LOOKS_OF_ALL_MAX 65536u
/* Slots from the oldest on in which the beginning of a record is looked for. */
#define OLDEST_SLOTS 64u
/* A record has its time before it has its slot, and what interrupts it has a later one. */
#define DISORDER_NS 10000000u

#define SAMPLE_HEAD_BYTES 48u /* header, id, ip, pid, tid, time, cpu, 0 */
#define RAW_HEAD_BYTES 4u     /* u32 size */
#define UNKNOWN_TASK UINT32_MAX

static uint32_t parts_of(const struct slot_kind *kind)
{
	return kind->bytes <= SLOT_FIRST_BYTES
		       ? 1
		       : 1 + (kind->bytes - SLOT_FIRST_BYTES + SLOT_MORE_BYTES - 1) /
					 SLOT_MORE_BYTES;
}

static uint32_t sample_bytes(const struct slot_kind *kind)
{
	return (SAMPLE_HEAD_BYTES + RAW_HEAD_BYTES + kind->bytes + 7u) & ~7u;
}

static uint64_t slots_used(const struct slot_ring *own)
{
	/* Acquire; the partner is the order of stores of the program: the slots of all records
	 * before this head are theirs. */
	return __atomic_load_n(&own->head->slots, __ATOMIC_ACQUIRE);
}

static struct slot *copy_of(const struct slot_ring *own)
{
	return (struct slot *)(void *)own->window.copy;
}

static void slot_ring__unmap(struct slot_ring *own)
{
	if (own->window.copy != NULL)
		munmap(own->window.copy, own->window.copy_bytes);
	own->window.copy = NULL;
}

static void slot_ring__free(struct ring *ring)
{
	slot_ring__unmap(slot_ring__of(ring));
	perf_ring__free(ring);
}

static bool take_kinds(struct slot_ring *own, const struct slot_ring_options *options)
{
	if (options->kind_count >= SLOT_KINDS)
		return false;
	for (uint32_t i = 0; i < options->kind_count; i++) {
		const struct slot_kind *const kind = &options->kinds[i];

		if (kind->bytes == 0 || kind->bytes > SLOT_DATA_MAX ||
		    (kind->task_at != SLOT_NO_TASK && kind->task_at + sizeof(uint32_t) > kind->bytes))
			return false;
		own->kinds[i + 1] = *kind;
	}
	return true;
}

int slot_ring__new(const struct slot_ring_options *options, struct ring **out)
{
	const struct slot_map *const map = options->map;
	struct slot_ring *own;
	struct perf_ring_options perf = {.wakeup_fd = -1, .layout = options->layout};
	void *copy;

	if (options->cpu >= map->cpus)
		return -EINVAL;
	own = calloc(1, sizeof(*own));
	if (own == NULL)
		return -ENOMEM;
	own->none = (struct ring_map){.tail = &own->nowhere, .head = &own->nowhere};
	perf.map = &own->none;
	/* Without ids it cannot fail. */
	(void)perf_ring__init(&own->window.perf, &perf);
	own->window.perf.ring.ops = &slot_ring__ops;
	own->cpu = options->cpu;
	own->count = map->slots_each;
	own->head = &map->heads[options->cpu];
	own->slots = &map->slots[(size_t)options->cpu * map->slots_each];
	own->next = slots_used(own);
	own->known = __atomic_load_n(&own->head->records, __ATOMIC_ACQUIRE);
	own->window.copy_bytes = (size_t)own->count * sizeof(struct slot);
	own->window.seen_ns = clock__now_ns();
	counter__set(&own->window.perf.ring.horizon_ns, 0);
	if (!take_kinds(own, options)) {
		slot_ring__free(&own->window.perf.ring);
		return -EINVAL;
	}
	copy = mmap(NULL, own->window.copy_bytes, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copy == MAP_FAILED) {
		slot_ring__free(&own->window.perf.ring);
		return -ENOMEM;
	}
	own->window.copy = copy;
	*out = &own->window.perf.ring;
	return 0;
}

/* Copy a slot. One that is written meanwhile gets no mark. */
static void slot_ring__copy_slot(const struct slot *from, struct slot *to, uint32_t *looks)
{
	for (uint32_t look = 0;; look++) {
		/* Acquire; the partner is the order of the program's stores: the slot is whole. */
		const uint32_t mark = __atomic_load_n(&from->mark, __ATOMIC_ACQUIRE);

		to->time_ns = __atomic_load_n(&from->time_ns, __ATOMIC_RELAXED);
		for (int i = 0; i < 3; i++)
			to->data[i] = __atomic_load_n(&from->data[i], __ATOMIC_RELAXED);
		/* The copy is complete before the mark is read again. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		to->mark = __atomic_load_n(&from->mark, __ATOMIC_RELAXED) == mark ? mark : 0;
		if (to->mark != 0 || look == LOOKS_MAX || *looks == 0)
			return;
		--*looks;
	}
}

/* Returns the time of about the oldest record, 0 if there is none in sight. */
static uint64_t oldest_ns(const struct slot_ring *own, uint64_t used)
{
	const uint64_t first = used > own->count ? used - own->count : 0;
	const uint64_t end = first + least(used - first, OLDEST_SLOTS);

	for (uint64_t at = first; at < end; at++) {
		const struct slot *const slot = &own->slots[at & (own->count - 1)];
		struct slot copy;
		uint32_t looks = 0;

		slot_ring__copy_slot(slot, &copy, &looks);
		if (copy.mark != 0 && (copy.mark & SLOT_MORE) == 0)
			return copy.time_ns;
	}
	return 0;
}

/* Note how much the ring holds, and in a swept pass also since when. */
static void slot_ring__begin(struct ring *ring)
{
	struct slot_ring *const own = slot_ring__of(ring);
	const uint64_t used = slots_used(own), now_ns = clock__now_ns();
	const uint64_t held = least(used, own->count) * sizeof(struct slot);
	uint64_t since_ns;

	counter__set(&ring->used_bytes, held);
	counter__max(&ring->high_watermark_bytes, held);
	if (!ring->swept)
		return;
	since_ns = oldest_ns(own, used);
	counter__set(&own->window.held_ns,
		     since_ns != 0 && since_ns < now_ns ? now_ns - since_ns : 0);
	if (used <= own->count || since_ns < DISORDER_NS)
		since_ns = own->window.seen_ns;
	else
		since_ns -= DISORDER_NS;
	/* Data in flight to a file still need the names of their time. */
	if (own->at == own->end && load_relaxed(&ring->in_flight) == 0)
		counter__max(&ring->horizon_ns, since_ns);
}

/* Returns the slots of the whole record that ends before slot `end` of the copy, which begins with
 * `begin`, and its number's lower bits; 0: there is none. */
static uint32_t whole_before(const struct slot_ring *own, uint64_t begin, uint64_t end,
			     uint32_t *number)
{
	const struct slot *const copy = copy_of(own);
	const uint32_t last = copy[end - 1 - begin].mark;
	const uint32_t part = (last & SLOT_MORE) != 0 ? last & (SLOT_MORE - 1) : 0;
	uint32_t kind;

	if (last == 0 || part >= SLOT_PARTS_MAX || part >= end - begin)
		return 0;
	for (uint32_t i = part; i > 0; i--)
		if (copy[end - 1 - begin - part + i].mark != ((last & ~0xffu) | SLOT_MORE | i))
			return 0;
	kind = copy[end - 1 - begin - part].mark;
	if ((kind & ~0xffu) != (last & ~0xffu) || (kind & SLOT_MORE) != 0 ||
	    own->kinds[kind & 0xffu].bytes == 0 || parts_of(&own->kinds[kind & 0xffu]) != part + 1)
		return 0;
	*number = last >> 8;
	return part + 1;
}

/*
 * Find the whole records in a copy of the slots [begin, end), the newest one first, and take the
 * marks off all other slots. A slot that was not written yet has a record of a turn before, whose
 * number is too low: between two records are as many slots as numbers, or more.
 */
static void slot_ring__sort(struct slot_ring *own, uint64_t begin, uint64_t end, uint64_t last)
{
	struct slot *const copy = copy_of(own);
	uint64_t above = last + 1, above_at = end + 1, found = 0, newest = 0, newest_end = 0;

	for (uint64_t at = end; at > begin;) {
		uint32_t low = 0;
		const uint32_t slots = whole_before(own, begin, at, &low);
		const uint64_t number = last - ((last - low) & (NUMBERS - 1));

		if (slots == 0 || number > last || number <= own->known || number >= above ||
		    above - number > above_at - (at - slots)) {
			copy[--at - begin].mark = 0;
			continue;
		}
		if (found++ == 0) {
			newest = number;
			newest_end = at;
		}
		above = number;
		at -= slots;
		above_at = at;
	}
	if (found == 0)
		return;
	counter__add(&own->window.perf.overwritten_samples, above - own->known - 1);
	counter__add(&own->window.perf.lost_samples, newest - above + 1 - found);
	counter__add(&own->window.taken, found);
	own->known = newest;
	own->next = newest_end;
}

static void slot_ring__take_window(struct slot_ring *own)
{
	struct ring *const ring = &own->window.perf.ring;
	const uint64_t end = slots_used(own);
	/* The program counts a record after its slots. */
	const uint64_t last = __atomic_load_n(&own->head->records, __ATOMIC_ACQUIRE) + 1;
	const uint64_t oldest = end > own->count ? end - own->count : 0;
	const uint64_t begin = own->next > oldest ? own->next : oldest;
	uint32_t looks = LOOKS_OF_ALL_MAX;

	own->window.wanted = false;
	counter__add(&own->window.windows, 1);
	if (end < begin) {
		ring__refuse(ring, WALK_BAD_HEAD, 0);
		own->next = end;
		return;
	}
	for (uint64_t at = begin; at < end; at++)
		slot_ring__copy_slot(&own->slots[at & (own->count - 1)], &copy_of(own)[at - begin],
				     &looks);
	slot_ring__sort(own, begin, end, last);
	own->at = 0;
	own->end = end - begin;
	ring->head = ring->position + own->end;
}

/* All of the copy is delivered: take the requested window. Without one, or if it is empty, free
 * the pages, which may not be needed for hours. */
static void slot_ring__next(struct slot_ring *own)
{
	if (own->window.wanted)
		slot_ring__take_window(own);
	if (own->at == own->end)
		(void)madvise(own->window.copy, own->window.copy_bytes, MADV_DONTNEED);
}

/* Take a window when the ring is released, now, or after the last one is delivered. */
static void slot_ring__hold(struct ring *ring, bool held)
{
	struct slot_ring *const own = slot_ring__of(ring);

	if (held || load_relaxed(&ring->fault) != FAULT_NONE)
		return;
	own->window.wanted = true;
	if (own->at == own->end)
		slot_ring__next(own);
}

/* Find the next record of the copy. NULL: there are no more. */
static const struct slot *slot_ring__look(struct slot_ring *own, const struct slot_kind **kind)
{
	const struct slot *const copy = copy_of(own);

	for (; own->at < own->end; own->at++, own->window.perf.ring.position++) {
		const uint32_t mark = copy[own->at].mark;

		if (mark == 0 || (mark & SLOT_MORE) != 0)
			continue;
		*kind = &own->kinds[mark & 0xffu];
		return &copy[own->at];
	}
	return NULL;
}

static void slot_ring__pass(struct slot_ring *own, const struct slot_kind *kind)
{
	own->at += parts_of(kind);
	own->window.perf.ring.position += parts_of(kind);
}

/* Put the data of a record together. */
static void gather(const struct slot *slot, const struct slot_kind *kind, uint8_t *to)
{
	const uint32_t parts = parts_of(kind);
	uint8_t data[SLOT_DATA_MAX];

	memcpy(data, slot->data, SLOT_FIRST_BYTES);
	for (uint32_t i = 1; i < parts; i++) {
		uint8_t *const more = data + SLOT_FIRST_BYTES + (i - 1) * SLOT_MORE_BYTES;

		memcpy(more, &slot[i].time_ns, sizeof(slot->time_ns));
		memcpy(more + sizeof(slot->time_ns), slot[i].data, sizeof(slot->data));
	}
	memcpy(to, data, kind->bytes);
}

static void slot_ring__write(const struct slot_ring *own, uint8_t *to, const struct slot *slot,
			     const struct slot_kind *kind)
{
	const uint32_t size = sample_bytes(kind);
	const uint32_t raw_bytes = size - SAMPLE_HEAD_BYTES - RAW_HEAD_BYTES;
	uint32_t words[8] = {0, 0, UNKNOWN_TASK, UNKNOWN_TASK, 0, 0, own->cpu, 0};
	uint8_t *const raw = to + SAMPLE_HEAD_BYTES + RAW_HEAD_BYTES;

	memset(raw + kind->bytes, 0, raw_bytes - kind->bytes);
	gather(slot, kind, raw);
	if (kind->task_at != SLOT_NO_TASK)
		memcpy(&words[3], raw + kind->task_at, sizeof(words[3]));
	memcpy(&words[4], &slot->time_ns, sizeof(slot->time_ns));
	walk__store(to, walk__header(PERF_RECORD_SAMPLE, 0, (uint16_t)size));
	walk__store(to + WALK_HEADER_BYTES, kind->id);
	memcpy(to + WALK_HEADER_BYTES + sizeof(kind->id), words, sizeof(words));
	memcpy(to + SAMPLE_HEAD_BYTES, &raw_bytes, sizeof(raw_bytes));
}

/* Put the oldest remaining records into `chunk`. */
static enum ring_take slot_ring__give(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes)
{
	struct slot_ring *const own = slot_ring__of(ring);
	const size_t room = chunk_bytes - CHUNK_MARKER_BYTES;
	const struct slot_kind *kind;
	const struct slot *slot;
	size_t put = 0;

	while ((slot = slot_ring__look(own, &kind)) != NULL) {
		const uint32_t size = sample_bytes(kind);

		if (size > room - chunk->used - put)
			break;
		slot_ring__write(own, chunk->data + chunk->used + put, slot, kind);
		slot_ring__pass(own, kind);
		put += size;
		/* The walk follows while the data are in the nearest caches. */
		if (put >= PIECE_BYTES) {
			perf_ring__put(&own->window.perf, chunk, put);
			put = 0;
		}
	}
	if (put > 0)
		perf_ring__put(&own->window.perf, chunk, put);
	if (slot != NULL)
		return RING_CHUNK_FULL;
	slot_ring__next(own);
	return own->at == own->end ? RING_EMPTY : RING_MORE;
}

/* Count what was not delivered, which nobody will take; no more windows come. */
static void slot_ring__leave(struct ring *ring, bool drained)
{
	struct slot_ring *const own = slot_ring__of(ring);
	const struct slot_kind *kind;

	(void)drained; /* then there is nothing */
	while (slot_ring__look(own, &kind) != NULL) {
		ring__count_abandoned(ring, 1, 1, sample_bytes(kind));
		slot_ring__pass(own, kind);
	}
	own->window.wanted = false;
	slot_ring__unmap(own);
}

const struct ring_ops slot_ring__ops = {
	.copied = true,
	.records = true,
	.stream = &record_stream__ops,
	.join = perf_ring__join,
	.begin = slot_ring__begin,
	.is_unread = ring__is_unread,
	.take = slot_ring__give,
	.hold = slot_ring__hold,
	.leave = slot_ring__leave,
	.free = slot_ring__free,
};
