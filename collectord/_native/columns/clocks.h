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
	/* The span around the last stamp: most stamps are near the one before. */
	size_t at;		   /* the reading before it */
	int64_t from_ns, until_ns; /* the stamps for which it is; none at first */
	int64_t start_ns;	   /* the stamp from which the difference changes */
	int64_t ahead_ns;	   /* the difference up to there, modulo 2^64 */
	double gain;		   /* for each ns behind it */
};

/* Find the span of a stamp; there is at least one reading. */
static inline void clocks__place(struct clocks *clocks, int64_t stamp_ns)
{
	const struct clock_reading *const all = clocks->reading;
	const struct clock_reading *now;
	size_t at = clocks->at;
	int64_t gain_ns;

	while (at > 0 && stamp_ns < all[at].stamp_ns)
		at--;
	while (at + 1 < clocks->count && stamp_ns >= all[at + 1].stamp_ns)
		at++;
	now = &all[at];
	clocks->at = at;
	clocks->from_ns = at > 0 ? now->stamp_ns : INT64_MIN;
	clocks->until_ns = INT64_MAX;
	clocks->start_ns = now->stamp_ns;
	clocks->ahead_ns = (int64_t)((uint64_t)now->utc_ns - (uint64_t)now->stamp_ns);
	clocks->gain = 0;
	if (at + 1 == clocks->count)
		return;
	clocks->until_ns = now[1].stamp_ns;
	gain_ns = (int64_t)((uint64_t)now[1].utc_ns - (uint64_t)now[1].stamp_ns -
			    (uint64_t)clocks->ahead_ns);
	clocks->gain = (double)gain_ns / (double)(now[1].stamp_ns - now->stamp_ns);
}

/* Returns the wall clock's time at a stamp; there is at least one reading. */
static inline int64_t clocks__utc(struct clocks *clocks, uint64_t stamp)
{
	const int64_t stamp_ns = (int64_t)stamp;
	int64_t past_ns;

	if (stamp_ns < clocks->from_ns || stamp_ns >= clocks->until_ns)
		clocks__place(clocks, stamp_ns);
	past_ns = stamp_ns > clocks->start_ns ? stamp_ns - clocks->start_ns : 0;
	return (int64_t)(stamp + (uint64_t)clocks->ahead_ns +
			 (uint64_t)(int64_t)(clocks->gain * (double)past_ns));
}
