/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband_memory.h"

#include <string.h>

void *memory__alloc(struct sideband_table *table, size_t bytes)
{
	void *memory = NULL;

	if (table->bytes_max - counter__read(&table->bytes) >= bytes)
		memory = calloc(1, bytes);
	if (memory == NULL)
		counter__add(&table->dropped, 1);
	else
		counter__add(&table->bytes, bytes);
	return memory;
}

void memory__drop(struct sideband_table *table, struct entries *entries, struct entry *entry,
		  size_t bytes)
{
	*entries__link(entries, entry->key) = entry->next;
	memory__release(table, entry, bytes);
}

struct blob *blob__new(struct sideband_table *table, const uint8_t *record)
{
	const uint16_t size = walk__size(walk__load(record));
	struct blob *blob = memory__alloc(table, sizeof(*blob) + size);

	if (blob == NULL)
		return NULL;
	blob->refs = 1;
	blob->size = size;
	memcpy(blob->bytes, record, size);
	return blob;
}

void blob__put(struct sideband_table *table, struct blob *blob)
{
	if (blob != NULL && --blob->refs == 0)
		memory__release(table, blob, sizeof(*blob) + blob->size);
}
