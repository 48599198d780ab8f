/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Readings of a file's clock beside the wall clock, the earliest first: what places its records in
 * time. Between two readings the difference of the clocks changes evenly; before the first and
 * behind the last it is theirs. */
struct clock_reading {
	int64_t stamp_ns, utc_ns;
};

struct clocks {
	struct clock_reading *reading;
	size_t count;
	size_t at; /* the reading before the last stamp: most stamps are near the one before */
};

/* Returns the wall clock's time at a stamp; there is at least one reading. */
static inline int64_t clocks__utc(struct clocks *clocks, uint64_t stamp_ns)
{
	const struct clock_reading *const all = clocks->reading;
	const int64_t stamp = (int64_t)stamp_ns;
	size_t at = clocks->at;
	double share;
	int64_t before, gain;

	while (at > 0 && stamp < all[at].stamp_ns)
		at--;
	while (at + 1 < clocks->count && stamp >= all[at + 1].stamp_ns)
		at++;
	clocks->at = at;
	before = (int64_t)((uint64_t)all[at].utc_ns - (uint64_t)all[at].stamp_ns);
	if (at + 1 == clocks->count || stamp <= all[at].stamp_ns)
		return (int64_t)((uint64_t)stamp + (uint64_t)before);
	gain = (int64_t)((uint64_t)all[at + 1].utc_ns - (uint64_t)all[at + 1].stamp_ns -
			 (uint64_t)before);
	if (gain == 0)
		return (int64_t)((uint64_t)stamp + (uint64_t)before);
	share = (double)(stamp - all[at].stamp_ns) /
		(double)(all[at + 1].stamp_ns - all[at].stamp_ns);
	return (int64_t)((uint64_t)stamp + (uint64_t)before +
			 (uint64_t)(int64_t)(share * (double)gain));
}
