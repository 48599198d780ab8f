/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_AUX_ENDS_H
#define COLLECTORD_AUX_ENDS_H

#include <stdint.h>

#define AUX_ENDS 1024u

/* Where AUX records end, ascending, as far as nothing behind was taken. With more than fit the
 * newest two become one: what they tell of stays together. */
struct aux_ends {
	uint64_t all[AUX_ENDS];
	uint32_t first, count;
};

/* One that is not behind the last one is passed over. */
void aux_ends__push(struct aux_ends *ends, uint64_t end);
/* Forget those up to `position`. */
void aux_ends__drop(struct aux_ends *ends, uint64_t position);
/* The last one up to `limit`, 0 if there is none. */
uint64_t aux_ends__last(const struct aux_ends *ends, uint64_t limit);

#endif
