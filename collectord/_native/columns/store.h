/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Make room for one more item of `size` bytes in an array, whose room doubles. `array`: the address of
 * its pointer. Returns -errno. */
int array__grow(void *array, size_t count, size_t size);

/* Memory that grows. */
struct store {
	uint8_t *data;
	size_t bytes, room;
};

/* Make room for `more` bytes. Returns -errno. */
int store__grow(struct store *store, size_t more);

static inline int store__reserve(struct store *store, size_t more)
{
	return store->room - store->bytes >= more && store->data != NULL ? 0
									 : store__grow(store, more);
}

/* Returns the length of the sound UTF-8 sequence at `text`, 0 if there is none. */
size_t utf8__sequence(const uint8_t *text, size_t bytes);
/* Append text up to its first NUL. Bytes that are no UTF-8 are written as \xNN. Returns -errno. */
int store__put_text(struct store *store, const uint8_t *text, size_t bytes);
