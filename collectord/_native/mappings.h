/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_MAPPINGS_H
#define COLLECTORD_MAPPINGS_H

#include <stdint.h>

#include "blob.h"

struct mapping {
	uint64_t start, end;
	struct blob *record;
};

/* The mappings of a process that readers need, oldest first. */
struct mappings {
	struct mapping *all;
	uint32_t count, room;
};

/*
 * Add the MMAP or MMAP2 record at `record`, which spans `start` and `length`. munmap writes no
 * record: a new mapping is what tells that an old one is gone. One that it covers in part is
 * kept, and comes first in a replay: readers cut it as the new one overlaps it.
 */
void mappings__add(struct mappings *mappings, struct budget *budget, const uint8_t *record,
		   uint64_t start, uint64_t length);
/* Something is mapped there that no reader needs: forget what it covers. */
void mappings__cover(struct mappings *mappings, struct budget *budget, uint64_t start,
		     uint64_t length);
/* Have the same as `from`, as a child has after fork. */
void mappings__inherit(struct mappings *mappings, struct budget *budget,
		       const struct mappings *from);
void mappings__clear(struct mappings *mappings, struct budget *budget);
void mappings__deinit(struct mappings *mappings, struct budget *budget);

#endif
