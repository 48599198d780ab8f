/* SPDX-License-Identifier: Apache-2.0 */
#include "walk.h"

#define MAGIC_MASK 0xffffff00u

static enum fault blk__check(uint32_t magic)
{
	if (magic == BLK_MAGIC)
		return FAULT_NONE;
	if ((magic & MAGIC_MASK) == (BLK_MAGIC & MAGIC_MASK) ||
	    (__builtin_bswap32(magic) & MAGIC_MASK) == (BLK_MAGIC & MAGIC_MASK))
		return BLK_OLD_MAGIC;
	return BLK_NO_MAGIC;
}

static enum fault blk__count(const uint8_t *record, struct blk_state *state, struct blk_tally *tally)
{
	const uint32_t sequence = load32(record + 4);
	/* Modulo 2^32 on purpose: the number wraps. */
	const uint32_t ahead = state->begun ? sequence - state->sequence : 1;
	const uint64_t time_ns = walk__load(record + 8);

	if ((load32(record + 28) & BLK_CLASS_NOTIFY) != 0) {
		tally->notes++;
		return FAULT_NONE;
	}
	if (ahead == 0 || ahead > UINT32_MAX / 2)
		return BLK_STALE;
	tally->numbered += ahead;
	tally->missing += ahead - 1;
	state->sequence = sequence;
	state->begun = true;
	tally->events++;
	note_times(&tally->first_ns, &tally->last_ns, time_ns, time_ns);
	return FAULT_NONE;
}

size_t blk__run(const uint8_t *data, size_t bytes, uint32_t longest, struct blk_state *state,
		struct blk_tally *tally, enum fault *fault)
{
	size_t at = 0;

	*fault = FAULT_NONE;
	while (bytes - at >= BLK_HEADER_BYTES) {
		const size_t size = (size_t)BLK_HEADER_BYTES + load16(data + at + 46);

		*fault = blk__check(load32(data + at));
		if (*fault == FAULT_NONE && longest > 0 && size > longest)
			*fault = BLK_NO_MAGIC;
		if (*fault != FAULT_NONE || size > bytes - at)
			break;
		*fault = blk__count(data + at, state, tally);
		if (*fault != FAULT_NONE)
			break;
		state->last_bytes = (uint32_t)size;
		at += size;
	}
	/* The first word of an incomplete header must be right too. */
	if (*fault == FAULT_NONE && bytes - at >= 4 && bytes - at < BLK_HEADER_BYTES)
		*fault = blk__check(load32(data + at));
	return at;
}
