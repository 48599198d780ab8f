/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

#include "thread.h"

/*
 * How far a perf ring was read, and how many samples came out of it: in memory that outlives this
 * process, if another one keeps the ring. Its shard writes it before it gives the bytes back to
 * the kernel, so a successor that begins here repeats no record and misses none.
 */
struct ring_note {
	_Atomic uint64_t turn; /* at[turn & 1] is valid */
	struct {
		uint64_t position, samples;
	} at[2];
	uint64_t unused[3];
};

_Static_assert(sizeof(struct ring_note) == 64, "other processes read it");

static inline void ring_note__write(struct ring_note *note, uint64_t position, uint64_t samples)
{
	const uint64_t turn = counter__read(&note->turn) + 1;

	note->at[turn & 1].position = position;
	note->at[turn & 1].samples = samples;
	/* Release: a kill leaves the old pair or the new one. The partner is the acquire in
	 * ring_note__read(). */
	store_release(&note->turn, turn);
}

static inline void ring_note__read(const struct ring_note *note, uint64_t *position,
				   uint64_t *samples)
{
	const uint64_t turn = load_acquire(&note->turn);

	*position = note->at[turn & 1].position;
	*samples = note->at[turn & 1].samples;
}
