/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_PASS_H
#define COLLECTORD_PASS_H

#include <stdbool.h>
#include <stdint.h>

#include "shard.h"

/* A pass over a shard's rings. All calls are made by who makes the shard's passes. */

/* Drain what is due; of lanes whose generation is not done everything, and of all lanes after a pass
 * that left something behind. Those that are done begin `generation`, if it is a new one. */
void pass__run(struct shard *shard, uint64_t generation);

/* Drain one ring to the end, outside of a pass, and give up the shard's half full chunks if none
 * was free. False: part of the ring is unread. */
bool pass__last(struct shard *shard, struct ring *ring);

#endif
