/* SPDX-License-Identifier: Apache-2.0 */
#include "blob.h"

#include <stdlib.h>
#include <string.h>

#include "walk.h"

void *budget__alloc(struct budget *budget, size_t bytes)
{
	void *memory = NULL;

	if (budget->bytes_max - budget->bytes >= bytes)
		memory = calloc(1, bytes);
	if (memory == NULL)
		budget->refused++;
	else
		budget->bytes += bytes;
	return memory;
}

void budget__release(struct budget *budget, void *memory, size_t bytes)
{
	free(memory);
	budget->bytes -= bytes;
}

struct blob *blob__new(struct budget *budget, const uint8_t *record)
{
	const uint16_t size = walk__size(walk__load(record));
	struct blob *blob = budget__alloc(budget, sizeof(*blob) + size);

	if (blob == NULL)
		return NULL;
	blob->refs = 1;
	blob->size = size;
	memcpy(blob->bytes, record, size);
	return blob;
}

struct blob *blob__get(struct blob *blob)
{
	if (blob != NULL)
		blob->refs++;
	return blob;
}

void blob__put(struct budget *budget, struct blob *blob)
{
	if (blob != NULL && --blob->refs == 0)
		budget__release(budget, blob, sizeof(*blob) + blob->size);
}
