/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>

#include "store.h"

/*
 * The memory of batches that were released, for the next ones: memory that goes back to the kernel
 * costs a fault for each page when it is taken again, which is more than all decoding. Each buffer of
 * each column has a slot. Batches outlive their stream, and any thread may release them.
 */
struct spares;

#define SPARES_EACH 3u /* slots of a column: its buffers of validity, offsets and values */

/* Returns spares for some columns that the caller holds, NULL without memory. */
struct spares *spares__new(size_t columns);
struct spares *spares__hold(struct spares *spares);
void spares__drop(struct spares *spares);
/* Take what is in a slot; the store is empty without. */
void spares__take(struct spares *spares, size_t slot, struct store *store);
/* Put memory into a slot; it is freed if there is some already. */
void spares__put(struct spares *spares, size_t slot, struct store store);
