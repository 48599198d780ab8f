/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_MUTATION_H
#define COLLECTORD_MUTATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "walk.h"

/* What a core of COLLECTORD_MUTATION loses, once for each of them: the ledger must miss it. */

/* Forget the last of walked records that have samples. Returns their bytes. */
size_t mutation__records(const uint8_t *records, size_t bytes, struct walk_tally *tally);
/* The last event of a page vanishes. */
void mutation__page(uint8_t *page, uint32_t page_bytes);
/* The first event of records of blktrace vanishes. Returns their bytes. */
uint32_t mutation__blktrace(uint8_t *data, uint32_t bytes, struct blk_tally *tally);
/* Of so many bytes of an AUX piece, how many stay. */
uint64_t mutation__aux(uint64_t bytes);

#endif
