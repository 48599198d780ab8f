/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../columns/store.h"

/* The distinct values of a column, numbered as they come. A value is two words and a length: a number
 * is one word, and a text of up to 16 bytes is wholly in them; of a longer one they are its hash. */

/* More values are no matter of a dictionary. It stays in the cache. */
#define DICTIONARY_MAX 4096u
#define DICTIONARY_FULL UINT32_MAX
#define DICTIONARY_WORDS_BYTES 16u

struct value_key {
	uint64_t word[2];
	uint32_t bytes;
};

struct dictionary {
	struct dictionary_slot {
		struct value_key key;
		uint32_t number; /* + 1; 0: this place is free */
	} *slot;
	size_t mask;		     /* number of slots in use - 1 */
	size_t count;		     /* of values */
	uint32_t at[DICTIONARY_MAX]; /* of texts: where each is in `data`, its length before it */
};

/* Begin anew with a column of so many values. Returns -errno. */
int dictionary__begin(struct dictionary *dictionary, size_t values);
void dictionary__deinit(struct dictionary *dictionary);

/* Returns the slot of a value, which is free if its `number` is 0. `text`: a longer one, which is compared
 * with those in `data`; NULL: the words are the whole value. */
struct dictionary_slot *dictionary__find(struct dictionary *dictionary, const struct value_key *key,
					 const uint8_t *text, const uint8_t *data);
/* Give the value of a free slot the next number, which is returned; DICTIONARY_FULL: there is none. */
static inline uint32_t dictionary__add(struct dictionary *dictionary, struct dictionary_slot *slot,
				       const struct value_key *key)
{
	if (dictionary->count == DICTIONARY_MAX)
		return DICTIONARY_FULL;
	slot->key = *key;
	slot->number = (uint32_t)++dictionary->count;
	return slot->number - 1;
}
