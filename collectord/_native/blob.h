/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_BLOB_H
#define COLLECTORD_BLOB_H

#include <stddef.h>
#include <stdint.h>

/* Memory with a bound. What it refuses is counted. */
struct budget {
	size_t bytes, bytes_max;
	uint64_t refused;
};

/* Zeroed memory, or NULL. */
void *budget__alloc(struct budget *budget, size_t bytes);
void budget__release(struct budget *budget, void *memory, size_t bytes);

/* A record as it came, shared by all that refer to it. */
struct blob {
	uint32_t refs;
	uint16_t size;
	uint8_t bytes[];
};

/* A copy of the whole record at `record`, or NULL. */
struct blob *blob__new(struct budget *budget, const uint8_t *record);
/* Both take NULL as well. */
struct blob *blob__get(struct blob *blob);
void blob__put(struct budget *budget, struct blob *blob);

#endif
