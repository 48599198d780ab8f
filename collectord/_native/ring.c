/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

void ring__init(struct ring *ring, const struct ring_ops *ops, int wakeup_fd)
{
	ring->ops = ops;
	ring->wakeup_fd = wakeup_fd;
	counter__set(&ring->horizon_ns, UINT64_MAX);
	counter__set(&ring->left_ns, UINT64_MAX);
}

bool ring__is_unread(const struct ring *ring)
{
	return ring->head != ring->position;
}

bool ring__is_over(const struct ring *ring)
{
	/* Acquire twice; the partners are the release in core__forget_ring(), and that in
	 * ring__drop(), before which the data were counted. */
	return load_acquire(&ring->forgotten) && ring->partner == NULL &&
	       load_acquire(&ring->uses) == 0;
}

bool ring__obeys(const struct ring *ring, enum command command)
{
	const struct ring *const behind = ring->partner;

	if (command == COMMAND_LAST)
		return ring->ops->waits || (behind != NULL && behind->ops->waits);
	return command != COMMAND_HOLD ||
	       !(ring->never_held || (behind != NULL && behind->never_held));
}

void ring__last(struct ring *ring)
{
	for (; ring != NULL; ring = ring->behind)
		ring->last = true;
}

void ring__hold(struct ring *ring, bool held)
{
	ring->held = held;
	for (; ring != NULL; ring = ring->behind)
		if (ring->ops->hold != NULL)
			ring->ops->hold(ring, held);
}

void ring__refuse(struct ring *ring, uint32_t reason, uint64_t bytes)
{
	const uint64_t now_ns = clock__now_ns();

	counter__add(&ring->faults, 1);
	counter__add(&ring->quarantined_bytes, bytes);
	if (ring->faults_recent == 0 || now_ns - ring->faults_since_ns >= RING_FAULTS_NS) {
		ring->faults_since_ns = now_ns;
		ring->faults_recent = 0;
	}
	if (++ring->faults_recent == RING_FAULTS_MAX)
		store_relaxed(&ring->fault, reason);
	store_relaxed(&ring->last_fault, reason);
	/* Release; the partner is the acquire in ring__tells_fault(). */
	store_release(&ring->fault_untold, true);
}

bool ring__tells_fault(struct ring *ring)
{
	/* Acquire; the partner is the release in ring__refuse(). */
	return atomic_exchange_explicit(&ring->fault_untold, false, memory_order_acquire);
}

bool ring__tells_hang_up(struct ring *ring)
{
	return load_relaxed(&ring->hung_up) &&
	       !atomic_exchange_explicit(&ring->hung_up_told, true, memory_order_relaxed);
}

void ring__count_fill(struct ring *ring, uint64_t used, uint64_t capacity)
{
	const uint64_t tenths = (used * 10 + capacity - 1) / capacity;
	const uint32_t last = used * 20 <= capacity * 19 ? 9 : 10;

	counter__max(&ring->high_watermark_bytes, used);
	if (used > 0)
		counter__add(&ring->fill[tenths <= 9 ? tenths - 1 : last], 1);
}

void ring__skip(struct ring *ring, enum fault reason, uint64_t capacity)
{
	const uint64_t unread = ring->head - ring->position;

	/* An invalid head may exceed the capacity. */
	ring__refuse(ring, reason, least(unread, capacity));
	ring->position = ring->head;
}

bool ring__load(struct ring *ring, uint64_t head, uint64_t capacity, uint32_t step)
{
	const uint64_t used = head - ring->position;

	ring->head = head;
	if (used > capacity || used % step != 0) {
		ring__skip(ring, WALK_BAD_HEAD, capacity);
		return false;
	}
	counter__set(&ring->used_bytes, used);
	ring__count_fill(ring, used, capacity);
	return true;
}

void ring__count(struct ring *ring, uint64_t samples, uint64_t records, uint64_t bytes)
{
	counter__add(&ring->samples, samples);
	counter__add(&ring->records, records);
	counter__add(&ring->bytes, bytes);
	atomic_fetch_add_explicit(&ring->in_flight, samples, memory_order_relaxed);
}

void ring__count_abandoned(struct ring *ring, uint64_t samples, uint64_t records, uint64_t bytes)
{
	counter__add(&ring->samples, samples);
	counter__add(&ring->records, records);
	counter__add(&ring->bytes, bytes);
	counter__add(&ring->abandoned, samples);
}
