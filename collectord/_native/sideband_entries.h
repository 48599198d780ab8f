/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ENTRIES_BUCKET_BITS 12u

/* The common start of entries in a hash table. */
struct entry {
	struct entry *next;
	uint64_t key;
};

struct entries {
	struct entry *buckets[1u << ENTRIES_BUCKET_BITS];
};

static inline uint32_t entries__bucket(uint64_t key)
{
	return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> (64u - ENTRIES_BUCKET_BITS));
}

/* Returns the link to the entry of this key, or where it would be. */
static inline struct entry **entries__link(struct entries *entries, uint64_t key)
{
	struct entry **link = &entries->buckets[entries__bucket(key)];

	while (*link != NULL && (*link)->key != key)
		link = &(*link)->next;
	return link;
}

/* Returns the entry behind this one, the first one for NULL, or NULL at the end. */
struct entry *entries__next(const struct entries *entries, const struct entry *entry);
