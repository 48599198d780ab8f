/* SPDX-License-Identifier: Apache-2.0 */
#include "aux_ends.h"

static uint64_t *aux_ends__at(struct aux_ends *ends, uint32_t index)
{
	return &ends->all[(ends->first + index) % AUX_ENDS];
}

void aux_ends__push(struct aux_ends *ends, uint64_t end)
{
	if (ends->count > 0 && end <= *aux_ends__at(ends, ends->count - 1))
		return;
	if (ends->count < AUX_ENDS)
		ends->count++;
	*aux_ends__at(ends, ends->count - 1) = end;
}

void aux_ends__drop(struct aux_ends *ends, uint64_t position)
{
	while (ends->count > 0 && *aux_ends__at(ends, 0) <= position) {
		ends->first = (ends->first + 1) % AUX_ENDS;
		ends->count--;
	}
}

uint64_t aux_ends__last(const struct aux_ends *ends, uint64_t limit)
{
	uint32_t low = 0, high = ends->count;

	while (low < high) {
		const uint32_t middle = low + (high - low) / 2;

		if (ends->all[(ends->first + middle) % AUX_ENDS] <= limit)
			low = middle + 1;
		else
			high = middle;
	}
	return low > 0 ? ends->all[(ends->first + low - 1) % AUX_ENDS] : 0;
}
