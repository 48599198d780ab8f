/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in ns: the clock that the rings' records carry (attr.clockid). */
static inline uint64_t clock__now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Extend the span of events `*first_ns` to `*last_ns` (0: empty) by another span. */
static inline void note_times(uint64_t *first_ns, uint64_t *last_ns, uint64_t more_first_ns,
			      uint64_t more_last_ns)
{
	if (more_first_ns == 0)
		return;
	if (*first_ns == 0 || more_first_ns < *first_ns)
		*first_ns = more_first_ns;
	if (more_last_ns > *last_ns)
		*last_ns = more_last_ns;
}
