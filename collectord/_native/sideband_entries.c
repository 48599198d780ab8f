/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband_entries.h"

struct entry *entries__next(const struct entries *entries, const struct entry *entry)
{
	uint32_t i = entry != NULL ? entries__bucket(entry->key) + 1 : 0;

	if (entry != NULL && entry->next != NULL)
		return entry->next;
	while (i < 1u << ENTRIES_BUCKET_BITS && entries->buckets[i] == NULL)
		i++;
	return i < 1u << ENTRIES_BUCKET_BITS ? entries->buckets[i] : NULL;
}
