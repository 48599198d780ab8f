/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "sideband_table.h"

/* The memory of a table, which is bounded: that of its entries, and of records. */

/* A record as it came, shared by all its users. */
struct blob {
	uint32_t refs;
	uint16_t size;
	uint8_t bytes[];
};

/* Returns zeroed memory; NULL: there is none, which is counted as dropped. */
void *memory__alloc(struct sideband_table *table, size_t bytes);

static inline void memory__release(struct sideband_table *table, void *memory, size_t bytes)
{
	free(memory);
	counter__sub(&table->bytes, bytes);
}

/* Returns the entry of this key, a new zeroed one if there is none, or NULL. */
static inline void *memory__find_or_new(struct sideband_table *table, struct entries *entries,
					uint64_t key, size_t bytes)
{
	struct entry **const link = entries__link(entries, key);

	if (*link == NULL)
		*link = memory__alloc(table, bytes);
	if (*link != NULL)
		(*link)->key = key;
	return *link;
}

/* Remove an entry of so many bytes. */
void memory__drop(struct sideband_table *table, struct entries *entries, struct entry *entry,
		  size_t bytes);

/* Returns a copy of a record, NULL as above. */
struct blob *blob__new(struct sideband_table *table, const uint8_t *record);

static inline struct blob *blob__get(struct blob *blob)
{
	if (blob != NULL)
		blob->refs++;
	return blob;
}

void blob__put(struct sideband_table *table, struct blob *blob);
